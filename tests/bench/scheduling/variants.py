"""Who plays: a policy, what it is told about the jobs, and what a stop costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

from rota.core.policy import Policy
from rota.core.presets import named
from rota.sim.model import Job

PATIENCES = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)
SHARES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str  # in the tables
    preset: str
    declared: str = "class"
    preempts: bool = True
    cost_s: int = 60
    preemptible: float = 1.0  # share of the jobs
    patience: float | None = None
    most: int = 1_000_000  # shakes
    slow: bool = False  # not on the large trace
    large: int = 1  # runs of the large trace: as it is, and shakes where two are held against each other closely

    def policy(self) -> Policy:
        policy = named(self.preset)
        if not self.preempts:
            policy = replace(policy, preemption=False)
        return policy if self.patience is None else replace(policy, patience=self.patience)

    def told(self, jobs: Iterable[Job], number: int) -> list[Job]:
        """Who may be stopped is drawn by a hash of the job, anew in each shake; who may at a small share also may at a
        larger one."""
        if self.preemptible >= 1.0:
            return list(jobs)
        return [replace(job, preemptible=_draw(f"{number} {job.id}") < self.preemptible) for job in jobs]


def _draw(text: str) -> float:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest()) / 2**32


EASY, SJF, SRTF, AUTO = "easy", "sjf", "srtf", "auto"
NO_STOPS, ORACLE = "auto, no stops", "srtf, oracle"
AUTO_SLOPPY, SRTF_SLOPPY = "auto, sloppy", "srtf, sloppy"
HALF = "auto, 50 % may be stopped"

TABLE = (
    Variant("fcfs-strict", "fcfs-strict"),
    Variant("fcfs-skip", "fcfs-skip"),
    Variant(EASY, "easy"),
    Variant("conservative, true times", "conservative", "true", most=5, slow=True),
    Variant(SJF, "sjf", large=6),
    Variant(NO_STOPS, "auto", preempts=False, large=6),
    Variant("las", "las"),
    Variant(SRTF, "srtf"),
    Variant(AUTO, "auto"),
    Variant(SRTF_SLOPPY, "srtf", "sloppy"),
    Variant(AUTO_SLOPPY, "auto", "sloppy"),
    Variant(HALF, "auto", preemptible=0.5),
    Variant(ORACLE, "srtf", "true", cost_s=0),
)
MIXED = tuple(
    Variant(f"auto, {share:.0%} may be stopped".replace("%", " %"), "auto", preemptible=share, most=10)
    for share in SHARES
    if share != 0.5
)
PATIENT = tuple(
    Variant(f"auto, patience {patience:g}", "auto", patience=patience, most=10)
    for patience in PATIENCES
    if patience != named("auto").patience
)
ON_UNSEEN = tuple(one for one in TABLE if one.name in (EASY, SJF, NO_STOPS, SRTF, AUTO))
CURVE = ("team16_2weeks", "team16_gang")  # where the trade of patience is shown
SHOWN = ("fcfs-skip", EASY, SJF, NO_STOPS, "las", SRTF, AUTO)  # in the pictures of waits


def of_place(name: str, *, made_up: bool, once: bool) -> tuple[Variant, ...]:
    if made_up:
        return ON_UNSEEN
    if once:
        return tuple(one for one in TABLE if not one.slow)
    return TABLE + MIXED + (PATIENT if name in CURVE else ())
