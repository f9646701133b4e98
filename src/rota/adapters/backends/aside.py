"""Do what may wait for a job, in a thread beside the supervisor's main one.

An account can hold the locks of what it may open or list: a directory, a terminal, a pipe. A call that waits for such a
lock is not ended by any signal. The main thread of a supervisor never makes one: else it would hear of no stop, and
could not record the end.
"""

from __future__ import annotations

import _thread  # threading itself would be one more import in every shim
import errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


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


class Aside:
    """One call in a thread of its own."""

    def __init__(self, act: Callable[[], int]) -> None:
        self._act, self._ended = act, gate()
        self._error: Exception | None = None
        self._result = 0
        start(self._run)

    def is_over(self, within_s: float) -> bool:
        return self._ended.acquire(timeout=within_s)

    def result(self) -> int:
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
