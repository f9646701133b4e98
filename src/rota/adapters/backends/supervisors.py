"""Looks at supervisors and at what is below them, and what follows at once. Called in a looker (see lookers): a job, or
a process of any account, can make each of these looks wait."""

from __future__ import annotations

import signal

from rota.adapters.backends import claims, procs, stuck

Supervisor = tuple[int, int]  # pid, start time


def is_deaf(pid: int, has_begun: bool) -> bool:
    """Return whether a supervisor hears nothing when the end of its attempt is overdue. It is stopped, or it waits for
    a file system that does not answer: for that of the working directory before it has started anything; for that of
    the command, of its interpreter or of a directory of PATH while it starts it, since posix_spawn keeps it in the
    kernel until the child's exec is over. By NFS both waits end with SIGKILL."""
    if procs.is_stopped(pid):
        return True
    return not has_begun and (procs.waits_in_kernel(pid) or not procs.children(pid))


def kill_with_children(shim: Supervisor) -> None:
    """Kill a supervisor and what it has started. A child before its exec has no mark yet and holds the lock open, so
    that without a cgroup nothing else would find it."""
    below = [(pid, start) for pid in procs.children(shim[0]) if (start := procs.start_time(pid)) is not None]
    for each in (shim, *below) if procs.start_time(shim[0]) == shim[1] else ():
        procs.send_to(*each, signal.SIGKILL)


def waiting(shim: Supervisor) -> dict[str, int] | None:
    """Return the threads of a supervisor that wait in the kernel (see `stuck.steadily`); None: it is gone."""
    return stuck.steadily(shim[0]) if procs.start_time(shim[0]) == shim[1] else None


def left(root: str, attempt_id: str, shim: int | None) -> list[str]:
    """Say what is left of an attempt that was killed."""
    return list(stuck.described(claims.processes(root, attempt_id, shim)).values())


def stopped_of_launcher(pid: int) -> list[int]:
    """Return those of the zygote and its workers, some of which carry an attempt, that are stopped."""
    return [each for each in (pid, *procs.children(pid)) if procs.is_stopped(each)]
