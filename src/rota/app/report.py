"""Reports on a run that is carried elsewhere, from whoever carries it. Rota keeps the books and touches nothing.

Such a run has an attempt like any other, but a `reported` one: it holds no GPU of ours, is neither launched nor looked
at, and survives our restarts. It moves by the same table and the same events as everything else.
"""

from __future__ import annotations

from rota.app.authz import Act, Principal, Role, authorise
from rota.app.commands import Edit, Report
from rota.app.desk import Desk
from rota.app.edit import edit
from rota.app.errors import Full, Invalid, NoSpace
from rota.app.problems import must_fit
from rota.app.settle import end_dependents
from rota.core import events as e
from rota.core.ids import attempt_id
from rota.core.run import ACTIVE, ENDED, WAITING, Cause, Exit, Run, RunState

MAX_ERROR = 2000  # characters of the text of an end, with the mark that it was cut
# The same for a person whose budget is spent, and below the floor of the disk: an end is always recorded, so its size
# times MAX_ELSEWHERE is what can be written in spite of both.
MAX_ERROR_SHORT = 200
# Runs of one person that are carried elsewhere and have not ended. They wait for nothing here, so no bound of the queue
# counts them, and every start of the server reads them.
MAX_ELSEWHERE = 5000
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
    moves = target is not run.state
    if moves:
        _refuse(run, target)
    # the rest of a life that was begun here writes a few rows for each run, once, and tells what became of it
    goes_on = moves and (target in ENDED or run.state in ACTIVE)
    labels = {name: text for name, text in (command.labels or {}).items() if run.spec.labels.get(name, "") != text}
    lack = _lack(desk, who)
    if lack is not None and not goes_on and (moves or labels):
        raise lack
    if moves and not goes_on:
        _must_fit_elsewhere(desk, who, run)
    if labels and lack is None:
        try:
            run = edit(desk, who, Edit(run.id, labels=labels))
        except Full:  # the live runs have no room for a label; an end needs none
            if not goes_on:
                raise
    if not moves:
        return run
    error = _shortened(command.error, MAX_ERROR if lack is None else MAX_ERROR_SHORT)
    if target is RunState.CANCELLED and run.state in WAITING:
        why = error or f"reported as cancelled by {who.name}"
        desk.write(e.RunEnded(at=desk.now, by=who.name, run_id=run.id, state=target, why=why))
        end_dependents(desk, run.id)
    else:
        _advance(desk, who, run, target)
        if target in ENDED:
            end_reported(desk, desk.state.runs[run.id], target, by=who.name, code=command.exit_code, why=error)
    return desk.state.runs[run.id]


def _lack(desk: Desk, who: Principal) -> Full | NoSpace | None:
    """Return the refusal that other writes would meet: the person's budget is spent, or the disk is nearly full."""
    try:
        desk.budget.must_fit_ledger(who, desk.now)
        desk.must_have_space()
    except (Full, NoSpace) as error:
        return error
    return None


def _must_fit_elsewhere(desk: Desk, who: Principal, run: Run) -> None:
    open_runs = desk.state.elsewhere_by_user.get(run.user, 0)
    if who.role is not Role.ADMIN and open_runs >= MAX_ELSEWHERE:
        raise Full(
            f"{run.user} has {open_runs:,} runs that are carried elsewhere and have not ended, the limit is "
            f"{MAX_ELSEWHERE:,} a person; report the end of some, or cancel them"
        )


def _shortened(text: str, most: int) -> str:
    """Return a text of at most `most` characters that says how long it was if it was longer."""
    text = text.replace("\0", " ")
    if len(text) <= most:
        return text
    mark = f" [cut, {len(text):,} characters]"
    return text[: most - len(mark)] + mark


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
