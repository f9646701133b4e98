"""The kernel's OOM killer: whom it takes first, and at whose bound it struck.

It takes the process with the most memory, to which `oom_score_adj` adds thousandths of what there is. Three classes:

    the server, its launcher, supervisors    as the server has it
    tasks of a run that asks for memory      200: such a run has a bound of its own
    tasks of a run that asks for none        500: before a run that keeps to what it asked for

A supervisor raises a task's score before the task runs. Where root has the right CAP_SYS_RESOURCE, the raised score is
also the least that the task can give itself.

A group counts the processes in it that were killed, also those killed because a group above it had no memory left.
`OomWatch` tells the two apart.
"""

from __future__ import annotations

import os

from rota.adapters.backends import confine

ABOVE_SERVER, HIGHEST = 200, 1000
BOUNDED_SCORE, UNBOUNDED_SCORE, SERVER_SCORE = 200, 500, -500
SCORE = "/proc/self/oom_score_adj"
OWN, MACHINE = "own", "machine"  # whose bound it was
LEFT_OVER = 4 << 20  # bytes left behind that a group may still have when the next attempt begins in it
# Each CPU keeps so much charged ahead to the group that last ran there (MEMCG_CHARGE_BATCH pages, mm/memcontrol.c).
AHEAD = 64 * os.sysconf("SC_PAGE_SIZE") * (os.cpu_count() or 1)


def prefer(score: int) -> None:
    """Set this process's score, and so that of all it starts; lowering it takes a right, and is done where held."""
    confine.try_write(SCORE, str(score))


def prefer_task(*, bounded: bool) -> int:
    """Give this process, and so all it starts, the score of a task. Returns the one that it had."""
    had = _number(SCORE)
    least = BOUNDED_SCORE if bounded else UNBOUNDED_SCORE
    prefer(min(HIGHEST, max(least, had + ABOVE_SERVER)))
    return had


class OomWatch:
    """The memory group of a worker, below that of all attempts. Tasks that asked for memory have groups below it."""

    def __init__(self, group: str, *, unified: bool) -> None:
        self._group, self._unified = group, unified
        self._kills = self._struck = 0  # when last looked
        self._all = self._worker = _Shortages()
        self._tasks: list[tuple[str, _Shortages]] = []
        self._at_first: int | None = None  # bytes that the kernel needs for the worker itself
        if not unified:
            self._all, self._worker = _Shortages(os.path.dirname(group)), _Shortages(group)

    def begin(self, groups: list[str]) -> None:
        """Watch the groups of an attempt's tasks, before they run."""
        if self._at_first is None:
            self._at_first = self._kept()
        if not self._unified:
            # The highest first, unlike at the end: what is told meanwhile then counts for the upper one alone.
            for shortages in (self._all, self._worker):
                shortages.count()  # and forget
            self._tasks = [(group, _Shortages(group)) for group in groups if group.startswith(f"{self._group}/")]

    def end(self) -> str:
        """Return at whose bound the OOM killer took a process since this was last asked; "" = it took none. Asked once
        per attempt, before the groups of its tasks are removed."""
        return self._end_unified() if self._unified else self._end_v1()

    def left_over(self) -> int:
        """Return how much is charged to this group that neither a process has nor the kernel can drop, beyond what CPUs
        keep charged ahead. When no process of an attempt lives any more, that is what it left behind: SysV segments and
        messages, files in /dev/shm and other file systems in memory, what waits in pipes and sockets that somebody
        outside holds. On v1 the kernel does not tell its caches of names and inodes apart, so they count as well: to
        have them dropped would drop all that the run read, which the next one may read again."""
        return max(0, self._kept() - (self._at_first or 0) - AHEAD)

    def _kept(self) -> int:
        used = _number(f"{self._group}/{'memory.current' if self._unified else 'memory.usage_in_bytes'}")
        if used <= LEFT_OVER:
            return 0  # the long file is read when it may matter
        facts, total = _pairs(f"{self._group}/memory.stat"), "" if self._unified else "total_"
        other = ["anon" if self._unified else "total_rss", f"{total}active_file", f"{total}inactive_file"]
        return used - sum(facts.get(name, 0) for name in (*other, "slab_reclaimable"))

    def left_by_all(self) -> int:
        """Return how much of what all attempts may take together is shared memory that belongs to none that lives."""
        base = os.path.dirname(self._group)
        try:
            living = [entry.path for entry in os.scandir(base) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            return 0
        return max(0, self._shared(base) - sum(map(self._shared, living)))

    def _shared(self, group: str) -> int:
        return _pairs(f"{group}/memory.stat").get("shmem" if self._unified else "total_shmem", 0)

    def _end_unified(self) -> str:
        """The file counts the whole subtree: `oom` the shortages at bounds in it, `oom_kill` the processes killed."""
        events = _pairs(f"{self._group}/memory.events")
        kills, struck = events.get("oom_kill", 0), events.get("oom", 0)
        killed, own = kills > self._kills, struck > self._struck
        self._kills, self._struck = kills, struck
        return "" if not killed else OWN if own else MACHINE

    def _end_v1(self) -> str:
        kills = _pairs(f"{self._group}/memory.oom_control").get("oom_kill", 0)
        killed, self._kills = kills > self._kills, kills
        killed |= any(_pairs(f"{group}/memory.oom_control").get("oom_kill", 0) for group, _ in self._tasks)
        # A shortage is told to the group that has it first, and then to all below it. The lowest is asked first: what
        # is told meanwhile then counts for the upper one alone, and is not taken for the lower one's own.
        of_tasks = [shortages.count() for _, shortages in self._tasks]
        of_worker, of_all = self._worker.count(), self._all.count()
        own = any(count > of_worker for count in of_tasks) or of_worker > of_all
        if not self._all.told:  # the kernel does not tell: a group that never reached its bound is not to blame
            own = any(_number(f"{group}/memory.failcnt") for group in (self._group, *(g for g, _ in self._tasks)))
        for _, shortages in self._tasks:
            shortages.close()
        self._tasks = []
        return "" if not killed else OWN if own else MACHINE


class _Shortages:
    """How often a v1 group, or one above it, ran out of memory: told by the kernel on an eventfd."""

    def __init__(self, group: str = "") -> None:
        self._fd = -1
        if not group:
            return
        fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            control = os.open(f"{group}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            try:
                confine.write(f"{group}/cgroup.event_control", f"{fd} {control}")
            finally:
                os.close(control)
        except OSError:
            os.close(fd)
        else:
            self._fd = fd

    @property
    def told(self) -> bool:
        return self._fd >= 0

    def count(self) -> int:
        """Since this was last asked."""
        try:
            return os.eventfd_read(self._fd) if self.told else 0
        except BlockingIOError:
            return 0

    def close(self) -> None:
        if self.told:
            os.close(self._fd)
            self._fd = -1


def _pairs(path: str) -> dict[str, int]:
    """A file of `key value` lines; empty when the group is gone."""
    lines = [line.split() for line in _read(path).splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) == 2 and words[1].isdigit()}


def _number(path: str) -> int:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else 0


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 1 << 14).decode("ascii")
    except OSError:
        return ""
    finally:
        os.close(fd)
