"""Signals to a process that is not ours and to all it has begotten, by pidfd, so that no stranger is hit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from rota.adapters.backends import procs
from rota.core.run import Holder

SIGKILL = signal.SIGKILL
Target = tuple[int, int]  # pid, start time


def family(holder: Holder) -> tuple[Target, ...]:
    """The process itself first, then its descendants; empty when it is not there any more, or when we live by it: the
    server, whatever it was started by, and the first process. Nobody ends a lease by ending the house."""
    if holder.pid in _ours():
        return ()
    found = [(pid, procs.start_time(pid)) for pid in (holder.pid, *procs.descendants(holder.pid))]
    if found[0][1] != holder.start_ticks:
        return ()
    return tuple((pid, start) for pid, start in found if start is not None)


def signal_all(targets: Iterable[Target], number: int) -> bool:
    """False when one of them lives and may not be signalled by this account."""
    told = [_signal(pid, start, number) for pid, start in targets]
    return all(told)


def _signal(pid: int, start: int, number: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return True  # gone
    try:
        if procs.start_time(pid) == start:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
    return True


def _ours() -> set[int]:
    found = {1}
    pid: int | None = os.getpid()
    while pid and pid not in found:
        found.add(pid)
        pid = procs.parent(pid)
    return found
