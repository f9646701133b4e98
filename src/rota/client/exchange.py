"""One call, from the request to the answer: connections kept open, timeouts, and trying again, without any I/O.

Everything here is a generator that yields what an `Io` was asked to do and is sent the outcome. The blocking client
answers each yield with the value itself, the asynchronous one awaits it first: so both share every line of this.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from rota.client import wire
from rota.client.address import Address
from rota.client.errors import BadAnswer, Busy, RotaError, Unreachable, refusal

T = TypeVar("T")
Steps = Generator[Any, Any, T]

IDLE_KEPT = 8
LONGEST_WAIT_S = 30.0  # that a server may ask for with Retry-After
RETRIED = (429, 502, 503, 504)


class Io(Protocol):
    """What differs between the two clients. Each act returns its outcome, or an awaitable of it."""

    def connect(self, address: Address, timeout_s: float) -> Any: ...
    def write(self, link: Any, data: bytes, timeout_s: float) -> Any: ...
    def read(self, link: Any, timeout_s: float) -> Any:
        """Some bytes; b"" at the end; Unreachable after the timeout."""

    def socket_of(self, link: Any) -> Any:
        """The socket under a connection, to be looked at only."""

    def sleep(self, seconds: float) -> Any: ...
    def close(self, link: Any) -> None: ...
    def fresh(self, link: Any) -> bool:
        """Whether an idle connection is still open and silent."""


class Call(Generic[T]):
    """A request, and what its answer means."""

    __slots__ = ("body", "decode", "key", "method", "path", "query", "repeatable")

    def __init__(
        self,
        method: str,
        path: str,
        decode: Callable[[Any], T],
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        key: str = "",
        repeatable: bool | None = None,
    ) -> None:
        self.method = method
        self.path = path
        self.decode = decode
        self.query = query
        self.body = body
        self.key = key  # Idempotency-Key: made once for a call, the same in each try
        self.repeatable = method == "GET" or bool(key) if repeatable is None else repeatable


def new_key() -> str:
    return os.urandom(16).hex()


class Exchange:
    """Talks to one server. Shared by the threads or tasks of one client: a connection is used by one call at a time."""

    def __init__(
        self,
        io: Io,
        address: Address,
        token: str,
        *,
        connect_s: float,
        answer_s: float,
        tries: int,
        backoff_s: float,
        agent: str,
    ) -> None:
        self.io = io
        self.address = address
        self.connect_s = connect_s
        self.answer_s = answer_s
        self.tries = tries
        self.backoff_s = backoff_s
        self.headers = {"Host": address.authority, "User-Agent": agent, "Accept": "application/json"}
        if token:
            if not token.isascii() or not token.isprintable():
                raise RotaError("the token holds characters that no token has; check ROTA_TOKEN or: rota login")
            self.headers["X-Auth-Token"] = token
        self._idle: deque[Any] = deque()
        self._closed = False

    def close(self) -> None:
        """Close idle connections. A call of another thread that is still under way closes its own when it ends."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread took the last one
                return
            self.io.close(link)

    # -- one call with all its tries --------------------------------------------------------------------------------
    def call(self, call: Call[T]) -> Steps[T]:
        value, _ = yield from self.call_with_headers(call)
        return value

    def call_with_headers(self, call: Call[T]) -> Steps[tuple[T, dict[str, str]]]:
        number = 0
        while True:
            number += 1
            try:
                answer, body = yield from self._once(call)
                return _decoded(call, answer, body), answer.headers
            except (Unreachable, Busy) as error:
                if number >= self.tries or not _may_repeat(call, error):
                    raise
                pause_s = self.pause_s(number, error)
            yield self.io.sleep(pause_s)

    def pause_s(self, number: int, error: RotaError) -> float:
        """Twice as long each time, with chance in it so that many clients do not come back all at once."""
        asked = getattr(error, "retry_after_s", None)
        chance = int.from_bytes(os.urandom(4), "big") / 2**32
        backoff = self.backoff_s * 2.0 ** min(number - 1, 8) * (0.5 + chance)
        return min(LONGEST_WAIT_S, max(backoff, asked * (1.0 + 0.2 * chance) if asked else 0.0))

    def _once(self, call: Call[T]) -> Steps[tuple[wire.Answer, bytes]]:
        link, answer = yield from self._begin(call, self.headers, wire.MAX_BODY, self.answer_s)
        body = [answer.take()]
        deadline = time.monotonic() + self.answer_s
        try:
            while not answer.done:
                answer.feed((yield self.io.read(link, max(0.001, deadline - time.monotonic()))))
                body.append(answer.take())
        except BaseException:
            self.io.close(link)
            raise
        self._put_back(link, answer)
        return answer, b"".join(body)

    # -- one try, and the beginning of a stream ---------------------------------------------------------------------
    def open_stream(self, call: Call[T], headers: dict[str, str], idle_s: float) -> Steps[tuple[Any, wire.Answer]]:
        """The head of an answer whose body comes bit by bit; a refusal is raised."""
        wanted = {**self.headers, "Accept": "text/event-stream", "Cache-Control": "no-store", **headers}
        link, answer = yield from self._begin(call, wanted, None, idle_s)
        if answer.status == 200:
            return link, answer
        try:
            body = bytearray(answer.take())
            while not answer.done and len(body) < wire.MAX_HEAD:
                answer.feed((yield self.io.read(link, idle_s)))
                body += answer.take()
        finally:
            self.io.close(link)
        _decoded(call, answer, bytes(body))
        raise BadAnswer(f"the server answered {answer.status} where a stream was asked for")

    def _begin(
        self, call: Call[T], headers: dict[str, str], max_body: int | None, timeout_s: float
    ) -> Steps[tuple[Any, wire.Answer]]:
        """Send the request and read until the head of the answer is there."""
        data = self._bytes_of(call, headers)
        link = self._take_idle()
        if link is None:
            link = yield self.io.connect(self.address, self.connect_s)
            self._trust(link)
        deadline = time.monotonic() + timeout_s
        answer = wire.Answer(max_body=max_body)
        try:
            yield self.io.write(link, data, timeout_s)
            while not answer.status:
                got = yield self.io.read(link, max(0.001, deadline - time.monotonic()))
                if not got:
                    raise Unreachable(f"{self.address} closed the connection without an answer", sent=True)
                answer.feed(got)
        except BaseException:  # whatever it was, what is left on this connection belongs to nobody
            self.io.close(link)
            raise
        return link, answer

    def _trust(self, link: Any) -> None:
        """Before anything is sent over a new connection to a port: a token, a run with its environment. The path of a
        unix socket was named or lies in a directory of its server's, so that only a token is kept back there."""
        if self.address.socket and "X-Auth-Token" not in self.headers:
            return
        from rota.client.trust import must_be_trusted

        try:
            must_be_trusted(self.address, self.io.socket_of(link))
        except BaseException:
            self.io.close(link)
            raise

    def _bytes_of(self, call: Call[T], headers: dict[str, str]) -> bytes:
        body = b""
        if call.body is not None:
            body = _dumped(call.body)
            headers = {**headers, "Content-Type": "application/json"}
        if call.key:
            headers = {**headers, "Idempotency-Key": call.key}
        try:
            return wire.request(call.method, self.address.prefix + wire.target(call.path, call.query), headers, body)
        except ValueError as error:
            raise RotaError(str(error)) from None

    def _take_idle(self) -> Any:
        while self._idle:
            try:
                link = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if self.io.fresh(link):
                return link
            self.io.close(link)
        return None

    def _put_back(self, link: Any, answer: wire.Answer) -> None:
        if answer.keep_alive and len(self._idle) < IDLE_KEPT:
            self._idle.append(link)
            # Looked at after the append: whichever of close() and this comes last sees the connection.
            if self._closed:
                self._close_idle()
        else:
            self.io.close(link)


def _dumped(body: Any) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode("ascii")
    except (TypeError, ValueError) as error:
        if not isinstance(body, dict):
            raise
        for field, value in body.items():  # which of them it was
            try:
                json.dumps(value, allow_nan=False)
            except type(error) as wrong:
                raise type(error)(f"{field} cannot be sent as JSON: {wrong}") from None
        raise


def _may_repeat(call: Call[T], error: RotaError) -> bool:
    """A request that never left may always be sent again; one that may have arrived only where twice is as once."""
    if isinstance(error, Unreachable) and not error.sent:
        return True
    return call.repeatable


def _decoded(call: Call[T], answer: wire.Answer, body: bytes) -> T:
    value = _json(body)
    if answer.status >= 400:
        after = _seconds(answer.headers.get("retry-after", ""))
        raise refusal(503 if answer.status in RETRIED[1:] else answer.status, value, after)
    if not 200 <= answer.status < 300:
        raise BadAnswer(f"the server answered {answer.status}; is the address right?")
    if value is None and body.strip() != b"null":
        raise BadAnswer("the server's answer is no JSON; is the address that of a Rota server?")
    try:
        return call.decode(value)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise BadAnswer(
            f"the server's answer to {call.method} {call.path} is not understood: {error!r:.200}"
        ) from error


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):  # bytes that are no UTF-8 are a ValueError too
        return None


def _seconds(text: str) -> float | None:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
