"""Submit, one or many, and rerun: what is taken in, and on which terms it is refused.

Everything is checked before the first event is written: a refusal leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rota.app import records
from rota.app.authz import HIGHEST_PRIORITY, Act, Principal, Role, authorise, weaker
from rota.app.budget import must_fit_edges, must_fit_one_command
from rota.app.commands import Rerun, Submit, SubmitMany
from rota.app.desk import Desk
from rota.app.errors import Conflict, Full, Invalid, NotFound
from rota.app.ports import KeyRecord
from rota.app.problems import MAX_NAME, must_be_text, must_be_visible, must_fit, problems, too_long
from rota.app.reserved import must_be_usable
from rota.core import codec, grace
from rota.core import events as e
from rota.core.expect import expect
from rota.core.filler import as_filler
from rota.core.run import ENDED, Dependency, Run, satisfied
from rota.core.times import told
from rota.core.usage import Load
from rota.core.weight import WORD_BYTES, Weights

MAX_MANY = 10_000


@dataclass(slots=True)
class _Ahead:
    """What the same command will already have put into the queue."""

    by_user: Counter[str] = field(default_factory=Counter)
    edges: Counter[str] = field(default_factory=Counter)  # by user, dependencies that are open
    held: Counter[str] = field(default_factory=Counter)  # by user
    keys: set[str] = field(default_factory=set)
    used: Mapping[str, KeyRecord] | None = None  # of its keys, where they were looked up together
    weights: Weights | None = None  # None = it is only one run
    shapes: Counter[str] = field(default_factory=Counter)  # by user, those that none of their live runs has


@dataclass(frozen=True, slots=True)
class _Ready:
    """A submit that may be written; `known` is the run its key stands for already."""

    command: Submit
    user: str
    digest: str
    waiting_on: tuple[Dependency, ...] = ()
    records: tuple[records.Checked, ...] = ()
    known: Run | None = None


def submit(desk: Desk, who: Principal, command: Submit) -> Run:
    if not command.checked:
        must_fit(command, Submit)
    ready = _check(desk, who, command, digest_of(command), _Ahead())
    return ready.known or _write(desk, who, ready)


def submit_many(desk: Desk, who: Principal, command: SubmitMany) -> list[Run]:
    if not _all_checked(command.submits):
        must_fit(command, SubmitMany)
    if len(command.submits) > MAX_MANY:
        raise Invalid(f"submits: {len(command.submits)} at once are too many, use at most {MAX_MANY}", "submits")
    must_fit_one_command(command)
    used = desk.used_keys(who, [one.key for one in command.submits if one.key])
    weights = Weights()
    ahead = _Ahead(weights=weights, used=used)
    ready = [_check(desk, who, one, digest_of(one), ahead) for one in command.submits]
    words = sum(len(one.spec.argv) for one in command.submits)  # this bound is for what is written, not for memory
    must_fit_one_command(command, sum(weights.by_user.values()) - WORD_BYTES * words)
    known = [one.known for one in ready if one.known is not None]
    if known and len(known) == len(ready):
        return known
    if known:
        raise Conflict(f"key: some of these were submitted before ({known[0].id}) and some were not", "key")
    written = records.check_all(desk, who, command.records, who.owner)
    for draft in written:
        records.write(desk, who, draft)
    return [_write(desk, who, one) for one in ready]


def rerun(desk: Desk, who: Principal, command: Rerun) -> Run:
    must_fit(command, Rerun)
    old = desk.any(command.run_id)
    authorise(who, Act.RERUN, old.user)
    if old.spec.holder is not None:
        raise Conflict(f"run {old.id} is a lease: there is no command to run again; ask for a new lease", "run_id")
    desk.accounts.must_be_own(who, old)
    labels = {**old.spec.labels, "parent_run_id": old.id, **(command.labels or {})}
    spec = replace(
        old.spec,
        name=f"{old.spec.name[: MAX_NAME - 8]} (Rerun)",
        argv=old.spec.argv if command.argv is None else command.argv,
        workdir=old.spec.workdir if command.workdir is None else command.workdir,
        depends_on=(),
        group="" if command.alone else old.spec.group,
        replaced=None,
        grace_s=old.spec.grace_s if who.role is Role.ADMIN else grace.for_others_s(desk.state.policy, old.spec),
        reservation=old.spec.reservation if old.spec.reservation in desk.state.reservations else "",
        labels={name: value for name, value in labels.items() if value},
    )
    again = Submit(spec, user=old.user, held=command.held, key=command.key)
    # of the request itself: the old run may have been edited between two sends of it
    digest = _hash(["rerun", codec.encode(replace(command, alone=False))]) if command.key else ""
    ready = _check(desk, who, again, digest, _Ahead())
    return ready.known or _write(desk, who, ready)


def _check(desk: Desk, who: Principal, command: Submit, digest: str, ahead: _Ahead) -> _Ready:
    user = command.user or who.owner
    authorise(who, Act.SUBMIT, user)
    must_be_text(user=user, key=command.key)
    must_be_visible(user=user)
    known = _known(desk, who, command, digest, ahead)
    if known is not None:
        return _Ready(command, user, digest, known=known)
    command = _with_shared_env(desk, command)
    judged = _judged(who, user, command.author)
    for name, problem in problems(desk, command.spec, HIGHEST_PRIORITY[judged.role]):
        raise Invalid(f"{name}: {problem}", name)
    desk.envs.mark_sound(command.spec.env)
    if command.spec.reservation:
        must_be_usable(desk, judged, user, command.spec, blind=command.blind)
    if command.spec.filler:
        command = replace(command, spec=as_filler(command.spec))
    if judged.role is Role.AGENT:
        command = replace(command, spec=replace(command.spec, agent_estimate=True))
    command = _with_account(desk, judged, _with_grace(desk, judged, command))
    _room(desk, judged, user, command, ahead)
    _must_fit_budget(desk, judged, user, command, ahead)
    waiting_on = _pending(desk, command.spec.depends_on, judged.owner if command.blind else None)
    if waiting_on:
        ahead.edges[user] += len(waiting_on)
        must_fit_edges(desk.state, user, ahead.edges[user])
    written = records.check_all(desk, who, command.records, user, blank=True)
    ahead.by_user[user] += 1
    ahead.held[user] += command.held
    return _Ready(command, user, digest, waiting_on, written)


def _judged(who: Principal, user: str, author: Role | None) -> Principal:
    """Return by whose rights a submit is judged: who starts what another wrote lends that one neither an account nor
    any other right, and gets none by it."""
    if author is None or weaker(who.role, author) is Role.ADMIN:
        return who
    return Principal(user, weaker(who.role, author))


def _with_account(desk: Desk, who: Principal, command: Submit) -> Submit:
    """As what it will run. A lease runs nothing: its process has the account it has."""
    spec = command.spec
    account = None if spec.holder is not None else desk.accounts.choose(who, spec.account)
    return command if account == spec.account else replace(command, spec=replace(spec, account=account))


def _with_shared_env(desk: Desk, command: Submit) -> Submit:
    env = desk.envs.share(command.spec.env)
    return command if env is command.spec.env else replace(command, spec=replace(command.spec, env=env))


def _must_fit_budget(desk: Desk, who: Principal, user: str, command: Submit, ahead: _Ahead) -> None:
    if desk.checkpoints is not None and command.spec.holder is None:
        desk.checkpoints.must_fit(who, user)
    request = command.spec.request
    if not desk.state.weights.has_shape(user, request):
        if ahead.weights is None or not ahead.weights.has_shape(user, request):
            ahead.shapes[user] += 1
        desk.budget.must_fit_shapes(desk.state, who, user, ahead.shapes[user])
    if ahead.weights is None:
        more = desk.state.weights.added_by(user, command.spec)
    else:
        ahead.weights.add(user, command.spec)
        more = ahead.weights.of(user)
    desk.budget.must_fit_live(desk.state, who, user, more)


def _with_grace(desk: Desk, who: Principal, command: Submit) -> Submit:
    """Refuse a grace above the policy's cap, by which a run would outlive its time limit; an admin may give one. The
    default was not asked for, and is only cut to the cap when the run is stopped."""
    spec, policy = command.spec, desk.state.policy
    above = spec.grace_s > max(grace.cap_s(policy, spec), grace.PROMPT_S)
    granted = above and who.role is Role.ADMIN
    if above and not granted:
        raise Invalid(f"grace_s: {told(spec.grace_s)} {too_long(policy, spec)}", "grace_s")
    return command if spec.long_grace == granted else replace(command, spec=replace(spec, long_grace=granted))


def _known(desk: Desk, who: Principal, command: Submit, digest: str, ahead: _Ahead) -> Run | None:
    """The run this key stands for already."""
    key = command.key
    if not key:
        return None
    if key in ahead.keys:
        raise Invalid(f"key: {key!r} is given twice in one request; each run needs its own", "key")
    ahead.keys.add(key)
    known = desk.key(who, key) if ahead.used is None else ahead.used.get(key)
    if known is None:
        return None
    if known.digest != digest and known.digest != _older_digest(command):
        raise Conflict(f"key {key!r} was used for another request ({known.run_id}); use a new key", "key")
    return desk.any(known.run_id)


def _write(desk: Desk, who: Principal, ready: _Ready) -> Run:
    command, user = ready.command, ready.user
    run_id = desk.new_id()
    while run_id in desk.state.runs:
        run_id = desk.new_id()
    expected_s, expected_from, belief = expect(desk.state, user, command.spec)
    desk.write(
        e.RunSubmitted(
            at=desk.now,
            by=who.name,
            run_id=run_id,
            seq=desk.state.next_seq,
            user=user,
            spec=command.spec,
            held=command.held,
            waiting_on=ready.waiting_on,
            expected_s=expected_s,
            expected_from=expected_from,
            belief=belief,
        )
    )
    for draft in ready.records:
        records.write(desk, who, draft, run_id)
    if command.key:
        desk.keep_key(who, command.key, ready.digest, run_id)
    return desk.state.runs[run_id]


def _all_checked(submits: Any) -> bool:
    """Any: people's own Python may send anything, and then it has not been checked."""
    return isinstance(submits, tuple) and all(isinstance(one, Submit) and one.checked for one in submits)


def digest_of(command: Submit) -> str:
    """Of what was asked for. Left out where it is not there: a key of last week stays good."""
    if not command.key or command.digest:
        return command.digest
    parts: list[Any] = [codec.encode(command.sent or command.spec), command.user, command.held]
    if command.records:
        parts.append([codec.encode(draft) for draft in command.records])
    return _hash(parts)


def _older_digest(command: Submit) -> str | None:
    """Return the digest that older versions kept, which had in it what the server filled in; None = it is the same."""
    return None if command.sent is None else digest_of(replace(command, sent=None, digest=""))


def _hash(parts: list[Any]) -> str:
    text = json.dumps(parts, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _room(desk: Desk, who: Principal, user: str, command: Submit, ahead: _Ahead) -> None:
    policy, state, gpus = desk.state.policy, desk.state, command.spec.request.gpus
    waiting, load = state.waiting + ahead.by_user.total(), state.load.get(user, Load())
    if waiting >= policy.max_queue:
        raise Full(f"Queue is full (max {policy.max_queue} jobs)", "queue")
    if command.max_waiting and waiting - state.held - ahead.held.total() >= command.max_waiting:
        others = sum(other.queued > other.held for name, other in state.load.items() if name != user)
        mine = load.queued - load.held + ahead.by_user[user] - ahead.held[user]
        if mine >= command.max_waiting // (1 + others):
            raise Full(f"Queue is full (max {command.max_waiting} jobs)", "queue")
    limits = policy.limits_of(user)
    if limits.gpus and gpus > limits.gpus:
        raise Invalid(f"gpus: {user} may hold {limits.gpus} GPUs at a time, so {gpus} would never start", "gpus")
    queued = load.queued + ahead.by_user[user]
    if limits.queued and queued >= limits.queued:
        raise Full(f"{user} has {queued} runs waiting, the limit is {limits.queued}; cancel some or wait")
    desk.budget.must_fit_share(state, who, user, queued, waiting - queued)


def _pending(desk: Desk, wanted: tuple[Dependency, ...], only: str | None) -> tuple[Dependency, ...]:
    """The dependencies that are still open. One that can no longer come true is refused at once. `only`: whose runs the
    caller may know of; another's looks like none."""
    left = []
    for dependency in wanted:
        try:
            run = desk.any(dependency.run_id)
            if only not in (None, run.user):
                raise NotFound(f"no run {run.id!r}")
        except NotFound as error:
            raise Invalid(f"depends_on: {error.message}", "depends_on") from None
        if run.state not in ENDED:
            left.append(dependency)
        elif not satisfied(dependency.when, run.state):
            raise Invalid(
                f"depends_on: {run.id} has ended already ({run.state}), so this would never start", "depends_on"
            )
    return tuple(left)
