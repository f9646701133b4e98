"""Reports on a run that is carried elsewhere, from whoever carries it. Rota keeps the books and touches nothing.

Such a run has an attempt like any other, but a `reported` one: it holds no GPU of ours, is neither launched nor looked
at, and survives our restarts. It moves by the same table and the same events as everything else.
"""

from __future__ import annotations

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import Edit, Report
from rota.app.desk import Desk
from rota.app.edit import edit
from rota.app.errors import Invalid
from rota.app.problems import must_fit
from rota.app.settle import end_dependents
from rota.core import events as e
from rota.core.ids import attempt_id
from rota.core.run import ACTIVE, ENDED, WAITING, Cause, Exit, Run, RunState

MAX_ERROR = 4000
CODES = range(-(1 << 31), 1 << 31)
NOBODY = 0  # the pid of what runs where we do not look
REPORTABLE = ACTIVE | {RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED}


def report(desk: Desk, who: Principal, command: Report) -> Run:
    must_fit(command, Report)
    run = desk.any(command.run_id)
    authorise(who, Act.REPORT, run.user)
    if command.exit_code is not None and command.exit_code not in CODES:
        raise Invalid(f"exit_code: {command.exit_code} is no exit code", "exit_code")
    target = command.state
    if target is RunState.SUCCEEDED and command.exit_code:
        target = RunState.FAILED  # whatever word it used, a code that is not 0 is no success
    if target is not run.state:
        _refuse(run, target)
    if command.labels:
        run = edit(desk, who, Edit(run.id, labels=command.labels))
    if target is run.state:
        return run
    if target is RunState.CANCELLED and run.state in WAITING:
        why = command.error or f"reported as cancelled by {who.name}"
        desk.write(e.RunEnded(at=desk.now, by=who.name, run_id=run.id, state=target, why=why[:MAX_ERROR]))
        end_dependents(desk, run.id)
    else:
        _advance(desk, who, run, target)
        if target in ENDED:
            error = command.error.replace("\0", " ")[:MAX_ERROR]
            end_reported(desk, desk.state.runs[run.id], target, by=who.name, code=command.exit_code, why=error)
    return desk.state.runs[run.id]


def end_reported(desk: Desk, run: Run, state: RunState, *, by: str, code: int | None = None, why: str = "") -> None:
    """The end of a run that is carried elsewhere. Never tried again: that is for its carrier to do."""
    attempt = run.attempt
    assert attempt is not None
    assert attempt.reported
    if state is RunState.SUCCEEDED:
        exit = Exit(Cause.EXITED, code=0)
    elif state is RunState.FAILED:
        exit = Exit(Cause.EXITED, code=code or None, message=why)  # a failure with code 0 is still a failure
        why = why or (f"exit code {code}" if code else f"reported as failed by {by}")
    else:
        exit = Exit(Cause.CANCELLED, code=code, message=why)
        why = why or f"reported as cancelled by {by}"
    desk.write(
        e.AttemptEnded(
            at=desk.now,
            by=by,
            run_id=run.id,
            attempt_id=attempt.id,
            exit=exit,
            gpu_s=0.0,
            next=state,
            why=why,
        )
    )
    end_dependents(desk, run.id)


def _refuse(run: Run, target: RunState) -> None:
    """What cannot be reported of this run, by what it is now."""
    move = f"from {run.state} to {target}"
    if target not in REPORTABLE:
        allowed = ", ".join(sorted(REPORTABLE))
        raise Invalid(f"status: a report cannot move run {run.id} {move}; it can say {allowed}", "status")
    if run.state in ENDED:
        raise Invalid(f"status: run {run.id} has ended as {run.state}; it cannot go {move}", "status")
    if run.spec.holder is not None:
        raise Invalid(f"status: run {run.id} is a lease and goes by its process; it cannot go {move}", "status")
    if run.attempt is not None and not run.attempt.reported:
        raise Invalid(
            f"status: Rota runs this itself and sees for itself how it fares; a report cannot move it {move}", "status"
        )
    if run.state is RunState.RUNNING and target is RunState.STARTING:
        raise Invalid(f"status: run {run.id} cannot go {move}", "status")


def _advance(desk: Desk, who: Principal, run: Run, target: RunState) -> None:
    """Every step of the table up to the last but one, or to the target itself."""
    if run.state is RunState.HELD:
        desk.write(e.RunReleased(at=desk.now, by=who.name, run_id=run.id))
    if run.state in WAITING:
        desk.write(
            e.AttemptPlanned(
                at=desk.now,
                by=who.name,
                run_id=run.id,
                attempt_id=attempt_id(run.id, run.attempts_made + 1),
                tick=desk.tick,
                fence=desk.state.epoch,
                placement=(),
                reported=True,
            )
        )
    run = desk.state.runs[run.id]
    assert run.attempt is not None
    if run.state is RunState.STARTING and target in (RunState.RUNNING, RunState.SUCCEEDED):
        started = run.attempt.id
        desk.write(e.AttemptStarted(at=desk.now, by=who.name, run_id=run.id, attempt_id=started, pid=NOBODY))
