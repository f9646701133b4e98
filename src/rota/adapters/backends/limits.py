"""Bound what attempts take, by cgroup: memory, processes and CPU time.

    <base>                   all attempts of this server together: memory and processes, less a reserve for the rest
    <base>/<worker>          one attempt: its number of processes, and its weight in CPU time (by GPUs)
    <base>/<worker>/<rank>   one task, where its run asked for an amount: memory, CPU time

A controller lies in the unified hierarchy (v2) or in one of its own (v1), whichever this machine has; `Hierarchies`
in confine says which. Only a run that names an amount has groups made for it: the other levels are written once per
server and once per worker.
"""

from __future__ import annotations

import os

from rota.adapters.backends import confine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.adapters.backends.confine import Hierarchies

MEMORY, PIDS, CPU = "memory", "pids", "cpu"
# The largest real jobs seen are 8 processes with 16 data loaders each and a thread per core of a 128-core machine:
# about 16,000 tasks. Twice that still leaves pid_max (4,194,304 on 64-bit distributions) to everybody else.
PROCESSES = 32_768
PERIOD_US = 100_000
ENTER_TRIES = 5
GIB = 1 << 30
# Linux kills the process with the highest score first; 1000 is the whole memory. Jobs before the server, and the
# server (where it may lower its own) before nothing but the system's daemons, which are at -900 and below.
JOB_OOM_SCORE, SERVER_OOM_SCORE = 200, -500


def memory_for_jobs(total: int) -> int:
    """Leave a twentieth, at least 1 GiB and at most 8, to the server and the system; never more than a quarter."""
    return total - min(max(total // 20, GIB), 8 * GIB, total // 4)


def bound_memory(group: str, amount: int, *, unified: bool) -> None:
    """Swap is not given on top: a run that swaps slows down everybody."""
    if unified:
        confine.write(f"{group}/memory.max", str(amount))
        confine.try_write(f"{group}/memory.swap.max", "0")
    else:
        confine.write(f"{group}/memory.limit_in_bytes", str(amount))
        confine.try_write(f"{group}/memory.memsw.limit_in_bytes", str(amount))


def bound_processes(group: str, count: int) -> None:
    confine.write(f"{group}/pids.max", str(count))


def bound_cpus(group: str, cpus: int, *, unified: bool) -> None:
    if unified:
        confine.write(f"{group}/cpu.max", f"{cpus * PERIOD_US} {PERIOD_US}")
    else:
        confine.write(f"{group}/cpu.cfs_period_us", str(PERIOD_US))
        confine.write(f"{group}/cpu.cfs_quota_us", str(cpus * PERIOD_US))


def weigh(group: str, gpus: int, *, unified: bool) -> None:
    """A group counts as one against others when CPUs are short, so give a run with many GPUs the weight of as many."""
    share = max(1, gpus)
    if unified:
        confine.try_write(f"{group}/cpu.weight", str(min(10_000, 100 * share)))
    else:
        confine.try_write(f"{group}/cpu.shares", str(min(262_144, 1024 * share)))


class Bounds:
    """What all attempts of this server may take together, and each of them by itself."""

    def __init__(self, found: Hierarchies, memory_bytes: int | None, processes: int) -> None:
        self.found = found
        memory, pids = found.limits.get(MEMORY, ""), found.limits.get(PIDS, "")
        total = min(_installed(), _least_above(memory, "memory.max", "memory.limit_in_bytes"))
        self._memory_bytes = memory_bytes or memory_for_jobs(total)
        most = min(_kernels("pid_max"), _kernels("threads-max"), _least_above(pids, "pids.max"))
        self._all_processes = most * 3 // 4
        self.processes = min(processes, most // 2)

    def apply(self) -> None:
        found = self.found
        if found.unified:
            confine.pass_on(found.unified, found.unified_controllers())
        if memory := found.limits.get(MEMORY):
            bound_memory(memory, self._memory_bytes, unified=memory == found.unified)
        if pids := found.limits.get(PIDS):
            bound_processes(pids, self._all_processes)

    def restore(self) -> None:
        """Make the base groups again: the last worker of an earlier server removes them when it leaves."""
        for base in self.found.bases():
            try:
                os.mkdir(base, 0o755)
            except FileExistsError:
                continue
            self.apply()


class WorkerGroups:
    """The groups of one worker, and of the tasks of the attempt that it carries."""

    def __init__(self, found: Hierarchies, name: str) -> None:
        self.found = found
        self.unified = f"{found.unified}/{name}" if found.unified else ""
        self.at = {controller: f"{base}/{name}" for controller, base in found.limits.items()}
        self.separate = sorted({group for group in self.at.values() if group != self.unified})  # v1
        self._weight = 1

    def enter(self, bounds: Bounds) -> None:
        """Move the calling worker in."""
        for attempt in range(ENTER_TRIES):
            try:
                bounds.restore()
                self._enter(bounds.processes)
                return
            except FileNotFoundError:  # an earlier server clears up just now
                if attempt == ENTER_TRIES - 1:
                    raise

    def _enter(self, processes: int) -> None:
        """In v2 a group with controllers below it may hold no process, so the worker gets a leaf."""
        if self.unified:
            confine.create(self.unified)
            confine.pass_on(self.unified, self.found.unified_controllers())
            confine.create(self.leaf)
            confine.join(self.leaf)
        for group in self.separate:
            confine.create(group)
            confine.join(group)
        if PIDS in self.at:
            bound_processes(self.at[PIDS], processes)

    @property
    def leaf(self) -> str:
        return f"{self.unified}/shim"

    def for_task(self, rank: int, memory_bytes: int, cpus: int) -> list[str]:
        """Make the groups of a task that asked for an amount; those to join. OSError: the bound does not hold."""
        made: list[str] = []
        for controller, amount in (MEMORY, memory_bytes), (CPU, cpus):
            if not amount or controller not in self.at:
                continue
            parent = self.at[controller]
            group, unified = f"{parent}/{rank}", parent == self.unified
            confine.create(group)
            if group not in made:
                made.append(group)
            if controller == MEMORY:
                bound_memory(group, amount, unified=unified)
            else:
                bound_cpus(group, amount, unified=unified)
        return made

    def weigh(self, gpus: int) -> None:
        if CPU in self.at and gpus != self._weight:
            weigh(self.at[CPU], gpus, unified=self.at[CPU] == self.unified)
            self._weight = gpus

    def oom_kills(self, tasks: list[str]) -> int:
        """How often the kernel's OOM killer struck in this worker's groups. v2 counts a whole subtree; v1 does not."""
        if MEMORY not in self.at:
            return 0
        group = self.at[MEMORY]
        if group == self.unified:
            return _count(f"{group}/memory.events")
        groups = [group, *(task for task in tasks if task.startswith(f"{group}/"))]
        return sum(_count(f"{each}/memory.oom_control") for each in groups)


def prefer_for_oom(score: int) -> None:
    """Set this process's OOM score, and so that of all it starts; lowering it takes a right, and is done where held."""
    confine.try_write("/proc/self/oom_score_adj", str(score))


def _count(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    except (OSError, ValueError):
        pass  # the group is gone, or the kernel does not count
    return 0


def _installed() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kernels(name: str) -> int:
    return _number(f"/proc/sys/kernel/{name}") or 32_768


def _least_above(group: str, *names: str) -> int:
    """The narrowest bound on the groups above this one, such as a container's."""
    least = 1 << 62
    above = os.path.dirname(group)
    while above.startswith("/sys/fs/cgroup"):
        for name in names:
            least = min(least, _number(f"{above}/{name}") or least)
        above = os.path.dirname(above)
    return least


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # absent, or "max"
        return None
