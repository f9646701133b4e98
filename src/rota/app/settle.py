"""What backends report, turned into events: an attempt began, an attempt ended and what follows from it."""

from __future__ import annotations

from dataclasses import replace

from rota.app.desk import Desk
from rota.app.ports import Ended, Report, Started
from rota.core import events as e
from rota.core.ids import run_of
from rota.core.overrun import died_past_limit
from rota.core.resources import gpu_count
from rota.core.retry import RetryDecision, retry
from rota.core.run import ENDED, Attempt, Cause, Exit, Run, RunState

LATE_S = 2.0


def settle(desk: Desk, report: Report) -> None:
    """Take a report in. One about an attempt that is not live any more is old news and changes nothing."""
    run = desk.state.runs.get(run_of(report.attempt_id))
    if run is None or run.attempt is None or run.attempt.id != report.attempt_id:
        return
    match report:
        case Started(attempt_id, pid):
            if run.state is RunState.STARTING:
                desk.write(e.AttemptStarted(at=desk.now, run_id=run.id, attempt_id=attempt_id, pid=pid))
        case Ended(_, exit):
            planned, ended = run.attempt.planned_tick, exit.ended_tick
            # What ended while no server was there to see it was held no longer than it lived. Its supervisor measured
            # that, by the same clock of the same boot.
            late = ended is not None and planned <= ended <= desk.tick - LATE_S
            held_s = (ended if late and ended is not None else desk.tick) - planned
            _end(desk, run, run.attempt, exit, held_s=held_s, late=late)


def settle_from_before_reboot(desk: Desk, run: Run, attempt: Attempt, exit: Exit | None, last_seen: float) -> None:
    """The machine restarted: the attempt is gone. Ticks of two boots cannot be compared, so its GPUs count as held
    until its own record of the end, or without one until the last thing we recorded."""
    if exit is not None and exit.ended_tick is not None:
        held_s = exit.ended_tick - attempt.planned_tick
    else:
        held_s = last_seen - attempt.planned_at
    cause = Cause.LOST if run.spec.holder is None else Cause.RELEASED  # a lease ends with its holder, and well
    _end(desk, run, attempt, exit or Exit(cause, message="the machine restarted"), held_s=held_s, late=True)


def settle_by_force(desk: Desk, run: Run, attempt: Attempt, exit: Exit) -> None:
    """An admin ends an attempt on record although processes of it are there: whatever is reported of it later is about
    an attempt that is not live any more, and reconcile goes on ending it as a stray."""
    held_s = desk.tick - attempt.planned_tick
    _end(desk, run, attempt, exit, held_s=held_s, late=False, decision=RetryDecision(False, exit.message))


def _end(
    desk: Desk,
    run: Run,
    attempt: Attempt,
    exit: Exit,
    *,
    held_s: float,
    late: bool,
    decision: RetryDecision | None = None,
) -> None:
    """`late`: it had ended before, and is dated so; in the house's time, which may have stood still since. `decision`:
    what comes next, where that does not follow from the exit."""
    decision = decision or _what_next(desk, run, attempt, exit)
    state = RunState.QUEUED if decision.again else _final(desk, run, attempt, exit)
    desk.write(
        e.AttemptEnded(
            at=desk.now,
            run_id=run.id,
            attempt_id=attempt.id,
            exit=exit,
            gpu_s=gpu_count(attempt.placement) * max(0.0, held_s),
            next=state,
            why=decision.why,
            not_before=desk.now + decision.delay_s if decision.delay_s else 0.0,
            counts=decision.counts,
            late_s=max(0.0, desk.now - attempt.planned_at - held_s) if late else 0.0,
        )
    )
    end_dependents(desk, run.id)


def _final(desk: Desk, run: Run, attempt: Attempt, exit: Exit) -> RunState:
    if exit.ok:
        return RunState.SUCCEEDED
    cancelled = attempt.stop is not None and attempt.stop.cause is Cause.CANCELLED
    if cancelled or exit.cause in (Cause.CANCELLED, Cause.NEVER_STARTED):
        return RunState.CANCELLED
    lost = exit.cause is Cause.LOST and not _outlived_limit(desk, run, attempt, exit)
    return RunState.LOST if lost else RunState.FAILED


def _outlived_limit(desk: Desk, run: Run, attempt: Attempt, exit: Exit) -> bool:
    """Whether the server itself had to ask it to end at its time limit, or it died without a supervisor after that."""
    asked = attempt.stop is not None and attempt.stop.cause is Cause.TIME_LIMIT
    return asked or (run.spec.holder is None and died_past_limit(run, exit, desk.watched_from))


def _what_next(desk: Desk, run: Run, attempt: Attempt, exit: Exit) -> RetryDecision:
    """Somebody's stop outweighs how the process happened to end, unless it had finished well before it noticed, or says
    that it had. Of a preempted one, leaving with 0 means that it has saved what it needs to go on (ADR 8)."""
    stop = attempt.stop
    if stop is not None and not exit.ok:
        if stop.cause is Cause.CANCELLED:
            return RetryDecision(False, stop.why or f"cancelled by {stop.by}")
        again = run.spec.holder is None and exit.cause in (Cause.NEVER_STARTED, Cause.PREEMPTED, Cause.LOST)
        if stop.cause is Cause.PREEMPTED and again:
            why = f"preempted for {stop.for_run}" if stop.for_run else "preempted"
            return RetryDecision(True, f"{why}; {exit.message}" if exit.killed else why)
    if exit.cause is Cause.LOST and _outlived_limit(desk, run, attempt, exit):
        # it has had its time, and would have it again
        exit = replace(exit, cause=Cause.TIME_LIMIT, killed=True)
    return retry(exit, run, desk.state.policy)


def end_dependents(desk: Desk, run_id: str) -> None:
    """Runs that wait for an end that can no longer come are cancelled, and theirs after them."""
    ended = [run_id]
    while ended:
        dead = ended.pop()
        run = desk.state.runs[dead]
        if run.state not in ENDED:
            continue
        why = f"its dependency {dead} ended as {run.state}"
        for waiter in sorted(desk.state.dependents.get(dead, ())):
            desk.write(e.RunEnded(at=desk.now, run_id=waiter, state=RunState.CANCELLED, why=why))
            ended.append(waiter)
