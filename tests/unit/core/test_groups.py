"""Caps on groups: a sweep never has more runs active than it may, and nobody else notices."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core.explain import explain
from rota.core.forecast import forecast
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.reduce import reduce
from rota.core.run import Cause, Exit, RunState
from tests.unit.core.kit import HIGH, Lab, node, two_by_eight


def cap(lab: Lab, group: str, limit: int) -> None:
    lab.tell(e.GroupCapped(at=lab.now, group=group, limit=limit))


def active(lab: Lab, group: str) -> list[str]:
    return [run.id for run in lab.active() if run.spec.group == group]


def sweep(lab: Lab, count: int, group: str = "s", **more: object) -> list[str]:
    return [lab.submit(group=group, **more) for _ in range(count)]  # type: ignore[arg-type]


# -- deciding ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("backfill", list(Backfill))
def test_no_more_than_the_cap_are_ever_active_and_all_have_their_turn(ordering, backfill):
    lab = Lab(*two_by_eight(), policy=Policy(ordering, backfill))
    cap(lab, "s", 3)
    runs = [lab.submit(1 + n % 3, group="s", takes=10 + n, user=("ann", "bob")[n % 2]) for n in range(12)]
    most = 0
    while not lab.all_ended():
        lab.step()
        most = max(most, len(active(lab, "s")))
        assert len(active(lab, "s")) == min(3, sum(not lab.run(r).ended_at for r in runs)), "kept refilled"
        lab.until(min(lab.ends_at(run) for run in lab.active()))
    assert most == 3


def test_others_pass_a_sweep_at_its_cap():
    lab = Lab(node("a"))
    cap(lab, "s", 1)
    runs = sweep(lab, 5, priority=HIGH)
    other = lab.submit(7, user="bob")
    plan = lab.step()
    assert [start.run_id for start in plan.starts] == [runs[0], other]
    assert plan.reserve is None, "a run that waits for its own sweep gets no reservation"


def test_lanes_of_several_shapes_and_people_share_the_cap():
    lab = Lab(*two_by_eight())
    cap(lab, "s", 2)
    for gpus in (1, 2, 3):
        for user in ("ann", "bob"):
            lab.submit(gpus, group="s", user=user)
    lab.step()
    assert len(active(lab, "s")) == 2


def test_two_sweeps_are_capped_apart_and_one_without_a_cap_is_free():
    lab = Lab(*two_by_eight())
    cap(lab, "s", 1)
    cap(lab, "t", 2)
    for group in ("s", "t", "u"):
        sweep(lab, 4, group)
    lab.step()
    assert [len(active(lab, group)) for group in ("s", "t", "u")] == [1, 2, 4]


def test_a_lowered_cap_stops_nobody_and_lets_nobody_start():
    lab = Lab(*two_by_eight())
    runs = sweep(lab, 6)
    lab.step()
    cap(lab, "s", 2)
    more = sweep(lab, 2)
    assert lab.step().starts == ()
    for run in runs[:4]:
        lab.end(run)
    assert lab.step().starts == ()
    lab.end(runs[4])
    assert [start.run_id for start in lab.step().starts] == more[:1]
    cap(lab, "s", 0)
    assert lab.state.caps == {}
    assert [start.run_id for start in lab.step().starts] == more[1:]


def test_a_reserved_run_keeps_its_place_under_the_cap():
    """Its small sisters may not take the place that it will need when its GPUs come free."""
    lab = Lab(node("a"), policy=Policy(Ordering.FCFS))
    cap(lab, "s", 1)
    lab.submit(4, takes=100, time_limit_s=100)
    lab.step()
    wide = lab.submit(8, group="s", takes=50)
    small = lab.submit(1, group="s", takes=1000)
    stranger = lab.submit(1, takes=10)
    plan = lab.step()
    assert plan.reserve is not None
    assert plan.reserve.run_id == wide
    assert [start.run_id for start in plan.starts] == [stranger]
    lab.until(100)
    assert lab.first_start(wide) == 100
    assert lab.first_start(small) is None


def test_a_run_that_changes_its_group_changes_its_lane():
    lab = Lab(node("a"))
    cap(lab, "s", 1)
    first, second = sweep(lab, 2)
    lab.step()
    spec = lab.run(second).spec
    assert lab.plan().starts == ()
    lab.tell(e.RunEdited(at=0, run_id=second, spec=replace(spec, group="")))
    assert [start.run_id for start in lab.step().starts] == [second]
    lab.tell(e.RunEdited(at=0, run_id=second, spec=spec))
    assert lab.state.groups == {"s": 2}, "also while it runs"
    lab.end(first)
    lab.end(second)
    assert lab.state.groups == {}


def test_a_retry_counts_once():
    lab = Lab(node("a"), policy=Policy(retry_base_s=0))
    cap(lab, "s", 1)
    first, _ = sweep(lab, 2)
    lab.step()
    lab.end(first, Exit(Cause.LOST))
    lab.step()
    assert len(active(lab, "s")) == 1


# -- explaining and foretelling ---------------------------------------------------------------------------------------
def test_the_reason_names_the_sweeps_own_runs():
    lab = Lab(*two_by_eight())
    cap(lab, "s", 3)
    runs = sweep(lab, 4)
    other = lab.submit(user="bob")
    lab.step()
    (reason,) = explain(lab.state, lab.now, runs[3]).reasons
    assert (reason.code, reason.text) == ("group", "3 of its sweep's runs are active, the cap is 3")
    assert set(reason.runs) == set(runs[:3])
    assert other not in reason.runs
    cap(lab, "s", 1)
    assert "3 of its sweep's runs are active, the cap is 1" in explain(lab.state, lab.now, runs[3]).reasons[0].text


def test_a_run_that_waits_for_its_sweep_and_for_gpus_has_both_reasons():
    lab = Lab(node("a"))
    cap(lab, "s", 1)
    lab.submit(4, group="s")
    waiting = lab.submit(8, group="s")
    lab.step()
    assert [reason.code for reason in explain(lab.state, lab.now, waiting).reasons] == ["group", "resources"]
    assert explain(lab.state, lab.now, waiting).hint == "", "fewer GPUs would not help"


def test_the_forecast_waits_for_the_sweep():
    lab = Lab(*two_by_eight())
    cap(lab, "s", 2)
    runs = sweep(lab, 6, takes=100)
    lab.step()
    starts = forecast(lab.state, lab.now, runs[2:])
    assert [starts[run] for run in runs[2:]] == [100, 100, 200, 200]
    lab.until(1000)
    assert [lab.first_start(run) for run in runs[2:]] == [100, 100, 200, 200]


# -- what edits do to the state ---------------------------------------------------------------------------------------
def test_edits_of_a_run_that_is_gone_change_nothing_but_the_version():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.step()
    lab.end(run)
    ended = lab.run(run)
    lab.state.retire(run)
    before = lab.state.version
    reduce(lab.state, e.RunEdited(at=1, run_id=run, spec=ended.spec))
    reduce(lab.state, e.RunArchived(at=1, run_id=run, archived=True))
    assert (lab.state.version, lab.state.runs) == (before + 2, {})
    lab.state.retire(run)  # harmless: it left long ago


def test_archiving_leaves_everything_else_alone():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.tell(e.RunArchived(at=5, run_id=run, archived=True))
    assert (lab.run(run).archived_at, lab.run(run).state) == (5, RunState.QUEUED)
    assert [start.run_id for start in lab.step().starts] == [run], "out of sight, not out of the queue"
    lab.tell(e.RunArchived(at=6, run_id=run, archived=False))
    assert lab.run(run).archived_at is None


def test_held_runs_are_counted():
    lab = Lab(node("a"))
    run = lab.submit(held=True)
    lab.submit()
    assert (lab.state.waiting, lab.state.held) == (2, 1)
    lab.tell(e.RunReleased(at=0, run_id=run))
    assert (lab.state.waiting, lab.state.held) == (2, 0)
    lab.tell(e.RunHeld(at=0, run_id=run))
    lab.tell(e.RunEnded(at=0, run_id=run, state=RunState.CANCELLED, why=""))
    assert (lab.state.waiting, lab.state.held) == (1, 0)


def test_many_nodes_at_once_lay_the_board_once():
    """Five thousand nodes come in as five thousand events; the board is laid when somebody looks at it."""
    lab = Lab(checked=False)
    for n in range(5000):
        lab.tell(e.NodeSeen(at=0, node=node(f"n{n}", 1)))
    assert lab.state._board is None
    assert lab.state.board.free_gpus == 5000
    assert lab.state.board is lab.state.board
