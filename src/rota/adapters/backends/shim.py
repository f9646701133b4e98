"""The shim: one small process per attempt, forked from the zygote, that claims it, runs it, ends it and records the end.

It needs nobody: the server may die, restart or never come back, and the attempt still runs to a recorded end. All it is told
comes in the order and in the file `stop`; all it has to say is in its files (see records). Between its first act, the claim, and its
last, the exit record, it holds the lock; if it dies in between, the lock is free without an exit record, and that means "lost".

Signals: a polite end (TERM, INT, HUP, QUIT) goes to every process of the attempt, at any depth. Any other signal is a message to
the program, such as "write a checkpoint", and goes to the process group of each task, as a terminal would do: a helper in
a session of its own that never heard of it would only die of it. KILL always reaches everything.
"""

from __future__ import annotations

import os
import select
import signal

from rota.adapters.backends import confine, procs, records, task
from rota.adapters.backends.logcap import LogCap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rota.adapters.backends.confine import Device, Hierarchies

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
DONE, NOT_MINE = 0, 3  # exit statuses the zygote and the server know
POLITE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
HEARD = frozenset({signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2})
EXEC_WAIT_S = 1.0  # how long the report "started" waits for the exec; a hung file system must not hide the attempt
RECORD_RETRY_S = 600.0  # a full disk may get room again


class House:
    """What all shims of a zygote share, made once. The working directory is the backend's root."""

    def __init__(self, boot_id: str, nudge: int, null: int, groups: Hierarchies, deny: list[Device]) -> None:
        self.boot_id, self.nudge, self.null, self.groups, self.deny = boot_id, nudge, null, groups, deny
        self.memory_events = bool(groups.unified) and "memory" in _controllers(groups.unified)


def main(house: House, attempt_id: str, order: dict[str, Any]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    os.setsid()
    group = f"{house.groups.unified}/{attempt_id}" if house.groups.unified else ""
    lock = records.claim(".", attempt_id, {"boot_id": house.boot_id, "shim": os.getpid(), "cgroup": group})
    if lock is None:
        return NOT_MINE
    Shim(house, attempt_id, order, group).run()
    return DONE


class Shim:
    def __init__(self, house: House, attempt_id: str, order: dict[str, Any], group: str) -> None:
        self.house, self.id, self.order, self.group = house, attempt_id, order, group
        self.directory = records.attempt_dir(".", attempt_id)
        self.v1_group = ""
        self.tasks: dict[int, int] = {}  # pid -> rank, of those that live
        self.leaders: list[int] = []
        self.errors = -1  # the pipe on which a task says why it could not begin
        self.refusal: tuple[int, str] | None = None
        self.failure: int | None = None  # wait status of the first task that failed
        self.cause = ""  # why it is being ended, when it is
        self.kill_at: float | None = None
        self.limit_at: float | None = None
        self.started_tick: float | None = None
        self.oom = False
        self.cap: LogCap | None = None

    def run(self) -> None:
        task.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        task.libc.prctl(PR_SET_NAME, b"rota-shim", 0, 0, 0)
        try:
            self._launch()
        except (task.Refused, OSError) as error:
            self.refusal = self.refusal or (getattr(error, "code", task.NOT_RUNNABLE), str(error))
            self._note(f"launch failed: {error}")
        else:
            self._wait()
        self._extinguish()
        self._record()
        self._nudge()

    # -- begin

    def _launch(self) -> None:
        account = task.Account(self.order["account"]) if self.order["account"] else None
        log = os.open(
            f"{self.directory}/log", os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        if account is not None and account.privileged:
            os.fchown(log, account.uid, account.gid)  # so that the job may open /dev/stderr
        self.cap = LogCap(log, self.directory, self.order["log_cap_bytes"])
        self._make_groups()
        go, release = os.pipe()
        self.errors, errors = os.pipe()
        fds = task.Fds(self.house.null, log, go, release, errors)
        for rank in range(len(self.order["tasks"])):
            groups = self._groups_of(rank)
            pid = os.fork()
            if pid == 0:
                task.begin(self.order, rank, account, fds, groups)
            self.tasks[pid] = rank
        os.close(errors)
        os.close(go)
        self.leaders = list(self.tasks)
        tick = procs.boottime()
        self._publish_pid(tick)
        # From here a stop finds our pid; one written before it is in the file. So this look misses none.
        self._read_stop()
        if not self.cause:
            self.started_tick = tick
            if self.order["time_limit_s"] is not None:
                self.limit_at = tick + self.order["time_limit_s"]
            os.write(release, b"g" * len(self.tasks))
        os.close(release)
        if not self.cause:
            self._await_exec()

    def _publish_pid(self, tick: float) -> None:
        record = {
            "pid": os.getpid(),
            "start": procs.start_time("self"),
            "tasks": self.leaders,
            "boot_id": self.house.boot_id,
            "tick": tick,
        }
        records.publish(self.directory, "pid", records.dump(record))

    def _await_exec(self) -> None:
        """ "Started" is said once the command runs: a refusal is the end, not a start."""
        if select.select([self.errors], [], [], EXEC_WAIT_S)[0] and self._read_refusals():
            return
        self._nudge()

    def _read_refusals(self) -> bool:
        text = os.read(self.errors, 1 << 16).decode(errors="replace")
        for line in text.splitlines():
            code, _, message = line.partition(" ")
            self.refusal = self.refusal or (int(code), message)
        return bool(text)

    def _make_groups(self) -> None:
        try:
            if self.group:
                confine.create(self.group)
        except OSError as error:
            self._note(f"no cgroup: {error}")
            self.group = ""
        if self.order["confine"]:
            self._confine_tasks()

    def _confine_tasks(self) -> None:
        """A group of its own for each task, so that two tasks on one machine see their own GPUs only."""
        for rank, each in enumerate(self.order["tasks"]):
            denied = [*confine.gpus_to_deny(each["gpus"]), *self.house.deny]
            try:
                if not self.group:
                    raise OSError("no cgroup v2")
                confine.create(f"{self.group}/{rank}")
                confine.deny_devices(f"{self.group}/{rank}", denied)
            except OSError as error:
                self._confine_v1(rank, denied, error)

    def _confine_v1(self, rank: int, denied: list[Device], why: OSError) -> None:
        if not self.house.groups.devices:
            self._note(f"task {rank} runs unconfined: {why}; no v1 devices hierarchy either")
            return
        try:
            self.v1_group = f"{self.house.groups.devices}/{self.id}"
            confine.create(self.v1_group)
            confine.create(f"{self.v1_group}/{rank}")
            confine.deny_devices_v1(f"{self.v1_group}/{rank}", denied)
        except OSError as error:
            self._note(f"task {rank} runs unconfined: {why}; {error}")

    def _groups_of(self, rank: int) -> list[str]:
        groups = []
        for group in filter(None, (self.group, self.v1_group)):
            own = f"{group}/{rank}"
            groups.append(own if self.order["confine"] and os.path.isdir(own) else group)
        return groups

    # -- live

    def _wait(self) -> None:
        look_at = procs.boottime() + 1.0
        while True:
            self._reap()
            if not self.tasks:
                return
            now = procs.boottime()
            self._check_deadlines(now)
            if now >= look_at and self.cap is not None:
                look_at = now + self.cap.check()
            until = min(filter(None, (look_at, self.kill_at, self.limit_at if self.kill_at is None else None)))
            heard = signal.sigtimedwait(HEARD, max(0.0, until - now))
            if heard is not None and heard.si_signo == signal.SIGUSR1:
                self._reap()  # a task that ended before the stop was seen ended by itself
                if self.tasks:
                    self._read_stop()

    def _reap(self) -> bool:
        """Collect the dead, ours and those that fell to us. False when there is no child left at all."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if self.tasks.pop(pid, None) is not None and status != 0 and self.failure is None:
                self.failure = status
                if self.tasks and self.kill_at is None:
                    self._end("", signal.SIGTERM, self.order["grace_s"])  # the gang stands or falls together

    def _check_deadlines(self, now: float) -> None:
        if self.kill_at is None and self.limit_at is not None and now >= self.limit_at:
            self._end("time_limit", signal.SIGTERM, self.order["grace_s"])
        elif self.kill_at is not None and now >= self.kill_at:
            self._kill_all()
            self.kill_at = now + 0.05  # again, until all are gone

    def _read_stop(self) -> None:
        stop = records.read(f"{self.directory}/stop")
        if stop is None:
            return
        cause, grace = str(stop["cause"]), float(stop["grace_s"])
        if self.kill_at is None:
            self._end(cause, int(stop["signal"]), grace)
            return
        self.kill_at = min(self.kill_at, procs.boottime() + grace)  # a second order may only hasten the end
        if cause == "cancelled" and self.cause in ("preempted", ""):
            self.cause = cause  # somebody does not want it back

    def _end(self, cause: str, signum: int, grace_s: float) -> None:
        self.cause = cause
        self.kill_at = procs.boottime() + max(0.0, grace_s)
        if signum in POLITE:
            for pid in procs.descendants(os.getpid()):
                self._signal(pid, signum)
                self._signal(pid, signal.SIGCONT)  # a stopped process hears nothing
            return
        for leader in self.tasks:  # not reaped yet, so the number of its group is still its own
            try:
                os.killpg(leader, signum)
            except ProcessLookupError:
                self._signal(leader, signum)  # has not made its session yet

    def _signal(self, pid: int, signum: int) -> None:
        procs.send(pid, signum, lambda: self._is_ours(pid))

    def _is_ours(self, pid: int) -> bool:
        own = os.getpid()
        for _ in range(10_000):
            above = procs.parent(pid)
            if above is None or above <= 1:
                return False
            if above == own:
                return True
            pid = above
        return False

    # -- end

    def _kill_all(self) -> None:
        if self.group:
            confine.kill(self.group)
        for pid in procs.descendants(os.getpid()):
            self._signal(pid, signal.SIGKILL)

    def _extinguish(self) -> None:
        """Return only when no process of the attempt is left: all that it ever forked is below us, or in the group."""
        pause = 0.001
        while self._reap():
            self._kill_all()
            signal.sigtimedwait((signal.SIGCHLD,), pause)
            pause = min(pause * 2, 0.1)
        self.oom = bool(self.house.memory_events and self.group and confine.oom_kills(self.group))
        for group in filter(None, (self.group, self.v1_group)):
            while not confine.remove(group):
                self._note(f"something in {group} does not die; trying on")

    def _record(self) -> None:
        content = records.dump(self._exit())
        give_up = procs.boottime() + RECORD_RETRY_S
        while True:
            try:
                records.publish(self.directory, "exit", content, durable=True)
                return
            except OSError:
                if procs.boottime() > give_up:
                    raise
            signal.sigtimedwait((signal.SIGUSR2,), 1.0)

    def _exit(self) -> dict[str, Any]:
        code: int | None = 0
        signum: int | None = None
        message = ""
        cause = self.cause or "exited"
        if self.failure is not None:
            result = os.waitstatus_to_exitcode(self.failure)
            code, signum = (result, None) if result >= 0 else (None, -result)
        if self.refusal is None and self.errors >= 0 and self.failure is not None:
            self._read_refusals()
        if self.refusal is not None and not self.cause:
            cause, signum = "launch_failed", None
            code, message = self.refusal
            self.started_tick = None
        if self.started_tick is None and self.cause:
            code, signum = None, None  # stopped before the command was let go
        return {
            "cause": cause,
            "code": code,
            "signal": signum,
            "message": message,
            "oom": self.oom,
            "started_tick": self.started_tick,
            "ended_tick": procs.boottime(),
            "boot_id": self.house.boot_id,
        }

    def _nudge(self) -> None:
        try:
            os.write(self.house.nudge, f"{self.id}\n".encode())
        except OSError:
            pass  # nobody listens, or too slowly: the files say the same

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


def _controllers(group: str) -> str:
    try:
        with open(f"{group}/cgroup.subtree_control", encoding="ascii") as file:
            return file.read()
    except OSError:
        return ""
