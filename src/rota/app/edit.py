"""Edit and archive: what people change about a run that is there, even after its end."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from rota.app.authz import HIGHEST_PRIORITY, Act, Principal, Role, authorise
from rota.app.commands import Archive, Edit
from rota.app.desk import Desk
from rota.app.errors import Conflict, Forbidden, Invalid
from rota.app.problems import must_fit, text_problems
from rota.core import events as e
from rota.core.argv import SHELL, command_of
from rota.core.expect import expect
from rota.core.run import ENDED, Replaced, Run, Spec
from rota.core.weight import own_bytes

MAX_REPLACED = 2000  # characters of the command that is kept of a run that was edited after it had run


def edit(desk: Desk, who: Principal, command: Edit) -> Run:
    must_fit(command, Edit)
    run = desk.any(command.run_id)
    authorise(who, Act.EDIT, run.user)
    if command.argv is not None or command.workdir is not None:
        desk.accounts.must_be_own(who, run)
    _refuse_blanks(command)
    spec = _edited(run.spec, command)
    for field, problem in text_problems(spec):
        raise Invalid(f"{field}: {problem}", field)
    changed = [name for name in ("argv", "workdir") if getattr(spec, name) != getattr(run.spec, name)]
    if changed and run.priority > HIGHEST_PRIORITY[who.role]:
        raise Forbidden(
            f"run {run.id} has priority {run.priority}, and {who.name} may submit with {HIGHEST_PRIORITY[who.role]} at "
            "most: another command in it would run with that priority; rerun it instead"
        )
    if changed and run.attempt is not None:
        what = "command" if "argv" in changed else "workdir"
        raise Conflict(f"{what}: run {run.id} is {run.state}; it can be changed only while no attempt is live", what)
    if spec == run.spec:
        return run
    if changed and run.attempts_made and spec.replaced is None:
        spec = replace(spec, replaced=_replaced(run.spec))
    if changed and who.role is Role.AGENT:
        spec = replace(spec, agent_estimate=True)
    more = own_bytes(spec) - own_bytes(run.spec)
    if run.state not in ENDED and more > 0:
        desk.budget.must_fit_live(desk.state, who, run.user, more)
    event = e.RunEdited(at=desk.now, by=who.name, run_id=run.id, spec=spec)
    if changed and run.state not in ENDED:  # what was expected of the other command says nothing of this one
        expected_s, source, belief = expect(desk.state, run.user, spec)
        event = replace(event, expected_s=expected_s, expected_from=source, belief=belief)
    return desk.amend(event, replace(run, spec=spec))


def archive(desk: Desk, who: Principal, command: Archive) -> Run:
    must_fit(command, Archive)
    run = desk.any(command.run_id)
    authorise(who, Act.ARCHIVE, run.user)
    if (run.archived_at is not None) == command.archived:
        return run
    event = e.RunArchived(at=desk.now, by=who.name, run_id=run.id, archived=command.archived)
    return desk.amend(event, replace(run, archived_at=desk.now if command.archived else None))


def _refuse_blanks(command: Edit) -> None:
    for field in ("name", "workdir"):
        text = getattr(command, field)
        if text is not None and not text.strip():
            raise Invalid(f"{field}: is blank; leave it out to keep what is there", field)
    argv = command.argv
    if argv is not None and not any(part.strip() for part in (argv[2:] if argv[:2] == SHELL else argv)):
        raise Invalid("command: is blank; leave it out to keep what is there", "command")


def _replaced(spec: Spec) -> Replaced:
    """Return what the first attempt of a run was started with: the run must not say that this was something else."""
    command = command_of(spec.argv)
    if len(command) <= MAX_REPLACED:
        return Replaced(command, spec.workdir)
    whole = hashlib.sha256(command.encode("utf-8", "surrogateescape")).hexdigest()
    return Replaced(command[:MAX_REPLACED], spec.workdir, whole)


def _edited(spec: Spec, command: Edit) -> Spec:
    given = {name: getattr(command, name) for name in ("name", "argv", "workdir", "group")}
    changes = {name: value for name, value in given.items() if value is not None}
    if command.labels is not None:
        merged = {**spec.labels, **command.labels}
        changes["labels"] = {name: value for name, value in merged.items() if value}
    return replace(spec, **changes)
