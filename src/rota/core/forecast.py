"""When will it start: `decide` itself, run forward over the expected ends on a fork of the state."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from heapq import heapify, heappop, heappush

from rota.core import events as e
from rota.core.decide import decide
from rota.core.ids import attempt_id
from rota.core.reduce import reduce
from rota.core.resources import Placement
from rota.core.run import Cause, Exit, RunState
from rota.core.snapshot import snapshot
from rota.core.state import State

MAX_PASSES = 2000
OVERRUN_S = 60.0  # somebody past the expected end is believed to need at least so much more


def forecast(state: State, now: float, wanted: Collection[str], max_passes: int = MAX_PASSES) -> dict[str, float]:
    """Expected start of each wanted run. Runs that nothing will start (held, too far ahead to see) are left out."""
    world = state.fork()
    world.paused = False
    world.policy = replace(world.policy, preemption=False)
    missing = set(wanted)
    starts: dict[str, float] = {}
    ends = [(_believed_end(world, run_id, end, now), run_id) for end, run_id in world.timeline]
    heapify(ends)
    for _ in range(max_passes):
        for start in decide(snapshot(world, now)).starts:
            run = world.runs[start.run_id]
            starts[run.id] = now
            missing.discard(run.id)
            reduce(world, planned(run.id, run.attempts_made + 1, now, start.placement))
            heappush(ends, (now + run.expected_s, run.id))
        if not missing:
            break
        soonest = min((when[0] for when in (ends[:1] + world.delayed[:1])), default=None)
        if soonest is None:
            break
        now = max(now, soonest)
        while ends and ends[0][0] <= now:
            _end(world, heappop(ends)[1], now)
    return {run_id: starts[run_id] for run_id in wanted if run_id in starts}


def _believed_end(world: State, run_id: str, end: float, now: float) -> float:
    if end > now:
        return end
    attempt = world.runs[run_id].attempt
    assert attempt is not None
    return now + max(OVERRUN_S, (now - attempt.planned_at) / 4)


def planned(run_id: str, number: int, now: float, placement: Placement) -> e.Event:
    return e.AttemptPlanned(
        at=now, run_id=run_id, attempt_id=attempt_id(run_id, number), tick=now, fence=0, placement=placement
    )


def _end(world: State, run_id: str, now: float) -> None:
    attempt = world.runs[run_id].attempt
    assert attempt is not None
    done = Exit(Cause.EXITED, code=0)
    reduce(
        world,
        e.AttemptEnded(
            at=now,
            run_id=run_id,
            attempt_id=attempt.id,
            exit=done,
            gpu_s=attempt.charged_gpu_s,
            next=RunState.SUCCEEDED,
        ),
    )
