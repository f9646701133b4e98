"""An alert as clients read it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rota.app.ports import Record


class AlertShape(BaseModel):
    id: str
    run_id: str
    timestamp: float
    severity: str
    message: str
    choices: list[str]
    status: str
    response: str | None
    responded_at: float | None
    responded_by: str | None
    session_id: str | None
    auto_session: bool


def alert_of(record: Record) -> dict[str, Any]:
    body = record.body
    return {
        "id": record.id,
        "run_id": record.parent,
        "timestamp": body["timestamp"],
        "severity": body["severity"],
        "message": body["message"],
        "choices": body["choices"],
        "status": body["status"],
        "response": body["response"],
        "responded_at": body["responded_at"],
        "responded_by": body.get("responded_by"),
        "session_id": body["session_id"],
        "auto_session": False,  # no session is ever opened without somebody asking for it
        "user": body["user"],
    }
