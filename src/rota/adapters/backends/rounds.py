"""Rounds of looks at processes that may keep whoever looks waiting, in threads beside the one that begins them.

An account can hold the lock of any directory that it can search, `/proc/PID/task` of a supervisor among them, and
whoever lists that directory waits for as long as it likes. So a round that waits is left alone, and the next ones leave
out what it waits at until it has returned.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from rota.adapters.backends import procs

T = TypeVar("T")

LEFT_AFTER_S = 5.0
MOST_LEFT = 16  # rounds that wait, each with a thread; with more no further one begins
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Round:
    at: str = ""  # what it looks at
    since: float = 0.0  # by time_awake
    is_over: bool = False
    is_left: bool = False  # another round was begun, and this one ends with its look


class Rounds(Generic[T]):
    """For one thread, which calls `begin`."""

    def __init__(self, name: str, look: Callable[[str, T], None]) -> None:
        self._name, self._look = name, look
        self._round: _Round | None = None
        self._lock = threading.Lock()  # of what follows, and of what rounds say of themselves
        self._held_up: set[str] = set()  # what rounds that were left alone wait at

    def begin(self, each: Collection[tuple[str, T]]) -> None:
        """Look at each of these in a thread, unless the last round is under way."""
        last = self._round
        if last is not None and not last.is_over and not self._leave(last):
            return
        self._round = _Round()
        try:
            threading.Thread(target=self._run, args=(self._round, each), name=self._name, daemon=True).start()
        except RuntimeError as error:  # at the limit of processes; the next round tries again
            log.warning("%s: a thread could not be started: %s", self._name, error)
            self._round = None

    def _leave(self, last: _Round) -> bool:
        """Leave a round alone that waits at one thing for long. Return whether another may begin."""
        with self._lock:
            if last.is_over:
                return True
            if not last.at or procs.time_awake() - last.since < LEFT_AFTER_S or len(self._held_up) >= MOST_LEFT:
                return False
            last.is_left = True
            self._held_up.add(last.at)
        log.warning(
            "%s: the look at its supervisor has not ended in %g s and is left alone: a process may hold the lock of "
            "/proc/PID/task (docs/operations.md, a lock that an account holds)",
            last.at,
            LEFT_AFTER_S,
        )
        return True

    def _run(self, own: _Round, each: Collection[tuple[str, T]]) -> None:
        try:
            for name, one in each:
                if not self._look_at(own, name, one):
                    return
        finally:  # also after a defect, which the thread's hook logs: the next round is to begin
            with self._lock:
                own.is_over = True

    def _look_at(self, own: _Round, name: str, one: T) -> bool:
        """Return whether the round goes on."""
        with self._lock:
            if name in self._held_up:
                return True
            own.at, own.since = name, procs.time_awake()
        try:
            self._look(name, one)
        except OSError as error:  # no descriptor is free, say: it is looked at again in the next round
            log.debug("%s: its supervisor cannot be looked at: %s", name, error)
        finally:
            with self._lock:
                own.at = ""
                if own.is_left:
                    self._held_up.discard(name)
        return not own.is_left
