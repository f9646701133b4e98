"""Opening files that a job's account can reach: never through a link, never waiting, only regular files."""

from __future__ import annotations

import errno
import os
import stat

# O_NONBLOCK: a file lease (fcntl F_SETLEASE) makes a plain open() sleep up to 45 s, a FIFO for ever.
SAFELY = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def open_regular(path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open a regular file. Raises BlockingIOError for a leased one, OSError for whatever else is no plain file."""
    fd = os.open(path, flags | SAFELY, mode)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)
