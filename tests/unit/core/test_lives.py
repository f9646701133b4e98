"""The lives of runs through reduce: dependencies, holds, retries, records, and nodes that come and go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core.check import check
from rota.core.policy import Policy
from rota.core.reduce import reduce
from rota.core.resources import Slice
from rota.core.run import KEPT_ATTEMPTS, Cause, Dependency, Exit, Run, RunState, When, satisfied
from rota.core.state import State
from rota.core.timeline import Timeline
from tests.unit.core.kit import HIGH, OK, Lab, broken, node, two_by_eight

ENDS = {
    RunState.SUCCEEDED: OK,
    RunState.FAILED: Exit(Cause.EXITED, code=3),
    RunState.CANCELLED: Exit(Cause.CANCELLED),
    RunState.LOST: Exit(Cause.LOST),
}
# Written out: which end of the first lets the second go on.
LETS_GO = {
    When.SUCCEEDED: {RunState.SUCCEEDED},
    When.FAILED: {RunState.FAILED, RunState.CANCELLED, RunState.LOST},
    When.ENDED: {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.LOST},
}


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("end", list(ENDS))
def test_a_dependent_goes_on_exactly_when_the_end_is_the_wished_one(when, end):
    lab = Lab(node("a"), policy=Policy(auto_retry=False))
    first = lab.submit()
    second = lab.submit(after=[Dependency(first, when)])
    assert [start.run_id for start in lab.step().starts] == [first]
    lab.end(first, ENDS[end])
    assert lab.run(first).state is end
    goes = end in LETS_GO[when]
    assert satisfied(when, end) is goes
    assert lab.run(second).waiting_on == (() if goes else (Dependency(first, when),))
    assert [start.run_id for start in lab.step().starts] == ([second] if goes else [])


@pytest.mark.parametrize("when", list(When))
def test_a_run_cancelled_while_it_waited_is_an_end_as_well(when):
    lab = Lab(node("a"))
    first = lab.submit(held=True)
    second = lab.submit(after=[Dependency(first, when)])
    lab.tell(e.RunEnded(at=0, run_id=first, state=RunState.CANCELLED, why=""))
    assert bool(lab.run(second).waiting_on) is (when is When.SUCCEEDED)


def test_all_dependencies_must_come_true():
    lab = Lab(node("a"))
    one, two = lab.submit(takes=10), lab.submit(takes=20)
    both = lab.submit(after=[one, two])
    chained = lab.submit(after=[both])
    lab.until(1000)
    assert lab.first_start(both) == 20
    assert lab.first_start(chained) == 120


def test_a_retry_of_the_first_keeps_the_second_waiting():
    lab = Lab(node("a"))
    first = lab.submit()
    second = lab.submit(after=[Dependency(first, When.ENDED)])
    lab.step()
    lab.end(first, Exit(Cause.LOST))
    assert lab.run(first).state is RunState.QUEUED
    assert lab.run(second).waiting_on


def test_an_end_touches_only_its_own_link_of_runs_that_wait_for_others(monkeypatch):
    lab = Lab(node("a"))
    first, second, third = (lab.submit(held=True) for _ in range(3))
    waiters = [lab.submit(after=[first, Dependency(first, When.ENDED), second, third]) for _ in range(3)]
    torn = lab.submit(after=[first, Dependency(first, When.FAILED), second], user="bob")
    assert (lab.state.load["ann"].edges, lab.state.load["bob"].edges) == (12, 3)
    indexed: list[str] = []
    index = State._index

    def watched(state: State, run: Run) -> None:
        indexed.append(run.id)
        index(state, run)

    monkeypatch.setattr(State, "_index", watched)
    lab.tell(e.RunReleased(at=lab.now, run_id=first))
    lab.step()
    del indexed[:]
    lab.end(first)  # the state is checked after each event
    assert indexed == [first, torn], "the others keep their place in all indices but one"
    assert [lab.run(run_id).waiting_on for run_id in waiters] == [(Dependency(second), Dependency(third))] * 3
    assert lab.run(torn).waiting_on == (Dependency(first, When.FAILED), Dependency(second))
    assert lab.state.touched.keys() >= {*waiters, torn}, "their rows are written"
    assert (lab.state.load["ann"].edges, lab.state.load["bob"].edges) == (6, 2)
    for run_id in (second, third):
        lab.tell(e.RunReleased(at=lab.now, run_id=run_id))
    lab.step()
    for run_id in (second, third):
        lab.end(run_id)
    assert {start.run_id for start in lab.step().starts} == set(waiters)


def test_a_held_dependent_stays_held_when_its_dependency_is_met():
    lab = Lab(node("a"))
    first = lab.submit(takes=10)
    second = lab.submit(after=[first], held=True)
    lab.until(50)
    assert lab.run(second).state is RunState.HELD
    assert lab.run(second).waiting_on == ()
    lab.tell(e.RunReleased(at=50, run_id=second))
    lab.until(60)
    assert lab.first_start(second) == 50


def test_cancelling_the_dependent_leaves_nothing_behind():
    lab = Lab(node("a"))
    first = lab.submit()
    second = lab.submit(after=[first])
    lab.tell(e.RunEnded(at=0, run_id=second, state=RunState.CANCELLED, why=""))
    assert lab.state.dependents == {}
    lab.until(1000)
    assert lab.run(second).state is RunState.CANCELLED


def test_a_lost_run_backs_off_and_comes_back_as_a_new_attempt():
    lab = Lab(node("a"), policy=Policy(retry_base_s=8, retry_cap_s=100))
    run = lab.submit(takes=50)
    lab.step()
    lab.now = 5
    lab.end(run, Exit(Cause.LOST))
    back = lab.run(run).not_before
    assert 13 <= back <= 15
    lab.now = back - 0.5
    assert lab.step().starts == ()
    lab.until(1000)
    assert lab.started[run] == [0, back]
    assert lab.run(run).attempts_made == 2
    assert (lab.run(run).retries, lab.run(run).not_before) == (1, 0)
    assert [past.number for past in lab.run(run).past] == [1, 2]
    assert lab.run(run).state is RunState.SUCCEEDED


def test_a_run_that_backs_off_can_be_held_reprioritised_and_cancelled():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.step()
    lab.end(run, Exit(Cause.LOST))
    lab.tell(e.RunReprioritised(at=0, run_id=run, priority=HIGH))
    lab.tell(e.RunHeld(at=0, run_id=run))
    assert lab.state.delayed == []
    lab.tell(e.RunReleased(at=0, run_id=run))
    assert [run_id for _, run_id in lab.state.delayed] == [run], "a release does not shorten the back-off"
    lab.tell(e.RunEnded(at=0, run_id=run, state=RunState.CANCELLED, why=""))
    assert lab.state.delayed == []


def test_the_newest_attempts_are_kept_and_none_is_counted_twice():
    lab = Lab(node("a"), policy=Policy(retry_base_s=1, retry_cap_s=1))
    run = lab.submit(2, max_retries=100)
    for _ in range(KEPT_ATTEMPTS + 5):
        lab.step()
        lab.now += 3
        lab.end(run, Exit(Cause.LOST))
        lab.now += 2
    past = lab.run(run).past
    assert [one.number for one in past] == list(range(6, KEPT_ATTEMPTS + 6))
    assert {one.gpu_s for one in past} == {6.0}


def test_gpus_of_a_dead_attempt_are_free_at_once_and_not_before():
    lab = Lab(node("a"))
    run = lab.submit(8)
    lab.step()
    lab.stop(run, Cause.CANCELLED)
    assert lab.state.board.free_gpus == 0, "asked to stop is not stopped"
    lab.end(run, Exit(Cause.CANCELLED))
    assert lab.state.board.free_gpus == 8


def test_a_node_that_is_drained_keeps_its_work_and_gets_no_new():
    lab = Lab(*two_by_eight())
    run = lab.submit(8, takes=50)
    lab.step()
    lab.tell(e.NodeDrained(at=0, node_id="a", why="fan"))
    later = lab.submit(8, takes=500)
    lab.until(100)
    assert lab.run(run).state is RunState.SUCCEEDED
    assert lab.held_gpus(later) == {"b": list(range(8))}
    assert lab.state.nodes["a"].drain_why == "fan"
    more = lab.submit(8)
    assert lab.step().starts == ()
    lab.tell(e.NodeResumed(at=100, node_id="a"))
    assert [start.run_id for start in lab.step().starts] == [more]


def test_a_gpu_that_falls_ill_under_a_run_is_not_given_out_after_it():
    lab = Lab(node("a", gpus=2))
    run = lab.submit(2, takes=10)
    lab.step()
    lab.tell(e.NodeSeen(at=0, node=broken(node("a", gpus=2), 1)))
    lab.until(10)
    assert lab.run(run).state is RunState.SUCCEEDED
    one, two = lab.submit(), lab.submit()
    lab.step()
    assert lab.held_gpus(one) == {"a": [0]}
    assert lab.held_gpus(two) is None
    lab.tell(e.NodeSeen(at=10, node=node("a", gpus=2)))
    lab.step()
    assert lab.held_gpus(two) == {"a": [1]}


def test_a_node_may_leave_and_return_under_a_live_attempt():
    lab = Lab(*two_by_eight())
    run = lab.submit(8, takes=1000)
    lab.step()
    lab.tell(e.NodeRemoved(at=0, node_id="a"))
    assert lab.state.board.free_gpus == 8
    lab.tell(e.NodeSeen(at=0, node=node("a")))
    assert lab.state.board.free_gpus == 8, "what was held there is held there still"
    other = lab.submit(8)
    lab.step()
    assert lab.held_gpus(other) == {"b": list(range(8))}
    lab.tell(e.NodeRemoved(at=0, node_id="a"))
    lab.end(run)
    assert lab.run(run).state is RunState.SUCCEEDED


def test_a_node_may_come_back_smaller_than_what_runs_on_it():
    lab = Lab(node("a", gpus=8, cpus=16))
    run = lab.submit(8, takes=1000)
    lab.step()
    lab.tell(e.NodeSeen(at=0, node=node("a", gpus=4, cpus=2)))
    lab.end(run)
    assert lab.state.board.free == [0b1111]


def test_pause_stops_starting_and_resume_goes_on():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.tell(e.SchedulingPaused(at=0, why="moving racks"))
    assert (lab.state.paused, lab.state.pause_why) == (True, "moving racks")
    assert lab.plan() == replace(lab.plan(), starts=(), preempts=(), reserve=None)
    lab.tell(e.SchedulingResumed(at=0))
    assert [start.run_id for start in lab.step().starts] == [run]


def test_an_ended_run_can_be_retired_and_a_live_one_not():
    lab = Lab(node("a"))
    run = lab.submit()
    for _ in range(2):
        with pytest.raises(ValueError, match="not ended"):
            lab.state.retire(run)
        lab.step()
    lab.end(run)
    lab.state.retire(run)
    assert run not in lab.state.runs
    assert check(lab.state) == []


def test_time_in_the_log_never_goes_back():
    """The wall clock jumps a day back between two events: order, back-off and records stay sane."""
    lab = Lab(node("a"))
    lab.now = 86_400
    run = lab.submit(takes=100)
    lab.step()
    lab.now = 10
    lab.end(run, Exit(Cause.LOST), gpu_s=5)
    assert lab.state.at == 86_400
    assert lab.snap().now == 86_400
    assert lab.run(run).past[0].gpu_s == 5
    assert check(lab.state) == []


def test_the_timeline_knows_one_end_of_each_run_and_forgets_what_it_never_knew():
    line = Timeline()
    here, there = (Slice("here", 1),), (Slice("there", 1),)
    line.put("x", 5.0, here)
    line.put("y", 4.0, there)
    line.put("x", 3.0, here)
    line.drop("z")
    assert list(line.given_back()) == [(3.0, here), (4.0, there)]
    assert list(line) == [(3.0, "x"), (4.0, "y")]
    assert (line.first(), len(line)) == ((3.0, "x"), 2)


def test_the_house_remembers_who_runs_it():
    lab = Lab()
    reduce(lab.state, e.ServerStarted(at=3, epoch=7, boot_id="b"))
    assert (lab.state.epoch, lab.state.boot_id, lab.state.at, lab.state.version) == (7, "b", 3, 1)
