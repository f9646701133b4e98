"""What can be asked of Rota, as values. A door parses a request into one of these and knows nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rota.app.authz import Role
from rota.core.policy import Policy
from rota.core.run import RunState, Spec


@dataclass(frozen=True, slots=True)
class Draft:
    """A record to be written; see ports.Record."""

    kind: str
    id: str
    body: str  # JSON text of an object; "" takes the record away
    parent: str = ""
    seen: str = ""  # JSON text of what the record says so far; refused (Changed) when it says something else by now


@dataclass(frozen=True, slots=True)
class Submit:
    spec: Spec
    user: str = ""  # for whom; "" = the principal. Only an admin may name another
    held: bool = False
    key: str = ""  # idempotency: the same key from the same principal is the same run
    # refused as Full when so many are queued and its owner has an equal part of them; 0 = only the policy's own bound
    max_waiting: int = 0
    records: tuple[Draft, ...] = ()  # written with it; an empty id or parent becomes the run's id
    blind: bool = False  # other people's runs are hidden from this one: they cannot be depended on
    checked: bool = False  # a door has seen to it that every field is of its type
    digest: str = ""  # of what was asked for, where it was made outside the writer's turn; see submit.digest_of
    author: Role | None = None  # the role of the one who wrote the command, where the principal only starts it
    sent: Spec | None = None  # what a key stands for, where the server filled in some of `spec` by itself


@dataclass(frozen=True, slots=True)
class SubmitMany:
    """All or none, in one transaction: a sweep and its runs."""

    submits: tuple[Submit, ...]
    records: tuple[Draft, ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """None = as it is. A command can be changed only while no attempt is live; what the first one ran stays."""

    run_id: str
    name: str | None = None
    argv: tuple[str, ...] | None = None
    workdir: str | None = None
    labels: Mapping[str, str] | None = None  # merged into what is there; "" takes one away
    group: str | None = None


@dataclass(frozen=True, slots=True)
class Archive:
    run_id: str
    archived: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """News of a run that is carried elsewhere, from whoever carries it."""

    run_id: str
    state: RunState  # starting, running, succeeded, failed or cancelled
    exit_code: int | None = None
    error: str = ""
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class EndLease:
    """Give a lease back while its holder lives on."""

    run_id: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody waits for this lease any more. Does nothing once it is given: then it is its holder's."""

    run_id: str
    why: str


@dataclass(frozen=True, slots=True)
class CapGroup:
    group: str
    limit: int  # 0 = no cap
    owner: str = ""  # whose group it is


@dataclass(frozen=True, slots=True)
class StartGroup:
    """Let go all runs of a group that are held, at most `limit` of it active at a time: all of it, or nothing."""

    group: str
    limit: int
    owner: str = ""  # whose group it is


@dataclass(frozen=True, slots=True)
class Reserve:
    """Keep GPUs for somebody. `end` or `length_s`, not both."""

    gpus: int
    start: float | None = None  # None = now
    end: float | None = None
    length_s: float | None = None
    gpu_type: str = ""
    nodes: int = 0
    name: str = ""
    users: tuple[str, ...] = ()  # who may use it besides its owner
    why: str = ""
    user: str = ""  # for whom; "" = the principal. Only an admin may name another
    key: str = ""  # idempotency, as in Submit


@dataclass(frozen=True, slots=True)
class CancelReservation:
    reservation_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class PutRecord:
    draft: Draft
    owner: str = ""  # whose it is; "" = the principal's own
    fresh: bool = False  # refuse (Conflict) when the id is there already


@dataclass(frozen=True, slots=True)
class Reshape:
    """Make the simulated cluster another size. Refused on real GPUs and while anything holds one."""

    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str
    why: str = ""
    grace_s: float | None = None  # None = the run's own
    force: bool = False  # kill at once; end it on record where its processes have not ended some time after that
    left: str = ""  # with force: what has not ended, in words, as the backend sees it


@dataclass(frozen=True, slots=True)
class CancelGroup:
    """End all live runs of a group that the caller may end."""

    group: str
    why: str = ""
    grace_s: float | None = None  # None = each run's own
    waiting_only: bool = False  # leave those alone that hold GPUs


@dataclass(frozen=True, slots=True)
class Hold:
    run_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    run_id: str


@dataclass(frozen=True, slots=True)
class Reprioritise:
    run_id: str
    priority: int
    held_too: bool = True  # False: only one that stands in the queue


@dataclass(frozen=True, slots=True)
class Rerun:
    run_id: str
    argv: tuple[str, ...] | None = None  # None = as before
    workdir: str | None = None
    labels: Mapping[str, str] | None = None  # merged into the old run's
    held: bool = False
    key: str = ""
    alone: bool = False  # not in the old run's group


@dataclass(frozen=True, slots=True)
class SetPolicy:
    policy: Policy


@dataclass(frozen=True, slots=True)
class Pause:
    why: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Drain:
    node_id: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Undrain:
    node_id: str


Command = (
    Submit
    | SubmitMany
    | Edit
    | Archive
    | Report
    | EndLease
    | Withdraw
    | CapGroup
    | StartGroup
    | Reserve
    | CancelReservation
    | PutRecord
    | Reshape
    | Cancel
    | CancelGroup
    | Hold
    | Release
    | Reprioritise
    | Rerun
    | SetPolicy
    | Pause
    | Resume
    | Drain
    | Undrain
)
