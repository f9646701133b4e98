"""What stands before every route: is the host ours, the page that calls ours, the caller known, the body bounded?

Pure ASGI, since it runs for every request. A route is closed unless it is named in OPEN, so a new route can not be open
by being forgotten.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any
from urllib.parse import unquote_plus, urlsplit

from starlette.exceptions import HTTPException

from rota.api.answers import Json, dumps
from rota.api.bodies import SMALL_BODY, Message, Receive, Terms
from rota.api.connections import network
from rota.api.dry import is_dry_run
from rota.api.gate import COOKIE, Known, Turned
from rota.api.heads import (
    LONGEST_COOKIES,
    LONGEST_PATH,
    LONGEST_QUERY,
    LONGEST_VALUE,
    MOST_HEADERS,
    TOO_LONG,
    TOO_MANY_HEADERS,
    content_length,
)
from rota.api.house import House
from rota.api.limits import Buckets
from rota.api.read_slots import ReadSlots, TooManyReads, drained, has_gone, is_stream, reads_files
from rota.app.authz import MAY, Principal, Role

Scope = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BODY = 4 << 20
# Members of lists and objects: these, not the bytes, are what parsing costs, and it is done on the event loop. A
# request for a run has some dozens, a sweep's parameters and a diff of source code some thousands; rows of metrics are
# nothing but members: 10,000 of them, with 20 numbers each.
MAX_MEMBERS, MAX_METRIC_MEMBERS = 50_000, 200_000
# Members that count as one call for the bound on calls: a person may send 80,000 a second. An agent may do so, too,
# whose calls are fewer and count for more.
MEMBERS_PER_CALL = 40
LONGEST_WAIT_S = 1.0  # of a call that comes too fast; where it would have to wait longer it is refused
HOSTS_REMEMBERED, LONGEST_HOST = 1000, 256
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN = frozenset({"/", "/health", "/docs", "/openapi.json", "/healthz", "/readyz", "/wild/v2/system-health", "/login"})
OPEN_TO_READ = frozenset({"/prompt-skills"})
STATIC = "/static/"
OPEN_BELOW = ("/prompt-skills/", STATIC)  # to read
# Routes on which only an admin may do anything, and those on which an agent may not.
OFFICE = re.compile(r"/(tokens|orchestrator|nodes|gpu/initialize)(/.*)?")
PEOPLES = re.compile(r"/cluster|/(queue|runs)/[^/]*/priority")
DRY_RUN = re.compile(rb"(?:^|&)dry_run=(?:true|1|on|t|yes|y)(?:&|$)", re.IGNORECASE)
SWEEPS = "/sweeps"  # those that make runs wait for each other, in a line of their own
ACQUIRE = "/acquire"  # waits for GPUs, for as long as it takes, and has a few numbers in its body
LEASE_PATHS = frozenset({"/status", "/jobs", "/acquire", "/release"})
STRANGER = Principal("anonymous", Role.VIEWER)  # on an open route, without a token
OWNER_OF_PID = Principal("anonymous", Role.USER)  # at the lease door's own port: whose pid it names decides
UNKNOWN = frozenset({"", "pid"})  # how such a caller is known
NAMELESS = UNKNOWN | {"open"}  # everybody has the same name then
# On the unix socket. Of a job the kernel's word is not its own, and of who could not be looked at it is not known.
PEER = re.compile(r"(uid|job|unseen)=([0-9]{1,10})")

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        b"frame-ancestors 'none'",
    ),
]
NO_STORE = (b"cache-control", b"no-store")
LONGEST_NAME = 60  # of a parameter that may be a misspelt dry_run, with every letter written as %XX
DEAR_QUERY = 1024  # bytes; a longer one waits for a turn of its account or address before it is looked at
MOST_PARAMETERS = 100  # of a query: no route knows more than a dozen
ZONE = re.compile(r"[A-Za-z0-9_-]{1,20}")  # of a link-local address: an interface
SESSION = re.compile(r"[A-Za-z0-9_=.-]{1,500}")


UNSEEN = "who you are could not be looked up just now, as the machine is busy; try again, or show a token"


class Guard:
    def __init__(self, app: App, house: House, *, lease_port: bool = False, loopback: bool = True) -> None:
        self._app = app
        self._house = house
        self._lease_port = lease_port  # only the lease door's routes are behind it
        self._needs_no_token = lease_port and loopback
        self._hosts = _own_names(house.settings.host, house.settings.server_url) | {*house.settings.allowed_hosts}
        self._body_s = house.settings.request_seconds
        self._known_hosts: set[str] = set()  # as they come in the header, with a port or without

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if len(scope.get("query_string", b"")) > DEAR_QUERY:
            await self._house.turns.turn(_peer(scope, _source(scope)))
        headers = _Headers(scope["headers"])
        if headers.cookies:
            scope["headers"] = headers.without_strange_cookies(scope["headers"])
        refusal = self._examine(scope, headers)
        if refusal is not None:
            await self._house.turns.turn(_peer(scope, _source(scope)))
            await self._refuse(scope, receive, send, refusal)
            return
        if "rota.wait_s" in scope:
            await asyncio.sleep(scope["rota.wait_s"])
        await self._house.turns.turn(scope["rota.party"])
        if scope["type"] == "websocket":
            await self._app(scope, receive, send)
            return
        if 0 <= scope.get("rota.whole", -1) <= SMALL_BODY:
            await self._pass_on(scope, receive, send, whole=True)
            return
        # the body is large, or not here yet
        async with self._house.bodies.incoming(receive, self._terms(scope, headers.length)) as bounded:
            await self._pass_on(scope, bounded, send, whole=False)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, *, whole: bool) -> None:
        slots = self._slots(scope)
        if slots is None:
            await self._app(scope, receive, _adding_headers(send))
        elif whole or scope["method"] in SAFE:
            await self._take_slot(slots, scope, receive, send)
        else:
            async with AsyncExitStack() as stack:
                await self._app(scope, _taking_slot(receive, stack, slots, scope["rota.party"]), _adding_headers(send))
                await drained(scope)  # with its place, if it took one

    async def _take_slot(self, slots: ReadSlots, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        adding = _adding_headers(send)

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await adding(message)

        try:
            async with slots.slot(scope["rota.party"]):
                if scope["method"] not in SAFE and not _is_dry(scope["query_string"]):
                    begun = True  # whether a change is made is not known from now on
                if begun or not has_gone(scope):
                    await self._app(scope, receive, noting)
                    await drained(scope)
                    return
            # The connection is closing: the server calls a request that ends before it is closed a mistake.
            while (await receive())["type"] != "http.disconnect":
                pass
        except asyncio.CancelledError:  # the server stops, and does not wait for it any longer
            if begun:
                raise
            await self._refuse(scope, receive, send, Turned(503, "the server is stopping; ask the next one", 1.0))
        except TooManyReads as error:
            await self._refuse(scope, receive, send, Turned(429, str(error), 1.0))

    def _slots(self, scope: Scope) -> ReadSlots | None:
        """Return where this request waits for others of its party, if it does. What may wait for long has a line of
        its own, elsewhere."""
        method, path = scope["method"], scope["path"]
        if path in OPEN:
            return None
        if scope["rota.who"] is STRANGER and path.startswith(STATIC):  # answered from memory, without a thread
            return None
        if method in ("GET", "HEAD"):
            if is_stream(path):
                return None
            return self._house.file_reads if reads_files(path) else self._house.reads
        if method in SAFE or path == ACQUIRE:
            return None
        if path.startswith(SWEEPS) and not path.endswith(("/stop", "/runs")):
            return self._house.sweep_calls
        return self._house.dry_runs if _is_dry(scope["query_string"]) else self._house.changes

    def _examine(self, scope: Scope, headers: _Headers) -> Turned | None:
        source = _source(scope)
        peer = PEER.fullmatch(source) if "=" in source else None
        if peer is None:  # on the unix socket there is no browser, and no name to rebind
            turned = self._browser(headers, scope.get("method", "GET"))
            if turned is not None:
                return turned
        if len(scope.get("raw_path") or b"") > LONGEST_PATH or len(scope.get("query_string", b"")) > LONGEST_QUERY:
            return Turned(414, TOO_LONG)
        if _parameters(scope.get("query_string", b"")) > MOST_PARAMETERS:
            return Turned(414, f"the address has too many parameters: use at most {MOST_PARAMETERS}")
        if len(scope["headers"]) > MOST_HEADERS or headers.too_long:
            return Turned(431, TOO_MANY_HEADERS)
        if _misspelt(scope.get("query_string", b"")):
            return Turned(422, "to try something out write dry_run=true; nothing was done")
        if headers.length > MAX_BODY:
            return Turned(413, f"the body is larger than {MAX_BODY} bytes")
        turned = self._identify(scope, headers, source, int(peer[2]) if peer and peer[1] == "uid" else None)
        if turned is not None and turned.status == 401 and peer and peer[1] == "unseen" and not headers.token:
            return Turned(503, UNSEEN, 1.0)
        return self._too_large(scope, headers.length) if turned is None and headers.length > SMALL_BODY else turned

    def _too_large(self, scope: Scope, length: int) -> Turned | None:
        """Refuse a body by the role and the route, before any of it is read."""
        if scope["type"] != "http" or length <= self._most_bytes(scope):
            return None
        who: Principal = scope["rota.who"]
        if _is_unknown(scope):
            return Turned(413, f"the body is larger than {SMALL_BODY} bytes, which takes a token to send")
        if scope["path"] == ACQUIRE or scope["method"] in SAFE:
            return Turned(413, f"the body is larger than {SMALL_BODY} bytes")
        return Turned(403, f"{who.name} ({who.role}) may not send more than {SMALL_BODY} bytes here; ask an admin")

    def _most_bytes(self, scope: Scope) -> int:
        """MAX_BODY for those only who could do something with it."""
        role, path = scope["rota.who"].role, scope["path"]
        if _is_unknown(scope) or path == ACQUIRE or scope["method"] in SAFE:
            return SMALL_BODY
        if role is Role.ADMIN:
            return MAX_BODY
        forbidden = not MAY[role] or OFFICE.fullmatch(path) or (role is Role.AGENT and PEOPLES.fullmatch(path))
        return SMALL_BODY if forbidden else MAX_BODY

    def _terms(self, scope: Scope, length: int) -> Terms:
        return Terms(
            party=scope["rota.owner"],
            length=length,
            most_bytes=self._most_bytes(scope),
            most_members=MAX_METRIC_MEMBERS if scope["path"].endswith("/metrics") else MAX_MEMBERS,
            within_s=self._body_s,
            pay=partial(self._pay, scope),
        )

    def _pay(self, scope: Scope, members: int) -> None:
        """Count what a body costs to parse against its party's calls, unless that is an admin, who has no budget
        anywhere. Refused where the calls are used up: many heads may have passed before the first body came."""
        who: Principal = scope["rota.who"]
        if who.role is Role.ADMIN:
            return
        buckets, party, now = self._buckets(who), scope["rota.party"], time.monotonic()
        wait_s = buckets.wait(party, now)
        if wait_s > LONGEST_WAIT_S:
            turned = _too_fast(party, wait_s)
            raise HTTPException(turned.status, turned.why, {"Retry-After": _retry_after(turned)})
        buckets.charge(party, members / MEMBERS_PER_CALL * buckets.rate / self._house.people.rate, now)

    def _browser(self, headers: _Headers, method: str) -> Turned | None:
        """A page of another site must not call us, neither under its own name (Origin) nor under one that it made
        resolve to this machine (Host)."""
        host = headers.host
        if not self._ours(host):
            return Turned(421, f"this server is not {host[:100]!r}; start it with ROTA_ALLOWED_HOSTS to add a name")
        origin = headers.origin
        if origin is not None and origin.lower() not in (f"http://{host.lower()}", f"https://{host.lower()}"):
            return Turned(403, f"pages of {origin[:100]!r} may not call this server")
        link = headers.fetch_mode == "navigate" and method in SAFE  # a person may follow one from anywhere
        if origin is None and headers.fetch_site in ("cross-site", "same-site") and not link:
            return Turned(403, "pages of other sites may not call this server")
        return None

    def _ours(self, host: str) -> bool:
        if host in self._known_hosts:
            return True
        if not self._is_ours(host):
            return False
        if len(host) <= LONGEST_HOST and len(self._known_hosts) < HOSTS_REMEMBERED:
            self._known_hosts.add(host)
        return True

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if re.fullmatch(r"(?s).*:[0-9]*", host) and not host.endswith("]") else host
        if name.lower() in self._hosts:
            return True
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        # An address is nobody's to rebind; behind its % there may be any text, also a name.
        return "%" not in name or ZONE.fullmatch(getattr(address, "scope_id", None) or "") is not None

    def _identify(self, scope: Scope, headers: _Headers, source: str, uid: int | None) -> Turned | None:
        scope["rota.source"] = source = _peer(scope, source)
        found = self._house.gate.admit(source=source, secret=headers.token, cookie=headers.cookie, uid=uid)
        if isinstance(found, Known):
            if found.by == "cookie" and scope.get("method", "GET") not in SAFE and headers.origin is None:
                return Turned(403, "a browser session may change things only from a page of this server")
            if found.by == "open" and self._needs_no_token:
                found = Known(OWNER_OF_PID, "pid")
            self._mark(scope, found, source)
            return self._pace(scope)
        if found.status == 401:
            if self._needs_no_token and not headers.token:
                self._mark(scope, Known(OWNER_OF_PID, "pid"), source)
                return self._pace(scope)
            if is_open(scope["path"], scope.get("method", "GET")) and scope["type"] == "http":
                self._mark(scope, Known(STRANGER, ""), source)
                return self._pace(scope)
        return found

    def _mark(self, scope: Scope, known: Known, source: str) -> None:
        """For the routes. `rota.party` is to whom the request is accounted, `rota.source` where it comes from, in the
        same words where nobody is known by a name. `rota.owner` is to whom that is accounted of which agents have none
        of their own, since a person may have any number of them. `rota.holds` is for those that keep somebody for long:
        a token may be revoked meanwhile."""
        scope["rota.who"], scope["rota.by"], scope["rota.known"] = known.who, known.by, known
        nameless = known.by in NAMELESS
        scope["rota.party"] = source if nameless else known.who.name
        scope["rota.owner"] = source if nameless else known.who.owner
        scope["rota.holds"] = partial(self._house.gate.holds, known)

    def _buckets(self, who: Principal) -> Buckets:
        return self._house.agents if who.role is Role.AGENT else self._house.people

    def _pace(self, scope: Scope) -> Turned | None:
        buckets, party, now = self._buckets(scope["rota.who"]), scope["rota.party"], time.monotonic()
        wait_s = buckets.take(party, now)
        if not wait_s:
            return None
        if wait_s > LONGEST_WAIT_S or buckets is self._house.agents:
            return _too_fast(party, wait_s)
        buckets.charge(party, 1.0, now)  # so that the next one waits for this one, too
        scope["rota.wait_s"] = wait_s
        return None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, turned: Turned) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 4000 + turned.status, "reason": turned.why[:100]})
            return
        body: dict[str, Any] = {"detail": turned.why}
        if turned.status == 422:
            body["detail"] = [{"type": "value_error", "loc": ["query", "dry_run"], "msg": turned.why, "input": None}]
        if self._lease_port or scope["path"] in LEASE_PATHS:
            body["error"] = turned.why
        headers = {"Retry-After": _retry_after(turned)} if turned.status in (429, 503) else None
        await Json(body, turned.status, headers)(scope, receive, _adding_headers(send))


def _misspelt(query: bytes) -> bool:
    if not query:
        return False
    names = (part.partition(b"=")[0] for part in query.split(b"&"))
    short = {unquote_plus(name.decode("latin-1")) for name in names if len(name) <= LONGEST_NAME}
    return any(map(is_dry_run, short - {"dry_run"}))


def _parameters(query: bytes) -> int:
    """Return how many there are, at most: each costs more to parse than to send."""
    return query.count(b"&") + 1


def _is_dry(query: bytes) -> bool:
    """Return whether nothing but a dry run can be meant: of several words for it the last one counts."""
    return b"dry_run" in query and query.count(b"dry_run") == 1 and DRY_RUN.search(query) is not None


def _is_unknown(scope: Scope) -> bool:
    return scope["rota.by"] in UNKNOWN


def _source(scope: Scope) -> str:
    return (scope.get("client") or ("",))[0]


def _peer(scope: Scope, source: str) -> str:
    """The account at the other end of the connection, where the kernel has told it, else the address. No name that a
    token may have."""
    peer: str = scope.get("rota.peer") or network(source)
    return peer if " " in peer else f"address {peer}"


def _too_fast(party: str, wait_s: float) -> Turned:
    return Turned(429, f"too many calls by {party}; wait {wait_s:.1f} s", wait_s)


def _retry_after(turned: Turned) -> str:
    return str(max(1, math.ceil(turned.retry_after_s)))


def is_open(path: str, method: str) -> bool:
    return path in OPEN or (method in SAFE and (path in OPEN_TO_READ or path.startswith(OPEN_BELOW)))


def _own_names(host: str, url: str) -> set[str]:
    """Under which this server is reached without being told more: as the machine is called, and as it was started."""
    machine = socket.gethostname().lower()
    try:
        told = urlsplit(url).hostname or ""
    except ValueError:
        told = ""
    return {"localhost", machine, machine.partition(".")[0], host.lower(), told} - {""}


class _Headers:
    """The few headers the guard reads."""

    __slots__ = (
        "cookie",
        "cookies",
        "fetch_mode",
        "fetch_site",
        "host",
        "hosts",
        "length",
        "origin",
        "token",
        "too_long",
    )

    def __init__(self, raw: list[tuple[bytes, bytes]]) -> None:
        self.host, self.hosts = "", 0  # and how many there are
        self.origin: str | None = None
        self.fetch_site = self.fetch_mode = ""
        self.token: str | None = None
        self.cookie: str | None = None
        self.cookies = 0  # bytes
        self.too_long = any(len(value) > LONGEST_VALUE and name != b"cookie" for name, value in raw)
        self.length = 0
        for name, value in raw:
            match name:
                case b"host":
                    # two of them name no server: which one a proxy before us went by is not known
                    self.host = "several" if self.hosts else value.decode("latin-1")
                    self.hosts += 1
                case b"origin":
                    # as above: two of them are no page of ours
                    self.origin = value.decode("latin-1") if self.origin is None else "several"
                case b"x-auth-token":
                    self.token = value.decode("utf-8", "surrogateescape") or self.token  # as a variable would hold it
                case b"authorization":
                    scheme, _, rest = value.decode("utf-8", "surrogateescape").partition(" ")
                    if scheme.lower() == "bearer" and self.token is None:
                        self.token = rest.strip() or None
                case b"cookie":
                    self.cookies += len(value) + 1
                    if self.cookies <= LONGEST_COOKIES:
                        self.cookie = _session(value.decode("latin-1")) or self.cookie
                case b"content-length":
                    self.length = content_length(value)
                case b"sec-fetch-site":
                    self.fetch_site = value.decode("latin-1")
                case b"sec-fetch-mode":
                    self.fetch_mode = value.decode("latin-1")

    def without_strange_cookies(self, raw: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Leave our own alone: the frameworks parse all cookies of every request, and Python before 3.11.10 and 3.12.6
        takes seconds for some (CVE-2024-7592)."""
        own = [] if self.cookie is None else [(b"cookie", f"{COOKIE}={self.cookie}".encode("latin-1"))]
        return [*(each for each in raw if each[0] != b"cookie"), *own]


def _session(header: str) -> str | None:
    """By hand: browsers send cookies of all ports of this host, and one odd neighbour must not hide ours."""
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name == COOKIE:
            found = SESSION.fullmatch(value.strip('"'))
            if found is not None:  # else it may be one of another path that is no session: a good one may follow
                return found[0]
    return None


def _adding_headers(send: Send) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = message.get("headers", ())
            stored = any(name == b"cache-control" for name, _ in headers)
            message["headers"] = [*headers, *HEADERS] if stored else [*headers, *HEADERS, NO_STORE]
        await send(message)

    return adding


def _taking_slot(receive: Receive, stack: AsyncExitStack, slots: ReadSlots, party: str) -> Receive:
    """Take the slot when the whole body is there: one that is on its way keeps nobody waiting."""
    taken = False

    async def taking() -> Message:
        nonlocal taken
        message = await receive()
        if not taken and not message.get("more_body", False):
            taken = True
            try:
                await stack.enter_async_context(slots.slot(party))
            except TooManyReads as error:  # of all that is raised while a body is read, routers pass on only this kind
                raise HTTPException(429, str(error), {"Retry-After": "1"}) from None
        return message

    return taking


def error_body(text: str) -> bytes:
    return dumps({"error": text})
