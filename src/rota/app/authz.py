"""Who may do what: one table. Rows are roles, columns are acts, a cell says on whose things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from rota.app.errors import Forbidden


class Role(StrEnum):
    ADMIN = "admin"
    USER = "user"
    AGENT = "agent"
    VIEWER = "viewer"


class Act(StrEnum):
    SUBMIT = "submit"
    CANCEL = "cancel"
    FORCE = "end a run whose processes live (force)"
    HOLD = "hold"
    RELEASE = "release"
    REPRIORITISE = "reprioritise"
    RERUN = "rerun"
    EDIT = "edit"
    REPORT = "report on"
    ARCHIVE = "archive"
    CAP = "cap a sweep"
    RESERVE = "reserve"
    RECORD = "write a record"
    DESCRIBE = "describe the cluster"
    SET_POLICY = "set the policy"
    PAUSE = "pause or resume scheduling"
    DRAIN = "drain or resume a node"
    RESHAPE = "reshape the simulated cluster"
    MANAGE_TOKENS = "manage tokens"


class On(Enum):
    NOTHING = 0
    OWN = 1
    ANY = 2


_OFFICE = {Act.FORCE, Act.SET_POLICY, Act.PAUSE, Act.DRAIN, Act.RESHAPE, Act.MANAGE_TOKENS}  # what only an admin does
_PERSONAL: dict[Act, On] = {act: On.OWN for act in Act if act not in _OFFICE and act is not Act.DESCRIBE}

MAY: Mapping[Role, Mapping[Act, On]] = {
    Role.ADMIN: dict.fromkeys(Act, On.ANY),
    Role.USER: {**_PERSONAL, Act.DESCRIBE: On.ANY},
    # an agent has less power than the person it acts for: it cannot move its own runs up, nor tell everybody, and every
    # other agent, what the cluster is
    Role.AGENT: {act: scope for act, scope in _PERSONAL.items() if act is not Act.REPRIORITISE},
    Role.VIEWER: {},
}

_FROM_STRONG = (Role.ADMIN, Role.USER, Role.AGENT, Role.VIEWER)
HIGHEST_PRIORITY: Mapping[Role, int] = {Role.ADMIN: 4, Role.USER: 4, Role.AGENT: 2, Role.VIEWER: 0}


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who acts. An agent acts for a person and owns nothing that is not that person's."""

    name: str
    role: Role
    acts_for: str = ""

    @property
    def owner(self) -> str:
        """In whose name its runs are."""
        return self.acts_for or self.name

    @property
    def keeps_keys_as(self) -> str:
        """Return the name that idempotency keys are kept by. The name of an agent that was revoked may be given to an
        agent of another person; no name of a person or an account has a colon in it."""
        return f"{self.acts_for}:{self.name}" if self.acts_for else self.name


def weaker(one: Role, other: Role) -> Role:
    """Return the role that may do less."""
    return max(one, other, key=_FROM_STRONG.index)


def may(who: Principal, act: Act, owner: str | None = None) -> bool:
    scope = MAY[who.role].get(act, On.NOTHING)
    return scope is On.ANY or (scope is On.OWN and owner is not None and owner == who.owner)


def authorise(who: Principal, act: Act, owner: str | None = None) -> None:
    if may(who, act, owner):
        return
    scope = MAY[who.role].get(act, On.NOTHING)
    if scope is On.OWN and owner is not None:
        raise Forbidden(f"{who.name} may not {act} what belongs to {owner}; ask {owner} or an admin")
    raise Forbidden(f"{who.name} ({who.role}) may not {act}; ask an admin")
