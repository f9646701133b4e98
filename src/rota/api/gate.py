"""Who is calling. Tokens, the shared token, browser sessions, and peers on the unix socket, each to a Principal.

The gate is closed as soon as a token exists, even one that has expired or was revoked since: a server never opens up
because time passed.
"""

from __future__ import annotations

import base64
import hmac
import json
import pwd
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rota.api import tokens
from rota.api.limits import Buckets
from rota.app.authz import Principal, Role
from rota.app.service import Service
from rota.core import events as e

SHARED = Principal("shared", Role.ADMIN)
ANYONE = Principal("anonymous", Role.ADMIN)  # of a server without any token
CODE_LIVES_S = 3600.0
SESSION_LIVES_S = 7 * 86400.0
COOKIE = "rota_session"
MAX_CODES = 1000
REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Known:
    """A caller who is known, and how: a cookie is sent by browsers on their own, so it needs more care."""

    who: Principal
    by: str  # "token", "shared", "cookie", "socket", "open"


@dataclass(frozen=True, slots=True)
class Turned:
    """Turned away: 401, or 429 after too many wrong guesses."""

    status: int
    why: str
    retry_after_s: float = 0.0


UNAUTHORISED = Turned(401, "Unauthorized - invalid or missing X-Auth-Token")


class Gate:
    def __init__(
        self,
        service: Service,
        *,
        shared: str,
        secret: bytes,
        server_uid: int,
        login_tries: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._shared = tokens.hash_of(shared) if shared else ""
        self._secret = secret
        self._server_uid = server_uid
        self._now = now
        self._by_hash: dict[str, tokens.Token] = {}
        self._by_id: dict[str, tokens.Token] = {}
        self._codes: OrderedDict[str, tuple[str, float]] = OrderedDict()  # hash of a login code -> (token id, until)
        self._guesses = Buckets(login_tries / 60.0, login_tries)
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
        if secret:
            return self._by_secret(source, secret)
        if cookie:
            token = self._by_cookie(cookie)
            if token is not None:
                return Known(token.principal, "cookie")
        if uid is not None:
            return Known(self.peer(uid), "socket")
        return UNAUTHORISED if self.closed else Known(ANYONE, "open")

    def peer(self, uid: int) -> Principal:
        """Somebody on the unix socket: the kernel says who."""
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"uid{uid}"
        return Principal(name, Role.ADMIN if uid in (0, self._server_uid) else Role.USER)

    def _by_secret(self, source: str, secret: str) -> Known | Turned:
        digest, now = tokens.hash_of(secret), self._now()
        place = (source, digest)
        if place not in self._trusted and self._guesses.empty(source, now):
            return Turned(429, "too many wrong tokens from here; wait a minute", 60.0)
        known = self._look_up(digest, now)
        if known is None:
            if not self.closed:
                return Known(ANYONE, "open")  # as the servers before us: a header nobody asked for is no offence
            self._guesses.take(source, now)
            return UNAUTHORISED
        self._trusted[place] = None
        self._trusted.move_to_end(place)
        if len(self._trusted) > REMEMBERED:
            self._trusted.popitem(last=False)
        return known

    def _look_up(self, digest: str, now: float) -> Known | None:
        if self._shared and hmac.compare_digest(digest, self._shared):
            return Known(SHARED, "shared")
        token = self._by_hash.get(digest)
        if token is None or not hmac.compare_digest(digest, token.hash) or not token.valid(now):
            return None
        return Known(token.principal, "token")

    # -- browsers ---------------------------------------------------------------------------------------------------
    def new_code(self, token_id: str) -> str:
        """For a login link: good once, for an hour."""
        code = secrets.token_urlsafe(24)
        self._codes[tokens.hash_of(code)] = (token_id, self._now() + CODE_LIVES_S)
        if len(self._codes) > MAX_CODES:
            self._codes.popitem(last=False)
        return code

    def redeem(self, source: str, code: str) -> str | Turned:
        """The session cookie's value for a login code or a token."""
        now = self._now()
        if self._guesses.empty(source, now):
            return Turned(429, "too many wrong codes from here; wait a minute", 60.0)
        token_id, until = self._codes.pop(tokens.hash_of(code), ("", 0.0))
        token = self._by_id.get(token_id) if now < until else self._by_hash.get(tokens.hash_of(code))
        if token is None or not token.valid(now):
            self._guesses.take(source, now)
            return Turned(401, "this login link was used already or is too old; make a new one with: rota login --link")
        return self._sign(token.id, now + SESSION_LIVES_S)

    def _sign(self, token_id: str, until: float) -> str:
        payload = base64.urlsafe_b64encode(json.dumps([token_id, int(until)]).encode()).decode()
        return f"{payload}.{self._mac(payload)}"

    def _mac(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode("ascii", "replace"), "sha256").hexdigest()

    def _by_cookie(self, cookie: str) -> tokens.Token | None:
        payload, _, mac = cookie.partition(".")
        if not hmac.compare_digest(mac.encode("ascii", "replace"), self._mac(payload).encode()):
            return None
        token_id, until = json.loads(base64.urlsafe_b64decode(payload))
        token = self._by_id.get(token_id)
        now = self._now()
        return token if token is not None and now < until and token.valid(now) else None

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
