"""A sweep as clients read it. Its status is told anew from its runs at every look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, Field

from rota.api.dry import IGNORED
from rota.api.render.words import RUN_WORDS
from rota.app.ports import Record
from rota.core.run import ACTIVE, RunState

S = RunState


class Progress(BaseModel):
    total: int
    completed: int
    failed: int
    running: int
    launching: int
    ready: int
    queued: int
    canceled: int


class SweepShape(BaseModel):
    id: str
    name: str
    base_command: str
    workdir: str
    parameters: dict[str, Any]
    run_ids: list[str]
    status: str
    created_at: float
    goal: str
    is_wild: bool
    chat_session_id: str | None
    ui_config: dict[str, Any] | None
    creation_context: dict[str, Any] | None
    progress: Progress


class MadeSweep(SweepShape):
    ignored: list[str] | None = Field(None, description=IGNORED)


def sweep_of(record: Record, states: Mapping[str, RunState], parallel: int | None) -> dict[str, Any]:
    body = record.body
    return {
        "id": record.id,
        "name": body["name"],
        "base_command": body["base_command"],
        "workdir": body["workdir"],
        "parameters": body["parameters"],
        "run_ids": list(states),
        "status": status_of(states.values(), body["draft"]),
        "created_at": record.at,
        "goal": body["goal"],
        "is_wild": body["is_wild"],
        "chat_session_id": body["chat_session_id"],
        "ui_config": body["ui_config"],
        "creation_context": body["creation_context"],
        "progress": progress_of(states.values()),
        "max_runs": body["max_runs"],
        "user": body["user"],
        "parallel": parallel,
    }


def status_of(states: Collection[RunState], draft: bool) -> str:
    found = set(states)
    if not found:
        return "draft" if draft else "pending"
    if found & ACTIVE:
        return "running"
    if found & {S.QUEUED, S.HELD}:
        return "pending"
    if found & {S.FAILED, S.LOST}:
        return "failed"
    return "completed" if S.SUCCEEDED in found else "canceled"


def progress_of(states: Collection[RunState]) -> dict[str, int]:
    count = Counter(RUN_WORDS[state] for state in states)
    return {
        "total": len(states),
        "completed": count["finished"],
        "failed": count["failed"],
        "running": count["running"],
        "launching": count["launching"],
        "ready": count["ready"],
        "queued": count["queued"],
        "canceled": count["stopped"],
    }
