"""Who would have waited more and who less: a schedule as it happened beside the same jobs under another policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rota.sim.human import digits, many, span
from rota.sim.model import Job, Result

SAME_S = 60  # waits that differ by no more are called the same
SHOWN = 10
WELL = (0.5, 2.0)  # simulated / true mean wait: outside of these the past is not told well


@dataclass(frozen=True, slots=True)
class Change:
    """One run: what it waited, and what it would have waited."""

    job: Job
    live_s: int
    would_s: int

    @property
    def less_s(self) -> int:
        return self.live_s - self.would_s


@dataclass(frozen=True, slots=True)
class Person:
    user: str
    runs: int
    live_s: float  # mean wait as it was
    would_s: float
    most: Change  # the run that changes most, in the direction in which the person's mean goes

    @property
    def less_s(self) -> float:
        return self.live_s - self.would_s


@dataclass(frozen=True, slots=True)
class Comparison:
    policy: str
    runs: int
    live_s: float
    would_s: float
    less: int  # runs that would have waited less
    more: int
    people: tuple[Person, ...]  # who gains most on average comes first
    gains: tuple[Change, ...]  # the runs that gain most
    losses: tuple[Change, ...]
    runs_already: bool = False  # it is the server's own: nobody gains or loses, and nobody is named


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How near the simulation of the server's own policy comes to what happened: no claim can be finer than that."""

    policy: str
    live_s: float  # mean wait
    simulated_s: float
    middle_error_s: float  # half of the runs are off by no more

    @property
    def believable(self) -> bool:
        return self.live_s > 0 and WELL[0] <= self.simulated_s / self.live_s <= WELL[1]


def compare(policy: str, live: Result, would: Result, runs_already: bool = False) -> Comparison:
    changes = _changes(live, would)
    if runs_already:
        live_s, would_s = (_mean(waits) for waits in (live.waits, would.waits))
        return Comparison(policy, len(changes), live_s, would_s, 0, 0, (), (), (), True)
    by_gain = sorted(changes, key=lambda one: (-one.less_s, one.job.submit_s, one.job.id))
    return Comparison(
        policy=policy,
        runs=len(changes),
        live_s=_mean([one.live_s for one in changes]),
        would_s=_mean([one.would_s for one in changes]),
        less=sum(one.less_s > SAME_S for one in changes),
        more=sum(one.less_s < -SAME_S for one in changes),
        people=_people(changes),
        gains=tuple(one for one in by_gain[:SHOWN] if one.less_s > SAME_S),
        losses=tuple(one for one in reversed(by_gain[-SHOWN:]) if one.less_s < -SAME_S),
    )


def fidelity(policy: str, live: Result, simulated: Result) -> Fidelity:
    changes = _changes(live, simulated)
    return Fidelity(
        policy=policy,
        live_s=_mean([one.live_s for one in changes]),
        simulated_s=_mean([one.would_s for one in changes]),
        middle_error_s=median([abs(one.less_s) for one in changes]) if changes else 0.0,
    )


def _changes(live: Result, would: Result) -> list[Change]:
    pairs = zip(live.jobs, would.jobs, live.waits, would.waits, strict=True)
    found = []
    for job, same, live_s, would_s in pairs:
        assert job.id == same.id, "the same jobs in the same order"
        found.append(Change(job, live_s, would_s))
    return found


def _people(changes: Sequence[Change]) -> tuple[Person, ...]:
    of: dict[str, list[Change]] = {}
    for one in changes:
        of.setdefault(one.job.user, []).append(one)
    people = []
    for user, some in of.items():
        live_s, would_s = _mean([one.live_s for one in some]), _mean([one.would_s for one in some])
        sign = 1 if live_s >= would_s else -1
        people.append(Person(user, len(some), live_s, would_s, max(some, key=lambda one: sign * one.less_s)))
    return tuple(sorted(people, key=lambda one: (-one.less_s, one.user)))


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


# -- in words ---------------------------------------------------------------------------------------------------------
def difference(less_s: float) -> str:
    """2.9 h less, 12 min more, the same."""
    if abs(less_s) <= SAME_S:
        return "the same"
    return f"{span(abs(less_s))} {'less' if less_s > 0 else 'more'}"


def summary(one: Comparison) -> str:
    if one.runs_already:
        return (
            f"{one.policy} is what the server runs already. Simulated, waits are {span(one.would_s)} on average; in "
            f"truth they were {span(one.live_s)}. All difference between the two is error of the simulation, so nobody "
            "is named who would gain or lose."
        )
    same = one.runs - one.less - one.more
    winners = sum(person.less_s > SAME_S for person in one.people)
    losers = sum(person.less_s < -SAME_S for person in one.people)
    people = f"Of {many(len(one.people), 'person', 'people')} {winners:,} would have waited less on average and"
    runs = "this 1 run" if one.runs == 1 else f"these {one.runs:,} runs"
    return (
        f"Under {one.policy} {runs} would have waited {span(one.would_s)} on average; in truth "
        f"{'it' if one.runs == 1 else 'they'} waited {span(one.live_s)}. {many(one.less, 'run')} would have waited "
        f"less, {one.more:,} more, and {same:,} the same to within {span(SAME_S)}. {people} {losers:,} more."
    )


def trust(one: Fidelity) -> str:
    """What the figures are worth."""
    ratio = f" (simulated / true: {digits(one.simulated_s / one.live_s)}x)" if one.live_s else ""
    said = (
        f"How far to believe it: simulated by the server's own policy ({one.policy}) the same runs wait "
        f"{span(one.simulated_s)} on average, and in truth they waited {span(one.live_s)}{ratio}; half of them are "
        f"within {span(one.middle_error_s)} of the truth."
    )
    if one.believable:
        return f"{said} Differences smaller than that say nothing."
    why = "" if one.live_s else " (in truth nobody waited)"
    return f"{said} The simulation does not tell this past well{why}: do not believe the differences below."
