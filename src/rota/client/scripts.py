"""What takes more than one call: pages, waiting for an end, following a log, listening to events. Without any I/O.

A script yields what the `Io` was asked to do, like everything in `exchange`; a value for the caller is yielded as an
`Item`. A lost server is waited for: a script that listens comes back where it was, without gap or repeat.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rota.client import calls, given, sse
from rota.client.errors import BadAnswer, Busy, RotaError, Unreachable
from rota.client.exchange import Call, Exchange, Steps
from rota.client.wire import quote

if TYPE_CHECKING:
    from rota.client.model.run import Run

T = TypeVar("T")

PATIENCE_S = 300.0  # how long a listener waits for a server that is gone
SILENCE_S = 60.0  # the server says something at least every 15 s
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 2.0


class Item(Generic[T]):
    """Something for the caller, in between the acts."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


Script = Generator[Any, Any, T]


def runs(
    talk: Exchange,
    *,
    status: str = "",
    user: str = "",
    sweep_id: str = "",
    archived: bool = False,
    limit: int | None = None,
) -> Script[None]:
    """Runs, newest first, page by page, up to `limit` in all."""
    cursor, left = "", limit
    while left is None or left > 0:
        size = min(1000, left) if left is not None else 200
        page = calls.runs_page(
            status=status, user=user, sweep_id=sweep_id, archived=archived, limit=size, cursor=cursor
        )
        found, headers = yield from talk.call_with_headers(page)
        for run in found:
            yield Item(run)
        left = None if left is None else left - len(found)
        cursor = headers.get("x-next-cursor", "")
        if not cursor or not found:
            return


def wait(talk: Exchange, run_id: str, *, timeout_s: float | None = None, patience_s: float = PATIENCE_S) -> Steps[Run]:
    """The run once it has ended. A server that is gone is waited for; TimeoutError when the time is up."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s, gone_since = FIRST_LOOK_S, None
    while True:
        try:
            if (yield from talk.call(calls.job(run_id))).ended:  # costs the server less than the whole run
                run: Run = yield from talk.call(calls.run(run_id))
                return run
            gone_since = None
        except (Unreachable, Busy):
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > patience_s:
                raise
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"run {run_id} has not ended within {timeout_s:g} s; it goes on")
        left_s = LAST_LOOK_S if deadline is None else max(0.0, deadline - time.monotonic())
        yield talk.io.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.4, LAST_LOOK_S)


def events(talk: Exchange, after: int | None = None, *, patience_s: float = PATIENCE_S) -> Script[None]:
    """Everything that happens, as it happens, from the event after `after` on. Without it: from now on."""
    place = "" if after is None else str(after)
    listener = _Listener(talk, "/events", patience_s)
    try:
        while True:
            event = yield from listener.next(place)
            if event is None:
                continue
            place = event.id or place  # of any event: "hello" says where "from now on" begins
            if event.name == "message":  # "dropped": too slow, come back
                yield Item(_object(event.data))
    finally:
        listener.close()


def follow(
    talk: Exchange, run_id: str, *, attempt: int = 1, offset: int = 0, patience_s: float = PATIENCE_S
) -> Script[None]:
    """The output of a run as text, from a byte of an attempt on, over all further attempts, until the run has ended."""
    place = f"{attempt}.{offset}"
    listener = _Listener(talk, f"/runs/{quote(given.text('run_id', run_id))}/logs/stream", patience_s)
    try:
        while True:
            event = yield from listener.next(place)
            if event is None:
                continue
            message = _object(event.data)
            place = event.id or place
            if message.get("content"):
                yield Item(str(message["content"]))
            if message.get("type") == "done":
                return
    finally:
        listener.close()


class _Listener:
    """A stream of events that is opened again whenever it ends."""

    def __init__(self, talk: Exchange, path: str, patience_s: float) -> None:
        self._talk = talk
        self._path = path
        self._patience_s = patience_s
        self._link: Any = None
        self._answer: Any = None
        self._parser = sse.Events()
        self._ready: list[sse.Event] = []
        self._failures = 0
        self._gone_since: float | None = None

    def close(self) -> None:
        if self._link is not None:
            self._talk.io.close(self._link)
            self._link = None

    def next(self, place: str) -> Steps[sse.Event | None]:
        """The next event, or None where there is none yet. `place` is where to go on after a break."""
        if self._ready:
            return self._ready.pop(0)
        try:
            if self._link is None:
                yield from self._open(place)
            else:
                self._answer.feed((yield self._talk.io.read(self._link, SILENCE_S)))
            self._ready = self._parser.feed(self._answer.take())
            if self._answer.done:
                self.close()
        except (Unreachable, Busy) as error:
            self.close()
            yield from self._pause(error)
        except BaseException:
            self.close()
            raise
        if self._ready:
            self._failures, self._gone_since = 0, None
            return self._ready.pop(0)
        if self._link is None:
            yield self._talk.io.sleep(0.05)  # it ended in peace: not a reason to run in circles
        return None

    def _open(self, place: str) -> Steps[None]:
        headers = {"Last-Event-ID": place} if place else {}
        call: Call[Any] = Call("GET", self._path, lambda data: data)
        self._link, self._answer = yield from self._talk.open_stream(call, headers, SILENCE_S)
        self._parser = sse.Events()

    def _pause(self, error: RotaError) -> Steps[None]:
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since > self._patience_s:
            raise error
        self._failures += 1
        yield self._talk.io.sleep(min(5.0, self._talk.pause_s(self._failures, error)))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise BadAnswer("the server sent an event that is no JSON object")
    return value
