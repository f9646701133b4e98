"""Say which directory holds a start up.

The kernel locks a directory while a name in it is made or looked up, and an account that can search or list it can hold
that lock for as long as it likes. Who waits for it is not told, cannot give up, and cannot be ended.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

SAY_AFTER_S = 10.0


@contextmanager
def told_of(directory: Path, after_s: float = SAY_AFTER_S) -> Iterator[None]:
    """Say once on stderr what is waited for, where what is done in this directory takes longer than that."""
    timer = Timer(after_s, _say, (directory, after_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _say(directory: Path, after_s: float) -> None:
    print(
        f"rota: the start has waited {after_s:g} s for the directory {directory}. A process of another account may "
        "hold its lock: by a FUSE file system that does not answer, or in the scheduling class IDL beside processes "
        "that keep its CPU busy. As root, `grep . /sys/fs/fuse/connections/*/waiting` shows which FUSE connections "
        "wait (not 0), and `echo 1 > /sys/fs/fuse/connections/N/abort` ends one; `ps -eo pid,user,cls,psr,pcpu,args` "
        "shows the others (docs/operations.md, a lock that an account holds). The start goes on as soon as the "
        "directory is free",
        file=sys.stderr,
        flush=True,
    )
