"""A run in the words of the runs door."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from rota.api.dry import IGNORED
from rota.api.house import House
from rota.api.render.unnamed import as_seen
from rota.api.render.words import (
    RUN_WORDS,
    began,
    error_of,
    exit_code,
    gpu_names,
    planned_at,
    simulated,
    started_at,
)
from rota.app.authz import Principal
from rota.core import codec
from rota.core.argv import command_of
from rota.core.ids import attempt_id
from rota.core.run import Attempt, Exit, PastAttempt, Run, RunState
from rota.core.suspended import suspended
from rota.core.warning import warning


class AttemptShape(BaseModel):
    id: str
    started: float | None
    ended: float | None
    exit_code: int | None
    reason: str | None


class Stopping(BaseModel):
    cause: str = Field(description="cancelled, preempted or released.")
    by: str
    since: float
    kill_at: float = Field(description="Epoch seconds: SIGKILL is sent then at the latest.")


class LeaseShape(BaseModel):
    pid: int
    asked_by: str | None = Field(description="The account that asked for it, where the server could tell.")


class ReplacedShape(BaseModel):
    command: str = Field(description="The first 2,000 characters.")
    workdir: str
    sha256: str | None = Field(None, description="Of the whole command, where it is longer.")


class RunShape(BaseModel):
    """`queued_at`, `launched_at`, `started_at`, `ended_at`, `stopped_at` and `archived_at` are there once they are
    true."""

    id: str
    name: str
    command: str
    workdir: str
    status: str
    created_at: float
    is_archived: bool
    sweep_id: str | None
    parent_run_id: str | None
    origin_alert_id: str | None
    chat_session_id: str | None
    gpuwrap_config: dict[str, Any] | None
    tmux_window: str | None
    run_dir: str | None
    exit_code: int | None
    error: str | None
    wandb_dir: str | None
    user: str
    gpu_count: int
    priority: int
    node: str | None
    gpus: list[str]
    attempts: list[AttemptShape]
    retry_count: int
    max_retries: int
    simulated: bool
    tags: list[str]
    why: str
    preemptible: bool
    filler: bool
    preemptions: int
    suspended_seconds: float
    preemption_gpu_seconds: float
    stopping: Stopping | None = Field(None, description="The run was asked to end and still holds its GPUs.")
    lease: LeaseShape | None = Field(None, description="Only of a lease.")
    replaced: ReplacedShape | None = Field(
        None, description="What the first attempt ran, where the command or the directory was edited after its start."
    )


class ChangedRun(RunShape):
    ignored: list[str] | None = Field(None, description=IGNORED)


class MadeRun(ChangedRun):
    suggested_time_limit_seconds: float | None = Field(
        None,
        description="Where runs like it have shown how long they take, and it has no limit or a far longer one.",
    )
    suggestion: str | None = Field(None, description="The same in words.")
    note: str | None = Field(None, description="What its submitter should know.")
    warnings: list[str] | None = Field(None, description="What was asked for and does not hold on this server.")


class Renderer:
    """For one answer: what is the same for all runs in it is looked up once."""

    def __init__(self, house: House, who: Principal) -> None:
        self._only_own = house.only_own(who)
        self._simulated = simulated(house.service.nodes())
        self._checkpoints = house.service.checkpoints

    def run(self, run: Run, past: Sequence[PastAttempt] | None = None) -> dict[str, Any]:
        """`past`: every attempt that ended, where more is known than the newest few."""
        run = as_seen(run, self._only_own)
        spec, labels = run.spec, run.spec.labels
        placement = run.attempt.placement if run.attempt is not None else ()
        launched = run.attempts_made > 0
        answer: dict[str, Any] = {
            "id": run.id,
            "name": spec.name,
            "command": command_of(spec.argv),
            "workdir": spec.workdir,
            "status": RUN_WORDS[run.state],
            "created_at": run.submitted_at,
            "is_archived": run.archived_at is not None,
            "sweep_id": spec.group or None,
            "parent_run_id": labels.get("parent_run_id"),
            "origin_alert_id": labels.get("origin_alert_id"),
            "chat_session_id": labels.get("chat_session_id"),
            "gpuwrap_config": _object(labels.get("gpuwrap_config")),
            "tmux_window": attempt_id(run.id, run.attempts_made) if launched else None,
            "run_dir": self._checkpoints.of(run.id, spec.account).path if launched and spec.holder is None else None,
            "exit_code": exit_code(run),
            "error": error_of(run),
            "wandb_dir": labels.get("wandb_dir"),
            "user": run.user,
            "gpu_count": spec.request.gpus,
            "priority": run.priority,
            "node": placement[0].node if placement else None,
            "gpus": gpu_names(placement),
            "attempts": _attempts(run, run.past if past is None else past),
            "retry_count": run.retries,
            "max_retries": spec.max_retries,
            "simulated": self._simulated,
            "tags": _texts(labels.get("tags")),
            "estimated_duration_seconds": spec.estimate_s,
            "time_limit_seconds": spec.time_limit_s,
            "preemptible": spec.preemptible,
            "why": run.why,
            "depends_on": [{"run_id": one.run_id, "when": one.when.value} for one in spec.depends_on],
        }
        answer |= _stopping(run, run.past if past is None else past)
        answer |= {name: value for name, value in _moments(run).items() if value is not None}
        if spec.holder is not None:
            answer["lease"] = {"pid": spec.holder.pid, "asked_by": spec.holder.asked_by or None}
        if spec.replaced is not None:
            answer["replaced"] = codec.encode(spec.replaced)
        if spec.reservation:
            answer["reservation"] = spec.reservation
        if "tmux_pane" in labels:
            answer["tmux_pane"] = labels["tmux_pane"]
        if "sweep_params" in labels:
            answer["sweep_params"] = _object(labels["sweep_params"]) or {}
        return answer


def stopping_of(run: Run) -> dict[str, Any] | None:
    """Return who asked a live attempt to end, why, and when it is killed at the latest; None = nobody has."""
    stop = run.attempt.stop if run.attempt is not None else None
    if stop is None:
        return None
    return {"cause": stop.cause.value, "by": stop.by, "since": stop.at, "kill_at": stop.at + stop.grace_s}


def _stopping(run: Run, past: Sequence[PastAttempt]) -> dict[str, Any]:
    """How it is stopped, and how often it was, for others."""
    spec, notice = run.spec, warning(run.spec)
    cost = suspended(run, past, time.time())
    return {
        "filler": spec.filler,
        "saves": spec.saves,
        "checkpoint_signal": spec.checkpoint_signal,
        "grace_seconds": spec.grace_s,
        "warn_signal": notice.signal if notice is not None else None,
        "warn_seconds": notice.before_s if notice is not None else None,
        "preemptions": cost.times,
        "suspended_seconds": cost.seconds,
        "preemption_gpu_seconds": cost.gpu_s,
        "stopping": stopping_of(run),
    }


def window_of(run: Run) -> str:
    """The name of the window on the attempt that is live, or that will be."""
    return attempt_id(run.id, run.attempts_made + (run.attempt is None))


def _moments(run: Run) -> dict[str, float | None]:
    return {
        "queued_at": run.queued_at,
        "launched_at": planned_at(run),
        "started_at": started_at(run),
        "ended_at": run.ended_at,
        "stopped_at": run.ended_at if run.state is RunState.CANCELLED else None,
        "archived_at": run.archived_at,
    }


def _attempts(run: Run, past: Sequence[PastAttempt]) -> list[dict[str, Any]]:
    shown = [_past(attempt) for attempt in past]
    return [*shown, _live(run.attempt)] if run.attempt is not None else shown


def _past(attempt: PastAttempt) -> dict[str, Any]:
    exit = attempt.exit
    code = 128 + exit.signal if exit.code is None and exit.signal is not None else exit.code
    return {
        "id": attempt.id,
        "started": began(attempt),
        "ended": attempt.ended_at,
        "exit_code": code,
        "reason": _reason(exit),
        "warned": exit.warned,
        "killed": exit.killed,
        "gpus": gpu_names(attempt.placement),
        "gpu_seconds": attempt.gpu_s,
    }


def _live(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.id,
        "started": attempt.started_at,
        "ended": None,
        "exit_code": None,
        "reason": None,
        "warned": False,
        "killed": False,
        "gpus": gpu_names(attempt.placement),
        "gpu_seconds": None,
    }


def _reason(exit: Exit) -> str:
    memory = "out of memory" if exit.oom else "the machine ran out of memory" if exit.machine_oom else ""
    words = [exit.cause.value, memory, "warned" if exit.warned else "", exit.message]
    return ": ".join(word for word in words if word)


def _object(text: str | None) -> dict[str, Any] | None:
    """Labels are text; whoever wrote this one through another door may have written anything."""
    found = _json(text)
    return found if isinstance(found, dict) else None


def _texts(text: str | None) -> list[str]:
    found = _json(text)
    return [str(item) for item in found] if isinstance(found, list) else []


def _json(text: str | None) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
