"""From a door to a command and back."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import Any

from rota.api.house import House
from rota.app.authz import Principal
from rota.app.commands import Command


async def act(house: House, who: Principal, command: Command, dry_run: bool = False) -> Any:
    """The answer once it is durable, or Refused. A dry run asks the same handler and writes nothing."""
    send = house.service.try_out if dry_run else house.service.send
    return await answers().wait(send(who, command))


class Answers:
    """From the writer's thread to the event loop, many at a time: the answers of one commit come together, and waking
    the event loop for each of them would cost more than the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Future[Any]]] = deque()
        self._rung = False

    def wait(self, sent: Future[Any]) -> asyncio.Future[Any]:
        waiting: asyncio.Future[Any] = self.loop.create_future()
        sent.add_done_callback(lambda done: self._done(waiting, done))
        return waiting

    def _done(self, waiting: asyncio.Future[Any], done: Future[Any]) -> None:
        """On any thread. The bell is read after the answer lies there and unset before they are handed out, so none is
        forgotten."""
        self._ready.append((waiting, done))
        if not self._rung and not self.loop.is_closed():
            self._rung = True
            self.loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        self._rung = False
        while self._ready:
            waiting, done = self._ready.popleft()
            if waiting.cancelled():  # its client has gone; what it asked for is done all the same
                continue
            error = done.exception()
            if error is None:
                waiting.set_result(done.result())
            else:
                waiting.set_exception(error)


_newest: Answers | None = None


def answers() -> Answers:
    """Of the running event loop. There is one in a server; tests have one after another."""
    global _newest  # noqa: PLW0603
    loop = asyncio.get_running_loop()
    if _newest is None or _newest.loop is not loop:
        _newest = Answers(loop)
    return _newest
