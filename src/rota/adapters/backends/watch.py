"""The one thread that listens: to nudges from shims, to the zygote, to the pidfds of adopted shims, to its own clock.

It knows nothing of attempts beyond their names; what is to be done about one is its owner's `settle`, always called
in this thread. Nothing it hears is believed: a nudge only says where to look.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from rota.adapters.backends.launcher import Launcher
from rota.core.ids import is_attempt_id

MAX_PARTIAL_LINE = 64
CALM_S, MAX_PAUSE_S = 10.0, 5.0  # a zygote that dies again and again is started ever more slowly
log = logging.getLogger(__name__)


class Watcher:
    def __init__(
        self,
        nudge: Path,
        launcher: Launcher,
        settle: Callable[[str], None],
        gone: Callable[[str], None],
        reborn: Callable[[], None],
    ) -> None:
        self._launcher = launcher
        self._settle, self._gone, self._reborn = settle, gone, reborn
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._partial = b""
        self._stopping = False
        self._nudge = os.open(
            nudge, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
        )  # RDWR: no end of file when the last shim leaves
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waking = threading.Lock()  # a number that was closed may be somebody else's file by now
        self._zygote = -1
        self._zygote_mask = 0
        self._died_at, self._deaths = -CALM_S, 0
        self._thread = threading.Thread(target=self._run, name="rota-local-watch", daemon=True)

    def start(self) -> None:
        self._selector.register(self._nudge, selectors.EVENT_READ, self._on_nudge)
        self._selector.register(self._wake, selectors.EVENT_READ, self._on_wake)
        self._start_zygote()
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def post(self, act: Callable[[], None]) -> None:
        """From any thread: do this soon, in the watcher's."""
        self._posted.append(act)
        self.wake()

    def wake(self) -> None:
        with self._waking, contextlib.suppress(BlockingIOError):  # full means it is awake anyway
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """In the watcher's thread only."""
        self._count += 1
        heapq.heappush(self._timers, (time.monotonic() + delay_s, self._count, act))

    def follow(self, pidfd: int, act: Callable[[], None]) -> None:
        """In the watcher's thread only: once the process ends, close its pidfd and act."""

        def ended() -> None:
            self.unfollow(pidfd)
            act()

        self._selector.register(pidfd, selectors.EVENT_READ, ended)

    def unfollow(self, pidfd: int) -> None:
        self._selector.unregister(pidfd)
        os.close(pidfd)

    def _run(self) -> None:
        while not self._stopping:
            self._watch_room()
            timeout = max(0.0, self._timers[0][0] - time.monotonic()) if self._timers else None
            for key, _ in self._selector.select(timeout):
                if self._selector.get_map().get(key.fd) == key:  # not closed, or even reused, by one before it
                    self._do(key.data)
            while self._timers and self._timers[0][0] <= time.monotonic():
                self._do(heapq.heappop(self._timers)[2])
        self._selector.close()
        os.close(self._nudge)
        with self._waking:
            os.close(self._wake)
            self._wake = -1

    def _do(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (
            Exception
        ):  # the thread must outlive a bug in the receiver of a report, or a full disk: files stay the truth
            log.exception("watching local attempts")

    def _on_wake(self) -> None:
        os.eventfd_read(self._wake)
        while self._posted:
            self._do(self._posted.popleft())

    def _on_nudge(self) -> None:
        *lines, rest = (self._partial + os.read(self._nudge, 1 << 16)).split(b"\n")
        self._partial = rest if len(rest) < MAX_PARTIAL_LINE else b""
        for name in dict.fromkeys(line.decode("ascii", "replace") for line in lines):
            if is_attempt_id(name):
                self._settle_safely(name)

    def _settle_safely(self, name: str) -> None:
        self._do(lambda: self._settle(name))

    def _watch_room(self) -> None:
        """Ask to be told of room in the zygote's socket only while something waits for it."""
        if self._zygote < 0:
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._launcher.behind else 0)
        if mask != self._zygote_mask:
            self._selector.modify(self._zygote, mask, self._on_zygote)
            self._zygote_mask = mask

    def _on_zygote(self) -> None:
        self._launcher.flush()
        names = self._launcher.receive()
        if names is None:
            self._selector.unregister(self._zygote)
            self._zygote = -1
            self._launcher.stop()
            now = time.monotonic()
            self._deaths = self._deaths + 1 if now - self._died_at < CALM_S else 0
            self._died_at = now
            self.later(min(MAX_PAUSE_S, 0.01 * 2 ** min(self._deaths, 10)) if self._deaths else 0.0, self._restart)
            return
        for name in names:
            self._do(lambda name=name: self._gone(name))  # type: ignore[misc]

    def _restart(self) -> None:
        try:
            self._start_zygote()
        except OSError as error:  # no process, no memory, no descriptor to be had just now
            log.error("the launcher cannot be started, trying again: %s", error)
            self.later(MAX_PAUSE_S, self._restart)
            return
        self._reborn()

    def _start_zygote(self) -> None:
        self._zygote = self._launcher.start()
        self._zygote_mask = selectors.EVENT_READ
        self._selector.register(self._zygote, self._zygote_mask, self._on_zygote)
