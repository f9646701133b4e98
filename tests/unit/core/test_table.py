"""The state machine is one table: what is in it happens, anything else is a bug that raises and changes nothing."""

from __future__ import annotations

from itertools import product

import pytest

from rota.core import events as e
from rota.core.check import check
from rota.core.reduce import StaleEvent, reduce
from rota.core.resources import Slice
from rota.core.run import ACTIVE, ENDED, TABLE, WAITING, Cause, Exit, IllegalTransition, RunState, move
from tests.unit.core.kit import OK, Lab, node

PAIRS = list(product(RunState, RunState))

# Written out by hand, from the life of a run as a person would tell it; not computed from TABLE.
TOLD = {
    "held": "queued cancelled",
    "queued": "held starting cancelled",
    "starting": "running queued succeeded failed cancelled lost",
    "running": "queued succeeded failed cancelled lost",
    "succeeded": "",
    "failed": "",
    "cancelled": "",
    "lost": "",
}


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_every_pair_of_states_is_either_in_the_table_or_raises(old, new):
    if new.value in TOLD[old.value].split():
        assert move(old, new) is new
    else:
        with pytest.raises(IllegalTransition, match=f"{old} -> {new}"):
            move(old, new)


def test_the_states_fall_into_three_groups_and_ends_are_final():
    assert frozenset(RunState) == WAITING | ACTIVE | ENDED
    assert not (WAITING & ACTIVE or WAITING & ENDED or ACTIVE & ENDED)
    assert set(TABLE) == set(RunState)
    assert all(not TABLE[end] for end in ENDED)


def test_from_every_state_that_is_not_an_end_an_end_can_be_reached():
    assert all(TABLE[state] & ENDED for state in WAITING | ACTIVE)


def lab_with(state: RunState) -> tuple[Lab, str]:
    """One run in the wished state, on one node."""
    lab = Lab(node("a"))
    run = lab.submit(held=state is RunState.HELD)
    if state in (RunState.HELD, RunState.QUEUED):
        return lab, run
    placement = (Slice("a", 1),)
    lab.tell(e.AttemptPlanned(at=0, run_id=run, attempt_id=f"{run}-1", tick=0, fence=1, placement=placement))
    if state is RunState.STARTING:
        return lab, run
    lab.tell(e.AttemptStarted(at=0, run_id=run, attempt_id=f"{run}-1", pid=7))
    if state in ENDED:
        lab.tell(ended(run, state))
    return lab, run


def ended(run: str, state: RunState) -> e.AttemptEnded:
    exit = OK if state is RunState.SUCCEEDED else Exit(Cause.EXITED, code=1)
    return e.AttemptEnded(at=0, run_id=run, attempt_id=f"{run}-1", exit=exit, gpu_s=0, next=state)


def attempts_at(run: str) -> dict[RunState, list[e.Event]]:
    """Events that would bring a run into each state."""
    placement = (Slice("a", 2),)
    ends: dict[RunState, list[e.Event]] = {
        state: [ended(run, state), e.RunEnded(at=0, run_id=run, state=state, why="")] for state in ENDED
    }
    return {
        RunState.HELD: [e.RunHeld(at=0, run_id=run), e.RunEnded(at=0, run_id=run, state=RunState.HELD, why="")],
        RunState.QUEUED: [e.RunReleased(at=0, run_id=run), ended(run, RunState.QUEUED)],
        RunState.STARTING: [
            e.AttemptPlanned(at=0, run_id=run, attempt_id=f"{run}-2", tick=0, fence=1, placement=placement)
        ],
        RunState.RUNNING: [
            e.AttemptStarted(at=0, run_id=run, attempt_id=f"{run}-1", pid=7),
            ended(run, RunState.RUNNING),
        ],
        **ends,
    }


@pytest.mark.parametrize(("old", "new"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_an_event_is_taken_in_whole_or_refused_whole(old, new):
    """No event leads off the table, and one that is refused leaves no GPU taken, no charge and no half-made index."""
    lab, run = lab_with(old)
    for event in attempts_at(run)[new]:
        state = lab.state.fork()
        before = (list(state.board.free), dict(state.usage), state.runs[run], state.version)
        try:
            reduce(state, event)
        except (IllegalTransition, StaleEvent):
            assert (list(state.board.free), dict(state.usage), state.runs[run], state.version) == before
        else:
            assert new in TABLE[old]
            assert state.runs[run].state is new
        assert check(state) == []


def test_an_event_about_another_attempt_than_the_live_one_is_stale():
    lab, run = lab_with(RunState.RUNNING)
    other = f"{run}-9"
    for event in (
        e.AttemptStarted(at=0, run_id=run, attempt_id=other, pid=1),
        e.StopRequested(at=0, run_id=run, attempt_id=other, cause=Cause.CANCELLED, signal=15, grace_s=1),
        e.AttemptEnded(at=0, run_id=run, attempt_id=other, exit=OK, gpu_s=0, next=RunState.SUCCEEDED),
    ):
        with pytest.raises(StaleEvent):
            reduce(lab.state, event)
    assert lab.run(run).state is RunState.RUNNING
