"""Decisions that a reader showed to be wrong once."""

from __future__ import annotations

import pytest

from rota.core import events as e
from rota.core.decide import decide
from rota.core.node import simulated_cluster
from rota.core.policy import Limits, Ordering, Policy
from rota.core.reduce import reduce
from rota.core.resources import Request, Slice
from rota.core.run import Cause, Exit, RunState, Spec
from rota.core.snapshot import snapshot
from rota.core.state import State

HOUR = 3600.0


def world(policy: Policy, nodes: int = 1, gpus: int = 8) -> State:
    state = State()
    for node in simulated_cluster(nodes, gpus):
        reduce(state, e.NodeSeen(at=0.0, node=node))
    reduce(state, e.PolicySet(at=0.0, policy=policy))
    return state


def submit(state: State, name: str, request: Request, expected_s: float, user: str = "ash") -> str:
    run_id = f"{name:0>12}"
    spec = Spec(name, ("x",), "/", request)
    reduce(
        state,
        e.RunSubmitted(
            at=0.0,
            run_id=run_id,
            seq=state.next_seq,
            user=user,
            spec=spec,
            held=False,
            waiting_on=(),
            expected_s=expected_s,
            expected_from="estimate",
        ),
    )
    return run_id


def start(state: State, run_id: str, gpus: int, at: float, node: str = "node1") -> None:
    slices = (Slice(node, gpus),)
    reduce(state, e.AttemptPlanned(at=at, run_id=run_id, attempt_id=f"{run_id}-1", tick=at, fence=1, placement=slices))


def end(state: State, run_id: str, gpu_s: float, at: float) -> None:
    done = Exit(Cause.EXITED, code=0)
    reduce(
        state,
        e.AttemptEnded(at=at, run_id=run_id, attempt_id=f"{run_id}-1", exit=done, gpu_s=gpu_s, next=RunState.SUCCEEDED),
    )


def test_a_wrong_estimate_does_not_wash_usage_clean() -> None:
    """A week of eight GPUs, estimated at two: the charge has decayed by half, so only that half is given back."""
    week = 168 * HOUR
    state = world(Policy(ordering=Ordering.FAIR_SHARE, half_life_s=week))
    run_id = submit(state, "a", Request(gpus=8), expected_s=2 * week)
    start(state, run_id, 0xFF, at=0.0)
    end(state, run_id, gpu_s=8 * week, at=week)
    assert state.usage["ash"].decayed(week, week) == pytest.approx(8 * week)


def test_a_spanning_run_is_reserved_as_soon_as_the_pieces_suffice() -> None:
    state = world(Policy(), nodes=2, gpus=8)
    for number, (node, expected_s) in enumerate([("node1", 100.0), ("node2", 1_000_000.0)]):
        start(state, submit(state, str(number), Request(gpus=4), expected_s), 0x0F, at=0.0, node=node)
    wide = submit(state, "c", Request(gpus=12, span=True), 50.0)
    plan = decide(snapshot(state, 0.0))
    assert plan.reserve is not None and (plan.reserve.run_id, plan.reserve.at) == (wide, 100.0)


def test_who_passes_leaves_the_reserved_run_its_users_share_of_the_limits() -> None:
    state = world(Policy(ordering=Ordering.FCFS, limits=Limits(running=1)))
    start(state, submit(state, "1", Request(gpus=4), 100.0, user="birch"), 0x0F, at=0.0)
    head = submit(state, "2", Request(gpus=8), 50.0)
    submit(state, "3", Request(gpus=0), 1e6)  # the same user's: it would take the one run the user may have
    plan = decide(snapshot(state, 0.0))
    assert plan.reserve is not None and plan.reserve.run_id == head
    assert plan.starts == ()
