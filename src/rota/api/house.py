"""What every door needs, in one value; `main` puts it together."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from rota.api.bell import Bell
from rota.api.bodies import Bodies
from rota.api.connections import Connections, bounds_here
from rota.api.filereads import MAX_OF_ONE_ACCOUNT, MAX_REPLACED, FileReads
from rota.api.follow import followers, renderers
from rota.api.forecasts import forecasters
from rota.api.gate import Gate
from rota.api.groups import Groups
from rota.api.hub import Hub
from rota.api.limits import Buckets
from rota.api.looks import lookers
from rota.api.read_slots import CHANGES_AT_A_TIME, DRY_RUNS_AT_A_TIME, FILES_AT_A_TIME, SWEEPS_AT_A_TIME, ReadSlots
from rota.api.receive_buffers import ReceiveBuffers
from rota.api.render.links import Kept
from rota.api.trials import lookup_threads, sweep_threads, trial_threads
from rota.api.turns import Turns
from rota.app.authz import Principal, Role
from rota.app.leases import Leases
from rota.app.ports import Detector, Processes, Samples
from rota.app.service import Service
from rota.config import Settings
from rota.core.run import Run

# Of a person, in the long run and at once. A server answers 1,000 to 5,000 calls a second: nobody has all of it for
# long, and a script that submits 10,000 runs, or a browser with dozens of tabs, is not slowed down.
CALLS_PER_S, CALLS_AT_ONCE = 2_000.0, 20_000.0


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
    connections: Connections = field(default_factory=lambda: Connections(bounds_here()))
    people: Buckets = field(default_factory=lambda: Buckets(CALLS_PER_S, CALLS_AT_ONCE))
    turns: Turns = field(default_factory=Turns)
    buffers: ReceiveBuffers = field(default_factory=ReceiveBuffers)
    files: FileReads = field(
        default_factory=lambda: _file_threads("rota-files")
    )  # the server's own files, such as logs
    job_dirs: FileReads = field(default_factory=lambda: _file_threads("rota-job-dirs"))  # those that jobs may hold
    looks: FileReads = field(default_factory=lookers)
    followed: FileReads = field(default_factory=followers)
    rendering: FileReads = field(default_factory=renderers)
    forecasts: FileReads = field(default_factory=forecasters)
    trials: FileReads = field(default_factory=trial_threads)
    sweeps: FileReads = field(default_factory=sweep_threads)
    lookups: FileReads = field(default_factory=lookup_threads)
    tails: Kept = field(default_factory=Kept)
    reads: ReadSlots = field(default_factory=ReadSlots)
    file_reads: ReadSlots = field(default_factory=lambda: ReadSlots("reads of files", FILES_AT_A_TIME))
    sweep_calls: ReadSlots = field(default_factory=lambda: ReadSlots("sweeps", SWEEPS_AT_A_TIME))
    dry_runs: ReadSlots = field(default_factory=lambda: ReadSlots("dry runs", DRY_RUNS_AT_A_TIME))
    changes: ReadSlots = field(default_factory=lambda: ReadSlots("changes", CHANGES_AT_A_TIME))
    bodies: Bodies = field(default_factory=Bodies)
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

    def only_own(self, who: Principal) -> bool:
        """A lab's habit is that everybody sees everybody's things; `private` hides other people's, but from admins."""
        return self.settings.private and who.role is not Role.ADMIN

    def may_see_of(self, who: Principal, owner: str | None) -> bool:
        """Something of this person's; None = nobody's own, and everybody's to see."""
        return owner is None or not self.only_own(who) or owner == who.owner

    def may_see(self, who: Principal, run: Run) -> bool:
        return self.may_see_of(who, run.user)

    def may_see_secrets(self, who: Principal, run: Run) -> bool:
        return who.role is Role.ADMIN or run.user == who.owner


def _file_threads(name: str) -> FileReads:
    """One run gets a thread fewer than its account, so that a run whose files are stuck leaves one to the others."""
    return FileReads(name, of_one=MAX_OF_ONE_ACCOUNT - 1, of_account=MAX_OF_ONE_ACCOUNT, replaced=MAX_REPLACED)
