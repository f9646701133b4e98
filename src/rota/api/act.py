"""From a door to a command and back."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rota.api.house import House
from rota.app.authz import Principal
from rota.app.commands import Command


async def act(house: House, who: Principal, command: Command, dry_run: bool = False) -> Any:
    """The answer once it is durable, or Refused. A dry run asks the same handler and writes nothing."""
    if dry_run:
        return await house.trials.read(who.name, lambda: house.service.try_out(who, command))
    expected = answers().expect()
    house.service.post(who, command, expected)
    try:
        return await expected.waiting
    finally:
        del expected  # it has the refusal, whose traceback has this frame


class Answers:
    """From the writer's thread to the event loop, many at a time: the answers of one commit come together, and waking
    the event loop for each of them would cost more than the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[_Expected] = deque()
        self._rung = False

    def expect(self) -> _Expected:
        return _Expected(self)

    def ring(self, expected: _Expected) -> None:
        """On any thread. The bell is read after the answer lies there and unset before they are handed out, so none is
        forgotten."""
        self._ready.append(expected)
        if not self._rung:
            self._rung = True
            try:
                self.loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                if not self.loop.is_closed():  # else there is nobody left to tell, and the writer must go on
                    raise

    def _hand_out(self) -> None:
        self._rung = False
        while self._ready:
            self._ready.popleft().hand_out()


class _Expected:
    """An answer that is waited for here. A Future would do, at the price of a lock at each step."""

    __slots__ = ("_answers", "_error", "_result", "_there", "waiting")

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._result: Any = None
        self._error: BaseException | None = None
        self._there = False
        self.waiting: asyncio.Future[Any] = answers.loop.create_future()

    # -- on the thread that has the answer ----------------------------------------------------------------------------
    def set_running_or_notify_cancel(self) -> bool:
        return True  # its client may have gone; what it asked for is done all the same

    def set_result(self, result: Any, /) -> None:
        self._result, self._there = result, True
        self._answers.ring(self)

    def set_exception(self, exception: BaseException, /) -> None:
        self._error, self._there = exception, True
        self._answers.ring(self)

    def done(self) -> bool:
        return self._there

    # -- on the event loop --------------------------------------------------------------------------------------------
    def hand_out(self) -> None:
        if self.waiting.cancelled():  # its client has gone
            return
        if self._error is None:
            self.waiting.set_result(self._result)
        else:
            self.waiting.set_exception(self._error)


_newest: Answers | None = None


def answers() -> Answers:
    """Of the running event loop. There is one in a server; tests have one after another."""
    global _newest  # noqa: PLW0603
    loop = asyncio.get_running_loop()
    if _newest is None or _newest.loop is not loop:
        _newest = Answers(loop)
    return _newest
