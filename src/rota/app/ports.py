"""The sockets of the house: what `app` needs from the outside, as Protocols for adapters to implement."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rota.core.events import Event
from rota.core.node import Node
from rota.core.run import Exit, Holder, PastAttempt, Run, RunState
from rota.core.state import State

ACCOUNT_CHECKPOINTS = "of-"  # and the name of an account: the directory of all its checkpoint directories


@dataclass(frozen=True, slots=True)
class Task:
    """One process of an attempt. A gang has one per node; everything else has one."""

    node: str
    gpus: tuple[int, ...]  # the node's own numbers
    env: Mapping[str, str] = field(default_factory=dict)  # what differs from task to task
    minors: tuple[int, ...] = ()  # of the GPUs' device files, for `confine`


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """All a backend needs to start one attempt. Launching the same attempt id twice starts it once."""

    attempt_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]  # complete: nothing is inherited from the server
    workdir: str
    tasks: tuple[Task, ...]
    umask: int = 0o022
    account: str | None = None  # the unix account to run as; None = the server's own
    time_limit_s: float | None = None
    warn_signal: int = 0  # sent `warn_s` before the time limit to whatever has a handler for it; 0 = none
    warn_s: float = 0.0
    grace_s: float = 10.0  # from the polite signal to SIGKILL, for time limits
    log_cap_bytes: int = 1 << 30
    terminal: bool = False  # a pty that can be attached to, instead of a plain log
    confine: bool = False  # real GPUs: hide the device files of the others where the kernel lets us
    checkpoint_dir: str | None = None  # made before the command runs, the account's own, kept across attempts
    checkpoint_parent: str | None = None  # made before that: the server's own, which the account alone can search
    holder: Holder | None = None  # a lease: start nothing, watch this process; argv is only what to call it
    memory_gb: float = 0.0  # the most that each task may take; 0 = no limit of its own
    cpus: int = 0  # CPU time that each task may take, in whole CPUs; 0 = no limit


@dataclass(frozen=True, slots=True)
class StopOrder:
    """How to end a live attempt: `signal` to its processes, SIGKILL to all of them after `grace_s`."""

    cause: str  # "cancelled" or "preempted", comes back in Exit.cause; "released" ends a lease and leaves its holder
    signal: int = 15
    grace_s: float = 10.0
    saves: bool = False  # it is said to save when it hears `signal`: one that has no handler for it has lost its work
    holder: Holder | None = None  # of a lease: who it is where its record was damaged
    overdue: bool = False  # SIGKILL was due and it lives: a supervisor that is stopped again and again is killed


@dataclass(frozen=True, slots=True)
class Started:
    attempt_id: str
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The attempt is over and none of its processes lives."""

    attempt_id: str
    exit: Exit


Report = Started | Ended


@dataclass(frozen=True, slots=True)
class Absent:
    """Never claimed: safe to launch under the same id."""


@dataclass(frozen=True, slots=True)
class Live:
    pid: int | None  # of the first task; None while it is being born


Observation = Absent | Live | Exit


class FileBusy(Exception):
    """A file cannot be opened without waiting: another process holds a lease on it. The same call may be sent again."""


@dataclass(frozen=True, slots=True)
class LogChunk:
    content: bytes
    offset: int  # of the first byte of content
    size: int  # of the whole log


class Backend(Protocol):
    """Carries attempts. Every call is prompt, bounded and safe to repeat; news come through `report`, any thread."""

    def open(self, report: Callable[[Report], None]) -> None: ...

    def launch(self, *orders: LaunchOrder) -> None:
        """Begin each attempt unless it was begun before. A launch that fails is reported as Ended, never raised."""

    def stop(self, attempt_id: str, order: StopOrder) -> None:
        """End the attempt. One that was never claimed is vetoed for ever and reported as Ended(never_started)."""

    def observe(self, attempt_id: str) -> Observation:
        """The truth from files and locks. An attempt found dead without a record has been swept before this returns."""

    def stalled_by(self, attempt_id: str) -> str:
        """Return what keeps an attempt from starting or ending, in words, where that can be seen; "" = nothing."""

    def strays(self) -> Collection[str]:
        """Attempts this backend still carries or has not been told to forget."""

    def sweep(self, attempt_id: str, account: str | None) -> None:
        """Kill all processes of this account (None: the server's) that carry the mark of this attempt, of which no
        record is left."""

    def forget(self, attempt_id: str) -> None:
        """The end of this attempt is durable in the store; its log stays."""

    def read_log(self, attempt_id: str, offset: int, limit: int) -> LogChunk:
        """Bytes of the attempt's output; a negative offset counts from the end; no log yet is an empty chunk. Raises
        FileBusy while the log cannot be opened without waiting."""

    def enforced(self) -> Collection[str] | None:
        """Which limits hold here: "memory", "cpu" (of a run that asks for amounts), "pids" (of every run). None = not
        known yet."""

    def purge(self, before: float) -> int:
        """Remove the records and logs of forgotten attempts that ended before this time (epoch s). Returns how many."""

    def close(self) -> None:
        """Stop watching. Attempts run on."""


class Probe(Protocol):
    """Sees the GPUs. Bounded in time; a node it cannot see any more is left out."""

    def nodes(self) -> Sequence[Node]: ...


class Clock(Protocol):
    """Three clocks: `now` is what people read, `tick` measures durations and survives wall-clock jumps, and `awake`
    measures the time that a program had to do something in."""

    def now(self) -> float:
        """Epoch seconds. Never goes back while the process lives."""

    def tick(self) -> float:
        """CLOCK_BOOTTIME seconds: the same in every process of this boot."""

    def awake(self) -> float:
        """CLOCK_MONOTONIC seconds: without the time in which the machine was suspended."""

    def boot_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Account:
    """Whose a user id is."""

    name: str  # the account's, or uid<N>
    uid: int  # the account's own
    known: bool = True  # False = no account has this id
    subordinate: bool = False  # it is not the account's own id, but one that it may use in user namespaces


@dataclass(frozen=True, slots=True)
class Seen:
    """A process of this machine, as somebody may name it in a lease."""

    holder: Holder
    uid: int
    user: str  # the name of the account whose it is, or uid<N>
    command: tuple[str, ...]  # its argv, as far as it may be read
    workdir: str = "/"  # its own, where that may be read
    kernel: bool = False  # a thread of the kernel, which has no owner and no end
    has_account: bool = True  # False = no account has its user id


class Unseen(OSError):
    """A look at processes has not ended in time, or could not be begun: nothing is known."""

    def __init__(self, why: str, *, has_begun: bool = False) -> None:
        super().__init__(errno.ETIMEDOUT, why)
        self.has_begun = has_begun  # what it was to do besides may be done


class Processes(Protocol):
    """Processes that are not ours, named by people."""

    def prepare(self) -> None:
        """Have the first looks find somebody to look."""

    def look(self, pid: int, asker: str) -> Seen | None:
        """None = no such process, or a zombie. A process can make looks at it wait: this, `attempt_of`,
        `peer_shares_pids` and `peer_attempt` raise Unseen where that takes long, and are not for the event loop.
        `asker`: for whom such looks count. It may name any process."""

    def watch(
        self, holder: Holder, on_end: Callable[[], None], *, family: bool = False, may_look: bool = False
    ) -> Callable[[], None]:
        """Call `on_end` once, from any thread, when the process is gone; at once if it is gone already. Returns how to
        stop watching. By pidfd: no polling. `family`: the process is a descendant of one with a lease. Raises an
        OSError where the descriptors for such processes, or those of the account `holder.uid`, are used up, and where
        the process is neither watched nor was looked at just now; `may_look`: then it is looked at, which can wait."""

    def attempt_of(self, pid: int, asker: str) -> str | None:
        """The attempt that a process is part of; "" = it cannot be told of which, or it is gone; None = of none."""

    def account(self, uid: int) -> Account:
        """Whose a user id is."""

    def counted_as(self, uid: int) -> int:
        """Return the user id for which connections of this one count: of a subordinate id its account's. Quick."""

    def subuids(self, account: int | str) -> Sequence[tuple[int, int]]:
        """Return the ranges of an account's subordinate ids, each with its first id and the one beyond its last. Quick.
        The account is given by its id or its name."""

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int | None:
        """The account at the other end of a connection; None = the kernel cannot tell. `quick`: in a time that does not
        depend on how many sockets there are, or not at all."""

    def peer_shares_pids(self, link: socket.socket) -> bool:
        """Return whether process numbers mean the same to the process at the other end of a unix socket as here; True
        where that cannot be told."""

    def peer_attempt(self, link: socket.socket) -> str | None:
        """The same as `attempt_of`, for the process at the other end of a unix socket."""


class Space(Protocol):
    """Room on the disk that the ledger lies on."""

    def shortage(self) -> str:
        """Return why nothing new can be taken in, in words; "" = there is room. Cheap: asked about once a second."""

    def relieve(self) -> bool:
        """Give up what was kept for a full disk; True = there is more room now. It is kept again when there is room."""

    def kept_in_ledger(self) -> int:
        """Return how many bytes the ledger is to have within itself for a full disk; 0 = none. Cheap."""


class Samples(Protocol):
    """Metric rows of runs: many, appended, bounded; apart from the store so that they never delay it."""

    def append(self, run_id: str, rows: Sequence[Mapping[str, Any]]) -> int:
        """How many were kept. Durable against kill -9 when it returns."""

    def size(self, run_id: str) -> int:
        """Return the bytes that a run's rows use on the disk."""

    def series(self, run_id: str, points: int = 400, keys: int = 200) -> Mapping[str, Sequence[tuple[float, float]]]:
        """(step, value) by key, thinned out evenly to at most `points`, first and last kept; {} without any."""

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Remove what was last added to before this time (epoch s), of runs that are gone. Returns of how many."""


class Checkpoints(Protocol):
    """The directories that runs save into."""

    def purge(self, before: float, gone: Callable[[str], bool]) -> int:
        """Remove those that were last added to before this time (epoch s), of runs that are gone. A bounded number at a
        time. Returns how many."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What kind of cluster this machine belongs to, and how that was found out."""

    type: str  # unknown slurm local_gpu kubernetes ray shared_head_node cpu_only
    status: str  # unknown healthy degraded offline
    confidence: float
    description: str
    head_node: str | None = None
    node_count: int | None = None
    gpu_count: int | None = None
    signals: tuple[str, ...] = ()
    slurm_nodes: int = 0
    kubernetes_nodes: int = 0
    ssh_hosts: int = 0


class Detector(Protocol):
    def detect(self, preferred: str | None = None) -> Cluster:
        """Bounded in time: every command it asks has a timeout."""


class StoreError(Exception):
    """The store could not do it. Nothing of the batch is in it."""


class StoreBusy(StoreError):
    """Another process holds the database; try again."""


class StoreFull(StoreError):
    """No space left; reading goes on, writing waits for space."""


class StoreBroken(StoreError):
    """An I/O error or a damaged file: stop, do not retry and hope."""


class Fenced(StoreError):
    """A newer server owns the store; this one must stop writing for good."""


class StoreUnusable(StoreError):
    """Refused at opening: made by a newer Rota, damaged, or not ours. The file is left as it was."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An idempotency key: who used it, for what, with which result."""

    principal: str  # see Principal.keeps_keys_as
    key: str
    digest: str  # of the request
    run_id: str
    at: float


@dataclass(frozen=True, slots=True)
class StoredEvent:
    seq: int
    event: Event


PAGE_BYTES = 4 << 20  # of text in one page of a list; decoded it takes up to 30 times as much


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Newest first. `before` is the seq of the last run seen: the cursor."""

    user: str | None = None
    states: frozenset[RunState] = frozenset()
    group: str | None = None
    archived: bool | None = None  # None = both
    before: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Record:
    """A small document of a door, kept beside the runs: a sweep, an alert, a token's hash, a workspace."""

    kind: str
    id: str
    parent: str
    seq: int  # of the event that first wrote it: the order of making, and the cursor
    at: float  # of that event
    by: str
    body: Mapping[str, Any]
    size: int = field(default=0, compare=False)  # characters of the body's text, where it was read from the store


@dataclass(frozen=True, slots=True)
class UserTotal:
    user: str
    attempts: int
    gpu_s: float


class Store(Protocol):
    """Events and their projection rows, in one transaction; acknowledged = durable. One writer, kept so by a fence."""

    def begin_epoch(self) -> int:
        """Take over: from here on appends of every earlier epoch are refused (Fenced)."""

    def load(self) -> State:
        """The state from the projection rows: live runs, nodes, policy, usage and what predictions need."""

    def append(self, events: Sequence[Event], state: State, keys: Sequence[KeyRecord] = ()) -> None:
        """One transaction: `events`, already reduced into `state`, and the rows they touched (`state.touched`).

        The last event has seq `state.version`. `state.touched` is left for the caller to clear."""

    def run(self, run_id: str) -> Run | None: ...

    def runs(self, which: RunFilter) -> Sequence[Run]: ...

    def runs_page(self, which: RunFilter, most_bytes: int = PAGE_BYTES) -> tuple[Sequence[Run], bool]:
        """Return these runs, and whether there are more. They are fewer than the limit where their texts take more than
        `most_bytes`, but at least one."""

    def run_ids(self, which: RunFilter) -> Sequence[str]:
        """Return the ids of these runs, without reading the runs."""

    def attempts(self, run_id: str) -> Sequence[PastAttempt]: ...

    def key(self, principal: str, key: str) -> KeyRecord | None: ...

    def used_keys(self, principal: str, keys: Sequence[str]) -> Mapping[str, KeyRecord]:
        """Return those of many keys that were used before."""

    def events(self, after: int, limit: int, run_id: str | None = None) -> Sequence[StoredEvent]: ...

    def counts(self) -> Mapping[RunState, int]:
        """How many runs there are in each state, archived ones aside."""

    def counted(self) -> tuple[Mapping[RunState, int], int]:
        """The same, and the seq of the last event that is in these numbers."""

    def record(self, kind: str, record_id: str) -> Record | None: ...

    def records(
        self,
        kind: str,
        *,
        parent: str | None = None,
        before: int | None = None,
        limit: int = 100,
        most_bytes: int | None = None,
    ) -> Sequence[Record]:
        """Newest first; `before` is the seq of the last one seen; the last one makes it `most_bytes` of text."""

    def count_records(self, kind: str, most: int, by: str = "") -> int:
        """How many there are of a kind, of one caller if one is named, counted no further than `most`."""

    def totals(self, since: float, until: float) -> Sequence[UserTotal]:
        """Who used what: GPU-seconds of attempts that ended in [since, until)."""

    def replay(self) -> State:
        """The state from the newest checkpoint and the events after it: must equal load()."""

    def compact(self, state: State, before: float, keep_runs_since: float, passing: Collection[str] = ()) -> int:
        """Write a checkpoint of the live state, drop events older than `before`, ended runs older than
        `keep_runs_since` with their records, records of the `passing` kinds that are as old and belong to no run that
        stays, and old idempotency keys. Returns how many rows went."""

    def keep_room(self, state: State, size: int) -> None:
        """Have so many bytes within the ledger that commits can be made on a full disk. To be called now and then while
        there is room on it. A store whose disk is not of this machine has nothing to do."""

    def close(self) -> None: ...
