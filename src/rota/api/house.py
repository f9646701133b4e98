"""What every door needs, in one value; `main` puts it together."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass, field
from pathlib import Path

from rota.api.bell import Bell
from rota.api.gate import Gate
from rota.api.groups import Groups
from rota.api.hub import Hub
from rota.api.limits import Buckets
from rota.app.authz import Principal, Role
from rota.app.errors import Forbidden
from rota.app.leases import Leases
from rota.app.ports import Detector, Processes, Samples
from rota.app.service import Service
from rota.config import Settings
from rota.core.run import Run


@dataclass(slots=True)
class House:
    service: Service
    leases: Leases
    processes: Processes
    samples: Samples
    detector: Detector
    settings: Settings
    gate: Gate
    hub: Hub
    started_at: float  # epoch seconds
    skills: Path  # the directory of prompt skills
    version: str
    people: Buckets = field(default_factory=lambda: Buckets(20_000.0, 40_000.0))
    agents: Buckets = field(init=False)
    groups: Groups = field(init=False)
    bell: Bell = field(init=False)
    workdir: str = field(init=False)  # of runs that name none

    def __post_init__(self) -> None:
        calls = self.settings.agent_calls
        self.agents = Buckets(calls / 60.0, max(10.0, calls / 5.0))
        self.groups = Groups(self.service)
        self.bell = Bell(self.service)
        self.workdir = self.settings.workdir or os.getcwd()  # once: asking the kernel at every submit is dear

    def may_see(self, who: Principal, run: Run) -> bool:
        """A lab's habit is that everybody sees everybody's runs; `private` hides other people's."""
        return not self.settings.private or who.role is Role.ADMIN or run.user == who.owner

    def may_see_secrets(self, who: Principal, run: Run) -> bool:
        return who.role is Role.ADMIN or run.user == who.owner

    def account_for(self, who: Principal, asked: str | None) -> str | None:
        """The unix account a run of this caller gets. Only a server that runs as root can choose: there nobody but an
        admin may run as root, so a person needs an account on this machine, or the server a `run_as`."""
        if os.geteuid() != 0:
            if asked and asked != pwd.getpwuid(os.geteuid()).pw_name:
                raise Forbidden("account: this server does not run as root, so every run has its account", "account")
            return None
        if who.role is Role.ADMIN:
            return asked
        own = [name for name in (who.owner, self.settings.run_as) if name and _is_persons(name)]
        if not own:
            raise Forbidden(
                f"{who.owner} has no account on this machine to run as; make one, "
                "or let the server be started with --run-as ACCOUNT"
            )
        if asked and asked not in own:
            raise Forbidden(f"account: {who.name} may run as {own[0]}, not as {asked[:50]!r}; ask an admin", "account")
        return asked or own[0]

    def must_run_as_self(self, who: Principal, run: Run) -> None:
        """Before the command of a run is changed: one that an admin made for somebody may have the server's own
        account, and a new command must not get it."""
        if who.role is not Role.ADMIN and os.geteuid() == 0 and run.spec.account != self.account_for(who, None):
            raise Forbidden(f"run {run.id} does not run as {who.owner}; ask an admin to change or repeat it")


def _is_persons(account: str) -> bool:
    """It exists, and is not root under whatever name."""
    try:
        return pwd.getpwnam(account).pw_uid != 0
    except (KeyError, ValueError):  # ValueError: a name that holds NUL
        return False
