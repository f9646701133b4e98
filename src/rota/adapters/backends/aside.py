"""Do what may wait for a job, in a thread beside the supervisor's main one.

An account can hold the locks of what it may open or list: a directory, a terminal, a pipe. A call that waits for such a
lock is not ended by any signal. The main thread of a supervisor makes none, or it would hear of no stop and could not
record the end; but where no thread is to be had it looks at processes itself.
"""

from __future__ import annotations

import _thread  # threading itself would be one more import in every shim
import errno
import fcntl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_LEFT = 4  # looks of one run that have not ended
SLICE_S = 0.05  # between two questions whether a look is still waited for


def start(act: Callable[[], None]) -> None:
    """Run this in a thread. Call it when nothing is to be forked before the thread has ended: the child of a process
    with threads is a delicate one."""
    try:
        _thread.start_new_thread(act, ())
    except RuntimeError as error:  # the limit on processes, as fork would say it
        raise OSError(errno.EAGAIN, str(error)) from None


def gate() -> _thread.LockType:
    """Return a lock that is held: to be released by a thread, and acquired by whoever waits for that."""
    lock = _thread.allocate_lock()
    lock.acquire()
    return lock


def take_place(places: int, most: int) -> bool:
    """Take one of `most` places of supervisors that are left behind, by the lock of a byte of the file `places`: the
    kernel keeps it for as long as a thread of the calling process is there, and nobody has to be looked at. False: all
    are taken."""
    for place in range(most):
        try:
            fcntl.lockf(places, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except OSError:
            continue
        return True
    return False


class Aside:
    """One call in a thread of its own."""

    def __init__(self, act: Callable[[], Any]) -> None:
        self._act, self._ended = act, gate()
        self._error: Exception | None = None
        self._result: Any = None
        start(self._run)

    def is_over(self, within_s: float) -> bool:
        return self._ended.acquire(timeout=within_s)

    def result(self) -> Any:
        """Return what the call returned, or raise what it raised. It is over."""
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._act()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the result is taken
            self._error = error
        finally:
            self._ended.release()


class Looks:
    """Looks at the processes of a run, one after the other, each in a thread of its own. A look takes locks of /proc
    that an account can hold, and references to the memory of processes: who drops the last one waits for what that
    memory still has under way. A look that does not end is left behind."""

    def __init__(self) -> None:
        self._left: list[Aside] = []

    def look(self, act: Callable[[], Any], is_awaited: Callable[[], bool]) -> Any:
        """Return what this returns, which is not None, or raise what it raises. None: it did not end for as long as it
        was awaited, or MOST_LEFT have not ended yet. Where there is no thread to be had, the caller itself looks: a run
        that has all the processes it may have is asked and killed all the same."""
        if self.left() >= MOST_LEFT:
            return None
        try:
            aside = Aside(act)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return act()
        while not aside.is_over(SLICE_S):
            if not is_awaited():
                self._left.append(aside)
                return None
        return aside.result()

    def left(self) -> int:
        """Return how many have been left behind and have not ended."""
        self._left = [each for each in self._left if not each.is_over(0.0)]
        return len(self._left)

    def are_over(self, within_s: float) -> bool:
        """Wait for all that were left behind."""
        while self._left and self._left[-1].is_over(within_s):
            self._left.pop()
        return not self._left
