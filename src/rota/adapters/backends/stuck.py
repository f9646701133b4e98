"""Name the processes that do not end after SIGKILL, and what they wait for.

A process that waits inside the kernel (state D) for a device, a file system or the lock of a pipe does not end before
that wait is over, and what it waits for need not be seen from outside. So such processes are only named: an admin
decides what becomes of their GPUs (`rota cancel --force`, ADR 20).

Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

from rota.adapters.backends import procs, tracers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

AFTER_S = 5.0  # a driver may take some seconds to take memory back from a killed process
MAX_NAMED = 8  # processes of an attempt
MAX_THREADS = 256  # of a process, that are looked at


def described(pids: Iterable[int]) -> dict[int, str]:
    """Return by pid, for some of these processes that live, who each is and what it waits for."""
    found: dict[int, str] = {}
    for pid in pids:
        stat = procs.fields(pid)
        if stat is None or procs.start_time(pid) is None:
            continue
        where = waits(pid)
        named = f" ({where[0]})" if where and where[0] else ""
        state = f"it waits in the kernel{named}" if where else f"its state is {stat[0].decode()}"
        found[pid] = f"{tracers.described(pid)} does not end after SIGKILL: {state}"
        if len(found) == MAX_NAMED:
            break
    return found


def waits(pid: int) -> list[str]:
    """Return the kernel functions in which threads of this process wait where no signal reaches them; "" for a thread
    of which the kernel does not name it."""
    found = []
    for each in procs.threads(pid)[:MAX_THREADS]:
        stat = procs.fields(f"{pid}/task/{each}")
        if stat is not None and stat[0] == b"D":
            found.append(_function(f"/proc/{pid}/task/{each}/wchan"))
    return found


def waits_for_pipe(pid: int) -> bool:
    """Tell whether a thread of this process waits for the lock of a pipe, which another process holds."""
    return any("pipe" in each or "fifo" in each for each in waits(pid))


def _function(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            name = (file.read(100) or b"").decode("ascii", "replace").strip()
    except OSError:  # there is no such thread any more, or it may not be looked at
        return ""
    return "" if name == "0" else name
