"""Checkpoint directories that the server of root keeps open, so that starts and ends find them without waiting.

What is open stays known to the kernel, and so do all directories above it. Else a name is looked up anew once memory
was short, which waits for the lock of the directory above, and every account can search `checkpoints/`: an account
could hold up everybody's starts, in supervisors that have GPUs. So a directory is opened before the order is handed
over, by a process of its own (see opener). The first order of an account after a start of the server waits for that,
a few tens of milliseconds, and where the lock is held, it is given up, which gives its GPUs back.

All but `is_open` is for the watcher's thread.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rota.adapters.backends import opener
from rota.adapters.backends.records import Shortage
from rota.core.descriptors import HIGHEST, shares

WITHIN_S = 10.0  # an order waits for its directory at most
KILLED_S = 1.0  # a stop waits for the processes that were killed; one that waits in the kernel may never end


class Directory(NamedTuple):
    path: str
    make: bool  # where it is not there


class Clock(Protocol):
    """The watcher, as it is used here."""

    def later(self, delay_s: float, act: Callable[[], None]) -> None: ...
    def follow(self, pidfd: int, act: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class _Opening:
    process: subprocess.Popen[bytes]
    pidfd: int  # the watcher closes it at the end of the process
    link: socket.socket
    waiting: dict[str, Callable[[bool], None]] = field(default_factory=dict)


class Pins:
    def __init__(self, within_s: float = WITHIN_S) -> None:
        self._within_s = within_s
        self._open: dict[str, int] = {}  # path -> descriptor; the one opened longest ago goes first
        self._opening: dict[str, _Opening] = {}

    def is_open(self, path: str) -> bool:
        """From any thread."""
        return path in self._open

    def ask(self, name: str, wanted: Directory, then: Callable[[bool], None], watcher: Clock) -> None:
        """Open a directory and then say whether its lock was to be had. An error of it is none of ours: whoever uses
        the directory meets it, too. Raises an OSError where the server is short of something."""
        if wanted.path in self._open:
            then(True)
            return
        opening = self._opening.get(wanted.path)
        if opening is None:
            if len(self._opening) >= _most():
                raise Shortage(f"{_most()} checkpoint directories are being opened already, and do not answer")
            opening = self._opening[wanted.path] = self._begin(wanted, watcher)
        opening.waiting[name] = then
        watcher.later(self._within_s, lambda: self._give_up(name, opening))

    def _begin(self, wanted: Directory, watcher: Clock) -> _Opening:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                fd = str(theirs.fileno())
                argv = [
                    sys.executable,
                    "-I",
                    "-S",
                    "-X",
                    "utf8",
                    opener.__file__,
                    fd,
                    str(int(wanted.make)),
                    wanted.path,
                ]
                process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # its users meet the same error
                    cwd="/",
                    env={},
                    pass_fds=[theirs.fileno()],
                )
                try:
                    pidfd = os.pidfd_open(process.pid)
                except BaseException:
                    process.kill()  # not waited for, as it may not end: the next Popen reaps it once it has
                    raise
            except BaseException:
                ours.close()
                raise
        opening = _Opening(process, pidfd, ours)
        watcher.follow(pidfd, lambda: self._ended(wanted.path, opening))
        return opening

    def _ended(self, path: str, opening: _Opening) -> None:
        opening.process.wait()
        self._opening.pop(path, None)
        with opening.link as link:
            found = socket.recv_fds(link, 1, 1, socket.MSG_CMSG_CLOEXEC)[1]
        if found:
            while len(self._open) >= _most():
                os.close(self._open.pop(next(iter(self._open))))
            self._open[path] = found[0]
        for name in list(opening.waiting):
            opening.waiting.pop(name)(True)

    def _give_up(self, name: str, opening: _Opening) -> None:
        then = opening.waiting.pop(name, None)
        if then is not None:
            then(False)

    def close(self) -> None:
        """When the watcher has ended. A process that does not end is left to itself: it holds nothing."""
        for opening in self._opening.values():
            opening.process.kill()
            opening.link.close()
            os.close(opening.pidfd)
        give_up = time.monotonic() + KILLED_S
        for opening in self._opening.values():
            with suppress(subprocess.TimeoutExpired):
                opening.process.wait(max(0.0, give_up - time.monotonic()))
        self._opening.clear()
        while self._open:
            os.close(self._open.popitem()[1])


def _most() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return shares(HIGHEST if soft == resource.RLIM_INFINITY else soft).pins
