"""Find and end the processes that keep others from dying by tracing them (ptrace) from outside.

A tracer can have a process stop on its way out, with its memory and its GPUs (PTRACE_O_TRACEEXIT). The kernel drops a
SIGKILL to a process that is dying already, so it stays there until the tracer lets it go, or ends. Without that option
a process dies, but nobody can reap it before its tracer has.

An account may trace its own processes, so a shell could keep the GPUs of a run for ever. Hence a tracer that has the
account of the run's processes is killed once they have outlived SIGKILL; any other is only named. Two processes that
trace each other in this way cannot be ended by anybody: only kernel.yama.ptrace_scope keeps them from it.

Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

import os
import signal

from rota.adapters.backends import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

AFTER_S = 1.0  # a killed process that has not ended by then may be traced
MAX_STATUS = 4096
MAX_TRACERS = 1000  # that are dealt with at a time


def end(pids: Iterable[int], uid: int, subuids: procs.Ranges = ()) -> list[str]:
    """Kill what traces these processes and is not one of them, as far as it is `uid`'s own, or has one of its
    subordinate ids (see `procs.is_of`); say what was done, or who traces them."""
    traced = list(pids)
    mine = lineage()
    said = []
    for pid in tracers_of(traced):
        start, who = procs.start_time(pid), described(pid)
        if start is None or pid in traced:
            continue  # it has ended, or is being killed with the rest
        if pid not in mine and kill(pid, start, uid, subuids):
            said.append(f"{who} traced it and kept it from ending, and was killed")
        else:
            said.append(f"{who} traces it and keeps it from ending")
    return said


def tracers_of(pids: Iterable[int]) -> list[int]:
    """What traces a thread of one of these, and what traces that, and so on: each waits for the next to let it go."""
    found: list[int] = []
    todo = list(pids)
    while todo and len(found) < MAX_TRACERS:
        for tracer in _direct(todo.pop()):
            if tracer not in found:
                found.append(tracer)
                todo.append(tracer)
    return found


def _direct(pid: int) -> set[int]:
    # The kernel names the thread that traces; the process is found by it.
    by = {_field(f"{pid}/task/{thread}", b"TracerPid") for thread in procs.threads(pid)}
    return {process for thread in by if thread and (process := _field(str(thread), b"Tgid"))}


def _field(where: str, name: bytes) -> int:
    try:
        fd = os.open(f"/proc/{where}/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        procs.must_be_known(error)
        return 0
    try:
        value = os.read(fd, MAX_STATUS).partition(b"\n" + name + b":")[2].split(maxsplit=1)
    except OSError:  # gone
        return 0
    finally:
        os.close(fd)
    return int(value[0]) if value else 0


def described(pid: int) -> str:
    name = procs.name_and_parent(pid)
    shown = "".join(char if char.isprintable() else "?" for char in name[0].decode(errors="replace")) if name else "?"
    return f"process {pid} ({shown}) of user id {procs.uid_of(pid)}"


def kill(pid: int, start: int, uid: int, subuids: procs.Ranges) -> bool:
    return procs.send(pid, signal.SIGKILL, lambda: procs.start_time(pid) == start and procs.is_of(pid, uid, subuids))


def lineage() -> set[int]:
    """This process and all above it: a supervisor, or the server, by which others live."""
    found = {1}
    up: int | None = os.getpid()
    while up and up not in found:
        found.add(up)
        up = procs.parent(up)
    return found
