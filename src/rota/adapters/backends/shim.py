"""The shim: the small process above one attempt, which claims it, runs it, ends it and records the end.

What a job controls may not answer: a directory, a pipe or a terminal, whose locks its account can hold. The shim
touches these in a thread beside its main one (see aside), and waits PIPE_S for it. Then it notes what it waited for,
records the end without it, and retires: its exit closes the rest, and it carries no other attempt while a thread of it
still waits. So it does with each look at processes, of which LOOK_WAIT_S is waited for: of its children it hears from
the kernel, the kill of its cgroup needs no look, and neither does the list of those in there.

It needs nobody: the server may die, restart or never come back, and the attempt still runs to a recorded end. All it
is told comes in the order and in the file `stop`; all it has to say is in its files (see records). Between its first
act, the claim, and its last, the exit record, it holds the lock; if it dies in between, the lock is free without an
exit record, and that means "lost". After a clean end the same process may carry another attempt (see worker): a fork
of Python costs more than all the rest.

How it ends: by itself; when a stop says so; or at its time limit, of which it may be warned before. Who is told by
which signal is in `heard`; when the grace is over, KILL reaches everything.

The pid is recorded, and the start told, once the command has run for BIRTH_S: most of what ends sooner (a typo,
`true`) never needs it. A stop that comes earlier finds no pid to signal, but is in its file, which is read right
after the pid was recorded.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import errno
import os
import select
import signal

from rota.adapters.backends import aside, checkpoint_dir, confine, defunct, heard, procs, records, stuck, task, tracers
from rota.adapters.backends.limits import CPU, GIB, MEMORY, WorkerGroups
from rota.adapters.backends.logcap import LogCap
from rota.adapters.backends.logfile import LogFile
from rota.adapters.backends.oom import LEFT_OVER, MACHINE, OWN
from rota.adapters.backends.pipepump import PipePump

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rota.adapters.backends.confine import Device
    from rota.adapters.backends.limits import Bounds
    from rota.adapters.backends.ptypump import PtyPump

HEARD = frozenset({signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2})
FINISHED = ".finished"  # in the checkpoint directory: "I was through when you stopped me" (docs/checkpointing.md)
EXEC_WAIT_S = 1.0  # a hung file system must not hide the attempt
BIRTH_S = 0.005
ASK_AGAIN_S = 0.25
LATE_WARNING_S = 60.0
FAR = float("inf")
SHORT_MESSAGE = 500  # characters; any of them fit into a spare record
RECORD_RETRY_S = 600.0
KILL_AGAIN_S = 0.05
LOOK_WAIT_S = heard.TELL_S + 1.0
DEFUNCT_S = 2.0  # that nothing but defunct processes must be left; tracers, which can be ended, are looked for before
PIPE_S = 20.0  # that is waited, at a start or an end, for what processes outside can hold: pipe, terminal, directory
# Supervisors that have recorded an end and still wait. Each takes some MB, so where there are more an attempt lives on
# until the wait is over, or an admin forces the end.
MAX_LEFT_BEHIND = 64
COUNT_AGAIN_S = 10.0
MAX_FAILED = 20  # notes of what could not be done
# What is waited for so, in words.
PIPE, TERMINAL, CHECKPOINTS = "the pipe of its output", "its terminal", "its checkpoint directory"
LOOK = "a look at its processes"
REAP_MOST = 256  # a job can make dead children faster than they are collected: the clock must be looked at as well


class House:
    """What a shim is born with. Its working directory is the backend's root."""

    def __init__(
        self, boot_id: str, nudge: int, null: int, bounds: Bounds, deny: list[Device], *, least_free: int
    ) -> None:
        self.boot_id, self.nudge, self.null, self.bounds, self.deny = boot_id, nudge, null, bounds, deny
        self.least_free = least_free  # bytes on the disk below which no log grows
        self.home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        self.places = os.open("left-behind", flags, 0o600)  # of supervisors that are left behind (see aside)
        self.groups = WorkerGroups(confine.Hierarchies(), "")  # the worker's own cgroups, and so those of all it starts
        self.start = 0  # its start time

    @property
    def group(self) -> str:
        return self.groups.unified


class Shim:
    """One attempt, claimed already: `log` lies in its directory and the lock is held by the caller."""

    def __init__(self, house: House, attempt_id: str, order: dict[str, Any], log: int) -> None:
        self.house, self.id, self.order, self.log = house, attempt_id, order, log
        self.directory = records.attempt_dir(".", attempt_id)
        self.cap = LogCap(log, self.directory, order["log_cap_bytes"], house.least_free)
        self.account: task.Account | None = None  # that the tasks run as; None = our own
        self.uid = os.geteuid()  # of the tasks
        self.bounded = False  # by limits of its own
        self.memory_bounded = False
        self.subgroups: list[str] = []  # of tasks; the last part is the rank
        self.tasks: dict[int, int] = {}  # pid -> rank, of those that live
        self.leaders: list[int] = []
        self.errors = -1  # the pipe on which a forked task says why it could not begin
        self.refusal: tuple[int, str] | None = None
        self.short = False  # it could not be begun for want of what is the server's to have
        self.unreaped = False  # more dead children than one round collects
        self.failure: int | None = None  # wait status of the first task that failed
        self.cause = ""  # why it is being ended, when it is
        self.ending = (0, 0.0, 0.0)  # by which signal, since when, and with how much grace
        self.saves = False  # it is asked to save, rather than to end
        self.handlers = heard.Handlers()
        self.asking: heard.Asking | None = None
        self.told_unseen: bool | None = None  # where it was asked without a look: whether any of it was told
        self.looks = aside.Looks()
        # A grace is time in which the machine runs; limits count suspended time too (docs/STATES.md).
        self.ask_at = FAR  # by time_awake: when to look again for those it has not reached yet
        self.kill_at: float | None = None  # by time_awake
        self.limit_at: float | None = None
        self.warn_at: float | None = None
        self.warned = False
        self.unheeded = ""  # the words for an end that had to be forced
        self.unsaved = ""  # and for one that came too suddenly
        self.started_tick: float | None = None
        self.pump: PtyPump | None = None
        self.pipe: PipePump | None = None
        self.oom = ""  # at whose bound the OOM killer took a process of it
        self.left_over = self.left_by_all = 0  # bytes of memory that it, and of shared memory that all runs left behind
        self.looks_at = self.tracers_at = FAR  # by time_awake: when to look at what outlives SIGKILL, and traces that
        self.tracers: set[str] = set()  # what was said of them
        self.stuck_at = FAR  # by time_awake: when those that live after SIGKILL are named
        self.stuck: set[int] = set()  # those that were
        self.collected = 0  # dead children
        self.defunct: tuple[frozenset[tuple[int, int]], int] | None = (
            None  # all that is left, and how many ended before
        )
        self.over_at = FAR  # by time_awake: when nothing else has been left for long enough
        # It retires: only ended processes are left, which a process outside has to reap, or a thread of its waits for
        # what a process outside holds.
        self.over = False
        self.is_left = False  # it has a place among those that are left behind
        self.give_up_at = FAR  # by time_awake: when that is waited for no longer
        self.saved = -1  # once there is a checkpoint directory: keeps its name known to the kernel
        self.was_through = False
        self.strays: list[int] = []  # processes of it that are not below us, at the last look
        self.failed: set[str] = set()  # what could not be done, as noted

    def run(self) -> None:
        groups = self.house.groups
        groups.weigh(sum(len(each["minors"]) for each in self.order["tasks"]))
        if groups.oom is not None:
            groups.oom.begin([])
        try:
            self.bounded = self._is_bounded()
            if self.bounded or any(self.order[way] for way in ("account", "confine", "terminal")):
                self._launch_forked()
            else:
                self._launch_spawned()
        except (task.Refused, OSError) as error:
            why = records.shortage(error)
            self.short = bool(why)
            self._refuse(getattr(error, "code", task.NOT_RUNNABLE), why or str(error))
        else:
            self._wait()
        self._extinguish()
        self._let_go()
        if groups.oom is not None:
            self.oom = groups.oom.end()
            self.left_over = groups.oom.left_over()
            self.left_by_all = groups.oom.left_by_all() if self.oom == MACHINE else 0
        self._remove_groups()
        self._record()
        self._nudge()

    # -- begin

    def _make_checkpoint_dir(self) -> None:
        # no parent in the order of an earlier version's server
        path, parent = self.order["checkpoint_dir"], self.order.get("checkpoint_parent")
        if path is not None:
            self.give_up_at = procs.time_awake() + PIPE_S
            saved = self._apart(lambda: checkpoint_dir.make(path, parent, self.account))
            if saved is not None:
                self.saved = saved
            if saved is None or self.looks.left():  # and nothing can be forked beside a look that has not ended
                raise records.Shortage(f"{CHECKPOINTS} does not answer: a process of its account holds its lock")

    def _launch_spawned(self) -> None:
        self._make_checkpoint_dir()
        tick = procs.boottime()
        for rank in range(len(self.order["tasks"])):
            self.tasks[task.spawn(self.order, rank, self.log, self.house.home)] = rank
        self.leaders = list(self.tasks)
        self._begun(tick)

    def _launch_forked(self) -> None:
        account = self.account = task.Account(self.order["account"]) if self.order["account"] else None
        if account is not None:
            self.uid = account.uid
        self._make_checkpoint_dir()
        output = self._open_pipe(account) if account is not None and account.foreign else self.log
        if self.order["confine"]:
            self._confine_tasks()
        if self.bounded:
            self._bound_tasks()
        slave = self._open_terminal() if self.order["terminal"] else -1
        go, release = os.pipe()
        self.errors, errors = os.pipe()
        try:
            fds = task.Fds(self.house.null, output, go, release, errors)
            fds.bounded = self.memory_bounded
            for rank in range(len(self.order["tasks"])):
                groups = [group for group in self.subgroups if group.endswith((f"/{rank}", f"-{rank}"))]
                pid = os.fork()
                if pid == 0:
                    fds.terminal = slave if rank == 0 else -1  # a terminal has one session
                    task.begin(self.order, rank, account, fds, groups)
                self.tasks[pid] = rank
            self.leaders = list(self.tasks)
            if slave >= 0:
                os.close(slave)  # before the command runs, which could hold what a close waits for
                slave = -1
            if self.pipe is not None:
                self.pipe.start()
            if self.pump is not None:
                self.pump.start()
            tick = procs.boottime()
            self._publish_pid(tick)
            self._read_stop()
            if not self.cause:
                os.write(release, b"g" * len(self.tasks))
            os.set_blocking(self.errors, False)
        finally:
            for fd in filter(lambda fd: fd >= 0, (go, release, errors, slave)):
                os.close(fd)
        if not self.cause:
            self._begun(tick)
            select.select([self.errors], [], [], EXEC_WAIT_S)  # end of file: all run. A word: one does not

    def _open_pipe(self, account: task.Account) -> int:
        """The end of a pipe to print into: the log of an account's job must not be that account's file."""
        self.pipe = PipePump(self._open_log())
        os.fchown(self.pipe.output, account.uid, account.gid)  # so that the job may open /dev/stderr
        return self.pipe.output

    def _open_terminal(self) -> int:
        from rota.adapters.backends.ptypump import PtyPump  # threads and sockets: only for those who want a terminal

        try:
            master, slave = os.openpty()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # what the kernel says also of a full disk, which has nothing to do with it
            raise records.Shortage("the machine has no terminal (pty) left: see kernel.pty.max") from error
        try:
            self.pump = PtyPump(master, self._open_log(), self.directory)
        except OSError:
            os.close(master)
            os.close(slave)
            raise
        return slave

    def _open_log(self) -> LogFile:
        """The log for a pump, which stops by itself when the disk is nearly full."""
        self.cap.least_free = 0
        return LogFile(self.log, self.house.least_free)

    def _begun(self, tick: float) -> None:
        self.started_tick = tick
        if self.order["time_limit_s"] is not None:
            self.limit_at = tick + self.order["time_limit_s"]
            if self.order["warn_signal"]:
                self.warn_at = max(tick, self.limit_at - self.order["warn_s"])

    def _announce(self, started: float) -> bool:
        if self._read_refusals():
            return True
        recorded = True
        try:
            self._publish_pid(started)
        except OSError:
            recorded = False  # a full disk must not cost the job its life; until then, stops are looked for
        self._nudge()
        # From here a stop finds our pid; one written before it is in the file. So this look misses none.
        self._look_for_stop()
        return recorded

    def _publish_pid(self, tick: float) -> None:
        record = {
            "pid": os.getpid(),
            "start": self.house.start,
            "tasks": self.leaders,
            "uid": self.uid,
            "boot_id": self.house.boot_id,
            "tick": tick,
            "cgroup": self.house.group,  # as in the lock: one of the two may be damaged
        }
        records.publish(".", self.directory, "pid", records.dump(record))

    def _read_refusals(self) -> bool:
        """What forked tasks had to say; spawned ones refuse at once."""
        if self.errors < 0 or not select.select([self.errors], [], [], 0)[0]:
            return False
        text = os.read(self.errors, 1 << 16).decode(errors="surrogateescape")
        for line in filter(None, text.split("\n")):  # splitlines also cuts at other characters, which names may have
            code, _, message = line.partition(" ")
            if self.refusal is None:
                self.refusal, self.short = (int(code), message), int(code) == task.SHORTAGE
        return bool(text)

    def _refuse(self, code: int, message: str) -> None:
        self.refusal = (code, message)
        self._say(message)

    def _say(self, text: str) -> None:
        """Tell the run's people, in its log."""
        try:
            os.write(self.log, f"rota: {text}\n".encode(errors="surrogateescape"))
        except OSError:
            pass  # it is in another file too: the exit record, or the notes

    def _confine_tasks(self) -> None:
        """A group of its own for each task, so that two tasks on one machine see their own GPUs only."""
        for rank, each in enumerate(self.order["tasks"]):
            denied = [*confine.gpus_to_deny(each["minors"]), *self.house.deny]
            why = "no cgroup v2"
            for base, deny in (
                (self.house.group, confine.deny_devices),
                (self.house.bounds.found.devices, confine.deny_devices_v1),
            ):
                if not base:
                    continue
                group = f"{base}/{rank}" if base == self.house.group else f"{base}/{self.id}/{rank}"
                try:
                    confine.create(group)
                    self.subgroups.append(group)
                    self._enrol(group)
                    deny(group, denied)
                    break
                except OSError as error:
                    why = f"{why}; {error}"
            else:
                self._note(f"task {rank} runs unconfined: {why}")

    def _is_bounded(self) -> bool:
        at, hoped_for = self.house.groups.at, self.house.bounds.found.limits
        wanted = [each for field, each in (("memory_gb", MEMORY), ("cpus", CPU)) if self.order[field]]
        if any(each in hoped_for and each not in at for each in wanted):
            self._note("runs without its limits: its supervisor has no cgroup (see zygote.log)")
        return any(each in at for each in wanted)

    def _bound_tasks(self) -> None:
        """What a run asks for is for each node, and it has one task on each."""
        self.memory_bounded = bool(self.order["memory_gb"]) and MEMORY in self.house.groups.at
        for rank in range(len(self.order["tasks"])):
            try:
                made = self.house.groups.for_task(rank, int(self.order["memory_gb"] * GIB), self.order["cpus"])
            except OSError as error:
                self.memory_bounded = False
                self._note(f"task {rank} runs without its limits: {error}")
            else:
                for group in made:
                    if group not in self.subgroups:
                        self.subgroups.append(group)
                        self._enrol(group)
        if self.house.groups.oom is not None:
            self.house.groups.oom.begin(self.subgroups)

    def _enrol(self, group: str) -> None:
        """Have the processes of a group counted among ours."""
        try:
            if self.house.groups.roll is not None:
                self.house.groups.roll.add(group)
        except OSError as error:  # the task is confined all the same
            self._note_failed(f"count the processes in {group}", error)

    # -- live

    def _wait(self) -> None:
        begun = procs.boottime()
        announce_at = FAR if self.started_tick is None else begun + (BIRTH_S if self.errors < 0 else 0.0)
        look_at = begun + 0.25
        while True:
            self._reap()
            if not self.tasks or self.over:
                return
            now = procs.boottime()
            self._check_deadlines(now)
            if now >= announce_at:
                assert self.started_tick is not None
                announce_at = FAR if self._announce(self.started_tick) else now + 1.0
            if now >= look_at:
                look_at = now + self._check_cap(self.cap.check)
            until = min(look_at, self._next_deadline(now), announce_at)
            came = signal.sigtimedwait(HEARD, 0.0 if self.unreaped else max(0.0, until - now))
            if came is not None and came.si_signo == signal.SIGUSR1:
                self._look_for_stop()

    def _look_for_stop(self) -> None:
        self._reap()  # a task that ended before the stop was seen ended by itself
        if self.tasks:
            self._read_stop()

    def _next_deadline(self, now: float) -> float:
        if self.kill_at is not None:
            return now + min(self.kill_at, self.ask_at) - procs.time_awake()
        return min(FAR if at is None else at for at in (self.warn_at, self.limit_at))

    def _reap(self) -> bool:
        """Collect the dead, ours and those that fell to us, or as many of them as one round may. The kernel gives the
        oldest child first, so the tasks never stand behind the others. False when there is no child left at all."""
        self.unreaped = False
        for _ in range(REAP_MOST):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if os.WIFSTOPPED(status):  # it made its parent its tracer (PTRACE_TRACEME): we trace nobody
                signum = os.WSTOPSIG(status)
                task.detach(pid, 0 if signum == signal.SIGTRAP else signum)
                continue
            self.collected += 1
            if self.tasks.pop(pid, None) is not None and status != 0 and self.failure is None:
                self.failure = status
                if self.tasks and self.kill_at is None:
                    self._end("", signal.SIGTERM, self.order["grace_s"])  # the gang stands or falls together
        self.unreaped = True
        return True

    def _check_deadlines(self, now: float) -> None:
        if self.kill_at is not None:
            self._check_grace(self.kill_at, procs.time_awake())
        elif self.warn_at is not None and now >= self.warn_at:
            self._warn(now)
        elif self.limit_at is not None and now >= self.limit_at:
            self._end("time_limit", signal.SIGTERM, self.order["grace_s"])

    def _check_grace(self, kill_at: float, now: float) -> None:
        if now >= kill_at:
            self.unheeded = self.unheeded or self._unheeded()
            self.kill_at, self.ask_at = self._kill_all(), FAR
        elif now >= self.ask_at and self.asking is not None:
            self.ask_at = FAR
            self._ask_again(self.asking, now)

    def _ask_again(self, asking: heard.Asking, now: float) -> None:
        def ask() -> bool:
            asking.again()
            return True

        try:
            seen = self._look(ask, "signal what has not ended yet")
        except Exception as error:  # noqa: BLE001 - as in _ask
            self._note_failed("signal what has not ended yet", error)
        else:
            took = procs.time_awake() - now
            self.ask_at = now + took + max(ASK_AGAIN_S, took) if seen and asking.waiting else FAR

    def _warn(self, now: float) -> None:
        self.warn_at = None
        signum, leaders, listening = self.order["warn_signal"], list(self.tasks), list[int]()

        def warn() -> bool:
            listening.extend(heard.listening(signum, leaders))
            return heard.message(signum, self.handlers)

        try:
            told = self._look(warn, "warn it")
            self.warned = self._signal_leaders(signum, listening) if told is None else told
        except Exception as error:  # noqa: BLE001 - as in _ask
            self._note_failed("warn it", error)
        if not self.warned:
            self._note(f"not warned of its limit: nothing handles {heard.name(self.order['warn_signal'])}")
        elif self.limit_at is not None and now >= self.limit_at:  # the machine was suspended until after both
            self.limit_at = now + min(self.order["warn_s"], LATE_WARNING_S)

    def _unheeded(self) -> str:
        signum, since, grace_s = self.ending
        waited_s = min(grace_s, procs.time_awake() - since)
        if not self.cause or signum == signal.SIGKILL or grace_s <= 0:
            return ""  # it was never asked
        if self.asking is not None:
            return self.asking.unheeded(waited_s)
        if self.told_unseen is None:
            return ""
        return heard.outlived(signum, waited_s) if self.told_unseen else heard.unseen(waited_s)

    def _read_stop(self) -> None:
        stop = records.read(f"{self.directory}/stop")
        if stop is None:
            return
        if not (
            isinstance(stop.get("cause"), str)
            and records.is_whole_number(stop.get("signal"))
            and records.is_number(stop.get("grace_s"))
        ):
            self._note("stop: it is damaged and counts for nothing; the server orders it again in a while")
            return
        cause, grace = str(stop["cause"]), float(stop["grace_s"])
        if self.kill_at is None:
            saves = cause == "preempted" and bool(stop.get("saves"))
            if not self._end(cause, int(stop["signal"]), grace, saves=saves) and saves:
                self.unsaved = heard.unsaved(int(stop["signal"]))
            return
        self.kill_at = min(self.kill_at, procs.time_awake() + grace)  # a second order may only hasten the end
        self.ending = (*self.ending[:2], self.kill_at - self.ending[1])
        if cause == "cancelled" and self.cause in ("preempted", ""):
            self.cause = cause  # somebody does not want it back

    def _end(self, cause: str, signum: int, grace_s: float, *, saves: bool = False) -> bool:
        """False: nothing of it has a handler for that signal. One that gets no time is killed without being asked: a
        look at its processes would only put its end off."""
        now = procs.time_awake()
        self.cause, self.ending = cause, (signum, now, grace_s)
        self.kill_at = now + max(0.0, grace_s)
        if signum == signal.SIGKILL or grace_s <= 0:
            self.kill_at = now
            return True
        self.saves = saves
        return self._ask()

    def _ask(self) -> bool:
        """False: nothing of it has a handler."""
        now, signum, saves = procs.time_awake(), self.ending[0], self.saves
        leaders, listening = list(self.tasks), list[int]()

        def ask() -> heard.Asking:
            listening.extend(heard.listening(signum, leaders))
            return heard.Asking(signum, leaders, self.handlers, saves=saves)

        try:
            asking: heard.Asking | None = self._look(ask, f"send it {heard.name(signum)}")
        except Exception as error:  # noqa: BLE001 - what is looked at is as the job makes it: its end is due all the same
            self._note_failed(f"send it {heard.name(signum)}", error)
            return False
        if asking is None:
            is_program = self._others() <= set(self.tasks)  # nothing else is there that it could be a launcher of
            self.told_unseen = self._signal_leaders(signum, leaders if is_program else listening)
            return True
        self.asking = asking
        self.ask_at = now + ASK_AGAIN_S if asking.waiting else FAR
        return asking.heard

    def _signal_leaders(self, signum: int, pids: list[int]) -> bool:
        """Signal tasks without a look: those that are not reaped have their numbers. False: none was."""
        told = False
        for pid in filter(self.tasks.__contains__, pids):
            try:
                os.kill(pid, signum)
                told = True
                if signum in heard.POLITE:
                    os.kill(pid, signal.SIGCONT)
            except OSError:  # another account's by now
                pass
        return told

    def _others(self) -> set[int]:
        """Return the processes of its cgroup besides us, or a number that no process has where these are not known."""
        try:
            found = None if self.house.groups.roll is None else self.house.groups.roll.others()
        except OSError:
            found = None
        return {0} if found is None else found

    def _look(self, act: Callable[[], Any], what: str, within_s: float = LOOK_WAIT_S, *, is_over: bool = False) -> Any:
        """Look at processes, which may wait without end, beside the main thread. None: it did not end in time. Before
        the kill that is until its time has come at most; a stop that hastens it is heard meanwhile. `is_over`: none of
        the run's processes is left, and nothing is to be killed."""
        give_up, is_before = procs.time_awake() + within_s, not is_over and self.looks_at == FAR

        def is_awaited() -> bool:
            if is_before and self.kill_at is not None and signal.SIGUSR1 in signal.sigpending():
                signal.sigtimedwait((signal.SIGUSR1,), 0.0)
                self._read_stop()
            kill_at = self.kill_at if is_before and self.kill_at is not None else FAR
            return procs.time_awake() < min(give_up, kill_at)

        seen = self.looks.look(act, is_awaited)
        if seen is None:
            self._note_failed(what, TimeoutError("a look at its processes does not end"))
        return seen

    # -- end

    def _kill_all(self) -> float:
        """Kill everything once. Returns when to do it again, by time_awake: a look at thousands takes its time."""
        begun = procs.time_awake()
        self._kill_leaders()  # whatever the rest of this waits for
        struck = self._strike()
        if self.looks_at == FAR:  # what is killed with its cgroup is first given the time to end
            self.looks_at = begun + (KILL_AGAIN_S if self.house.group else 0.0)
            self.tracers_at, self.stuck_at = begun + tracers.AFTER_S, begun + stuck.AFTER_S
        if begun >= self.looks_at or not struck:
            self._look_at_left(begun)
        if not struck:
            self._strike(anew=True)
        now = procs.time_awake()
        return now + max(KILL_AGAIN_S, now - begun)

    def _strike(self, *, anew: bool = False) -> bool:
        """Kill the group at one blow, against which no fork is fast enough: but we are in it ourselves. False: what
        that needs was removed, and has to be made `anew`, which may wait."""
        if not self.house.group:
            return True
        groups = self.house.groups
        try:
            if anew:
                groups.arm()
            if groups.blow is None:  # it could not be made anew
                return False
            groups.blow.strike()
        except OSError as error:
            if anew:
                self._note_failed("kill its cgroup", error)
            return False
        return True

    def _kill_leaders(self) -> None:
        """Kill the tasks with their sessions' first groups: without a look at anything of theirs."""
        for pid in self.tasks:  # not reaped yet, so the number of the group is still its own
            try:
                os.killpg(pid, signal.SIGKILL)
            except OSError:
                pass

    def _look_at_left(self, now: float) -> None:
        """Kill what can be found, free those that outlive SIGKILL, and name those that wait in the kernel, once each,
        however often what they wait for changes."""
        frees = now >= self.tracers_at
        strays, named = list(self.strays), set(self.stuck)
        more = stuck.MAX_NAMED - len(named) if frees and now >= self.stuck_at else 0
        if frees:
            self.tracers_at = now + tracers.AFTER_S

        def look() -> _Left:
            left = [*heard.kill_all(), *strays]
            for pid in strays if not self.house.group else ():
                procs.send(pid, signal.SIGKILL, lambda pid=pid: self._is_stray(pid))  # type: ignore[misc]
            said = self._end_tracers(left) if frees else []
            stuck_ones = [pid for pid in left if pid not in named and stuck.waits(pid)][:more] if more else []
            described = list(stuck.described(stuck_ones).values())
            dead = defunct.left(self.uid) if left and all(map(defunct.is_defunct, left)) else frozenset()
            return _Left(said, stuck_ones, described, dead)

        try:
            seen: _Left | None = self._look(look, "find what is left of it")
        except Exception as error:  # noqa: BLE001 - as in _ask; what is not found now is looked for again
            self._note_failed("find what is left of it", error)
            return
        if seen is not None:
            self._tell_each(seen.traced)
            self._name_stuck(seen)
            self._wait_for_defunct(seen.defunct)

    def _end_tracers(self, left: list[int]) -> list[str]:
        """Free those that outlive SIGKILL because a process outside the attempt traces them, or another in their pid
        namespace, for which the first process there waits."""
        subuids = self.order.get("subuids", ())  # an order of an older version has none
        return tracers.end([*left, *defunct.members(left)], self.uid, subuids)

    def _name_stuck(self, seen: _Left) -> None:
        if seen.stuck and not self.stuck:
            self._record_stuck(seen.stuck)
        self.stuck.update(seen.stuck)
        admin = stuck.freed_by(self.id.partition("-")[0])
        self._tell_each([f"{text}; {admin}" for text in seen.described])

    def _record_stuck(self, found: list[int]) -> None:
        """Record that its kill is some seconds ago: where nobody ordered a stop the server knows of none."""
        try:
            records.publish(".", self.directory, "stuck", records.dump({"pids": found}))
        except OSError as error:
            self._note_failed("record what does not end", error)

    def _tell_each(self, texts: list[str]) -> None:
        """Say who kept it from ending, once each."""
        for text in texts:
            if text not in self.tracers and len(self.tracers) < tracers.MAX_TRACERS:
                self.tracers.add(text)
                self._note(text)
                self._say(text)

    def _wait_for_defunct(self, found: frozenset[tuple[int, int]]) -> None:
        """Note when nothing but the same defunct processes has been left for DEFUNCT_S. A process that ends between two
        looks begins the time anew: one that forks and ends again and again could hide from a look, but leaves dead
        ones to us."""
        if not found:
            self.defunct, self.over_at = None, FAR
            return
        if (seen := (found, self.collected)) != self.defunct:
            self.defunct, self.over_at = seen, procs.time_awake() + DEFUNCT_S
        elif procs.time_awake() >= self.over_at:
            self.over = True
            pids = ", ".join(str(pid) for pid, _ in sorted(found))
            self._note(f"dead, and kept from being reaped by processes outside the run: {pids}"[:SHORT_MESSAGE])

    def _has_strays(self) -> bool:
        """Look for processes of the attempt that are not below us. One that enters the pid namespace of another run
        (setns) leaves what it forks there to the first process of that namespace, not to us."""
        if not self._others():
            self.strays = []
            return False
        again = bool(self.strays) or not self.leaders

        def look() -> list[int]:
            if group := self.house.groups.any_group:
                others = [pid for pid in confine.members(group) if pid not in (0, os.getpid())]  # 0: not ours to see
                return [pid for pid in others if not defunct.is_defunct(pid)]
            # What was found may be a thread, which cannot be killed by itself: the second look is at processes.
            pids = procs.all_pids() if again else procs.born_after(self.leaders[0])
            return procs.marked(self.id, self.uid, self.order.get("installation", ""), 0.0, pids)

        try:
            found: list[int] | None = self._look(look, "look for what has left its tree")
        except OSError as error:
            self._note_failed("look for what has left its tree", error)
            found = []
        if found is None:
            return True  # nobody knows
        self.strays = found
        return bool(found)

    def _is_stray(self, pid: int) -> bool:
        if group := self.house.groups.any_group:
            return pid in confine.members(group)
        return procs.has_marker(pid, self.id, self.uid, self.order.get("installation", ""))

    def _extinguish(self) -> None:
        """Return only when no process of the attempt is left that could run: we are the subreaper of all that it ever
        forked, but for strays."""
        pause, kill_at, look_at = 0.001, 0.0, procs.boottime() + 0.25
        while (self._reap() and not self.over) or self._has_strays():
            if procs.boottime() >= look_at:  # others may write to the log for as long as one of them does not end
                look_at = procs.boottime() + self._check_cap(self.cap.check)
            if not self.unreaped or procs.time_awake() >= kill_at:
                kill_at = self._kill_all()
            signal.sigtimedwait((signal.SIGCHLD,), 0.0 if self.unreaped else pause)
            pause = min(pause * 2, 0.1)

    def _let_go(self) -> None:
        """Take the last of what the tasks had, as far as it answers: their output and the checkpoint directory."""
        self.give_up_at = procs.time_awake() + PIPE_S
        if self.pump is not None:
            self.pump.finish()
            self._await(self.pump.is_over, TERMINAL, stuck.waits_for_output)
        if self.pipe is not None:
            self._close_pipe(self.pipe)
        self._check_cap(self.cap.settle)
        if self.saved >= 0:
            try:
                self.was_through = bool(self._apart(self._leave_checkpoint_dir))
            except OSError as error:
                self._note_failed("look at its checkpoint directory", error)
        if self.looks.left():
            self.give_up_at = 0.0
            self._await(self.looks.are_over, LOOK, lambda pid: True)
        if self.pump is not None and not self.over:
            self._close_terminal(self.pump)

    def _leave_checkpoint_dir(self) -> bool:
        """Remove it if nothing lies in it, before the next attempt looks for it. Return whether the run says that it
        was through: one that leaves with 0 when stopped has most likely saved and wants to go on, unless it says
        otherwise."""
        path = self.order["checkpoint_dir"]
        was_through = self.cause in ("preempted", "time_limit") and os.path.lexists(f"{path}/{FINISHED}")
        checkpoint_dir.remove_if_empty(self.saved, path, self.order.get("checkpoint_parent"), self.account)
        os.close(self.saved)
        return was_through

    def _apart(self, act: Callable[[], int]) -> int | None:
        """Do something with the checkpoint directory, whose lock and whose parent's the account can hold; None: it was
        left behind. A job of our own account could end us as well."""
        if self.account is None or not self.account.foreign:
            return act()
        apart = aside.Aside(act)
        # However it waits: for an answer of FUSE a thread waits so that a signal would end it, and here none comes.
        return apart.result() if self._await(apart.is_over, CHECKPOINTS, lambda pid: True) else None

    def _await(self, is_over: Callable[[float], bool], what: str, waits: Callable[[int], object]) -> bool:
        """Wait for a thread. False: it is left behind where it `waits`, and we retire."""
        while not is_over(tracers.AFTER_S):
            if procs.time_awake() < self.give_up_at or (where := self._waits_where(waits)) is None:
                continue
            self.is_left = self.is_left or aside.take_place(self.house.places, MAX_LEFT_BEHIND)
            if self.is_left:
                self.over = True
                where = where or "the kernel does not say where"
                self._note(f"{what} does not answer, as a process outside holds it: left behind ({where})")
                return False
            self.give_up_at = procs.time_awake() + COUNT_AGAIN_S
        return True

    def _waits_where(self, waits: Callable[[int], object]) -> str | None:
        """Return the kernel functions in which threads of ours wait. None: they do not. Where the look at ourselves
        does not end either, somebody holds what it needs."""

        def look() -> tuple[bool, str]:
            own = os.getpid()
            return bool(waits(own)), ", ".join(filter(None, stuck.waits(own))) or ", ".join(stuck.beside(own))

        what, within_s = "see what it waits for", tracers.AFTER_S if self.looks.left() else LOOK_WAIT_S
        try:
            seen: tuple[bool, str] | None = self._look(look, what, within_s, is_over=True)
        except OSError as error:
            self._note_failed(what, error)
            return None
        return "" if seen is None else seen[1] if seen[0] else None

    def _check_cap(self, check: Callable[[], float]) -> float:
        """Bound the log. Returns how soon to look again, in seconds."""
        try:
            return check()
        except OSError as error:  # of a full disk, for one: the run goes on, and its end is recorded, all the same
            self._note_failed("bound its log", error)
            return 1.0

    def _close_pipe(self, pipe: PipePump) -> None:
        pipe.finish()
        if self._await(pipe.is_over, PIPE, stuck.waits_for_output):
            pipe.close()

    def _close_terminal(self, pump: PtyPump) -> None:
        """Nothing needs the end of that, so that it is left behind as soon as it is seen to wait."""
        self.give_up_at = 0.0
        if pump.started:
            self._await(pump.is_closed, TERMINAL, stuck.waits)
        else:
            self.over = True  # no thread could be had for it: our exit closes it

    def _remove_groups(self) -> None:
        devices = self.house.bounds.found.devices
        for group in self.subgroups:
            if self.house.groups.roll is not None:
                self.house.groups.roll.drop(group)
            confine.remove(group)
            if devices and group.startswith(f"{devices}/{self.id}/"):
                confine.try_remove(os.path.dirname(group))
                confine.try_remove(devices)

    def _record(self) -> None:
        end = self._exit()
        give_up = procs.boottime() + RECORD_RETRY_S
        while True:
            try:
                records.publish(".", self.directory, "exit", records.dump(end), durable=True)
                return
            except OSError as error:
                full = error.errno in records.FULL  # wait as long as it takes: the end is known
                end["message"] = end["message"][:SHORT_MESSAGE]
                if not full and (error.errno == errno.ENOENT or procs.boottime() > give_up):
                    raise
            signal.sigtimedwait((signal.SIGUSR2,), 1.0)  # a sleep: nobody sends that

    def _exit(self) -> dict[str, Any]:
        code: int | None = 0
        signum: int | None = None
        message = ""
        cause = self.cause or "exited"
        if self.failure is None and self.tasks:
            self.failure = signal.SIGKILL  # as wait tells it: what is left of them was killed, and is not ours to reap
        if self.failure is not None:
            result = os.waitstatus_to_exitcode(self.failure)
            code, signum = (result, None) if result >= 0 else (None, -result)
        # one that waits for its signal has no handler either: only who died of it cannot have saved
        died = self.ending[0] in (signum, (code or 0) - 128)  # or a shell above it says so
        lost = self.unheeded or (self.unsaved if died else "")
        self._read_refusals()
        if self.was_through and self.failure is None:
            cause = "exited"
        elif cause != "exited":
            message = lost
        if self.refusal is not None and not self.cause:
            cause, signum = "lost" if self.short else "launch_failed", None
            code, message = self.refusal
            code = None if self.short else code
            self.started_tick = None
        if self.started_tick is None and self.cause:
            code, signum, message = None, None, ""  # stopped before the command was let go
        if cause == "exited" and self.left_by_all > LEFT_OVER:
            message = f"{self.left_by_all >> 20} MiB of what all jobs may take is shared memory that ended runs left"
        return {
            "cause": cause,
            "code": code,
            "signal": signum,
            "message": message,
            "oom": self.oom == OWN,
            "machine_oom": self.oom == MACHINE,
            "started_tick": self.started_tick,
            "ended_tick": procs.boottime(),
            "warned": self.warned,
            "killed": bool(message and message == lost),
            "shortage": self.short and cause == "lost",
            "boot_id": self.house.boot_id,
        }

    def _nudge(self) -> None:
        try:
            os.write(self.house.nudge, f"{self.id}\n".encode())
        except OSError:
            pass  # nobody listens, or too slowly: the files say the same

    def _note_failed(self, what: str, error: Exception) -> None:
        """Once for each: a look is repeated for as long as anything lives."""
        text = f"could not {what}: {type(error).__name__}: {error}"[:SHORT_MESSAGE]
        if text not in self.failed and len(self.failed) < MAX_FAILED:
            self.failed.add(text)
            self._note(text)

    def _note(self, text: str) -> None:
        try:
            fd = os.open(
                f"{self.directory}/shim.log",
                os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            os.write(fd, f"{text}\n".encode(errors="surrogateescape"))
            os.close(fd)
        except OSError:
            pass  # a note is not worth an attempt


class _Left:
    """What one look at a killed attempt found."""

    def __init__(
        self, traced: list[str], stuck_ones: list[int], described: list[str], dead: frozenset[tuple[int, int]]
    ) -> None:
        self.traced, self.stuck, self.described, self.defunct = traced, stuck_ones, described, dead
