"""Every call to the server, described once: what is sent, and what the answer means. Both clients bind these."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rota.client import answers, given
from rota.client.environment import exported, must_be_sendable
from rota.client.exchange import Call, new_key
from rota.client.known import OF_A_RERUN, OF_A_RUN, OF_A_SWEEP, must_be_known
from rota.client.wire import quote

if TYPE_CHECKING:
    from rota.client.model.access import Token, Whoami
    from rota.client.model.calibration import Calibration
    from rota.client.model.cluster import Capacity, Job, Node, Queue, Usage
    from rota.client.model.reservation import Reservation
    from rota.client.model.run import Eta, Explanation, LogChunk, Run
    from rota.client.model.sweep import Sweep

Json = answers.Json
T = TypeVar("T")


def submit(
    command: str | Sequence[str | os.PathLike[str]],
    *,
    name: str = "",
    workdir: str | os.PathLike[str] | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    inherit: bool = True,
    held: bool = False,
    dry_run: bool = False,
    strict: bool = False,
    idempotency_key: str = "",
    **more: Any,
) -> Call[Run]:
    """A command to be run: a shell line, or a list of words that no shell looks at.

    It runs where you are: in this process's directory (`workdir=""`: the server's own) and with its environment, less
    Rota's tokens and what names the job around it. `env` adds to that or changes it; with `inherit=False` it is all
    there is.
    `more` are further fields of POST /runs, such as priority, time_limit_seconds, depends_on, tags, workspace.
    A field that the server does not know, being older than this client, is named in the run's `ignored`; with
    `strict=True` the server refuses it instead."""
    must_be_known("submit", more, OF_A_RUN, ("gpus", "held", "dry_run", "env", "inherit", "workdir", "name"))
    line, words = given.command(command)
    body: dict[str, Any] = {"auto_start": not held}
    body |= {"command": line} if isinstance(command, str) else {"argv": words}
    first = next(iter(line.split() or words), "")
    body["name"] = name or first.rpartition("/")[2][:200] or "run"
    body |= _surroundings(workdir, env, inherit)
    body |= given.gpus(gpus, more)
    body |= {field: value for field, value in more.items() if value is not None}
    return Call(
        "POST", "/runs", answers.run, query=_query(dry_run, strict), body=body, key=idempotency_key or new_key()
    )


def _surroundings(
    workdir: str | os.PathLike[str] | None, env: Mapping[str, str] | None, inherit: bool
) -> dict[str, Any]:
    place = os.getcwd() if workdir is None else given.path("workdir", workdir)
    where = {"workdir": os.path.abspath(place)} if place else {}
    said = given.variables(env or {})
    for name in said:
        must_be_sendable(name)
    return {**where, "env": {**exported("ALL", os.environ), **said} if inherit else said}


def run(run_id: str) -> Call[Run]:
    """One run, with all its attempts."""
    return Call("GET", f"/runs/{_id('run_id', run_id)}", answers.run)


def runs_page(
    *,
    status: str = "",
    user: str = "",
    sweep_id: str = "",
    archived: bool = False,
    limit: int = 100,
    cursor: str = "",
) -> Call[list[Run]]:
    """Runs, newest first, up to `limit`; `cursor` is the header X-Next-Cursor of the page before. See `runs`."""
    query = {"status": status, "user": user, "sweep_id": sweep_id, "cursor": cursor}
    query = {name: given.text(name, value) for name, value in query.items() if value}
    return Call("GET", "/runs", answers.runs, query={**query, "archived": _bool(archived), "limit": str(limit)})


def queue() -> Call[Queue]:
    """What waits, in order, and what is active."""
    return Call("GET", "/queue", answers.queue)


def job(job_id: str) -> Call[Job]:
    """A run in the words of the queue; costs the server less than `run`."""
    return Call("GET", f"/queue/{_id('job_id', job_id)}", answers.job)


def cancel(
    run_id: str, *, grace_s: float | None = None, now: bool = False, force: bool = False, dry_run: bool = False
) -> Call[Json]:
    """End a run, waiting or active. `grace_s` is how long its processes get between the polite signal and SIGKILL; with
    `now` they are killed at once. The answer's `kill_at` is when an active run is killed at the latest. `force`, for
    admins: as `now`; called again 10 s after that it ends the run on record and gives its GPUs back, although
    processes of it are there that did not end and may still use them."""
    query = _stop(grace_s, now or force, dry_run) | ({"force": "true"} if force else {})
    return Call("POST", f"/runs/{_id('run_id', run_id)}/stop", answers.plain, query=query)


def _stop(grace_s: float | None, now: bool, dry_run: bool) -> dict[str, str]:
    if now and grace_s:
        raise ValueError("now kills at once, and grace_s asks for time; give one of the two")
    query = _dry(dry_run) or {}
    if now:
        grace_s, query["now"] = 0.0, "true"  # a server that does not know `now` knows the other
    if grace_s is not None:
        query["grace_seconds"] = f"{given.number('grace_s', grace_s):g}"
    return query


def hold(run_id: str, *, dry_run: bool = False) -> Call[Run]:
    """Keep a waiting run from starting until `release`."""
    return Call("POST", f"/runs/{_id('run_id', run_id)}/hold", answers.run, query=_dry(dry_run))


def release(run_id: str, *, dry_run: bool = False) -> Call[Run]:
    """Let a held run go."""
    return Call("POST", f"/runs/{_id('run_id', run_id)}/release", answers.run, query=_dry(dry_run))


def set_priority(run_id: str, priority: int, *, dry_run: bool = False) -> Call[Run]:
    """4 critical, 3 high, 2 normal, 1 low."""
    body = {"priority": priority}
    return Call(
        "PATCH", f"/runs/{_id('run_id', run_id)}/priority", answers.run, query=_dry(dry_run), body=body, repeatable=True
    )


def rerun(
    run_id: str,
    *,
    command: str | None = None,
    argv: Sequence[str | os.PathLike[str]] | None = None,
    workdir: str | os.PathLike[str] | None = None,
    held: bool = False,
    dry_run: bool = False,
    strict: bool = False,
    idempotency_key: str = "",
    **more: Any,
) -> Call[Run]:
    """The same once more, as a new run, where the first one ran."""
    must_be_known("rerun", more, OF_A_RERUN, ("command", "argv", "workdir", "held", "dry_run"))
    body: dict[str, Any] = {"auto_start": not held, **more}
    body["command"] = None if command is None else given.text("command", command)
    body["argv"] = None if argv is None else given.words("argv", argv)
    body["workdir"] = None if workdir is None else given.path("workdir", workdir)
    body = {name: value for name, value in body.items() if value is not None}
    key = idempotency_key or new_key()
    query = _query(dry_run, strict)
    return Call("POST", f"/runs/{_id('run_id', run_id)}/rerun", answers.run, query=query, body=body, key=key)


def explain(run_id: str) -> Call[Explanation]:
    """Why a run waits: every reason, the runs in the way, and what would start it."""
    return Call("GET", f"/runs/{_id('run_id', run_id)}/explain", answers.explanation)


def eta(run_id: str) -> Call[Eta]:
    """When a run is expected to start, how sure that is, and what would start it sooner."""
    return Call("GET", f"/runs/{_id('run_id', run_id)}/eta", answers.eta)


def calibration() -> Call[Calibration]:
    """How predictions of starts and of run times did so far."""
    return Call("GET", "/calibration", answers.calibration)


def workspace(run_id: str) -> Call[Json]:
    """The code a run was submitted from, as far as it was recorded."""
    return Call("GET", f"/runs/{_id('run_id', run_id)}/workspace", answers.plain)


def logs(
    run_id: str, offset: int = 0, *, limit: int = 102_400, attempt: int | None = None, raw: bool = False
) -> Call[LogChunk]:
    """Output from a byte on; a negative offset counts from the end. `raw`: `data` has every byte, also what is no
    UTF-8."""
    query = {"offset": str(offset), "limit": str(limit)}
    if raw:
        query["encoding"] = "base64"
    if attempt is not None:
        query["attempt"] = str(attempt)
    return Call("GET", f"/runs/{_id('run_id', run_id)}/logs", answers.log_chunk, query=query)


def create_sweep(
    name: str,
    base_command: str,
    parameters: Mapping[str, Any],
    *,
    gpus: int | None = None,
    max_runs: int = 10,
    auto_start: bool = False,
    workdir: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    inherit: bool = True,
    dry_run: bool = False,
    strict: bool = False,
    idempotency_key: str = "",
    **more: Any,
) -> Call[Sweep]:
    """A run for each combination of the parameters, where and with what `submit` would run it. They are added to
    `base_command` as `--name=value`. The runs wait until `start_sweep`, or with `auto_start=True` not at all.
    `gpus` are for each run; `more` are further fields of POST /sweeps and of a run."""
    own = ("gpus", "max_runs", "auto_start", "workdir", "env", "inherit", "dry_run")
    must_be_known("create_sweep", more, OF_A_SWEEP, own)
    body: dict[str, Any] = {
        "name": name,
        "base_command": given.text("base_command", base_command),
        "parameters": dict(given.mapping("parameters", parameters)),
        "max_runs": max_runs,
        "auto_start": auto_start,
        **_surroundings(workdir, env, inherit),
        **more,
        **given.gpus(gpus, more),
    }
    body = {field: value for field, value in body.items() if value is not None}
    query = _query(dry_run, strict)
    return Call("POST", "/sweeps", answers.sweep, query=query, body=body, key=idempotency_key or new_key())


def start_sweep(sweep_id: str, *, parallel: int = 1, dry_run: bool = False) -> Call[Json]:
    """`parallel` stays: the scheduler keeps so many of the sweep's runs going. 0 lifts such a cap."""
    query = {"parallel": str(parallel), **(_dry(dry_run) or {})}
    return Call("POST", f"/sweeps/{_id('sweep_id', sweep_id)}/start", answers.plain, query=query, repeatable=True)


def cancel_sweep(
    sweep_id: str,
    *,
    grace_s: float | None = None,
    now: bool = False,
    waiting_only: bool = False,
    dry_run: bool = False,
) -> Call[Json]:
    """End all runs of a sweep at once: the answer says how many were `cancelled`, are `stopping`, and were `refused`.
    `grace_s` and `now` are those of `cancel`; `waiting_only` leaves those alone that hold GPUs."""
    query = _stop(grace_s, now, dry_run) | ({"waiting_only": "true"} if waiting_only else {})
    path = f"/sweeps/{_id('sweep_id', sweep_id)}/stop"
    return Call("POST", path, answers.plain, query=query, repeatable=True)


def sweep(sweep_id: str) -> Call[Sweep]:
    """One sweep, and how far it is."""
    return Call("GET", f"/sweeps/{_id('sweep_id', sweep_id)}", answers.sweep)


def sweeps(*, limit: int = 50) -> Call[list[Sweep]]:
    """Sweeps, newest first."""
    return Call("GET", "/sweeps", answers.sweeps, query={"limit": str(limit)})


def nodes() -> Call[list[Node]]:
    """The machines, their GPUs and who holds them."""
    return Call("GET", "/nodes", answers.nodes)


def drain(node_id: str, *, why: str = "", dry_run: bool = False) -> Call[Json]:
    """Give a node nothing new; what runs there runs on."""
    return Call(
        "POST",
        f"/nodes/{_id('node_id', node_id)}/drain",
        answers.plain,
        query=_dry(dry_run),
        body={"why": why} if why else {},
    )


def undrain(node_id: str, *, dry_run: bool = False) -> Call[Json]:
    """Take a node back into service."""
    return Call(
        "POST", f"/nodes/{_id('node_id', node_id)}/undrain", answers.plain, query=_dry(dry_run), repeatable=True
    )


def capacity() -> Call[Capacity]:
    """How many GPUs there are, how many are free, and how many waiting runs could start now."""
    return Call("GET", "/capacity", answers.capacity)


def usage(*, since: float | None = None, until: float | None = None) -> Call[list[Usage]]:
    """GPU-hours per person, between two moments in seconds since 1970."""
    said = {"since": since, "until": until}
    query = {name: repr(given.number(name, at)) for name, at in said.items() if at is not None}
    return Call("GET", "/usage", answers.usage, query=query)


def reservations(*, since: float | None = None, until: float | None = None) -> Call[list[Reservation]]:
    """What is reserved, by start: all of it, or what has a part between two moments in seconds since 1970."""
    said = {"from": since, "until": until}
    query = {name: repr(given.number(name, at)) for name, at in said.items() if at is not None}
    return Call("GET", "/reservations", answers.reservations, query=query)


def reserve(
    gpus: int,
    *,
    start: float | None = None,
    for_s: float | None = None,
    until: float | None = None,
    gpu_type: str = "",
    nodes: int = 0,
    name: str = "",
    users: Sequence[str] = (),
    dry_run: bool = False,
    idempotency_key: str = "",
) -> Call[Reservation]:
    """Keep GPUs from `start` (seconds since 1970; now, if not given) for so many seconds, or until then.
    `users` may use them besides you. A run uses them with `submit(..., reservation=its id)`."""
    times = {"from": start, "for_seconds": for_s, "until": until}
    body: dict[str, Any] = {field: given.number(field, value) for field, value in times.items() if value is not None}
    more = {"gpu_type": gpu_type, "nodes": nodes, "name": name, "users": given.words("users", users)}
    body |= {"gpus": gpus, **{field: value for field, value in more.items() if value}}
    key = idempotency_key or new_key()
    return Call("POST", "/reservations", answers.reservation, query=_dry(dry_run), body=body, key=key)


def cancel_reservation(reservation_id: str, *, dry_run: bool = False) -> Call[Json]:
    """Give it up. What runs on its GPUs runs on."""
    where = f"/reservations/{_id('reservation_id', reservation_id)}"
    return Call("DELETE", where, answers.plain, query=_dry(dry_run))


def policy() -> Call[Json]:
    """How is scheduled."""
    return Call("GET", "/orchestrator/status", lambda data: answers.plain(answers.plain(data)["policy"]))


def set_policy(*, dry_run: bool = False, **changes: Any) -> Call[Json]:
    """Change how is scheduled; what is not named stays."""
    return Call(
        "PUT",
        "/orchestrator/policy",
        lambda data: answers.plain(answers.plain(data)["policy"]),
        query=_dry(dry_run),
        body=changes,
        repeatable=True,
    )


def tokens() -> Call[list[Token]]:
    """The tokens there are, without their secrets."""
    return Call("GET", "/tokens", answers.tokens)


def create_token(
    user: str, *, role: str = "user", expires_s: float | None = None, acts_for: str = "", note: str = ""
) -> Call[Token]:
    """Its secret is in the answer, and nowhere else afterwards. Never tried twice: that could make two."""
    more = {"expires_seconds": expires_s, "acts_for": acts_for, "note": note}
    body = {"user": user, "role": role, **{name: value for name, value in more.items() if value}}
    return Call("POST", "/tokens", answers.token, body=body)


def revoke_token(token_id: str) -> Call[Json]:
    """It opens nothing from now on."""
    return Call("DELETE", f"/tokens/{_id('token_id', token_id)}", answers.plain, repeatable=True)


def login_link(token_id: str) -> Call[Json]:
    """`path`, and where the server knows how it is reached `url`: to open in a browser, once, within an hour."""
    return Call("POST", f"/tokens/{_id('token_id', token_id)}/link", answers.plain)


def whoami() -> Call[Whoami]:
    """Who the server takes you for."""
    return Call("GET", "/whoami", answers.whoami)


def health() -> Call[Json]:
    """Whether the server is there, and what it is."""
    return Call("GET", "/health", answers.plain)


def raw(call: Call[Any]) -> Call[Json]:
    """The same call, its answer as it comes."""
    return read(call, lambda data: data)


def read(call: Call[Any], how: Callable[[Json], T]) -> Call[T]:
    """The same call, its answer read otherwise: no model is loaded for it."""
    call.decode = lambda data: how(answers.plain(data))
    return call


def _id(name: str, value: str) -> str:
    return quote(given.text(name, value))


def _dry(dry_run: bool) -> dict[str, str] | None:
    return {"dry_run": "true"} if dry_run else None


def _query(dry_run: bool, strict: bool) -> dict[str, str] | None:
    return {**(_dry(dry_run) or {}), **({"strict": "true"} if strict else {})} or None


def _bool(value: bool) -> str:
    return "true" if value else "false"
