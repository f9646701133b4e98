"""Cancel, hold, release, reprioritise: what people do to a run that is there."""

from __future__ import annotations

from rota.app.authz import HIGHEST_PRIORITY, Act, Principal, Role, authorise
from rota.app.commands import Cancel, Hold, Release, Reprioritise
from rota.app.desk import Desk, reason
from rota.app.errors import Conflict, Invalid
from rota.app.force import end_by_force
from rota.app.problems import too_long
from rota.app.report import end_reported
from rota.app.settle import end_dependents
from rota.core import events as e
from rota.core import grace
from rota.core.run import ACTIVE, ENDED, Cause, Run, RunState
from rota.core.times import told

SIGTERM, SIGKILL = 15, 9


def cancel(desk: Desk, who: Principal, command: Cancel) -> Run:
    run = desk.live(command.run_id)
    authorise(who, Act.CANCEL, run.user)
    if command.force:
        authorise(who, Act.FORCE)
    if run.state in ENDED:  # ended earlier in this very batch
        raise Conflict(f"run {run.id} has already ended ({run.state})")
    why = reason(command.why, f"cancelled by {who.name}")
    grace_s = _grace_s(desk, who, run, command)
    if run.state not in ACTIVE:
        desk.write(e.RunEnded(at=desk.now, by=who.name, run_id=run.id, state=RunState.CANCELLED, why=why))
        end_dependents(desk, run.id)
        return desk.state.runs[run.id]
    attempt = run.attempt
    assert attempt is not None
    if attempt.reported:  # there is nothing of ours to end
        end_reported(desk, run, RunState.CANCELLED, by=who.name, why=why)
        return desk.state.runs[run.id]
    stop = attempt.stop
    if stop is not None and stop.cause is Cause.RELEASED:
        return run  # a lease on its way back: its process is nobody's to end any more
    if run.spec.holder is not None and run.spec.holder.uid < 0:
        raise Conflict(
            f"lease {run.id} holds GPUs for process {run.spec.holder.pid}, which is not {run.user}'s to end: "
            "give the lease back instead (POST /release), or end the process itself",
            "run_id",
        )
    if command.force and end_by_force(desk, who, run, command.left):
        return desk.state.runs[run.id]
    killed_at = grace.kill_at(desk.state.policy, run)
    if killed_at is not None and (stop is not None or killed_at > desk.now):
        # nothing that is asked for later lengthens what was settled before; a limit that seems long over, although the
        # run is there, is a clock that was set, and no reason to kill without asking
        grace_s = min(grace_s, max(0.0, killed_at - desk.now))
    if stop is None or stop.cause is not Cause.CANCELLED or desk.now + grace_s < stop.at + stop.grace_s:
        desk.write(
            e.StopRequested(
                at=desk.now,
                by=who.name,
                run_id=run.id,
                attempt_id=attempt.id,
                cause=Cause.CANCELLED,
                # without a grace nothing is asked first: a program that begins to save would be killed midway
                signal=SIGTERM if grace_s > 0 else SIGKILL,
                grace_s=grace_s,
                why=command.why,
                long_grace=who.role is Role.ADMIN and command.grace_s is not None,
            )
        )
    return desk.state.runs[run.id]


def _grace_s(desk: Desk, who: Principal, run: Run, command: Cancel) -> float:
    """Return the seconds until SIGKILL: as asked for, else the run's own, which counts in full only for its owner."""
    policy, spec, asked_s = desk.state.policy, run.spec, 0.0 if command.force else command.grace_s
    if asked_s is None:
        return grace.own_s(policy, spec) if who.owner == run.user else grace.for_others_s(policy, spec)
    if not 0 <= asked_s <= 86400:  # NaN is not either
        raise Invalid(f"grace_s: {asked_s} is not between 0 and 86400 seconds", "grace_s")
    if who.role is not Role.ADMIN and asked_s > max(grace.cap_s(policy, spec), grace.own_s(policy, spec)):
        raise Invalid(f"grace_s: {told(asked_s)} {too_long(policy, spec)}", "grace_s")
    return asked_s


def hold(desk: Desk, who: Principal, command: Hold) -> Run:
    run = desk.live(command.run_id)
    authorise(who, Act.HOLD, run.user)
    if run.state is RunState.HELD:
        return run
    if run.state is not RunState.QUEUED:
        raise Conflict(f"run {run.id} is {run.state}; only a waiting run can be held, a running one can be cancelled")
    desk.write(e.RunHeld(at=desk.now, by=who.name, run_id=run.id, why=reason(command.why, f"by {who.name}")))
    return desk.state.runs[run.id]


def release(desk: Desk, who: Principal, command: Release) -> Run:
    run = desk.live(command.run_id)
    authorise(who, Act.RELEASE, run.user)
    if run.state is not RunState.HELD:
        raise Conflict(f"run {run.id} is not held ({run.state})")
    desk.write(e.RunReleased(at=desk.now, by=who.name, run_id=run.id))
    return desk.state.runs[run.id]


def reprioritise(desk: Desk, who: Principal, command: Reprioritise) -> Run:
    run = desk.live(command.run_id)
    authorise(who, Act.REPRIORITISE, run.user)
    if not 1 <= command.priority <= HIGHEST_PRIORITY[who.role]:
        raise Invalid(f"priority: {command.priority} is not from 1 to {HIGHEST_PRIORITY[who.role]}", "priority")
    if run.state is not RunState.QUEUED and not (command.held_too and run.state is RunState.HELD):
        raise Conflict(f"run {run.id} is {run.state}; only a waiting run's priority can be changed")
    if run.priority != command.priority:
        desk.write(e.RunReprioritised(at=desk.now, by=who.name, run_id=run.id, priority=command.priority))
    return desk.state.runs[run.id]
