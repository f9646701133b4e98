"""Submit and rerun: what is taken in, and on which terms it is refused."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from rota.app.authz import HIGHEST_PRIORITY, Act, Principal, Role, authorise
from rota.app.commands import Rerun, Submit
from rota.app.desk import Desk
from rota.app.errors import Conflict, Forbidden, Full, Invalid
from rota.app.ports import KeyRecord
from rota.core import codec
from rota.core import events as e
from rota.core.conform import misfit
from rota.core.explain import describe
from rota.core.place import could_ever_fit
from rota.core.predict import expectation
from rota.core.run import ENDED, Dependency, Run, Spec, satisfied

MAX_ARGV_BYTES = 128 * 1024  # one argument of execve may not be longer on Linux
MAX_ENV_BYTES = 256 * 1024
MAX_LABELS = 64
MAX_NAME = 500  # characters; of a name, a person, a key, a GPU type
MAX_PATH = 4096  # bytes, Linux's PATH_MAX
MAX_AMOUNT = 1e9  # of CPUs or GB: more than any machine has, less than what no longer adds up
MAX_SECONDS = 10 * 365 * 86400.0
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\0]+%%")  # the latter: `module` on every HPC cluster


def submit(desk: Desk, who: Principal, command: Submit) -> Run:
    wrong = misfit(command, Submit)
    if wrong:
        *path, problem = wrong.removeprefix("spec: ").removeprefix("request: ").split(": ", 1)
        raise Invalid(wrong, path[0] if path else None)
    user = command.user or who.owner
    authorise(who, Act.SUBMIT, user)
    for field, text in (("user", user), ("key", command.key)):
        for problem in _unfit(text, MAX_NAME):
            raise Invalid(f"{field}: {problem}", field)
    digest = _digest(command) if command.key else ""
    known = desk.key(who, command.key) if command.key else None
    if known is not None:
        if known.digest != digest:
            raise Conflict(f"key {command.key!r} was used for another request ({known.run_id}); use a new key", "key")
        return desk.any(known.run_id)
    for field, problem in _problems(desk, command.spec, HIGHEST_PRIORITY[who.role]):
        raise Invalid(f"{field}: {problem}", field)
    if command.spec.account not in (None, user) and who.role is not Role.ADMIN:
        raise Forbidden(
            f"account: {who.name} may run as {user}, not as {command.spec.account}; ask an admin", "account"
        )
    _room(desk, user, command.spec)
    run_id = desk.new_id()
    while run_id in desk.state.runs:
        run_id = desk.new_id()
    expected_s, expected_from = expectation(
        desk.state.history, user, command.spec, desk.state.policy.default_expected_s
    )
    desk.write(
        e.RunSubmitted(
            at=desk.now,
            by=who.name,
            run_id=run_id,
            seq=desk.state.next_seq,
            user=user,
            spec=command.spec,
            held=command.held,
            waiting_on=_pending(desk, command.spec.depends_on),
            expected_s=expected_s,
            expected_from=expected_from,
        )
    )
    if command.key:
        desk.keys[who.name, command.key] = KeyRecord(who.name, command.key, digest, run_id, desk.now)
    return desk.state.runs[run_id]


def rerun(desk: Desk, who: Principal, command: Rerun) -> Run:
    old = desk.any(command.run_id)
    authorise(who, Act.RERUN, old.user)
    spec = replace(
        old.spec,
        name=f"{old.spec.name[: MAX_NAME - 8]} (Rerun)",
        argv=old.spec.argv if command.argv is None else command.argv,
        depends_on=(),
        labels={**old.spec.labels, "parent_run_id": old.id},
    )
    return submit(desk, who, Submit(spec, user=old.user, held=command.held, key=command.key))


def _digest(command: Submit) -> str:
    text = json.dumps([codec.encode(command.spec), command.user, command.held], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _room(desk: Desk, user: str, spec: Spec) -> None:
    policy, state = desk.state.policy, desk.state
    if state.waiting >= policy.max_queue:
        raise Full(f"Queue is full (max {policy.max_queue} jobs)")
    most = policy.limits_of(user).gpus
    if most and spec.request.gpus > most:
        raise Invalid(f"gpus: {user} may hold {most} GPUs at a time, so {spec.request.gpus} would never start", "gpus")
    limit = policy.limits_of(user).queued
    load = state.load.get(user)
    if limit and load is not None and load.queued >= limit:
        raise Full(f"{user} has {load.queued} runs waiting, the limit is {limit}; cancel some or wait")


def _pending(desk: Desk, wanted: tuple[Dependency, ...]) -> tuple[Dependency, ...]:
    """The dependencies that are still open. One that can no longer come true is refused at once."""
    left = []
    for dependency in wanted:
        run = desk.any(dependency.run_id)
        if run.state not in ENDED:
            left.append(dependency)
        elif not satisfied(dependency.when, run.state):
            raise Invalid(f"depends_on: {run.id} has already {run.state}, so this would never start", "depends_on")
    return tuple(left)


def _problems(desk: Desk, spec: Spec, highest_priority: int) -> Iterator[tuple[str, str]]:
    """(field, what is wrong and what would be right), the first few that matter."""
    yield from _text_problems(spec)
    yield from _number_problems(spec, highest_priority)
    yield from _request_problems(desk, spec)
    if len(spec.depends_on) > 100:
        yield "depends_on", f"{len(spec.depends_on)} runs are too many, use at most 100"


def _text_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    if not spec.argv or not spec.argv[0]:
        yield "command", "is empty; give what to run"
    if sum(_size(part) for part in spec.argv) > MAX_ARGV_BYTES:
        yield "command", f"is longer than {MAX_ARGV_BYTES} bytes; put it into a script"
    if not spec.workdir.startswith("/"):
        yield "workdir", f"{spec.workdir[:200]!r} is not an absolute path"
    if not spec.name:
        yield "name", f"must have 1 to {MAX_NAME} characters"
    if spec.account == "":
        yield "account", "is empty; leave it out for the server's own"
    texts = [("command", part, MAX_ARGV_BYTES) for part in spec.argv]
    texts += [("workdir", spec.workdir, MAX_PATH), ("name", spec.name, MAX_NAME)]
    texts += [("account", spec.account or "", MAX_NAME), ("gpu_type", spec.request.gpu_type, MAX_NAME)]
    yield from ((field, problem) for field, text, limit in texts for problem in _unfit(text, limit))
    yield from _pairs("env", spec.env, MAX_ENV_BYTES)
    yield from _pairs("labels", spec.labels, MAX_ENV_BYTES)
    for name in spec.env:
        if not ENV_NAME.fullmatch(name):
            yield "env", f"{name[:200]!r} is not a name a variable can have"
    if len(spec.labels) > MAX_LABELS:
        yield "labels", f"at most {MAX_LABELS}"


def _unfit(text: str, limit: int = MAX_ENV_BYTES) -> Iterator[str]:
    """What keeps a text from being an argument, a file name or a row."""
    if len(text) > limit:
        yield f"has {len(text)} characters, use at most {limit}"
    if "\0" in text:
        yield "holds a NUL character"
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        yield "is not valid Unicode: it holds half of a surrogate pair"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _pairs(field: str, pairs: Mapping[str, str], limit: int) -> Iterator[tuple[str, str]]:
    size = 0
    for name, value in pairs.items():
        size += _size(name) + _size(value)
        for problem in (*_unfit(name), *_unfit(value)):
            yield field, f"{name[:200]!r} {problem}"
    if size > limit:
        yield field, f"is larger than {limit} bytes"


def _number_problems(spec: Spec, highest_priority: int) -> Iterator[tuple[str, str]]:
    if not 1 <= spec.priority <= 4:
        yield "priority", f"{spec.priority} is not one of 1 (low), 2 (normal), 3 (high), 4 (critical)"
    elif spec.priority > highest_priority:
        yield "priority", f"{spec.priority} is above what you may ask for ({highest_priority})"
    for field in ("estimate_s", "time_limit_s"):
        value = getattr(spec, field)
        if value is not None and not 0 < value <= MAX_SECONDS:  # nor NaN
            yield field, f"{value} is not a time in seconds above 0"
    if not 0 <= spec.grace_s <= 86400:
        yield "grace_s", f"{spec.grace_s} is not between 0 and 86400 seconds"
    if not 0 <= spec.max_retries <= 100:
        yield "max_retries", f"{spec.max_retries} is not between 0 and 100"
    if not 0 <= spec.umask <= 0o777:
        yield "umask", f"{spec.umask} is not between 0 and 0o777"
    if not 1 <= spec.checkpoint_signal <= 31:
        yield "checkpoint_signal", f"{spec.checkpoint_signal} is not a signal number from 1 to 31"
    if not 4096 <= spec.log_cap_bytes <= 1 << 50:
        yield "log_cap_bytes", f"{spec.log_cap_bytes} is too small, use 4096 or more"


def _request_problems(desk: Desk, spec: Spec) -> Iterator[tuple[str, str]]:
    request = spec.request
    if not 0 <= request.gpus <= 100_000:
        yield "gpus", f"{request.gpus} is not a number of GPUs from 0 up"
        return
    if not 0 <= request.nodes <= 10_000:
        yield "nodes", f"{request.nodes} is not a number of nodes from 0 up"
        return
    if request.nodes > 1 and request.gpus % request.nodes:
        yield "gpus", f"{request.gpus} cannot be shared evenly by {request.nodes} nodes"
    for field in ("gpu_memory_gb", "memory_gb", "cpus"):
        value = getattr(request, field)
        if not 0 <= value <= MAX_AMOUNT:
            yield field, f"{value} is negative, absurdly large or not a number"
            return
    if not could_ever_fit(desk.state.board.layout, request):
        layout = desk.state.board.layout
        total = sum(len(node.gpus) for node in layout.nodes)
        have = f"{len(layout.nodes)} nodes, {total} GPUs, at most {layout.max_gpus} on one node"
        yield "gpus", f"this cluster can never give {describe(request)}; it has {have}"
