"""Events as those who watch read them. No environment, no hash, no document leaves through here."""

from __future__ import annotations

from typing import Any

from rota.api.render.words import RUN_WORDS, gpu_names
from rota.core import codec
from rota.core import events as e
from rota.core.argv import command_of
from rota.core.run import RunState

LONGEST_COMMAND = 500
SECRET_KINDS = frozenset({"token", "foretold"})  # the latter is about anybody's runs, and no news


def is_secret(event: e.Event) -> bool:
    """Not for others' eyes."""
    return isinstance(event, e.RecordPut) and event.kind in SECRET_KINDS


def as_message(seq: int, event: e.Event) -> dict[str, Any]:
    """`status` is there when the event changed the state of a run."""
    message: dict[str, Any] = {"seq": seq, "type": type(event).__name__, "at": event.at, "by": event.by}
    if isinstance(event, e.RunEvent):
        message["run_id"] = event.run_id
    status, data = _content(event)
    if status is not None:
        message["status"] = RUN_WORDS[status]
    message["data"] = data
    return message


def _content(event: e.Event) -> tuple[RunState | None, dict[str, Any]]:
    match event:
        case e.RunSubmitted():
            return RunState.HELD if event.held else RunState.QUEUED, {"user": event.user, **_spec(event.spec)}
        case e.RunEdited():
            return None, _spec(event.spec)
        case e.RunHeld(why=why):
            return RunState.HELD, {"why": why}
        case e.RunReleased():
            return RunState.QUEUED, {}
        case e.RunEnded(state=state, why=why):
            return state, {"why": why}
        case e.AttemptPlanned(attempt_id=attempt, placement=placement):
            return RunState.STARTING, {"attempt_id": attempt, "gpus": gpu_names(placement)}
        case e.AttemptStarted(attempt_id=attempt, pid=pid):
            return RunState.RUNNING, {"attempt_id": attempt, "pid": pid}
        case e.AttemptEnded():
            return event.next, {
                "attempt_id": event.attempt_id,
                "cause": event.exit.cause.value,
                "exit_code": event.exit.code,
                "signal": event.exit.signal,
                "warned": event.exit.warned,
                "killed": event.exit.killed,
                "gpu_seconds": event.gpu_s,
                "why": event.why,
            }
    return None, _rest(event)


def _rest(event: e.Event) -> dict[str, Any]:
    match event:
        case e.RecordPut(kind=kind, id=record_id, parent=parent, body=body):
            return {"kind": kind, "id": record_id, "parent": parent, "gone": not body}
        case e.ReservationMade(reservation=made):
            when = {"start": made.start, "end": made.end, "gpus": gpu_names(made.placement)}
            return {"reservation_id": made.id, "user": made.user, "name": made.name, **when}
        case e.ReservationEnded(reservation_id=ended, why=why):
            return {"reservation_id": ended, "why": why}
        case e.NodeSeen(node=node):
            return {"node_id": node.id, "gpu_count": len(node.gpus), "alive": node.alive, "drained": node.drained}
    data: dict[str, Any] = codec.encode(event)
    for name in ("at", "by", "run_id", "long_grace"):
        data.pop(name, None)
    return data


def _spec(spec: Any) -> dict[str, Any]:
    return {
        "name": spec.name,
        "command": command_of(spec.argv)[:LONGEST_COMMAND],
        "gpu_count": spec.request.gpus,
        "priority": spec.priority,
        "sweep_id": spec.group or None,
    }
