"""The audit trail as a research diary: what happened to runs, in the words such diaries use."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rota.app.ports import Record, StoredEvent
from rota.core import events as e
from rota.core.run import Run, RunState

ENDS = {
    RunState.SUCCEEDED: "run_finished",
    RunState.FAILED: "run_failed",
    RunState.LOST: "run_failed",
    RunState.CANCELLED: "run_stopped",
    RunState.QUEUED: "run_queued",  # tried again
}
ANSWERS = {
    "accepted": "user_accepted_recommendation",
    "rejected": "user_rejected_recommendation",
    "modified": "user_modified_recommendation",
    "executed": "recommendation_executed",
    "dismissed": "recommendation_dismissed",
}


INVISIBLE = ("Cc", "Cf", "Cn", "Mn")
FILLERS = "\u115f\u1160"  # letters by their category that show nothing
NOT_A_LETTER = re.compile(r"[\W_]+")
AGENT, HUMAN = "agent", "human"
RESERVED = ("user_", "run_", "recommendation_", "decision_recorded", "agent_recommendation_issued")


def is_reserved(kind: str) -> bool:
    """Return whether entries of this kind stand for what runs did, or for what people answered and decided."""
    shown = unicodedata.normalize("NFKC", kind).casefold()
    letters = "".join(one for one in shown if unicodedata.category(one) not in INVISIBLE and one not in FILLERS)
    return NOT_A_LETTER.sub("_", letters).strip("_").startswith(RESERVED)


def entries(stored: StoredEvent, run: Run) -> Iterator[dict[str, Any]]:
    """What one event means for the diary; often nothing."""
    event = stored.event
    for number, (kind, metadata) in enumerate(_kinds(event)):
        yield {
            "id": f"jevt_{stored.seq * 2 + number:012x}",
            "kind": kind,
            "actor": "system" if event.by == "rota" else event.by,
            "session_id": run.spec.labels.get("chat_session_id"),
            "run_id": run.id,
            "note": run.spec.name,
            "metadata": metadata,
            "timestamp": event.at,
        }


def _kinds(event: e.Event) -> list[tuple[str, dict[str, Any]]]:
    match event:
        case e.RunSubmitted(held=held, user=user):
            made = ("run_created", {"status": "ready" if held else "queued", "user": user})
            return [made] if held else [made, ("run_queued", {})]
        case e.RunReleased():
            return [("run_queued", {})]
        case e.AttemptPlanned(attempt_id=attempt):
            return [("run_launched", {"attempt": attempt})]
        case e.AttemptStarted(attempt_id=attempt):
            return [("run_running", {"attempt": attempt})]
        case e.RunEnded(state=state, why=why):
            return [(ENDS[state], {"error": why or None})]
        case e.AttemptEnded(next=state, why=why, exit=exit):
            return [(ENDS[state], {"exit_code": exit.code, "error": why or None})]
    return []


def posted(record: Record) -> dict[str, Any]:
    """An entry somebody wrote; what the house needs besides stays here."""
    shown = {name: value for name, value in record.body.items() if name not in ("request",)}
    return {"id": record.id, **shown, "by": record.by}


def of_recommendation(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the events of one recommendation: that it was issued, and each response to it."""
    body = record.body
    issued = {"priority": body["priority"], "source": body["source"]}
    yield _derived(record, "agent_recommendation_issued", AGENT, body["created_at"], issued) | {"by": record.by}
    for response in responses_of(body):
        said = {"status": response["status"]}
        event = _derived(record, ANSWERS[response["status"]], _actor(response), response["responded_at"], said)
        yield event | {"by": response.get("by")}


def of_decision(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the one event of a decision."""
    body = record.body
    event = _derived(record, "decision_recorded", _actor(body), body["created_at"], {"status": body["status"]})
    yield event | {"by": record.by}


def _actor(said: Mapping[str, Any]) -> str:
    """Records of older versions do not say whether it was an agent."""
    return str(said.get("actor", HUMAN))


def responses_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the responses to a recommendation, oldest first; records of older versions kept only the last one."""
    if "responses" in body:
        return list(body["responses"])
    answered = body["responded_at"] is not None
    return [{"status": body["status"], "responded_at": body["responded_at"]}] if answered else []


def _derived(record: Record, kind: str, actor: str, at: float, metadata: dict[str, Any]) -> dict[str, Any]:
    """Return an event that follows from a record. The same event has the same id whenever it is asked for."""
    body = record.body
    decision = kind == "decision_recorded"
    return {
        "id": f"jevt_{hashlib.sha256(f'{record.id}/{kind}/{at!r}'.encode()).hexdigest()[:12]}",
        "kind": kind,
        "actor": actor,
        "session_id": body["session_id"],
        "run_id": body["run_id"],
        "chart_id": body["chart_id"],
        "recommendation_id": body["recommendation_id"] if decision else record.id,
        "decision_id": record.id if decision else None,
        "note": body["title"],
        "metadata": metadata,
        "timestamp": at,
    }


def summary(events: int, recommendations: Sequence[dict[str, Any]], decisions: int) -> dict[str, Any]:
    count = {
        word: sum(one["status"] == word for one in recommendations) for word in ("accepted", "executed", "rejected")
    }
    total = len(recommendations)
    return {
        "events": events,
        "recommendations": total,
        "decisions": decisions,
        "accepted_recommendations": count["accepted"],
        "executed_recommendations": count["executed"],
        "rejected_recommendations": count["rejected"],
        "acceptance_rate": count["accepted"] / total if total else 0.0,
    }
