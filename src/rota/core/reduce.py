"""reduce(state, event): the only way the state changes. Replaying the log gives the same state."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import replace
from typing import Any

from rota.core import events as e
from rota.core.ids import number_of
from rota.core.predict import relearn
from rota.core.progress import charged_s, gained_s, left_of
from rota.core.resources import gpu_count
from rota.core.run import (
    ENDED,
    KEPT_ATTEMPTS,
    Attempt,
    Cause,
    IllegalTransition,
    PastAttempt,
    Run,
    RunState,
    Stop,
    move,
    satisfied,
)
from rota.core.state import State
from rota.core.usage import Usage


class StaleEvent(Exception):
    """A bug: an event speaks of an attempt that is not the run's live one."""


def reduce(state: State, event: e.Event) -> None:
    state.at = max(state.at, event.at)
    _RULES[type(event)](state, event)
    state.version += 1


def _submitted(state: State, event: e.RunSubmitted) -> None:
    state.put(
        Run(
            id=event.run_id,
            seq=event.seq,
            user=event.user,
            spec=event.spec,
            state=RunState.HELD if event.held else RunState.QUEUED,
            priority=event.spec.priority,
            submitted_at=event.at,
            expected_s=event.expected_s,
            expected_from=event.expected_from,
            belief=event.belief,
            waiting_on=event.waiting_on,
            queued_at=None if event.held else event.at,
        )
    )
    state.shapes.add(event.spec.request)
    state.next_seq = max(state.next_seq, event.seq + 1)


def _held(state: State, event: e.RunHeld) -> None:
    run = state.runs[event.run_id]
    state.put(replace(run, state=move(run.state, RunState.HELD), why=event.why))


def _released(state: State, event: e.RunReleased) -> None:
    run = _idle(state, event.run_id)
    state.put(replace(run, state=move(run.state, RunState.QUEUED), why="", queued_at=event.at))


def _reprioritised(state: State, event: e.RunReprioritised) -> None:
    state.put(replace(state.runs[event.run_id], priority=event.priority))


def _edited(state: State, event: e.RunEdited) -> None:
    run = state.runs.get(event.run_id)
    if run is None:  # it ended long ago, and only its row changes
        return
    run = replace(run, spec=event.spec)
    if event.expected_s is not None:
        run = replace(run, expected_s=event.expected_s, expected_from=event.expected_from, belief=event.belief)
    state.put(run)


def _archived(state: State, event: e.RunArchived) -> None:
    run = state.runs.get(event.run_id)
    if run is not None:  # as above
        state.put(replace(run, archived_at=event.at if event.archived else None))


def _group_capped(state: State, event: e.GroupCapped) -> None:
    if event.limit > 0:
        state.caps[event.group] = event.limit
    else:
        state.caps.pop(event.group, None)


def _reservation_made(state: State, event: e.ReservationMade) -> None:
    state.book(event.reservation)
    state.forget_reservations(event.at)


def _reservation_ended(state: State, event: e.ReservationEnded) -> None:
    state.unbook(event.reservation_id, event.counted_until)
    state.forget_reservations(event.at)


def _record_put(state: State, event: e.RecordPut) -> None:
    """Nothing: no decision reads a record."""


def _ended(state: State, event: e.RunEnded) -> None:
    run = _idle(state, event.run_id)
    end = _one_of(event.state, ENDED)
    state.put(replace(run, state=move(run.state, end), why=event.why, ended_at=event.at, waiting_on=()))
    _unblock(state, event.run_id, event.state)


def _planned(state: State, event: e.AttemptPlanned) -> None:
    run = state.runs[event.run_id]
    starting = move(run.state, RunState.STARTING)
    expected_s = left_of(run)
    charge = gpu_count(event.placement) * charged_s(run)
    state.board.take(event.placement)
    _charge(state, run.user, charge, event.at)
    attempt = Attempt(
        id=event.attempt_id,
        number=number_of(event.attempt_id),
        fence=event.fence,
        placement=event.placement,
        planned_at=event.at,
        planned_tick=event.tick,
        expected_end=event.at + expected_s,
        charged_gpu_s=charge,
        reported=event.reported,
        grace_s=event.grace_s,
    )
    state.put(
        replace(
            run,
            state=starting,
            attempt=attempt,
            attempts_made=attempt.number,
            not_before=0.0,
            why="",
        )
    )


def _started(state: State, event: e.AttemptStarted) -> None:
    run, attempt = _live(state, event.run_id, event.attempt_id)
    begun = replace(attempt, started_at=event.at, pid=event.pid)
    state.put(replace(run, state=move(run.state, RunState.RUNNING), attempt=begun))


def _stop_requested(state: State, event: e.StopRequested) -> None:
    run, attempt = _live(state, event.run_id, event.attempt_id)
    stop = Stop(
        cause=event.cause,
        at=event.at,
        by=event.by,
        signal=event.signal,
        grace_s=event.grace_s,
        for_run=event.for_run,
        why=event.why,
        long_grace=event.long_grace,
    )
    end = min(attempt.expected_end, event.at + event.grace_s) if attempt.expected_end > event.at else event.at
    state.put(replace(run, attempt=replace(attempt, stop=stop, expected_end=end)))


def _attempt_ended(state: State, event: e.AttemptEnded) -> None:
    run, attempt = _live(state, event.run_id, event.attempt_id)
    then = move(run.state, _one_of(event.next, ENDED | {RunState.QUEUED}))
    state.board.give(attempt.placement)
    # what was charged at the start has decayed since: give back no more than is left of it
    left = Usage(attempt.charged_gpu_s, attempt.planned_at).decayed(event.at, state.policy.half_life_s)
    _charge(state, run.user, event.gpu_s - left, event.at)
    ended_at = max(event.at - event.late_s, attempt.started_at or attempt.planned_at)
    past = PastAttempt(
        id=attempt.id,
        number=attempt.number,
        placement=attempt.placement,
        planned_at=attempt.planned_at,
        started_at=attempt.started_at,
        ended_at=ended_at,
        exit=event.exit,
        gpu_s=event.gpu_s,
        for_run=attempt.stop.for_run if attempt.stop is not None else "",
        stopped_at=attempt.stop.at if attempt.stop is not None else None,
    )
    ended = then in ENDED
    stop = attempt.stop
    made_way = stop is not None and stop.cause is Cause.PREEMPTED and then is RunState.QUEUED
    stopped = event.exit.cause is not Cause.LOST and attempt.started_at is not None and not event.exit.killed
    kept = made_way and run.spec.saves and stopped
    ran_s = ended_at - (attempt.started_at or attempt.planned_at)
    run = replace(
        run,
        state=then,
        attempt=None,
        past=(*run.past, past)[-KEPT_ATTEMPTS:],
        attained_s=run.attained_s + gained_s(state.policy, attempt.number, ran_s) if kept else run.attained_s,
        retries=run.retries + event.counts,
        not_before=event.not_before,
        ended_at=ended_at if ended else None,
        why=event.why,
    )
    state.put(run)
    if ended:
        relearn(state.history, run)
        _unblock(state, run.id, run.state)


def _node_seen(state: State, event: e.NodeSeen) -> None:
    state.nodes[event.node.id] = event.node
    state.relay()


def _node_removed(state: State, event: e.NodeRemoved) -> None:
    del state.nodes[event.node_id]
    state.relay()


def _node_drained(state: State, event: e.NodeDrained) -> None:
    state.nodes[event.node_id] = replace(state.nodes[event.node_id], drained=True, drain_why=event.why)
    state.relay()


def _node_resumed(state: State, event: e.NodeResumed) -> None:
    state.nodes[event.node_id] = replace(state.nodes[event.node_id], drained=False, drain_why="")
    state.relay()


def _policy_set(state: State, event: e.PolicySet) -> None:
    state.policy = event.policy
    state.reorder()


def _paused(state: State, event: e.SchedulingPaused) -> None:
    state.paused, state.pause_why = True, event.why


def _resumed(state: State, event: e.SchedulingResumed) -> None:
    state.paused, state.pause_why = False, ""


def _server_started(state: State, event: e.ServerStarted) -> None:
    state.epoch, state.boot_id = event.epoch, event.boot_id


def _live(state: State, run_id: str, attempt_id: str) -> tuple[Run, Attempt]:
    run = state.runs[run_id]
    if run.attempt is None or run.attempt.id != attempt_id:
        raise StaleEvent(f"{attempt_id} is not the live attempt of {run_id}")
    return run, run.attempt


def _idle(state: State, run_id: str) -> Run:
    """A run with a live attempt is moved by what happens to the attempt, never past it."""
    run = state.runs[run_id]
    if run.attempt is not None:
        raise StaleEvent(f"{run_id} has a live attempt, {run.attempt.id}")
    return run


def _one_of(state: RunState, allowed: Set[RunState]) -> RunState:
    if state not in allowed:
        raise IllegalTransition(f"{state} is no state this event may lead to")
    return state


def _charge(state: State, user: str, gpu_s: float, now: float) -> None:
    if gpu_s:
        state.usage[user] = state.usage.get(user, Usage()).charged(gpu_s, now, state.policy.half_life_s)


def _unblock(state: State, ended: str, end: RunState) -> None:
    """Strike a satisfied dependency off its dependents. Unsatisfied ones are ended by an event of their own."""
    for run_id in sorted(state.dependents.get(ended, ())):
        run = state.runs[run_id]
        left = [d for d in run.waiting_on if d.run_id != ended or not satisfied(d.when, end)]
        if len(left) != len(run.waiting_on):
            state.strike(run, ended, tuple(left))


_RULES: dict[type[e.Event], Callable[[State, Any], None]] = {
    e.RunSubmitted: _submitted,
    e.RunHeld: _held,
    e.RunReleased: _released,
    e.RunReprioritised: _reprioritised,
    e.RunEdited: _edited,
    e.RunArchived: _archived,
    e.RunEnded: _ended,
    e.AttemptPlanned: _planned,
    e.AttemptStarted: _started,
    e.StopRequested: _stop_requested,
    e.AttemptEnded: _attempt_ended,
    e.GroupCapped: _group_capped,
    e.ReservationMade: _reservation_made,
    e.ReservationEnded: _reservation_ended,
    e.RecordPut: _record_put,
    e.NodeSeen: _node_seen,
    e.NodeRemoved: _node_removed,
    e.NodeDrained: _node_drained,
    e.NodeResumed: _node_resumed,
    e.PolicySet: _policy_set,
    e.SchedulingPaused: _paused,
    e.SchedulingResumed: _resumed,
    e.ServerStarted: _server_started,
}
