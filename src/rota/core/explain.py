"""Why is mine waiting: every reason at once, the runs that block it, and what would start it sooner.

The answers come from the functions the pass itself uses (place, reserve, over, decide), asked about one run.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from rota.core.changes import fewer, gentle
from rota.core.decide import decide
from rota.core.overdue import overdue
from rota.core.plan import Plan
from rota.core.quota import Over, over
from rota.core.rank import before, position
from rota.core.reason import SHOWN, Reason
from rota.core.reduce import reduce
from rota.core.room import resources
from rota.core.run import Run, RunState, When
from rota.core.snapshot import Snapshot, snapshot
from rota.core.state import State
from rota.core.times import about
from rota.core.usage import Load
from rota.core.walk import planned

_VERBS = {When.SUCCEEDED: "succeed", When.ENDED: "end", When.FAILED: "fail"}


@dataclass(frozen=True, slots=True)
class Explanation:
    run_id: str
    reasons: tuple[Reason, ...]
    position: int | None = None  # 1 = next in the order of the policy; None = not in the queue
    hint: str = ""  # the smallest change that would start it


# Reasons that the run's own person decides about, with its sweep, its dependencies and the other runs
OWN = frozenset({"held", "dependency", "backoff", "window", "user_runs", "user_gpus", "group"})
ENDLESS = ("held", "paused", "impossible", "nodes", "dependency")


def obstacle(explanation: Explanation) -> str:
    """Why no start can be foretold: a reason that no passing of time takes away."""
    texts = {reason.code: reason.text for reason in explanation.reasons}
    found = next((texts[code] for code in ENDLESS if code in texts), "")
    undying = (reason.text for reason in explanation.reasons if reason.code == "overdue" and reason.until is None)
    return found or next(undying, "") or next(iter(texts.values()), "")


def waits_for_room(explanation: Explanation) -> bool:
    return not any(reason.code in OWN for reason in explanation.reasons)


def explain(state: State, now: float, run_id: str) -> Explanation:
    run = state.runs[run_id]
    snap = snapshot(state, now)
    if run.state not in (RunState.HELD, RunState.QUEUED):
        late = overdue(state.policy, run, now)
        return Explanation(run_id, () if late is None else (Reason("overdue", late.text, until=late.until),))
    plan = decide(snap)
    while plan.starts:  # what is about to start stands in the way from now on
        if _starts(plan, run_id):
            return Explanation(run_id, (), position(snap, run_id), "starts in the pass that is under way")
        state = _after(state, plan, snap.now)
        snap = snapshot(state, now)
        plan = decide(snap)
    reasons = [*_own(run, snap.now), *_window(state, run, snap.now)]
    reasons += [*_switches(state, snap), *_limits(snap, run), *_group(snap, run)]
    if run_id not in state.queue:
        return Explanation(run_id, tuple(reasons))
    reasons += resources(state, snap, run, plan)
    if run.spec.filler:
        reasons.append(Reason("filler", "is a filler: it starts only where nobody else who waits could"))
    rank = position(snap, run_id)
    if rank > 1:
        ahead = tuple(sorted(before(snap, run_id, SHOWN), key=lambda r: state.runs[r].seq)[:SHOWN])
        reasons.append(Reason("order", f"{rank - 1} waiting before it under {snap.policy.ordering}", ahead))
    return Explanation(run_id, tuple(reasons), rank, _hint(state, snap, run, plan))


def _starts(plan: Plan, run_id: str) -> bool:
    return any(start.run_id == run_id for start in plan.starts)


def _after(state: State, plan: Plan, now: float) -> State:
    world = state.fork()
    for start in plan.starts:
        reduce(world, planned(start.run_id, world.runs[start.run_id].attempts_made + 1, now, start.placement))
    return world


def _own(run: Run, now: float) -> list[Reason]:
    reasons = []
    if run.state is RunState.HELD:
        reasons.append(Reason("held", f"held{': ' + run.why if run.why else ''}; release it to let it start"))
    if run.waiting_on:
        wanted = ", ".join(f"{d.run_id} to {_VERBS[d.when]}" for d in run.waiting_on)
        reasons.append(Reason("dependency", f"waits for {wanted}", tuple(d.run_id for d in run.waiting_on)))
    if run.not_before > now:
        text = f"retry {run.retries} of {run.spec.max_retries} backs off"
        if run.past and run.past[-1].exit.shortage:
            text = f"{run.past[-1].exit.message}; that uses up no retry, and it backs off"
        reasons.append(Reason("backoff", text, until=run.not_before))
    return reasons


def _window(state: State, run: Run, now: float) -> list[Reason]:
    """It has GPUs kept for it, and not yet."""
    kept = state.reservation_of(run)
    if kept is None or kept.start <= now:
        return []
    text = f"waits for its reservation {kept.id}, which begins in {about(kept.start - now)}"
    return [Reason("window", text, until=kept.start)]


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


def _hint(state: State, snap: Snapshot, run: Run, plan: Plan) -> str:
    """The first change that helps; each is tried out, so that what is promised holds."""
    world = state.fork()
    for change in chain(gentle(snap, run, plan), fewer(snap, run)):
        world.put(change.run)
        if _starts(decide(snapshot(world, snap.now)), run.id):
            return f"{change.words} {change.so}"
    return ""
