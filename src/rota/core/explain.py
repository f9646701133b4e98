"""Why is mine waiting: every reason at once, the runs that block it, and what would start it sooner.

The answers come from the functions the pass itself uses (place, reserve, over, decide), asked about one run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rota.core import order
from rota.core.backfill import outside, reserve
from rota.core.decide import bound_s, decide
from rota.core.forecast import planned
from rota.core.place import could_ever_fit, place
from rota.core.plan import Plan, Reserve
from rota.core.policy import Ordering
from rota.core.quota import Over, over
from rota.core.reduce import reduce
from rota.core.resources import Placement, Request
from rota.core.run import Run, RunState, When
from rota.core.snapshot import Snapshot, snapshot
from rota.core.state import State
from rota.core.usage import Load, Usage

_VERBS = {When.SUCCEEDED: "succeed", When.ENDED: "end", When.FAILED: "fail"}
HINTS = 8
SHOWN = 10  # blocking runs named per reason


@dataclass(frozen=True, slots=True)
class Reason:
    code: str  # held dependency backoff paused max_concurrent user_runs user_gpus group impossible nodes
    # resources reservation order
    text: str
    runs: tuple[str, ...] = ()  # who stands in the way
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    run_id: str
    reasons: tuple[Reason, ...]
    position: int | None = None  # 1 = next in the order of the policy; None = not in the queue
    hint: str = ""  # the smallest change that would start it


def explain(state: State, now: float, run_id: str) -> Explanation:
    run = state.runs[run_id]
    snap = snapshot(state, now)
    if run.state not in (RunState.HELD, RunState.QUEUED):
        return Explanation(run_id, ())
    plan = decide(snap)
    while plan.starts:  # what is about to start stands in the way from now on
        if _starts(plan, run_id):
            return Explanation(run_id, (), position(snap, run_id), "starts in the pass that is under way")
        state = _after(state, plan, snap.now)
        snap = snapshot(state, now)
        plan = decide(snap)
    reasons = [*_own(run, snap.now), *_switches(state, snap), *_limits(snap, run), *_group(snap, run)]
    if run_id not in state.queue:
        return Explanation(run_id, tuple(reasons))
    reasons += _resources(state, snap, run, plan)
    rank = position(snap, run_id)
    if rank > 1:
        ahead = tuple(sorted(_ahead(snap, run_id), key=lambda r: state.runs[r].seq)[:SHOWN])
        reasons.append(Reason("order", f"{rank - 1} waiting before it under {snap.policy.ordering}", ahead))
    return Explanation(run_id, tuple(reasons), rank, _hint(state, snap, run, plan))


def _starts(plan: Plan, run_id: str) -> bool:
    return any(start.run_id == run_id for start in plan.starts)


def _after(state: State, plan: Plan, now: float) -> State:
    world = state.fork()
    for start in plan.starts:
        reduce(world, planned(start.run_id, world.runs[start.run_id].attempts_made + 1, now, start.placement))
    return world


def position(snap: Snapshot, run_id: str) -> int:
    """1 = next. Counted lane by lane with a binary search, not by walking the queue."""
    run = snap.runs[run_id]
    mine, key = _share(snap, run.user), snap.queue.key_of(run_id)
    ahead = 0
    for lane in snap.queue.lanes():
        share = _share(snap, lane.user)
        if share < mine:
            ahead += len(lane.runs)
        elif share == mine:
            ahead += bisect_left(lane.runs, (key, ""))
    return ahead + 1


def _ahead(snap: Snapshot, run_id: str) -> list[str]:
    mine, key = _share(snap, snap.runs[run_id].user), snap.queue.key_of(run_id)
    found: list[str] = []
    for lane in snap.queue.lanes():
        share = _share(snap, lane.user)
        count = len(lane.runs) if share < mine else bisect_left(lane.runs, (key, "")) if share == mine else 0
        found += [other for _, other in lane.runs[: min(count, SHOWN)]]
    return found


def _share(snap: Snapshot, user: str) -> float:
    if snap.policy.ordering is not Ordering.FAIR_SHARE:
        return 0.0
    return snap.usage.get(user, Usage()).decayed(snap.now, snap.policy.half_life_s)


def _own(run: Run, now: float) -> list[Reason]:
    reasons = []
    if run.state is RunState.HELD:
        reasons.append(Reason("held", f"held{': ' + run.why if run.why else ''}; release it to let it start"))
    if run.waiting_on:
        wanted = ", ".join(f"{d.run_id} to {_VERBS[d.when]}" for d in run.waiting_on)
        reasons.append(Reason("dependency", f"waits for {wanted}", tuple(d.run_id for d in run.waiting_on)))
    if run.not_before > now:
        reasons.append(
            Reason("backoff", f"retry {run.retries} of {run.spec.max_retries} backs off", until=run.not_before)
        )
    return reasons


def _switches(state: State, snap: Snapshot) -> list[Reason]:
    reasons = []
    if snap.paused:
        why = f": {state.pause_why}" if state.pause_why else ""
        reasons.append(Reason("paused", f"scheduling is paused{why}; an admin can resume it"))
    limit = snap.policy.max_concurrent
    if limit and snap.active >= limit:
        runs = tuple(run_id for _, run_id in snap.timeline)[:SHOWN]
        reasons.append(Reason("max_concurrent", f"{snap.active} runs are active, the limit is {limit}", runs))
    return reasons


def _limits(snap: Snapshot, run: Run) -> list[Reason]:
    limits, load = snap.policy.limits_of(run.user), snap.load.get(run.user, Load())
    match over(limits, load, run.spec.request.gpus):
        case Over.RUNS:
            code, text = "user_runs", f"{run.user} has {load.running} runs active, the limit is {limits.running}"
        case Over.GPUS:
            text = f"{run.user} holds {load.gpus} GPUs and asks for {run.spec.request.gpus}, the limit is {limits.gpus}"
            code = "user_gpus"
        case _:
            return []
    mine = tuple(run_id for _, run_id in snap.timeline if snap.runs[run_id].user == run.user)
    return [Reason(code, text, mine[:SHOWN])]


def _group(snap: Snapshot, run: Run) -> list[Reason]:
    group = run.spec.group
    cap, active = snap.caps.get(group), snap.groups.get(group, 0)
    if cap is None or active < cap:
        return []
    siblings = tuple(run_id for _, run_id in snap.timeline if snap.runs[run_id].spec.group == group)
    text = f"{active} of its sweep's runs {'is' if active == 1 else 'are'} active, the cap is {cap}"
    return [Reason("group", text, siblings[:SHOWN])]


def _resources(state: State, snap: Snapshot, run: Run, plan: Plan) -> list[Reason]:
    request = run.spec.request
    if not could_ever_fit(snap.board.layout, request):
        return [Reason("impossible", f"no node, nor all together, could ever give {describe(request)}")]
    if place(snap.board, request) is None:
        spot = reserve(snap, snap.board, run.id, request, [])
        if spot is None:
            out = ", ".join(node.id for node in state.nodes.values() if node.drained or not node.alive) or "unfit GPUs"
            return [Reason("nodes", f"{describe(request)} would need nodes that are out of service: {out}")]
        free = snap.board.free_gpus
        there = f"{free} are free, but not so that it fits" if free >= request.gpus else f"{free or 'none'} free now"
        text = f"needs {describe(request)}; {there}"
        return [Reason("resources", text, _holders(snap, spot.placement), spot.at)]
    hole = plan.reserve
    late = hole is not None and snap.now + bound_s(run) > hole.at
    if hole is not None and late and place(outside(snap.board, hole), request) is None:
        return [_behind(snap, run, hole)]
    return []


def _behind(snap: Snapshot, run: Run, hole: Reserve) -> Reason:
    left = max(0.0, hole.at - snap.now)
    text = f"would delay {hole.run_id}, which has a reservation in {left:.0f} s; this one may take {bound_s(run):.0f} s"
    return Reason("reservation", text, (hole.run_id,), hole.at)


def _holders(snap: Snapshot, placement: Placement) -> tuple[str, ...]:
    """Active runs that hold any of these GPUs."""
    wanted = {part.node: part.gpus for part in placement}
    found = []
    for _, run_id in snap.timeline:
        attempt = snap.runs[run_id].attempt
        assert attempt is not None
        if any(wanted.get(part.node, 0) & part.gpus for part in attempt.placement):
            found.append(run_id)
    return tuple(found[:SHOWN])


def _hint(state: State, snap: Snapshot, run: Run, plan: Plan) -> str:
    """The first change that helps; each is tried out, so that what is promised holds."""
    for text, changed in _changes(snap, run, plan):
        queue = snap.queue.instead(run.id, changed.spec.request, order.key(snap.policy, changed))
        other = replace(snap, queue=queue, runs=ChainMap({run.id: changed}, state.runs))
        if _starts(decide(other), run.id):
            return text
    return ""


def _changes(snap: Snapshot, run: Run, plan: Plan) -> Iterator[tuple[str, Run]]:
    request = run.spec.request
    if plan.reserve is not None and plan.reserve.run_id != run.id and place(snap.board, request) is not None:
        left = int(plan.reserve.at - snap.now)
        if left >= 1:
            text = f"with a time limit of {left} s it would fit before the reservation and start now"
            spec = replace(run.spec, time_limit_s=float(left))
            yield text, replace(run, spec=spec, expected_s=min(run.expected_s, left))
    gpus = request.gpus
    for _ in range(HINTS):  # halving: each try is a whole decision
        gpus = gpus - 1 if gpus <= HINTS else gpus // 2
        if gpus < 1:
            return
        fewer = replace(request, gpus=gpus)
        if request.nodes <= 1 and place(snap.board, fewer) is not None:
            text = f"with {gpus} GPU{'s' if gpus > 1 else ''} there would be room now"
            yield text, replace(run, spec=replace(run.spec, request=fewer))


def describe(request: Request) -> str:
    words = f"{request.gpus} GPU{'' if request.gpus == 1 else 's'}"
    if request.gpu_type:
        words += f" of type {request.gpu_type}"
    if request.gpu_memory_gb:
        words += f" with {request.gpu_memory_gb:g} GB"
    if request.nodes > 1:
        words += f" on {request.nodes} nodes"
    if request.cpus:
        words += f", {request.cpus} CPUs"
    if request.memory_gb:
        words += f", {request.memory_gb:g} GB of memory"
    return words
