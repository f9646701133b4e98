"""The ends of a lease that somebody asks for: giving it back, and no longer waiting for it."""

from __future__ import annotations

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import EndLease, Withdraw
from rota.app.desk import Desk
from rota.app.errors import Conflict
from rota.app.settle import end_dependents
from rota.core import events as e
from rota.core.run import WAITING, Cause, Run, RunState

NO_SIGNAL = 0


def end_lease(desk: Desk, who: Principal, command: EndLease) -> Run:
    """Its GPUs are free again, its process lives on. Also the way out for one whose process cannot be ended."""
    run = desk.live(command.run_id)
    authorise(who, Act.RELEASE, run.user)
    attempt = run.attempt
    if run.spec.holder is None:
        raise Conflict(f"run {run.id} is not a lease; cancel it instead", "run_id")
    if attempt is None:
        raise Conflict(f"lease {run.id} is {run.state}: there is nothing to give back; cancel it instead", "run_id")
    if attempt.stop is None or attempt.stop.cause is not Cause.RELEASED:
        desk.write(
            e.StopRequested(
                at=desk.now,
                by=who.name,
                run_id=run.id,
                attempt_id=attempt.id,
                cause=Cause.RELEASED,
                signal=NO_SIGNAL,
                grace_s=0.0,
                why=f"given back by {who.name}",
            )
        )
    return desk.state.runs[run.id]


def withdraw(desk: Desk, who: Principal, command: Withdraw) -> Run:
    run = desk.any(command.run_id)
    authorise(who, Act.CANCEL, run.user)
    if run.spec.holder is not None and run.state in WAITING:
        state = RunState.CANCELLED
        desk.write(e.RunEnded(at=desk.now, by=who.name, run_id=run.id, state=state, why=command.why))
        end_dependents(desk, run.id)
    return desk.any(run.id)
