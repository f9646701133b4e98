"""Bound what attempts take, by cgroup: memory, processes and CPU time.

    <base>                   all attempts of this server together: memory and processes, less a reserve for the rest
    <base>/<worker>          one attempt: its number of processes, and its weight in CPU time (by GPUs)
    <base>/<worker>/<rank>   one task, where its run asked for an amount: memory, CPU time

For CPU time a group counts as one against whatever is beside it. In v2 that is other groups, so an attempt weighs as
many as it has GPUs. In v1 that is often every single process of the machine, and all jobs in one group would be starved
by a few of them: there only tasks that asked for CPUs are in groups, `<base>-<worker>-<rank>`, which are beside the
server instead of below a base, and weigh as many as they asked for.

A controller lies in the unified hierarchy (v2) or in one of its own (v1), whichever this machine has; `Hierarchies`
in confine says which. Only a run that names an amount has groups made for it: the other levels are written once per
server and once per worker.
"""

from __future__ import annotations

import errno
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
        try:
            confine.write(f"{group}/cpu.cfs_quota_us", str(cpus * PERIOD_US))
        except OSError as error:
            # v1 refuses a group more than one above it has, as in a container with fewer CPUs: that one bounds it.
            if error.errno != errno.EINVAL:
                raise


def weigh(group: str, count: int, *, unified: bool) -> None:
    """Let a group count as so many when CPUs are short."""
    if unified:
        confine.try_write(f"{group}/cpu.weight", str(min(10_000, 100 * count)))
    else:
        confine.try_write(f"{group}/cpu.shares", str(min(262_144, 1024 * count)))


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
        if found.limits.get(CPU, found.unified) != found.unified:
            self.at[CPU] = f"{found.limits[CPU]}-{name}"
        joined = {group for controller, group in self.at.items() if controller != CPU}
        self.separate = sorted(joined - {self.unified})  # v1
        self._weight = 1
        self._oom_kills = 0  # when last looked

    def names(self) -> list[str]:
        """What `confine.discard` removes when the worker is dead, besides the unified group."""
        return sorted(set(self.at.values()) - {self.unified})

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
        try:
            self._make_for_task(made, rank, memory_bytes, cpus)
        except OSError:
            for group in made:
                confine.try_remove(group)
            raise
        return made

    def _make_for_task(self, made: list[str], rank: int, memory_bytes: int, cpus: int) -> None:
        for controller, amount in (MEMORY, memory_bytes), (CPU, cpus):
            if not amount or controller not in self.at:
                continue
            parent = self.at[controller]
            unified = parent == self.unified
            group = f"{parent}-{rank}" if controller == CPU and not unified else f"{parent}/{rank}"
            confine.create(group)
            if group not in made:
                made.append(group)
            if controller == MEMORY:
                bound_memory(group, amount, unified=unified)
            else:
                bound_cpus(group, amount, unified=unified)
                if not unified:
                    weigh(group, amount, unified=False)

    def weigh(self, gpus: int) -> None:
        count = max(1, gpus)
        if self.at.get(CPU) == self.unified and self.unified and count != self._weight:
            weigh(self.unified, count, unified=True)
            self._weight = count

    def had_oom(self, tasks: list[str]) -> bool:
        """Whether the kernel's OOM killer struck in this worker's groups since this was last asked: once per attempt,
        before the groups of its tasks are removed. v2 counts a whole subtree; v1 does not."""
        if MEMORY not in self.at:
            return False
        group = self.at[MEMORY]
        unified = group == self.unified
        total = _oom_kills(f"{group}/memory.events" if unified else f"{group}/memory.oom_control")
        before, self._oom_kills = self._oom_kills, total
        of_tasks = () if unified else [task for task in tasks if task.startswith(f"{group}/")]
        return total > before or any(_oom_kills(f"{task}/memory.oom_control") for task in of_tasks)


def prefer_for_oom(score: int) -> None:
    """Set this process's OOM score, and so that of all it starts; lowering it takes a right, and is done where held."""
    confine.try_write("/proc/self/oom_score_adj", str(score))


def _oom_kills(path: str) -> int:
    """The count in a file of `key value` lines; 0 when the group is gone or the kernel does not count."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        _, found, rest = os.read(fd, 4096).partition(b"oom_kill ")
    finally:
        os.close(fd)
    return int(rest.split(b"\n", 1)[0]) if found else 0


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
