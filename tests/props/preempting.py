"""What must hold of everybody who is asked to go, and of fillers, in any plan on any state."""

from __future__ import annotations

from rota.core import order
from rota.core.decide import decide
from rota.core.plan import Plan, Preempt
from rota.core.reservation import Reservation
from rota.core.run import Run, RunState
from rota.core.snapshot import Snapshot, snapshot
from rota.core.usage import Shares
from tests.unit.core.kit import Lab


def judge_stops(lab: Lab, plan: Plan) -> None:
    snap = lab.snap()
    assert len({preempt.run_id for preempt in plan.preempts}) == len(plan.preempts), "asked twice"
    started = {start.run_id for start in plan.starts}
    for preempt in plan.preempts:
        victim = lab.run(preempt.run_id)
        assert victim.attempt is not None
        assert victim.attempt.id == preempt.attempt_id
        assert victim.attempt.stop is None, "it is going already"
        assert victim.spec.preemptible
        if preempt.for_run in lab.state.reservations:
            judge_reserved(snap, victim, lab.state.reservations[preempt.for_run])
            continue
        gainer = lab.run(preempt.for_run)
        assert gainer.state is RunState.QUEUED
        assert not gainer.waiting_on
        assert gainer.not_before <= snap.now
        assert gainer.id not in started, "it had room without"
        assert not gainer.spec.filler, "nobody goes for a filler"
        if not victim.spec.filler:
            judge_stop(snap, preempt, victim, gainer)


def judge_reserved(snap: Snapshot, victim: Run, reservation: Reservation) -> None:
    assert victim.attempt is not None
    if not victim.spec.filler and victim.attempt.planned_at < reservation.made_at:
        assert snap.now >= victim.attempt.planned_at + min(snap.policy.min_run_s, 300.0), "it has hardly begun"


def judge_stop(snap: Snapshot, preempt: Preempt, victim: Run, gainer: Run) -> None:
    policy = snap.policy
    assert policy.preemption
    assert victim.attempt is not None
    if victim.priority < gainer.priority:
        if any(past.for_run for past in victim.past):
            assert snap.now >= victim.attempt.planned_at + min(policy.min_run_s, 300.0), "it was stopped before"
        return
    assert victim.spec.saves, "its work would be lost for one that is no more important"
    assert snap.now >= victim.attempt.planned_at + policy.min_run_s, "it has hardly begun"
    assert policy.ordering in order.MOVING
    shares = Shares(snap.usage, snap.load, snap.now, policy.half_life_s, snap.board.layout.gpus)
    theirs, mine = (order.standing(policy, run, snap.now, shares.factor(run.user)) for run in (victim, gainer))
    assert theirs > policy.margin * mine, f"{gainer.id} at {mine} is not that much more urgent than {theirs}"


def judge_fillers(lab: Lab) -> None:
    """Those who wait change nothing for anybody else."""
    fillers = {run.id for run in lab.state.runs.values() if run.spec.filler and run.id in lab.state.queue}
    if not fillers:
        return
    with_them, without = decide(lab.snap()), lab.state.fork()
    for run_id in sorted(fillers):
        without.queue.remove(run_id)
    alone = decide(snapshot(without, lab.now))
    assert tuple(start for start in with_them.starts if start.run_id not in fillers) == alone.starts
    assert with_them.preempts == alone.preempts
    assert with_them.reserve == alone.reserve
