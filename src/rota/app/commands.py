"""What can be asked of Rota, as values. A door parses a request into one of these and knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.policy import Policy
from rota.core.run import Spec


@dataclass(frozen=True, slots=True)
class Submit:
    spec: Spec
    user: str = ""  # for whom; "" = the principal. Only an admin may name another
    held: bool = False
    key: str = ""  # idempotency: the same key from the same principal is the same run


@dataclass(frozen=True, slots=True)
class Cancel:
    run_id: str
    why: str = ""
    grace_s: float | None = None  # None = the run's own


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


@dataclass(frozen=True, slots=True)
class Rerun:
    run_id: str
    argv: tuple[str, ...] | None = None  # None = as before
    held: bool = False
    key: str = ""


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


Command = Submit | Cancel | Hold | Release | Reprioritise | Rerun | SetPolicy | Pause | Resume | Drain | Undrain
