"""Stopping work for more important work: whom, whom never, and what becomes of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rota.core import codec
from rota.core import events as e
from rota.core.node import Node
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.presets import named
from rota.core.resources import Request
from rota.core.run import Cause, Exit, PastAttempt, RunState
from tests.unit.core.kit import CRITICAL, HIGH, LOW, NORMAL, Lab, node, two_by_eight

ON = Policy(preemption=True)


def busy(*nodes: Node, policy: Policy = ON, each: int = 4, priorities: tuple[int, ...] = (LOW, LOW), **more) -> Lab:
    """Preemptible runs of `each` GPUs, started one second apart in this order."""
    lab = Lab(*nodes, policy=policy)
    for priority in priorities:
        lab.submit(each, takes=1e5, priority=priority, **{"preemptible": True, "user": "vic", **more})
        lab.step()
        lab.now += 1
    assert all(run.attempt for run in lab.state.runs.values())
    return lab


def victims(lab: Lab) -> list[str]:
    return [preempt.run_id for preempt in lab.plan().preempts]


def numbered(*numbers: int) -> list[str]:
    return [f"{n:012x}" for n in numbers]


def test_preemption_can_be_switched_off():
    lab = busy(node("a"), policy=Policy(preemption=False))
    lab.submit(4, priority=CRITICAL)
    assert victims(lab) == []


def test_the_least_important_goes_first():
    lab = busy(node("a"), each=2, priorities=(NORMAL, LOW, HIGH, NORMAL))
    lab.submit(2, priority=CRITICAL)
    assert victims(lab) == numbered(2)


def test_two_people_who_ask_for_many_shapes_keep_nobody_from_stopping_anybody():
    """For each shape it is looked for victims, so often in a pass; none of these can start whoever is stopped."""
    lab = Lab(*two_by_eight(), policy=named("auto"), checked=False)
    lab.submit(8, takes=36_000, time_limit_s=36_000.0, user="vic")
    saves: dict[str, Any] = {"preemptible": True, "saves": True, "grace_s": 1.0, "priority": LOW}
    lab.submit(8, takes=36_000, time_limit_s=36_000.0, user="vic", **saves)
    lab.step()
    lab.now += 600.0
    for user, priority in (("mal", CRITICAL), ("mel", NORMAL)):
        for number in range(40):
            wide = Request(16, nodes=2, gpu_memory_gb=(number + 1 + priority / 10) / 100)
            lab.submit(request=wide, takes=1, time_limit_s=1.0, grace_s=0.0, priority=priority, user=user)
    lab.submit(8, takes=32_000, time_limit_s=32_000.0, priority=HIGH)
    assert victims(lab) == numbered(2)


def test_among_equals_the_newest_goes_first_since_it_loses_least():
    lab = busy(node("a"), each=2, priorities=(LOW, LOW, LOW, LOW))
    lab.submit(4, priority=HIGH)
    assert set(victims(lab)) == set(numbered(3, 4))


def test_only_lower_priority_is_stopped():
    lab = busy(node("a"), priorities=(HIGH, HIGH))
    lab.submit(4, priority=HIGH)
    assert victims(lab) == []


def test_who_did_not_say_it_may_be_stopped_is_never_stopped():
    lab = busy(node("a"), preemptible=False)
    lab.submit(1, priority=CRITICAL)
    assert victims(lab) == []


def test_nobody_is_stopped_in_vain():
    """Even all of the stoppable work would not make room: then none of it is touched."""
    lab = Lab(*two_by_eight(), policy=ON)
    lab.submit(8, takes=1e5, preemptible=True, priority=LOW)
    lab.submit(8, takes=1e5)
    lab.step()
    lab.submit(16, priority=CRITICAL)
    assert victims(lab) == []


def test_nobody_is_stopped_when_there_is_room():
    lab = busy(node("a"), node("b"))
    head = lab.submit(8, priority=CRITICAL)
    plan = lab.step()
    assert [start.run_id for start in plan.starts] == [head]
    assert plan.preempts == ()


def test_victims_that_turn_out_not_to_be_needed_are_spared():
    """The newest, small one is first in line, but stopping it does not help once the big one must go anyway."""
    lab = Lab(*two_by_eight(), policy=ON)
    big = lab.submit(8, takes=1e5, preemptible=True, priority=LOW)
    lab.step()
    lab.now += 1
    small = lab.submit(2, takes=1e5, preemptible=True, priority=LOW)
    fixed = lab.submit(6, takes=1e5)
    lab.step()
    assert set(lab.held_gpus(small) or ()) == set(lab.held_gpus(fixed) or ()) == {"b"}
    lab.submit(8, priority=HIGH)
    assert victims(lab) == [big]


def test_a_victim_whose_gpus_are_out_of_service_does_not_help():
    lab = busy(node("a"), node("b"), each=8)
    lab.tell(e.NodeDrained(at=lab.now, node_id="b"))
    lab.submit(8, priority=HIGH)
    assert victims(lab) == numbered(1), "the newer one sits on the drained node"


def test_a_victim_on_a_node_that_was_removed_does_no_harm():
    lab = busy(node("a"), node("b"), each=8)
    lab.tell(e.NodeRemoved(at=lab.now, node_id="b"))
    lab.submit(8, priority=HIGH)
    assert victims(lab) == numbered(1)


def test_an_attempt_that_is_stopping_is_not_stopped_again_and_counts_as_coming_back():
    lab = busy(node("a"))
    head = lab.submit(4, priority=HIGH)
    plan = lab.step()
    assert [p.run_id for p in plan.preempts] == numbered(2)
    assert [p.for_run for p in plan.preempts] == [head]
    for _ in range(3):
        plan = lab.step()
        assert plan.preempts == ()
        assert plan.starts == ()


def test_what_was_cancelled_anyway_is_waited_for_instead_of_stopping_more():
    lab = busy(node("a"))
    lab.stop(numbered(1)[0], Cause.CANCELLED)
    lab.submit(4, priority=HIGH)
    assert victims(lab) == []


def test_nobody_starts_in_the_pass_that_stops_somebody():
    """The four GPUs that are free belong to the eight the head is promised."""
    lab = busy(node("a"), priorities=(LOW,))
    lab.submit(8, priority=HIGH)
    lab.submit(4, priority=LOW)
    plan = lab.step()
    assert [p.run_id for p in plan.preempts] == numbered(1)
    assert plan.starts == ()


def test_a_gang_stops_what_it_needs_on_every_node():
    lab = busy(*two_by_eight(), each=8, priorities=(LOW, LOW))
    lab.submit(request=Request(16, nodes=2), priority=HIGH)
    assert set(victims(lab)) == set(numbered(1, 2))


ORDERS = [(order, backfill) for order in Ordering for backfill in Backfill]


@pytest.mark.parametrize(("ordering", "backfill"), ORDERS, ids=str)
@pytest.mark.parametrize("grace", [(10.0, 10.0), (2.0, 30.0)], ids=["together", "one-by-one"])
def test_the_head_gets_what_was_freed_for_it_and_the_victims_come_back_after_it(ordering, backfill, grace):
    """Whatever the ordering: also where the victims, being older, shorter or of a thriftier user, would come first.

    They are stopped once, not again and again, and a victim that is already gone does not take its GPUs back while the
    other one is still on its way out.
    """
    lab = Lab(node("a"), policy=replace(ON, ordering=ordering, backfill=backfill, aging_s=60))
    first = lab.submit(4, takes=500, preemptible=True, priority=LOW, grace_s=grace[0], user="vic")
    second = lab.submit(4, takes=500, preemptible=True, priority=LOW, grace_s=grace[1], user="vic")
    lab.step()
    lab.now = 200
    lab.submit(0, takes=1, user="rich")  # somebody else is there
    head = lab.submit(8, takes=300, priority=HIGH, user="rich", expected=9000)
    lab.until(5000)
    freed = 200 + max(grace)
    assert lab.started[head] == [freed]
    assert lab.started[first] == [0, freed + 300]
    assert lab.started[second] == [0, freed + 300]
    assert lab.all_ended()
    assert lab.run(first).retries == 0, "it was not its fault"


def test_smaller_work_does_not_take_what_is_being_freed_even_when_anything_may_pass():
    """Four are free, four are being freed for a head of eight. Under SKIP, too, the four are kept for it."""
    lab = busy(node("a"), policy=replace(ON, backfill=Backfill.SKIP), priorities=(LOW,))
    head = lab.submit(8, priority=HIGH, takes=50)
    lab.step()
    small = lab.submit(4, takes=1e4)
    lab.until(60)
    assert lab.started[head] == [11]
    assert small not in lab.started
    lab.until(1e6)
    assert lab.started[small] == [61]


def test_a_full_cluster_is_no_reason_not_to_look_for_victims():
    for backfill in Backfill:
        lab = busy(node("a"), policy=replace(ON, backfill=backfill))
        lab.submit(4, priority=HIGH)
        assert victims(lab) == numbered(2), backfill


def test_the_preempted_run_does_not_stop_the_one_it_made_way_for():
    lab = busy(node("a"), priorities=(NORMAL, NORMAL))
    head = lab.submit(8, priority=HIGH, takes=1e5, preemptible=True)
    lab.until(lab.now + 1000)
    assert lab.run(head).state is RunState.RUNNING
    assert [run.state for run in lab.state.runs.values()].count(RunState.QUEUED) == 2
    assert lab.plan().preempts == ()
    assert sum(len(starts) for starts in lab.started.values()) == 3


def test_a_victim_whose_beneficiary_left_the_queue_comes_back_at_once():
    lab = busy(node("a"))
    head = lab.submit(4, priority=HIGH)
    lab.step()
    lab.tell(e.RunEnded(at=lab.now, run_id=head, state=RunState.CANCELLED, why="changed my mind"))
    lab.until(50)
    assert lab.started[numbered(2)[0]] == [1, 12]


def test_a_run_over_its_users_limit_stops_nobody():
    lab = busy(node("a"), policy=replace(ON, user_limits={"ann": Limits(gpus=2)}))
    lab.submit(4, priority=CRITICAL, user="ann")
    assert victims(lab) == []


def test_the_stop_moves_the_expected_end_to_the_end_of_the_grace_but_never_later():
    lab = busy(node("a"), priorities=(LOW,), grace_s=30.0)
    run = numbered(1)[0]
    lab.stop(run, Cause.PREEMPTED)
    attempt = lab.run(run).attempt
    assert attempt is not None
    assert attempt.expected_end == lab.now + 30
    lab = Lab(node("a"))
    run = lab.submit(takes=20, grace_s=30.0)
    lab.step()
    lab.stop(run, Cause.CANCELLED)
    attempt = lab.run(run).attempt
    assert attempt is not None
    assert attempt.expected_end == 20


def test_cpus_that_are_kept_for_one_are_kept_once():
    """Two victims hold all CPUs between them; two that are more urgent need as much, and are served in one pass."""
    lab = busy(node("a", cpus=16), policy=replace(ON, ordering=Ordering.PRIORITY), request=Request(4, cpus=8))
    for _ in range(2):
        lab.submit(request=Request(4, cpus=8, memory_gb=8.0), priority=HIGH)
    assert victims(lab) == numbered(2, 1)


def test_who_was_stopped_by_the_first_release_is_not_behind_the_other_for_ever():
    """What that release wrote down of an attempt lacks when it was asked to stop. Whom it made way for has run since,
    waits again, and has become the less urgent of the two."""
    lab = busy(node("a"), policy=replace(ON, ordering=Ordering.PRIORITY), each=8, priorities=(LOW,))
    (victim,) = numbered(1)
    head = lab.submit(8, priority=HIGH)
    lab.until(20)
    lab.end(head, Exit(Cause.LOST))
    written = codec.encode(lab.run(victim).past[-1])
    del written["stopped_at"]
    old = codec.decode(PastAttempt, written)
    assert (old.for_run, old.stopped_at) == (head, None)
    lab.state.put(replace(lab.run(victim), past=(old,)))
    lab.now += 600  # it may be tried again by then
    lab.tell(e.RunReprioritised(at=lab.now, run_id=head, priority=LOW))
    lab.tell(e.RunReprioritised(at=lab.now, run_id=victim, priority=NORMAL))
    assert [start.run_id for start in lab.plan().starts] == [victim]


def test_who_grows_more_urgent_by_waiting_alone_is_looked_at_in_time():
    """Nothing else happens: one overruns what it declared for days, the other waits for as long."""
    hour = 3600.0
    lab = Lab(node("a", 1), policy=named("auto"))
    saves: dict[str, Any] = {"preemptible": True, "saves": True, "grace_s": 0.0}
    lab.submit(takes=1000 * hour, time_limit_s=hour, **saves)
    lab.step()
    waiting = lab.submit(takes=20 * hour, time_limit_s=20 * hour, **saves)
    looks = 0
    while not (plan := lab.plan()).preempts:
        assert plan.look_again_at is not None
        assert plan.look_again_at >= lab.now + 60, "no busier than that"
        lab.now = plan.look_again_at
        looks += 1
    assert [victim.for_run for victim in plan.preempts] == [waiting]
    assert 20 * hour < lab.now < 50 * hour
    assert looks < 100


def test_who_proved_that_it_does_not_save_is_stopped_only_for_a_higher_priority_from_then_on():
    lab = Lab(node("a"), policy=named("auto"))
    long = lab.submit(8, takes=1e5, time_limit_s=1e5, preemptible=True, saves=True)
    lab.step()
    for killed in (False, True):
        lab.now += 4000.0
        first = lab.submit(8, takes=60.0, time_limit_s=60.0)
        assert [stop.run_id for stop in lab.step().preempts] == [long], "it says that it saves"
        lab.end(long, Exit(Cause.PREEMPTED, killed=killed))
        lab.step()
        lab.now += 60.0
        lab.end(first)
        lab.step()
        assert lab.run(long).attempt is not None
        assert lab.run(long).saves is not killed
    lab.now += 4000.0
    lab.submit(8, takes=60.0, time_limit_s=60.0)
    assert victims(lab) == []
    lab.submit(8, takes=60.0, time_limit_s=60.0, priority=HIGH)
    assert victims(lab) == [long]
