"""Do something in a while: one thread and a heap, for any number of deadlines."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class _Entry:
    """A deadline. One that was called off has nothing to do any more and leaves the heap when its time comes."""

    __slots__ = ("act", "at")

    def __init__(self, at: float, act: Callable[[], None]) -> None:
        self.at = at
        self.act: Callable[[], None] | None = act

    def __lt__(self, other: _Entry) -> bool:
        return self.at < other.at

    def call_off(self) -> None:
        self.act = None


class Later:
    """Calling it sets a deadline and gives back how to call it off. What is done must be short."""

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rota-later", daemon=True)
        self._thread.start()

    def __call__(self, delay_s: float, act: Callable[[], None]) -> Callable[[], None]:
        entry = _Entry(time.monotonic() + delay_s, act)
        with self._changed:
            heapq.heappush(self._heap, entry)
            if self._heap[0] is entry:
                self._changed.notify()
        return entry.call_off

    def close(self) -> None:
        """What was still to come does not come."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (entry := self._next()) is not None:
            act = entry.act
            try:
                if act is not None:
                    act()
            except Exception:  # a defect of one must not keep the others from their turn
                log.exception("what was due could not be done")

    def _next(self) -> _Entry | None:
        with self._changed:
            while not self._closing:
                wait_s = self._heap[0].at - time.monotonic() if self._heap else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._heap)
                self._changed.wait(wait_s)
            return None
