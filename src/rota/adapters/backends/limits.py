"""Bound what attempts take, by cgroup: memory, processes and CPU time.

    <base>                   all attempts of this server together: memory and processes, less a reserve for the rest;
                             in v1 their weight in CPU time as well, that of the machine's cores
    <base>/<worker>          one attempt: its number of processes, its weight in CPU time (by GPUs), and nearly all of
                             the memory, so that a run that takes all of it meets a bound of its own
    <base>/<worker>/<rank>   one task, where its run asked for an amount: memory, CPU time

For CPU time a group counts as one against whatever is beside it. In v2 that is other groups, so all attempts together
weigh as much as the server. In v1 that is often every single process or session of the machine. There <base> weighs as
many as there are cores, so that a few processes do not starve all jobs, nor a job of thousands of sessions the server;
tasks that asked for CPUs are in groups of their own, `<base>-<worker>-<rank>`, which weigh as many as they asked for.

A controller lies in the unified hierarchy (v2) or in one of its own (v1), whichever this machine has; `Hierarchies`
in confine says which. Only a run that names an amount has groups made for it: the other levels are written once per
server and once per worker.
"""

from __future__ import annotations

import errno
import os
import sys

from rota.adapters.backends import confine, procs
from rota.adapters.backends.oom import OomWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rota.adapters.backends.confine import Hierarchies

MEMORY, PIDS, CPU = "memory", "pids", "cpu"
BOUND = {MEMORY: ("memory.max", "memory.limit_in_bytes"), PIDS: ("pids.max",)}  # in v2, and in v1
UNBOUNDED = 1 << 62
# The largest real jobs seen are 8 processes with 16 data loaders each and a thread per core of a 128-core machine:
# about 16,000 tasks. Twice that still leaves pid_max (4,194,304 on 64-bit distributions) to everybody else.
PROCESSES = 32_768
# Such a job has about 125 tasks for each core. Many more would starve the server on a small machine.
FEWEST_PROCESSES, PROCESSES_PER_CORE = 4096, 512
PERIOD_US = 100_000
ENTER_TRIES = 5
GIB = 1 << 30


def memory_for_jobs(total: int) -> int:
    """Leave a twentieth, at least 1 GiB and at most 8, to the server and the system; never more than a quarter."""
    return total - min(max(total // 20, GIB), 8 * GIB, total // 4)


def memory_for_one(all_jobs: int) -> int:
    """Leave a 32nd, at most 512 MiB, of what all attempts may take together: their supervisors need less than that."""
    return all_jobs - min(all_jobs // 32, GIB // 2)


def bound_memory(group: str, amount: int, *, unified: bool) -> None:
    """Swap is not given on top: a run that swaps slows down everybody."""
    if unified:
        confine.write(f"{group}/memory.max", str(amount))
        confine.try_write(f"{group}/memory.swap.max", "0")
    else:
        both = f"{group}/memory.memsw.limit_in_bytes"
        if amount > (_number(both) or amount):  # the kernel refuses a bound of memory above that of memory and swap
            confine.try_write(both, str(amount))
        confine.write(f"{group}/memory.limit_in_bytes", str(amount))
        confine.try_write(both, str(amount))


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


def processes_for(cores: int) -> int:
    """Return how many processes one attempt may have on a machine of so many cores."""
    return min(PROCESSES, max(FEWEST_PROCESSES, PROCESSES_PER_CORE * cores))


class Bounds:
    """What all attempts of this server may take together, and each of them by itself (`processes`; None = by cores)."""

    def __init__(self, found: Hierarchies, memory_bytes: int | None, processes: int | None) -> None:
        self.found = found
        memory, pids = found.limits.get(MEMORY, ""), found.limits.get(PIDS, "")
        total = min(_installed(), _least_above(memory, *BOUND[MEMORY]))
        self._memory_bytes = memory_bytes or memory_for_jobs(total)
        self.memory_for_one = 0  # no bound; set with that of all
        most = min(_kernels("pid_max"), _kernels("threads-max"), _least_above(pids, *BOUND[PIDS]))
        self._all_processes = most * 3 // 4
        self.processes = min(processes or processes_for(os.cpu_count() or 1), most // 2)

    def apply(self) -> list[str]:
        """Set the bounds of all attempts together; what could not be set, in words. Where jobs run, a bound that cannot
        be changed stays as it was; a controller that takes none at all is left out."""
        found = self.found
        if found.unified:
            confine.pass_on(found.unified, found.unified_controllers())
        said = []
        self.memory_for_one = 0
        for controller, bound in ((MEMORY, self._bound_memory), (PIDS, self._bound_processes)):
            if base := found.limits.get(controller):
                try:
                    bound(base)
                except FileNotFoundError:  # an earlier server clears up just now: the caller tries again
                    raise
                except OSError as error:
                    said.append(f"{controller}: {error}")
                    if not _is_bounded(base, controller):
                        del found.limits[controller]
        if base := found.cpu_v1():
            weigh(base, _cores(), unified=False)
        if base := found.limits.get(MEMORY):
            self.memory_for_one = memory_for_one(self._bound_on_memory(base) or self._memory_bytes)
        return said

    def _bound_on_memory(self, base: str) -> int | None:
        return _number(f"{base}/{BOUND[MEMORY][0 if base == self.found.unified else 1]}")

    def _bound_memory(self, base: str) -> None:
        unified, amount = base == self.found.unified, self._memory_bytes
        now = self._bound_on_memory(base)
        used = _number(f"{base}/{'memory.current' if unified else 'memory.usage_in_bytes'}") or 0
        try:
            if unified and amount < min(now or UNBOUNDED, used):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))  # v1 refuses that itself; v2 would kill jobs
            bound_memory(base, amount, unified=unified)
        except OSError as error:
            if error.errno != errno.EBUSY or now is None:
                raise
            raise OSError(
                f"jobs use {used >> 20} MiB, more than the new bound of {amount >> 20} MiB for all of them: the bound "
                f"of {now >> 20} MiB stays until the next start"
            ) from error

    def _bound_processes(self, base: str) -> None:
        bound_processes(base, self._all_processes)

    def restore(self) -> None:
        """Make the base groups again: the last worker of an earlier server removes them when it leaves."""
        for base in self.found.bases():
            try:
                os.mkdir(base, confine.HIDDEN)
            except FileExistsError:
                continue
            for text in self.apply():
                print(f"limits: {text}", file=sys.stderr, flush=True)


class WorkerGroups:
    """The groups of one worker, and of the tasks of the attempt that it carries."""

    def __init__(self, found: Hierarchies, name: str) -> None:
        self.found = found
        self.unified = f"{found.unified}/{name}" if found.unified else ""
        self.at = {controller: f"{base}/{name}" for controller, base in found.limits.items()}
        self.weighed = self.at.get(CPU, "")
        joined = {group for controller, group in self.at.items() if controller != CPU}
        self.separate = sorted(joined - {self.unified})  # v1
        if base := found.cpu_v1():
            self.separate.append(self.weighed)
            self.at[CPU] = f"{base}-{name}"
        self._weight = 1
        self.oom: OomWatch | None = None  # once entered
        self.blow: confine.Blow | None = None
        # Of v2: an open file of v1 tells for a second, and for as long as it is read more often, what it told before.
        self.roll: confine.Roll | None = None

    def names(self) -> list[str]:
        """What `confine.discard` removes when the worker is dead, besides the unified group."""
        return sorted({*self.at.values(), self.weighed} - {self.unified, ""})

    def enter(self, bounds: Bounds) -> None:
        """Move the calling worker in."""
        for attempt in range(ENTER_TRIES):
            try:
                bounds.restore()
                self._enter(bounds)
                return
            except FileNotFoundError:  # an earlier server clears up just now
                if attempt == ENTER_TRIES - 1:
                    raise

    def _enter(self, bounds: Bounds) -> None:
        """In v2 a group with controllers below it may hold no process, so the worker gets a leaf."""
        if self.unified:
            confine.create_below(self.unified)
            confine.pass_on(self.unified, self.found.unified_controllers())
            confine.create(self.leaf)
            confine.join(self.leaf)
            self.arm()
        for group in self.separate:
            confine.create_below(group)
            confine.join(group)
        if PIDS in self.at:
            bound_processes(self.at[PIDS], bounds.processes)
        if MEMORY in self.at:
            group = self.at[MEMORY]
            unified = group == self.unified
            if bounds.memory_for_one:
                bound_memory(group, bounds.memory_for_one, unified=unified)
            self.oom = OomWatch(group, unified=unified)
        if self.unified:
            self.roll = confine.Roll(self.unified)
            self.roll.add(self.leaf)

    @property
    def any_group(self) -> str:
        """A group that holds all processes of the attempt, and us: of v2, else of v1; empty where there is none."""
        return self.unified or next((group for group in self.separate if group != self.weighed), "")

    def arm(self) -> None:
        """Open what a kill of the unified group needs, anew where that was done before."""
        had, self.blow = self.blow, None
        if had is not None:
            had.close()
        self.blow = confine.Blow(self.found.unified, self.unified, self.leaf)

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
                if not unified:  # beside that of all runs, so never more than that one; a simulated node has any number
                    weigh(group, min(amount, _cores()), unified=False)

    def has_foreign_processes(self, own_stat: int) -> bool:
        """Tell whether more processes count against the bound of this worker's group than the calling worker, which has
        no child left: zombies that a process outside has to reap. `own_stat`: its /proc/self/stat, opened before, since
        others can hold the lock of /proc/self/task."""
        current = f"{self.at[PIDS]}/pids.current" if PIDS in self.at else ""
        if not current or (_number(current) or 0) <= 1:
            return False
        own = procs.threads_in(own_stat)  # first: one that ends in between counts no longer
        return (_number(current) or 0) > own

    def weigh(self, gpus: int) -> None:
        count = max(1, gpus)
        if self.weighed and count != self._weight:
            weigh(self.weighed, count, unified=self.weighed == self.unified)
            self._weight = count


def _cores() -> int:
    """Return how many this process may use: in a container fewer than the machine has, perhaps."""
    return len(os.sched_getaffinity(0))


def _installed() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _kernels(name: str) -> int:
    return _number(f"/proc/sys/kernel/{name}") or 32_768


def _least_above(group: str, *names: str) -> int:
    """The narrowest bound on the groups above this one, such as a container's."""
    least = UNBOUNDED
    above = os.path.dirname(group)
    while above.startswith("/sys/fs/cgroup"):
        for name in names:
            least = min(least, _number(f"{above}/{name}") or least)
        above = os.path.dirname(above)
    return least


def _is_bounded(group: str, controller: str) -> bool:
    """Whether a group has a bound, of an earlier server. v1 says "none" by a number near the largest."""
    return any((_number(f"{group}/{name}") or UNBOUNDED) < UNBOUNDED for name in BOUND[controller])


def _number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):  # absent, or "max"
        return None
