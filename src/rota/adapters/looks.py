"""Looks at what accounts can hold, directories above all, each in a thread of its own.

An account can hold the lock of each directory that it can search, for as long as it likes, and whoever looks into such
a directory waits in the kernel. So a look that does not end in time is left alone, and until it has ended no other one
begins at the same place. That costs a thread for each such place, of which there is a bounded number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from threading import Thread
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_S = 60.0  # how long others wait for one
log = logging.getLogger(__name__)


class Looks(Generic[T]):
    """For one thread. `name` is of the threads that look, `most` how many of them may be left alone at a time."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._begun: dict[str, Future[T]] = {}  # place -> a look whose result was not returned yet

    def look(self, place: str, work: Callable[[], T]) -> Iterator[T]:
        """Return what an earlier look at this place has found since, and then what `work` returns now; nothing of a
        look that has not ended. One that fails for an OSError finds nothing."""
        if place in self._begun:
            yield from self._found(place)
        if place in self._begun:
            return
        if sum(not each.done() for each in self._begun.values()) >= self._most:
            log.warning("%s is not looked at: looks at %d other directories do not end", place, self._most)
            return
        result: Future[T] = Future()
        try:
            Thread(target=_do, args=(work, result), name=self._name, daemon=True).start()
        except RuntimeError as error:
            log.warning("%s is not looked at: a thread could not be started: %s", place, error)
            return
        self._begun[place] = result
        wait([result], LOOK_S)
        if not result.done():
            log.warning("the look at %s has not ended in %g s and is left alone", place, LOOK_S)
        yield from self._found(place)

    def _found(self, place: str) -> Iterator[T]:
        if self._begun[place].done():
            try:
                yield self._begun.pop(place).result()
            except OSError as error:  # of one place; the others go on, and this one is looked at again
                log.warning("%s could not be looked at: %s", place, error)


def _do(work: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
        result.set_exception(error)
