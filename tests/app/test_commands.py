"""What people do to waiting runs, and what admins do to the house."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.app.commands import Cancel, Drain, Hold, Pause, Release, Reprioritise, Rerun, Resume, SetPolicy, Undrain
from rota.app.errors import Conflict, Full, Invalid, NotFound
from rota.core import events as e
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.run import RunState
from tests.app.house import ANN, BOB, ROOT, House, until, with_policy


def full(house: House) -> list[str]:
    """Every GPU is taken until somebody ends these."""
    return [house.running(4, ROOT) for _ in range(2)]


def let_go(house: House, blockers: list[str]) -> None:
    for run_id in blockers:
        house.do(Cancel(run_id, grace_s=0.0))


# -- hold, release, reprioritise --------------------------------------------------------------------------------------


def test_hold_and_release(house):
    blockers = full(house)
    run_id = house.submit("true")
    run = house.do(Hold(run_id, "not yet"), ANN)
    assert (run.state, run.why) == (RunState.HELD, "not yet")
    assert house.do(Hold(run_id), ANN) == run, "holding twice is holding once"
    let_go(house, blockers)
    house.wait_all(blockers)
    assert house.run(run_id).state is RunState.HELD
    assert [reason.code for reason in house.rota.explain(run_id).reasons] == ["held"]
    house.do(Release(run_id), ANN)
    assert house.wait(run_id).state is RunState.SUCCEEDED


def test_a_held_submit_waits_for_its_release(house):
    run_id = house.submit("true", held=True)
    assert house.run(run_id).state is RunState.HELD
    house.do(Release(run_id), ANN)
    assert house.wait(run_id).state is RunState.SUCCEEDED


def test_what_runs_cannot_be_held_released_or_moved(house):
    run_id = house.running()
    with pytest.raises(Conflict, match="cancelled"):
        house.do(Hold(run_id), ANN)
    with pytest.raises(Conflict, match="not held"):
        house.do(Release(run_id), ANN)
    with pytest.raises(Conflict, match="waiting"):
        house.do(Reprioritise(run_id, 3), ANN)


@pytest.mark.parametrize("make", [Cancel, Hold, Release, lambda run_id: Reprioritise(run_id, 3)])
def test_what_has_ended_is_left_alone(house, make):
    run_id = house.submit("true")
    house.wait(run_id)
    with pytest.raises(Conflict, match="already ended"):
        house.do(make(run_id), ANN)
    with pytest.raises(NotFound):
        house.do(make("0" * 12), ANN)


def test_reprioritise_changes_the_order(house):
    with_policy(house, backfill=Backfill.NONE)
    blockers = full(house)
    first, second, third = (house.submit("true", 8) for _ in range(3))
    house.do(Reprioritise(third, 4), ANN)
    house.do(Reprioritise(first, 1), ANN)
    assert house.do(Reprioritise(second, 2), ANN).priority == 2
    assert len(house.events(e.RunReprioritised)) == 2, "the same priority again is no event"
    let_go(house, blockers)
    house.wait_all([first, second, third])
    assert house.starts()[2:] == [third, second, first]


@pytest.mark.parametrize("priority", [0, -1, 5, 2**63])
def test_a_priority_that_is_none(house, priority):
    run_id = house.submit("true", held=True)
    with pytest.raises(Invalid) as refusal:
        house.do(Reprioritise(run_id, priority), ANN)
    assert refusal.value.field == "priority"


# -- rerun ------------------------------------------------------------------------------------------------------------


def test_rerun_makes_a_new_run_that_names_its_parent(house):
    old = house.wait(house.submit("echo one; exit 4", labels={"sweep": "s"}))
    new = house.do(Rerun(old.id), ANN)
    assert new.id != old.id
    assert new.spec.labels == {"sweep": "s", "parent_run_id": old.id}
    assert new.spec.name == f"{old.spec.name} (Rerun)"
    assert house.wait(new.id).past[-1].exit.code == 4
    assert house.run(old.id) == old
    other = house.do(Rerun(old.id, argv=("/bin/echo", "two"), held=True, key="k"), ANN)
    assert (other.state, other.spec.argv) == (RunState.HELD, ("/bin/echo", "two"))
    assert house.do(Rerun(old.id, argv=("/bin/echo", "two"), held=True, key="k"), ANN).id == other.id
    assert house.do(Rerun(other.id), ANN).spec.labels["parent_run_id"] == other.id, "of one that has not ended"


def test_an_admins_rerun_stays_its_owners(house):
    old = house.wait(house.submit("true"))
    assert house.do(Rerun(old.id), ROOT).user == "ann"


def test_a_rerun_of_a_long_name_still_fits(house):
    run_id = house.submit("true", name="x" * 500)
    name = house.do(Rerun(run_id), ANN).spec.name
    assert len(name) <= 500
    assert name.endswith(" (Rerun)")


def test_rerun_of_nothing(house):
    with pytest.raises(NotFound):
        house.do(Rerun("0" * 12), ANN)


# -- policy -----------------------------------------------------------------------------------------------------------


def test_a_policy_is_set_once_and_survives(house):
    policy = Policy(ordering=Ordering.FCFS, user_limits={"ann": Limits(running=1)})
    assert house.do(SetPolicy(policy)) == policy
    house.do(SetPolicy(policy))
    assert len(house.events(e.PolicySet)) == 1
    house.reopen()
    assert house.rota.ask(lambda state, now: state.policy) == policy


def test_every_problem_of_a_policy_is_named(house):
    bad = Policy(
        max_queue=0,
        aging_s=float("nan"),
        half_life_s=float("inf"),
        retry_base_s=-1.0,
        backfill_depth=-1,
        max_concurrent=-5,
        limits=Limits(gpus=-1),
        user_limits={"bob": Limits(running=-2, queued=-3)},
    )
    with pytest.raises(Invalid) as refusal:
        house.do(SetPolicy(bad))
    named = ("max_queue", "aging_s", "half_life_s", "retry_base_s", "backfill_depth", "max_concurrent")
    for name in (*named, "limits.gpus", "user_limits[bob].running", "user_limits[bob].queued"):
        assert name in refusal.value.message
    assert refusal.value.field in named
    assert house.events(e.PolicySet) == []


# -- pause, drain -----------------------------------------------------------------------------------------------------


def test_pause_stops_starting_and_nothing_else(house):
    running, gate = house.gated()
    house.in_state(running, RunState.RUNNING)
    assert house.do(Pause("maintenance")) is True
    assert house.do(Pause("again")) is True
    waiting = house.submit("true")
    gate.open()
    assert house.wait(running).state is RunState.SUCCEEDED
    assert house.run(waiting).state is RunState.QUEUED
    (reason,) = house.rota.explain(waiting).reasons
    assert (reason.code, "maintenance" in reason.text) == ("paused", True)
    house.reopen()
    assert house.run(waiting).state is RunState.QUEUED, "a pause survives a restart"
    assert house.do(Resume()) is False
    assert house.do(Resume()) is False
    assert house.wait(waiting).state is RunState.SUCCEEDED
    assert len(house.events(e.SchedulingPaused)) == len(house.events(e.SchedulingResumed)) == 1


def test_a_drained_node_keeps_what_runs_and_gets_nothing_new(house):
    stays = house.running(4)
    node = house.run(stays).attempt.placement[0].node
    other = {"node1": "node2", "node2": "node1"}[node]
    assert house.do(Drain(node, "fan")).drained
    assert house.do(Drain(node, "fan")).drain_why == "fan"
    for _ in range(2):
        run_id = house.running(2)
        assert house.run(run_id).attempt.placement[0].node == other
    waiting = house.submit("true", 2)
    assert house.run(waiting).state is RunState.QUEUED
    assert house.run(stays).state is RunState.RUNNING
    house.rota.see_nodes(house.rota.ask(lambda s, now: [replace(n, drained=False) for n in s.nodes.values()]))
    assert house.rota.ask(lambda s, now: s.nodes[node].drained), "a probe's look does not undo a person's decision"
    house.do(Cancel(stays, grace_s=0.0))
    house.wait(stays)
    assert house.run(waiting).state is RunState.QUEUED, "what is given back on a drained node is not given out"
    house.do(Undrain(node))
    house.do(Undrain(node))
    assert house.wait(waiting).state is RunState.SUCCEEDED
    assert len(house.events(e.NodeDrained)) == len(house.events(e.NodeResumed)) == 1


@pytest.mark.parametrize("make", [Drain, Undrain])
def test_an_unknown_node(house, make):
    with pytest.raises(NotFound, match="node1, node2"):
        house.do(make("node9"))


def test_a_node_that_vanishes_keeps_its_place_while_something_runs_there(house):
    run_id = house.running(4)
    node = house.run(run_id).attempt.placement[0].node
    nodes = house.rota.ask(lambda state, now: list(state.nodes.values()))
    house.rota.see_nodes([n for n in nodes if n.id != node])
    assert house.rota.ask(lambda s, now: s.nodes[node].alive) is False
    assert house.run(run_id).state is RunState.RUNNING
    house.do(Cancel(run_id, grace_s=0.0))
    house.wait(run_id)
    assert house.free() == 4
    house.rota.see_nodes([n for n in nodes if n.id != node])
    assert house.rota.ask(lambda s, now: node in s.nodes) is False
    house.rota.see_nodes(nodes)
    assert house.free() == 8


# -- limits -----------------------------------------------------------------------------------------------------------


def test_max_concurrent(house):
    with_policy(house, max_concurrent=2)
    first, second = house.running(), house.running()
    third = house.submit("true")
    assert house.run(third).state is RunState.QUEUED
    assert "max_concurrent" in [reason.code for reason in house.rota.explain(third).reasons]
    house.do(Cancel(first, grace_s=0.0))
    assert house.wait(third).state is RunState.SUCCEEDED
    assert house.run(second).state is RunState.RUNNING


def test_limits_of_one_person_do_not_hold_up_another(house):
    with_policy(house, limits=Limits(running=2, gpus=3))
    first, _ = house.running(1), house.running(1)
    third = house.submit("true", 1)
    assert [r.code for r in house.rota.explain(third).reasons if r.code.startswith("user")] == ["user_runs"]
    assert house.wait(house.submit("true", 2, BOB)).state is RunState.SUCCEEDED
    house.do(Cancel(first, grace_s=0.0))
    assert house.wait(third).state is RunState.SUCCEEDED
    fourth = house.submit("true", 3)
    assert [r.code for r in house.rota.explain(fourth).reasons if r.code.startswith("user")] == ["user_gpus"]
    with_policy(house, user_limits={"ann": Limits()})
    assert house.wait(fourth).state is RunState.SUCCEEDED


def test_limit_of_waiting_runs_per_person(house):
    with_policy(house, limits=Limits(queued=2))
    full(house)
    for _ in range(2):
        house.submit("true", 8)
    with pytest.raises(Full, match="ann has 2 runs waiting, the limit is 2"):
        house.submit("true", 8)
    house.submit("true", 8, BOB)


def test_a_full_queue_refuses_and_recovers(house):
    with_policy(house, max_queue=3)
    full(house)
    waiting = [house.submit("true", 8) for _ in range(3)]
    with pytest.raises(Full, match=r"Queue is full .max 3 jobs."):
        house.submit("true", 8, BOB)
    house.do(Cancel(waiting[0]), ANN)
    assert house.submit("true", 8, BOB)
    assert len(house.events(e.RunSubmitted)) == 6


# -- time limit -------------------------------------------------------------------------------------------------------


def test_a_time_limit_ends_a_run_and_is_not_retried(house):
    run = house.wait(house.sleeper(time_limit_s=0.2, grace_s=0.5, max_retries=3, retry_failures=True))
    assert run.state is RunState.FAILED
    assert run.why == "time limit of 0.2 s reached"
    assert run.attempts_made == 1
    past = run.past[-1].exit
    assert (past.cause, past.signal) == ("time_limit", 15)
    assert past.ended_tick - past.started_tick >= 0.2


def test_a_run_within_its_limit_is_left_alone(house):
    assert house.wait(house.submit("true", time_limit_s=1000.0)).state is RunState.SUCCEEDED


# -- explanations -----------------------------------------------------------------------------------------------------


def test_a_waiting_run_knows_why_and_when(house):
    blockers = full(house)
    run_id = house.submit("true", 2)
    explanation = house.rota.explain(run_id)
    (reason,) = explanation.reasons
    assert reason.code == "resources"
    assert set(reason.runs) <= set(blockers)
    assert explanation.position == 1
    assert house.rota.eta(run_id) > house.rota.ask(lambda state, now: now)
    let_go(house, blockers)
    house.wait(run_id)
    assert house.rota.explain(run_id).reasons == ()
    assert house.rota.eta(run_id) is None
    with pytest.raises(NotFound):
        house.rota.explain("0" * 12)


def test_subscribers_hear_every_durable_event_in_order(house):
    heard: list[int] = []
    house.rota.subscribe(lambda first, events: heard.extend(range(first, first + len(events))))
    before = house.store.load().version
    house.wait(house.submit("true"))
    until(lambda: heard and heard[-1] == house.store.load().version, "the last event was told")
    assert heard == list(range(before + 1, heard[-1] + 1))
