"""The life of a run, a line for each thing that happened: what a supervisor would have written down."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rota.api.render.words import gpu_names
from rota.app.ports import StoredEvent
from rota.core import events as e
from rota.core.reason import describe


def story(events: Sequence[StoredEvent]) -> bytes:
    return "".join(f"{_line(stored.event)}\n" for stored in events).encode("utf-8", "replace")


def _line(event: e.Event) -> str:
    moment = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{moment} {_words(event)} by {event.by}".replace("\n", " ").replace("\r", " ")


def _words(event: e.Event) -> str:
    match event:
        case e.RunSubmitted(held=held, user=user, spec=spec):
            return (
                f"{'made ready' if held else 'queued'} for {user}: {describe(spec.request)}, priority {spec.priority}"
            )
        case e.RunHeld(why=why):
            return f"held{_because(why)}"
        case e.RunReleased():
            return "let go"
        case e.RunReprioritised(priority=priority):
            return f"priority set to {priority}"
        case e.RunEdited():
            return "edited"
        case e.RunArchived(archived=archived):
            return "archived" if archived else "unarchived"
        case e.RunEnded(state=state, why=why):
            return f"{state}{_because(why)}"
        case e.AttemptPlanned(attempt_id=attempt, placement=placement, reported=reported):
            where = "elsewhere" if reported else "on " + (", ".join(gpu_names(placement)) or placement[0].node)
            return f"attempt {attempt} launched {where}"
        case e.AttemptStarted(attempt_id=attempt, pid=pid):
            return f"attempt {attempt} started{f', pid {pid}' if pid else ''}"
        case e.StopRequested(attempt_id=attempt, cause=cause, signal=signal, grace_s=grace, why=why):
            return f"attempt {attempt} asked to stop ({cause}), signal {signal}, {grace:g} s of grace{_because(why)}"
        case e.AttemptEnded(attempt_id=attempt, exit=exit, next=state, gpu_s=gpu_s, why=why):
            how = f"signal {exit.signal}" if exit.signal is not None else f"code {exit.code}"
            return f"attempt {attempt} ended ({exit.cause}, {how}), {gpu_s:.1f} GPU-seconds, now {state}{_because(why)}"
    return type(event).__name__


def _because(why: str) -> str:
    return f": {why}" if why else ""
