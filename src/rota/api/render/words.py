"""One state machine, three vocabularies: each door's clients read their own words."""

from __future__ import annotations

from collections.abc import Mapping

from rota.core.node import Node
from rota.core.resources import Placement, bits
from rota.core.run import PastAttempt, Run, RunState

S = RunState

RUN_WORDS: Mapping[RunState, str] = {
    S.HELD: "ready",
    S.QUEUED: "queued",
    S.STARTING: "launching",
    S.RUNNING: "running",
    S.SUCCEEDED: "finished",
    S.FAILED: "failed",
    S.CANCELLED: "stopped",
    S.LOST: "failed",
}
JOB_WORDS: Mapping[RunState, str] = {
    S.HELD: "queued",
    S.QUEUED: "queued",
    S.STARTING: "allocating",
    S.RUNNING: "running",
    S.SUCCEEDED: "completed",
    S.FAILED: "failed",
    S.CANCELLED: "canceled",
    S.LOST: "failed",
}
LEASE_WORDS: Mapping[RunState, str] = {
    S.HELD: "queued",
    S.QUEUED: "queued",
    S.STARTING: "running",
    S.RUNNING: "running",
    S.SUCCEEDED: "done",
    S.FAILED: "done",
    S.CANCELLED: "done",
    S.LOST: "done",
}
RELEASED = "released: how its process ended is not known to Rota"


def gpu_names(placement: Placement) -> list[str]:
    return [f"{part.node}:{gpu}" for part in placement for gpu in bits(part.gpus)]


def placement_of(run: Run) -> Placement:
    """Where it is, or where its last attempt was."""
    if run.attempt is not None:
        return run.attempt.placement
    return run.past[-1].placement if run.past else ()


def started_at(run: Run) -> float | None:
    if run.attempt is not None:
        return run.attempt.started_at
    return began(run.past[-1]) if run.past else None


def began(attempt: PastAttempt) -> float | None:
    """A command that was over at once may have ended before its start was told; its supervisor measured both."""
    exit = attempt.exit
    if attempt.started_at is not None or exit.started_tick is None or exit.ended_tick is None:
        return attempt.started_at
    return max(attempt.planned_at, attempt.ended_at - (exit.ended_tick - exit.started_tick))


def planned_at(run: Run) -> float | None:
    if run.attempt is not None:
        return run.attempt.planned_at
    return run.past[-1].planned_at if run.past else None


def exit_code(run: Run) -> int | None:
    """As a shell would show it: the code, or 128 and the signal."""
    if run.attempt is not None or not run.past:
        return None
    exit = run.past[-1].exit
    return 128 + exit.signal if exit.code is None and exit.signal is not None else exit.code


def error_of(run: Run) -> str | None:
    """Why it ended as it did, if not well; of a lease, that nobody here can know whether it was well."""
    if run.spec.holder is not None and run.state is S.SUCCEEDED:
        return RELEASED
    return run.why or None if run.state in (S.FAILED, S.LOST, S.CANCELLED) else None


def simulated(nodes: Mapping[str, Node]) -> bool:
    return any(node.simulated for node in nodes.values())
