"""Find and end the processes that keep others from ending by holding the lock of a pipe from outside.

A splice(2) from a socket into a pipe waits for the socket with the lock of the pipe held. Whoever reads, writes or
closes that pipe waits for the lock meanwhile, and no signal ends that wait (state D). An account may open the pipes of
its own processes, so a shell could keep the GPUs of a run for ever. Hence a process of the run's account that is in
such a call is killed once a killed process of the run, or its supervisor, waits for a pipe; root's are only named.

Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

import os

from rota.adapters.backends import procs, tracers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# System calls that hold the lock of a pipe while they wait for something else, and which argument is that pipe. By
# io_uring it can be done without any of them.
CALLS = {
    "x86_64": {b"275": 3, b"278": 1},  # splice, vmsplice
    "aarch64": {b"76": 3, b"75": 1},
}.get(os.uname().machine, {})
MAX_THREADS = 256  # of a process, that are looked at


def end(stuck: Iterable[int], uid: int) -> list[str]:
    """Kill what may hold the lock for which one of these processes waits; say what was done, or who it is."""
    family = frozenset(stuck)
    if not CALLS or not any(map(is_waiting, family)):
        return []
    spared, said = family | tracers.lineage(), []
    for pid in procs.all_pids():
        if pid in spared or not procs.is_of(pid, uid) or not _holds_lock(pid):
            continue
        start, who = procs.start_time(pid), tracers.described(pid)
        if start is None:
            continue
        if uid and tracers.kill(pid, start, uid):
            said.append(f"{who} held the lock of a pipe (splice) and kept it from ending, and was killed")
        else:
            said.append(f"{who} holds the lock of a pipe (splice) and keeps it from ending")
    return said


def is_waiting(pid: int) -> bool:
    """Tell whether a thread of this process waits for the lock of a pipe."""
    for each in procs.threads(pid)[:MAX_THREADS]:
        stat = procs.fields(f"{pid}/task/{each}")
        if stat is not None and stat[0] == b"D" and b"pipe" in _read(f"{pid}/task/{each}/wchan"):
            return True
    return False


def _holds_lock(pid: int) -> bool:
    for each in procs.threads(pid)[:MAX_THREADS]:
        words = _read(f"{pid}/task/{each}/syscall").split()
        if words and words[0] in CALLS and _is_pipe(pid, int(words[CALLS[words[0]]], 16)):
            return True
    return False


def _is_pipe(pid: int, fd: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/fd/{fd}").startswith("pipe:")
    except OSError as error:
        procs.must_be_known(error)
        return False


def _read(where: str) -> bytes:
    """Return what the kernel says there; nothing where there is no such thread, or it may not be looked at."""
    try:
        with open(f"/proc/{where}", "rb", buffering=0) as file:
            return file.read(200) or b""
    except OSError:
        return b""
