"""Name the processes that do not end after SIGKILL, and the supervisors that hang, and what they wait for.

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
MAX_THREADS = 2048  # of a process, that are looked at: some 20 ms
# In the names of functions that wait for a lock of a pipe or FIFO, or of a terminal.
OUTPUT = ("pipe", "fifo", "tty", "pty")


def described(pids: Iterable[int]) -> dict[int, str]:
    """Return by pid, for some of these processes that live, who each is and what it waits for."""
    found: dict[int, str] = {}
    for pid in pids:
        stat = procs.fields(pid)
        if stat is None or procs.start_time(pid) is None:
            continue
        where = waits(pid)
        state = f"it waits in the kernel{_named(where)}" if where else f"its state is {stat[0].decode()}"
        found[pid] = f"{tracers.described(pid)} does not end after SIGKILL: {state}"
        if len(found) == MAX_NAMED:
            break
    return found


def supervisor(pid: int, functions: Iterable[str], run_id: str) -> str:
    """Say of a supervisor that threads of it wait in these kernel functions."""
    return (
        f"its supervisor, process {pid}, waits in the kernel{_named(functions)} for what does not answer; where a "
        f"cancel does not end that, {freed_by(run_id)}"
    )


def unexplained(supervisor: int | None) -> str:
    """Say what is known where nothing was found that does not end."""
    if supervisor is None:
        return "no process of it was found just now, and its end is not on record yet"
    stat = procs.fields(supervisor)
    state = stat[0].decode() if stat is not None else "not known"
    return f"no process of it was found just now but its supervisor, process {supervisor}, whose state is {state}"


def freed_by(run_id: str) -> str:
    return f"an admin gives the GPUs back with rota cancel --force {run_id}"


def waits(pid: int) -> list[str]:
    """Return the kernel functions in which threads of this process wait where no signal reaches them; "" for a thread
    of which the kernel does not name it."""
    return [_function(f"/proc/{pid}/task/{each}/wchan") for each in _waiting(pid)]


def beside(pid: int) -> list[str]:
    """Return the kernel functions in which the threads of this process beside its first one wait, however they do."""
    found = (_function(f"/proc/{pid}/task/{each}/wchan") for each in procs.threads(pid) if each != str(pid))
    return [each for each in found if each]


def steadily(pid: int) -> dict[str, int]:
    """Return the threads of this process that wait so, each with a number that changes when it has run since."""
    return {each: _switches(f"/proc/{pid}/task/{each}/status") for each in _waiting(pid)}


def waits_for_output(pid: int) -> bool:
    """Tell whether a thread of this process waits for a lock of a pipe or of a terminal, which another process holds,
    and not for the disk of the log."""
    return any(not each or any(word in each for word in OUTPUT) for each in waits(pid))


def _waiting(pid: int) -> list[str]:
    threads = procs.threads(pid)[:MAX_THREADS]
    return [each for each in threads if (stat := procs.fields(f"{pid}/task/{each}")) is not None and stat[0] == b"D"]


def _named(functions: Iterable[str]) -> str:
    named = next(filter(None, functions), "")
    return f" ({named})" if named else ""


def _switches(path: str) -> int:
    try:
        with open(path, "rb", buffering=0) as file:
            return int((file.read(4096) or b"").partition(b"\nvoluntary_ctxt_switches:")[2].split(maxsplit=1)[0])
    except (OSError, IndexError):  # there is no such thread any more
        return -1


def _function(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            name = (file.read(100) or b"").decode("ascii", "replace").strip()
    except OSError:  # there is no such thread any more, or it may not be looked at
        return ""
    return "" if name == "0" else name
