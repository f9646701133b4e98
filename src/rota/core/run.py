"""One run, one state machine. All transitions live in TABLE; docs/STATES.md is generated from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rota.core.resources import Placement, Request

NORMAL = 2  # of priorities


class RunState(StrEnum):
    HELD = "held"
    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"


WAITING = frozenset({RunState.HELD, RunState.QUEUED})
ACTIVE = frozenset({RunState.STARTING, RunState.RUNNING})
ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST})

TABLE: Mapping[RunState, frozenset[RunState]] = {
    RunState.HELD: frozenset({RunState.QUEUED, RunState.CANCELLED}),
    RunState.QUEUED: frozenset({RunState.HELD, RunState.STARTING, RunState.CANCELLED}),
    RunState.STARTING: frozenset({RunState.RUNNING, RunState.QUEUED}) | ENDED,
    RunState.RUNNING: frozenset({RunState.QUEUED}) | ENDED,
    RunState.SUCCEEDED: frozenset(),
    RunState.FAILED: frozenset(),
    RunState.CANCELLED: frozenset(),
    RunState.LOST: frozenset(),
}


class IllegalTransition(Exception):
    """A bug: something tried a move that is not in TABLE."""


def move(old: RunState, new: RunState) -> RunState:
    if new not in TABLE[old]:
        raise IllegalTransition(f"{old} -> {new}")
    return new


class Cause(StrEnum):
    """How an attempt came to its end."""

    EXITED = "exited"  # by itself; code or signal says how
    TIME_LIMIT = "time_limit"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LAUNCH_FAILED = "launch_failed"  # the command could not be begun; message says why
    NEVER_STARTED = "never_started"  # stopped before it was claimed
    LOST = "lost"  # its supervisor or its machine vanished
    RELEASED = "released"  # a lease: its holder ended or gave it back; how the holder fared is not ours to know


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of an attempt as its supervisor recorded it."""

    cause: Cause
    code: int | None = None  # of the first task that failed, else 0; None when a signal or worse ended it
    signal: int | None = None
    message: str = ""
    oom: bool = False  # the OOM killer took a process of it at a bound of its own
    started_tick: float | None = None  # CLOCK_BOOTTIME seconds; None = the command never ran
    ended_tick: float | None = None
    warned: bool = False  # it was told that its time limit was near
    killed: bool = False  # it had not ended when its grace was over, or could not save; what it had not is lost
    machine_oom: bool = (
        False  # the OOM killer took a process of it because all jobs together, or the machine, had no memory left
    )
    # of LOST: it was not begun because the server's disk or the machine was short of something; that uses up no retry
    shortage: bool = False

    @property
    def ok(self) -> bool:
        return (self.cause is Cause.EXITED and self.code == 0) or self.cause is Cause.RELEASED


class When(StrEnum):
    """Which end of a dependency lets the dependent go on."""

    SUCCEEDED = "succeeded"
    ENDED = "ended"
    FAILED = "failed"


def satisfied(when: When, end: RunState) -> bool:
    if when is When.ENDED:
        return True
    return (end is RunState.SUCCEEDED) == (when is When.SUCCEEDED)


@dataclass(frozen=True, slots=True)
class Dependency:
    run_id: str
    when: When = When.SUCCEEDED


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that is not ours and holds GPUs for as long as it lives. The start time tells it from a later process
    with the same number, the boot id from one before the machine restarted."""

    pid: int
    start_ticks: int  # field 22 of /proc/<pid>/stat
    boot_id: str
    # the account whose process it was when it was leased, if the lease's owner may end it; -1 = nobody ends it by a
    # cancel. No part of who it is: a process can change its account
    uid: int = field(default=-1, compare=False)
    # the account that asked for the lease, by name: root may ask for anybody's process; "" = it is not known
    asked_by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Replaced:
    """What the first attempt of a run was started with, where an edit has replaced it since."""

    command: str  # its beginning, where it is long
    workdir: str
    sha256: str = ""  # of the whole command, where it is not all here


@dataclass(frozen=True, slots=True)
class Spec:
    """What was asked for. Changes only by RunEdited."""

    name: str
    argv: tuple[str, ...]  # a shell line is ("/bin/sh", "-c", line)
    workdir: str
    request: Request = Request()
    env: Mapping[str, str] = field(default_factory=dict)
    umask: int = 0o022
    account: str | None = None  # unix account to run as; None = the server's own
    priority: int = NORMAL  # LOW 1, NORMAL 2, HIGH 3, CRITICAL 4
    estimate_s: float | None = None  # how long it will take, by its submitter
    time_limit_s: float | None = None  # how long it may take
    depends_on: tuple[Dependency, ...] = ()
    max_retries: int = 3  # for ends that are not the command's own fault
    retry_failures: bool = False  # run again also when the command itself failed
    preemptible: bool = False
    saves: bool = False  # it keeps its work in checkpoints: a stop loses little of it
    checkpoint_signal: int = 15
    grace_s: float = 10.0  # from the polite signal to SIGKILL
    long_grace: bool = False  # an admin gave it a grace above the policy's cap: see grace.py
    warn_signal: int = 0  # sent before the time limit; 0 = see warning.py
    warn_s: float | None = None  # how long before; None = see warning.py, 0 = never
    filler: bool = False  # only where nobody else who waits could run; killed at once for anybody: see filler.py
    terminal: bool = False
    log_cap_bytes: int = 1 << 30
    labels: Mapping[str, str] = field(default_factory=dict)  # the doors' own words about it: chat session, tags, ...
    group: str = ""  # of a sweep: its runs share a cap on how many are active
    holder: Holder | None = None  # a lease: nothing is launched, this process holds what is given
    reservation: str = ""  # its GPUs come out of this one, in its time; one that is over counts for nothing
    replaced: Replaced | None = None  # set by the first edit of the command or the directory after a start
    agent_estimate: bool = False  # an agent wrote it or changed its command, with or without estimate; see expect.py

    @property
    def stoppable(self) -> bool:
        """It may be asked to make way; a lease never is, its process is not ours."""
        return self.preemptible and self.holder is None


@dataclass(frozen=True, slots=True)
class Stop:
    """Somebody asked a live attempt to end."""

    cause: Cause
    at: float
    by: str
    signal: int
    grace_s: float
    for_run: str = ""  # preemption: who gets the GPUs
    why: str = ""
    long_grace: bool = False  # an admin asked for this grace, whatever the cap is


@dataclass(frozen=True, slots=True)
class Attempt:
    """The live attempt of a run: it holds its placement until it is known dead."""

    id: str
    number: int
    fence: int  # the server's epoch that planned it
    placement: Placement
    planned_at: float
    planned_tick: float
    expected_end: float
    charged_gpu_s: float  # fair-share debit made at the start, trued up at the end
    started_at: float | None = None
    pid: int | None = None
    stop: Stop | None = None
    reported: bool = False  # carried elsewhere by somebody who reports: no GPU of ours, nothing to launch or to look at
    grace_s: float | None = None  # that its supervisor gives it at its limit; None = the spec's own


@dataclass(frozen=True, slots=True)
class PastAttempt:
    id: str
    number: int
    placement: Placement
    planned_at: float
    started_at: float | None
    ended_at: float
    exit: Exit
    gpu_s: float  # GPU-seconds held, recorded once
    for_run: str = ""  # preempted: whom it made way for
    stopped_at: float | None = None  # when somebody asked it to end


@dataclass(frozen=True, slots=True)
class Run:
    """One entity behind every door. `attempt` is set exactly in ACTIVE states, `ended_at` exactly in ENDED ones."""

    id: str
    seq: int  # order of arrival
    user: str
    spec: Spec
    state: RunState
    priority: int
    submitted_at: float
    expected_s: float  # how long the scheduler believes it will run
    expected_from: str  # "estimate", "history", "declared habit" (of limits, or of estimates), "limit" or "default"
    waiting_on: tuple[Dependency, ...] = ()
    not_before: float = 0.0  # back-off after a retry
    retries: int = 0
    attempts_made: int = 0
    attempt: Attempt | None = None
    past: tuple[PastAttempt, ...] = ()  # the newest KEPT_ATTEMPTS; the store keeps all
    ended_at: float | None = None
    why: str = ""  # of the last change that needs a word: hold, requeue, end
    archived_at: float | None = None  # put out of sight by a person
    queued_at: float | None = None  # when it last got into line; None = it never did
    attained_s: float = 0.0  # of its work, done in earlier attempts and kept by checkpoints
    belief: tuple[float, ...] = ()  # how long it may take, as points: see belief.py; () = as declared

    @property
    def is_elsewhere(self) -> bool:
        """Somebody else carries its live attempt and reports on it."""
        return self.attempt is not None and self.attempt.reported

    @property
    def saves(self) -> bool:
        """Its work outlives a stop: it says so, and did not prove otherwise when it was stopped last."""
        if not self.spec.saves or not self.past:
            return self.spec.saves
        last = self.past[-1].exit
        return not (last.killed and last.cause is Cause.PREEMPTED)


KEPT_ATTEMPTS = 20
