"""The shim's side of a pipe: copy what the tasks of another account print into the log.

A job that runs as another account than the server never gets the log file itself. With a descriptor of a file of its
own a process can take a lease on that file, preallocate the disk, link the file elsewhere and write to it after the end
of the attempt. With a pipe none of that is possible, and the pipe ends with the attempt even where a process outside
still has the other end (ADR 11). One thread reads, beside the shim's main thread, which waits for signals.
"""

from __future__ import annotations

import os
import select

from rota.adapters.backends import aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.adapters.backends.logfile import LogFile

CHUNK = 1 << 16
# At the end only what was printed before: a pipe of an account without privileges holds 1 MiB at most (pipe-max-size).
LAST_CHUNKS = 32


class PipePump:
    def __init__(self, log: LogFile) -> None:
        self._log = log
        self._source, self.output = os.pipe()  # `output` is for the tasks
        self._enough, self._finish = os.pipe()
        self._ended = aside.gate()
        self._started = False
        os.set_blocking(self._source, False)

    def start(self) -> None:
        """Begin to copy. Call it when all tasks are forked."""
        self._close_output()
        aside.start(self._run)
        self._started = True

    def finish(self) -> None:
        """Have what was printed up to now copied. No task lives any more."""
        self._close_output()
        os.close(self._finish)
        if not self._started:
            self._copy_last()
            self._ended.release()

    def is_over(self, within_s: float) -> bool:
        """Wait for that. The thread waits for longer where a process outside holds the lock of the pipe, and so would
        whoever closed it."""
        return self._ended.acquire(timeout=within_s)

    def close(self) -> None:
        os.close(self._source)
        os.close(self._enough)
        self._log.say_lost()

    def _close_output(self) -> None:
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def _run(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._enough, select.POLLIN)
            poll.register(self._source, select.POLLIN)
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if self._enough in ready:
                    self._copy_last()
                    return
                if self._copy() == 0:
                    # every task has closed its output; what may still come is read at the end
                    poll.unregister(self._source)
        finally:
            self._ended.release()

    def _copy_last(self) -> None:
        for _ in range(LAST_CHUNKS):
            if self._copy() <= 0:
                break

    def _copy(self) -> int:
        """Copy what is there and return how much that was; 0: nobody has the other end any more, -1: nothing now."""
        try:
            output = os.read(self._source, CHUNK)
        except BlockingIOError:
            return -1
        self._log.write(output)
        return len(output)
