"""The server's own past as jobs: what ran, when it got into line, and what it really waited.

A run becomes a job with the time it did useful work in. Left out, and counted: what has not ended, what never started
(cancelled in line, or failed to launch), runs without GPUs, runs that were carried elsewhere, and runs that this
cluster could not place. A lease is a run like any other. Time on hold is nobody's wait: a run counts from when it last
got into line, and one that needs others from the end of the last of them.

What has not ended has held GPUs all the same, and others waited for it: how much is added up, and told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rota.client.model.run import Run
    from rota.core.node import Node
    from rota.sim.model import Job, Result

MOST_RUNS = 50_000
MOST_COMMAND = 2000  # letters: prediction reads no more
TELL_EVERY = 250
MUCH = 0.1  # of the GPU-hours, held by runs that are left out as they have not ended: waits are told too low
HOUR_S = 3600.0

Place = tuple[tuple[str, int], ...]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Piece:
    """An attempt whose work counted. Epoch seconds."""

    start: float
    end: float
    place: Place


@dataclass(frozen=True, slots=True)
class Past:
    """What of a run is kept: fifty thousand whole ones would not fit."""

    id: str
    user: str
    gpus: int
    priority: int
    limit_s: int | None
    preemptible: bool
    command: str
    submitted_at: float  # when it got into line
    ended_at: float
    needs: tuple[str, ...]
    pieces: tuple[Piece, ...]  # of work that counted
    stops: int = 0  # for others, whether it saved or not


@dataclass(slots=True)
class Unended:
    """Runs that have not ended, and the GPU time they have held of all that was held."""

    runs: int = 0
    gpu_s: float = 0.0
    all_gpu_s: float = 0.0

    def count(self, run: Run, since: float) -> None:
        now = time.time()
        spans = ((one.started, now if one.ended is None else one.ended, len(one.gpus)) for one in run.attempts)
        held_s = sum(max(0.0, end - max(start, since)) * gpus for start, end, gpus in spans if start is not None)
        self.all_gpu_s += held_s
        if held_s and not run.ended:
            self.runs += 1
            self.gpu_s += held_s

    @property
    def share(self) -> float:
        return self.gpu_s / self.all_gpu_s if self.all_gpu_s else 0.0


@dataclass(slots=True)
class Taken:
    past: list[Past] = field(default_factory=list)  # newest first
    left_out: Counter[str] = field(default_factory=Counter)  # why -> how many
    cut: bool = False  # there are older ones in the time that was asked for
    unended: Unended = field(default_factory=Unended)

    def count_older(self, running: Iterable[Run], since: float) -> None:
        """What was submitted before and runs still has had GPUs in this time, too."""
        for run in running:
            if run.created_at is not None and run.created_at < since:
                self.unended.count(run, since)


@dataclass(frozen=True, slots=True)
class History:
    jobs: tuple[Job, ...]
    live: Result  # what happened, with the jobs as they were submitted
    left_out: Mapping[str, int]
    cut: bool
    since: float  # epoch seconds
    unended: Unended


def take(runs: Iterable[Run], since: float, say: Say, most: int = MOST_RUNS) -> Taken:
    """Of runs, newest first, those submitted since then."""
    taken = Taken()
    for seen, run in enumerate(runs):
        if run.created_at is None or run.created_at < since:
            break
        if seen >= most:
            taken.cut = True
            break
        if seen % TELL_EVERY == 0:
            say(f"reading the server's history: {seen:,} runs")
        taken.unended.count(run, since)
        why = _unfit(run)
        if why:
            taken.left_out[why] += 1
        else:
            taken.past.append(_past(run))
    return taken


def _unfit(run: Run) -> str:
    if not run.ended or run.ended_at is None:
        return "not ended yet"
    if run.gpu_count < 1:
        return "without a GPU"
    ran = [one for one in run.attempts if one.started is not None and one.ended is not None]
    if not ran:
        return "never started"
    return "" if ran[-1].gpus else "carried elsewhere"


def _past(run: Run) -> Past:
    ran = [one for one in run.attempts if one.started is not None and one.ended is not None]
    # what was preempted went on from its checkpoint; what was lost, failed or had to be killed began anew
    stopped = [one for one in ran[:-1] if (one.reason or "").startswith("preempted")]
    kept = [one for one in stopped if not one.killed] + ran[-1:]
    pieces = tuple(Piece(one.started or 0.0, one.ended or 0.0, _place(one.gpus)) for one in kept)
    in_line = run.queued_at or run.created_at or 0.0
    if in_line > pieces[0].start:  # held and let go between two attempts
        in_line = run.created_at or 0.0
    said = [s for s in (run.time_limit_seconds, run.estimated_duration_seconds) if s is not None and s > 0]
    needs = run.raw.get("depends_on")
    return Past(
        id=run.id,
        user=run.user,
        gpus=run.gpu_count,
        priority=min(4, max(1, run.priority)),
        limit_s=ceil(min(said)) if said else None,
        preemptible=run.preemptible or run.filler,
        command=run.command[:MOST_COMMAND],
        submitted_at=min(in_line, pieces[0].start),
        ended_at=run.ended_at or 0.0,
        needs=tuple(str(one.get("run_id", "")) for one in needs if isinstance(one, dict)) if needs else (),
        pieces=pieces,
        stops=len(stopped),
    )


def _place(gpus: Sequence[str]) -> Place:
    """node1:0, node1:3, node2:1 -> node1 twice, node2 once."""
    return tuple(Counter(name.rpartition(":")[0] for name in gpus).items())


def as_jobs(taken: Taken, nodes: Sequence[Node], since: float, preemptible: bool | None = None) -> History:
    """Jobs for a simulation on these nodes, and their past as a schedule. `preemptible` speaks for all of them; None =
    as each was submitted."""
    from rota.core.board import Layout
    from rota.core.place import could_ever_fit
    from rota.core.resources import Request

    layout, left_out = Layout(nodes), Counter(taken.left_out)
    fitting = [one for one in taken.past if could_ever_fit(layout, Request(gpus=one.gpus))]
    if len(fitting) < len(taken.past):
        left_out["too large for this cluster"] = len(taken.past) - len(fitting)
    ends = {one.id: one.ended_at for one in taken.past}
    rows = [(_ready_at(one, ends), one) for one in fitting]
    rows.sort(key=lambda row: (floor(row[0]), row[1].submitted_at, row[1].id))
    origin = floor(min((at for at, _ in rows), default=since))
    jobs = tuple(_job(one, floor(at) - origin) for at, one in rows)
    live = _live(jobs, [one for _, one in rows], nodes, origin)
    if preemptible is not None:
        jobs = tuple(replace(job, preemptible=preemptible) for job in jobs)
    return History(jobs, live, left_out, taken.cut, since, taken.unended)


def _ready_at(one: Past, ends: Mapping[str, float]) -> float:
    """In line, and nothing to wait for but GPUs."""
    needed = [ends[other] for other in one.needs if other in ends]
    return min(max([one.submitted_at, *needed]), one.pieces[0].start)


def _job(one: Past, submit_s: int) -> Job:
    from rota.sim.model import Job

    worked_s = sum(max(0.0, piece.end - piece.start) for piece in one.pieces)
    return Job(
        id=one.id,
        submit_s=submit_s,
        duration_s=max(1, round(worked_s)),
        gpus=one.gpus,
        user=one.user,
        limit_s=one.limit_s,
        priority=one.priority,
        preemptible=one.preemptible,
        command=one.command,
    )


def _live(jobs: Sequence[Job], past: Sequence[Past], nodes: Sequence[Node], origin: int) -> Result:
    """The past in whole seconds, in the simulator's words; a second that rounding adds to a run makes no wait."""
    from rota.sim.model import Result, Segment

    segments = [
        Segment(number, attempt, floor(piece.start) - origin, floor(piece.end) - origin, piece.place)
        for number, one in enumerate(past)
        for attempt, piece in enumerate(one.pieces, 1)
    ]
    ends = tuple(
        max(job.submit_s + job.duration_s, round(one.ended_at) - origin) for job, one in zip(jobs, past, strict=True)
    )
    gpus_of = {node.id: len(node.gpus) for node in nodes}
    for segment in segments:  # a node that is gone by now
        for name, count in segment.placement:
            gpus_of[name] = max(gpus_of.get(name, 0), count)
    return Result(
        jobs=tuple(jobs),
        gpus=sum(len(node.gpus) for node in nodes),
        segments=tuple(sorted(segments, key=lambda one: one.end_s)),
        ends=ends,
        stops=tuple(one.stops for one in past),
        gpus_of=tuple(gpus_of.items()),
    )


def left_out(history: History) -> str:
    """: 12 not ended yet, 3 without a GPU."""
    said = [f"{count:,} {why}" for why, count in sorted(history.left_out.items(), key=lambda one: -one[1])]
    if history.cut:
        said.append(f"all before the newest {MOST_RUNS:,}")
    return f": {', '.join(said)}" if said else ""


def missing(history: History) -> str:
    """What runs that have not ended make of the answer; "" where there are none."""
    from rota.sim.human import digits, many, percent

    found = history.unended
    if not found.runs:
        return ""
    hours, of = digits(found.gpu_s / HOUR_S), digits(found.all_gpu_s / HOUR_S)
    who = f"{many(found.runs, 'run')} that {'has' if found.runs == 1 else 'have'} not ended yet"
    held = f"{who} held {hours} of the {of} GPU-hours held in this time ({percent(found.share)})"
    emptier = "is not simulated, so the jobs find an emptier cluster than there was"
    if found.share <= MUCH:
        return f"{held}; that {emptier}."
    return f"BEWARE: {held}. That {emptier}: all simulated waits are told too low."
