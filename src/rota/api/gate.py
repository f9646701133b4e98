"""Who is calling. Tokens, the shared token, browser sessions, and peers on the unix socket, each to a Principal.

The gate is closed as soon as a token exists, even one that has expired or was revoked since: a server never opens up
because time passed.

Wrong guesses are counted per source: the account at the other end of the connection where the kernel tells it, else the
network it comes from. A source may be many people: everybody behind one proxy. So nobody's guesses may shut out those
who are right. Tokens and login codes are chance of 192 bits and more, which no number of guesses finds: a right one
always passes, and only wrong ones are counted and made to wait. The shared token is different, since a person may have
made it up: there the limit is all that stands against guessing, and it would be none if the right guess passed beyond
it. Over the limit the shared token therefore counts only from a source where it has been right since the start. So it
does where all sources together have guessed too much: addresses are cheap to come by. Where that is a nuisance, give
people tokens of their own.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rota.api import tokens
from rota.api.limits import Buckets
from rota.app.authz import Principal, Role
from rota.app.ports import Account
from rota.app.service import Service
from rota.core import events as e
from rota.user_ids import FIRST_PERSON

SHARED = Principal("shared", Role.ADMIN)
SHARED_ID = "shared"  # where the id of a token is asked for; those are 8 hex digits
ANYONE = Principal("anonymous", Role.ADMIN)  # of a server without any token
CODE_LIVES_S = 3600.0
SESSION_LIVES_S = 7 * 86400.0
COOKIE = "rota_session"
MAX_CODES, CODES_OF_ONE = 1000, 10  # login links that are out: of all tokens, and of one
ENDED_OF_ONE = 100  # sessions of a token that were logged out
REMEMBERED = 10_000
SOURCES_TOGETHER = 10  # all of them may guess at the shared token as often as so many may
ALL = ""  # the one name in the bucket of all sources


@dataclass(frozen=True, slots=True)
class Known:
    """A caller who is known, and how: a cookie is sent by browsers on their own, so it needs more care."""

    who: Principal
    by: str  # "token", "shared", "cookie", "socket", "open", "pid", "" = a stranger on an open route
    token_id: str = ""  # of the token behind it; SHARED_ID for the shared one
    until: float | None = None  # the end of a browser session
    session: str = ""  # the MAC of its cookie


@dataclass(frozen=True, slots=True)
class Turned:
    """Turned away: 401, or 429 after too many wrong guesses."""

    status: int
    why: str
    retry_after_s: float = 0.0


class Ended:
    """Sessions of one token that were logged out: each by its MAC, and beyond a bound all that began before then."""

    def __init__(self) -> None:
        self.each: dict[str, float] = {}  # -> its end
        self.before = 0.0

    def add(self, session: str, until: float, now: float) -> None:
        self.each = {mac: end for mac, end in self.each.items() if end > now}
        self.each[session] = until
        if len(self.each) > ENDED_OF_ONE:
            self.each, self.before = {}, now

    def has(self, session: str, until: float) -> bool:
        return session in self.each or until - SESSION_LIVES_S < self.before


UNAUTHORISED = Turned(401, "Unauthorized - invalid or missing X-Auth-Token")
STALE = Turned(
    401,
    "this is no token, or a login link that was used already, is too old or gave way to newer links of the same token; "
    "make a new one with: rota login --link",
)


def _not_its_own(uid: int, account: Account) -> Turned:
    whose = f"is a subordinate id of {account.name} (/etc/subuid)" if account.subordinate else "has no account here"
    return Turned(
        401,
        f"user id {uid} {whose}, so it is not known by the unix socket; show a token (ROTA_TOKEN), which an admin "
        f"makes with: rota token create --user NAME",
    )


def _not_the_servers(account: str, server: str) -> Turned:
    return Turned(
        401,
        f"this server is {server}'s own and runs every job as {server}, so the account {account} is not known by the "
        f"unix socket; show a token (ROTA_TOKEN), which {server} makes with: rota token create --user {account}",
    )


class Gate:
    def __init__(
        self,
        service: Service,
        *,
        shared: str,
        secret: bytes,
        server_uid: int,
        account: Callable[[int], Account],
        login_tries: int,
        for_machine: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._shared = tokens.hash_of(shared) if shared else ""
        self._secret = secret
        # What a session of the shared token is bound to: another token ends it. A mark and not the hash itself, which
        # would let whoever sees a cookie guess at a token that a person made up.
        self._shared_mark = self._mac(f"shared {self._shared}")[:32] if shared else ""
        self._server_uid, self._account = server_uid, account
        # A job of another account runs as the server's. Root's server runs it as their own account, and one of a system
        # account, or whose socket root has made, was set up for everybody on the machine.
        self._is_persons = server_uid >= FIRST_PERSON and not for_machine
        self._now = now
        self._by_hash: dict[str, tokens.Token] = {}
        self._by_id: dict[str, tokens.Token] = {}
        self._codes: OrderedDict[str, tuple[str, float]] = OrderedDict()  # hash of a login code -> (token id, until)
        self._ended: defaultdict[str, Ended] = defaultdict(Ended)  # by token id: sessions that were logged out
        self._guesses = Buckets(login_tries / 60.0, login_tries)
        together = login_tries * SOURCES_TOGETHER
        self._guesses_of_all = Buckets(together / 60.0, together)
        self._trusted: OrderedDict[tuple[str, str], None] = OrderedDict()  # (source, hash) that were right before
        service.subscribe(self._hear)
        self._load(service)

    @property
    def closed(self) -> bool:
        return bool(self._shared or self._by_id)

    def all_tokens(self) -> Sequence[tokens.Token]:
        return sorted(self._by_id.values(), key=lambda token: token.created_at)

    def token(self, token_id: str) -> tokens.Token | None:
        return self._by_id.get(token_id)

    # -- a caller ---------------------------------------------------------------------------------------------------
    def admit(self, *, source: str, secret: str | None, cookie: str | None, uid: int | None) -> Known | Turned:
        # Where there is no token, one is no offence, and no better than none: the socket tells who has sent it.
        if secret and (self.closed or uid is None):
            return self._by_secret(source, secret)
        if cookie:
            known = self._by_cookie(cookie)
            if known is not None:
                return known
        if uid is None:
            return UNAUTHORISED if self.closed else Known(ANYONE, "open")
        person = self.peer(uid)
        if person is None:
            return _not_its_own(uid, self._account(uid))
        if self._is_persons and uid not in (0, self._server_uid):
            return _not_the_servers(person.name, self._account(self._server_uid).name)
        return Known(person, "socket")

    def peer(self, uid: int) -> Principal | None:
        """Return who is on the unix socket, by the kernel's word. None = the id is no account's own: a subordinate id
        is counted for its account, but what runs in a container has not the powers of the one that started it."""
        account = self._account(uid)
        if uid in (0, self._server_uid):
            return Principal(account.name, Role.ADMIN)
        return Principal(account.name, Role.USER) if account.known and not account.subordinate else None

    def holds(self, known: Known) -> bool:
        """Is somebody who was let in still welcome? For what lasts longer than a call."""
        now = self._now()
        if known.until is not None:
            ended = self._ended.get(known.token_id)
            if now >= known.until or (ended is not None and ended.has(known.session, known.until)):
                return False
        if known.by == "open":
            return not self.closed
        if known.token_id in ("", SHARED_ID):
            return True
        token = self._by_id.get(known.token_id)
        return token is not None and token.valid(now)

    def _by_secret(self, source: str, secret: str) -> Known | Turned:
        digest, now = tokens.hash_of(secret), self._now()
        token = self._by_hash.get(digest)
        if token is not None and hmac.compare_digest(digest, token.hash):
            # one that was good once is no guess, either
            return Known(token.principal, "token", token.id) if token.valid(now) else UNAUTHORISED
        if not self.closed:
            return Known(ANYONE, "open")  # as the servers before us: a header nobody asked for is no offence
        turned = self._guess(source, digest, now, UNAUTHORISED)
        return Known(SHARED, "shared", SHARED_ID) if turned is None else turned

    def _guess(self, source: str, digest: str, now: float, wrong: Turned) -> Turned | None:
        """None = it is the shared token, and may be believed."""
        place = (source, digest)
        if place not in self._trusted:
            if self._guesses.empty(source, now):
                return Turned(429, "too many wrong tokens from here; wait a minute", 60.0)
            if self._shared and self._guesses_of_all.empty(ALL, now):
                return Turned(429, "too many wrong tokens from everywhere together; wait a minute", 60.0)
        if not self._shared or not hmac.compare_digest(digest, self._shared):
            self._guesses.take(source, now)
            self._guesses_of_all.take(ALL, now)
            return wrong
        self._trusted[place] = None
        self._trusted.move_to_end(place)
        if len(self._trusted) > REMEMBERED:
            self._trusted.popitem(last=False)
        return None

    # -- browsers ---------------------------------------------------------------------------------------------------
    def new_code(self, token_id: str) -> str:
        """For a login link: good once, for an hour. Who makes too many loses their own. `token_id` may be SHARED_ID:
        these links are a team's, made by admins alone, and have no bound but that of all."""
        code = secrets.token_urlsafe(24)
        own = [digest for digest, (owner, _) in self._codes.items() if owner == token_id != SHARED_ID]
        for digest in own[: max(0, len(own) + 1 - CODES_OF_ONE)]:
            del self._codes[digest]
        self._codes[tokens.hash_of(code)] = (token_id, self._now() + CODE_LIVES_S)
        if len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def redeem(self, source: str, code: str) -> str | Turned:
        """The session cookie's value for a login code or a token, the shared one too."""
        digest, now = tokens.hash_of(code), self._now()
        found = self._behind(source, digest, now)
        self._codes.pop(digest, None)
        return found if isinstance(found, Turned) else self._sign(found[0], now + SESSION_LIVES_S)

    def whose(self, source: str, code: str) -> Principal | Turned:
        """As whom `redeem` would log in. The code stays good."""
        found = self._behind(source, tokens.hash_of(code), self._now())
        return found if isinstance(found, Turned) else found[1]

    def _behind(self, source: str, digest: str, now: float) -> tuple[str, Principal] | Turned:
        """What a session by this code or token is bound to, and whose it is."""
        token_id, until = self._codes.get(digest, ("", 0.0))
        if now < until and token_id == SHARED_ID:
            return self._shared_mark, SHARED
        token = self._by_id.get(token_id) if now < until else self._by_hash.get(digest)
        if token is not None:
            return (token.id, token.principal) if token.valid(now) else STALE
        turned = self._guess(source, digest, now, STALE)
        return (self._shared_mark, SHARED) if turned is None else turned

    def _sign(self, name: str, until: float) -> str:
        # by chance two sessions differ that begin in one second: the end of one is not the end of the other
        payload = base64.urlsafe_b64encode(json.dumps([name, int(until), secrets.token_hex(8)]).encode()).decode()
        return f"{payload}.{self._mac(payload)}"

    def end_session(self, cookie: str) -> None:
        """Let a cookie count no longer, wherever it is kept, until this server restarts."""
        known = self._by_cookie(cookie)
        if known is not None and known.until is not None:
            self._ended[known.token_id].add(known.session, known.until, self._now())

    def _mac(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode("ascii", "replace"), "sha256").hexdigest()

    def _by_cookie(self, cookie: str) -> Known | None:
        payload, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode("ascii", "replace"), self._mac(payload).encode()):
            return None
        name, until = json.loads(base64.urlsafe_b64decode(payload))[:2]
        if self._shared_mark and name == self._shared_mark:
            known = Known(SHARED, "cookie", SHARED_ID, until, mac)
        else:
            token = self._by_id.get(name)
            if token is None:
                return None
            known = Known(token.principal, "cookie", token.id, until, mac)
        return known if self.holds(known) else None

    # -- what is known of tokens ------------------------------------------------------------------------------------
    def _load(self, service: Service) -> None:
        before: int | None = None
        while found := service.records(tokens.KIND, before=before, limit=1000):
            for record in found:
                if record.id not in self._by_id:  # what was heard meanwhile is newer
                    self.learn(tokens.read(record.id, record.body))
            before = found[-1].seq

    def _hear(self, first: int, events: Sequence[e.Event]) -> None:
        for event in events:
            if isinstance(event, e.RecordPut) and event.kind == tokens.KIND and event.body:
                self.learn(tokens.read(event.id, json.loads(event.body)))

    def learn(self, token: tokens.Token) -> None:
        self._by_id[token.id] = token
        self._by_hash[token.hash] = token
