"""A launcher whose supervisors wait in the kernel, for the lock of a FIFO, before one of their system calls.

`python -I blocked.py FIFO CALL PIPE_S MOST_LEFT` is put before a zygote's command line. The lock is free unless a
process outside holds it. A CALL that ends in " asleep" waits for a flock of the FIFO's directory instead, in a state in
which a signal would end it.
"""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections.abc import Callable
from typing import Any

from rota.adapters.backends import shim, zygote

FIFO, CALL, PIPE_S, MOST_LEFT = sys.argv[1:5]
TIOCGPTN = 0x80045430


def wait() -> None:
    """Wait for the lock of the FIFO, which an open takes, and which no signal interrupts."""
    real_close(os.open(FIFO, os.O_RDONLY | os.O_NONBLOCK))


def wait_asleep() -> None:
    directory = os.open(os.path.dirname(FIFO), os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_SH)
    real_close(directory)


def after_wait(act: Callable[..., Any], matters: Callable[..., bool]) -> Callable[..., Any]:
    def blocked(*args: Any, **more: Any) -> Any:
        if matters(*args):
            (wait_asleep if CALL.endswith(" asleep") else wait)()
        return act(*args, **more)

    return blocked


def is_master(fd: int) -> bool:
    try:
        fcntl.ioctl(fd, TIOCGPTN, bytes(4))
    except OSError:
        return False
    return True


real_close = os.close
CALLS: dict[str, tuple[Any, str, Callable[..., bool]]] = {
    "close": (os, "close", is_master),
    "ioctl": (fcntl, "ioctl", lambda fd, number, *rest: number == termios.TIOCSWINSZ),
    "rmdir": (os, "rmdir", lambda path: path == "1"),  # a checkpoint directory, by its name in that of its account
    "lexists": (os.path, "lexists", lambda path: path.endswith(shim.FINISHED)),
    "mkdir": (os, "mkdir", lambda path, *rest: "checkpoints" in path),
    # who lists this finds the children of the supervisor, or of the launcher; anybody can hold the lock of it
    "listdir": (os, "listdir", lambda path=".": path == f"/proc/{os.getpid()}/task"),
}
where, name, matters = CALLS[CALL.removesuffix(" asleep")]
setattr(where, name, after_wait(getattr(where, name), matters))
shim.PIPE_S = float(PIPE_S)
shim.MAX_LEFT_BEHIND = int(MOST_LEFT)
shim.COUNT_AGAIN_S = 0.1
sys.argv = sys.argv[-2:]
zygote.main()
