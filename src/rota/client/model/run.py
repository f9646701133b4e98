"""A run and what can be asked about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.client.model.base import Wire, build, rows, table, words
from rota.client.model.overdue import Overdue, overdue
from rota.client.words import ACTIVE, ENDED, WAITING


@dataclass(frozen=True, slots=True)
class Attempt(Wire):
    """One try at running the command."""

    raw: Mapping[str, Any]
    id: str = ""
    started: float | None = None  # epoch seconds
    ended: float | None = None
    exit_code: int | None = None
    reason: str | None = None  # how it came to its end
    warned: bool = False  # that its time limit was near
    killed: bool = False  # it had not ended when its grace was over, or could not save
    gpus: tuple[str, ...] = ()
    gpu_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reason(Wire):
    """Why a run waits."""

    raw: Mapping[str, Any]
    code: str = ""
    text: str = ""
    runs: tuple[str, ...] = ()  # who stands in the way
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Run(Wire):
    """One job, whichever way it came in. Times are epoch seconds."""

    raw: Mapping[str, Any]
    id: str
    name: str = ""
    command: str = ""
    workdir: str = ""
    status: str = ""  # ready queued launching running finished failed stopped
    user: str = ""
    created_at: float | None = None
    queued_at: float | None = None
    launched_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    error: str | None = None
    gpu_count: int = 0
    priority: int = 2
    gpus: tuple[str, ...] = ()  # "node:number" of each GPU it holds
    attempts: tuple[Attempt, ...] = ()
    retry_count: int = 0
    max_retries: int = 0
    reasons: tuple[Reason, ...] = ()
    position: int | None = None  # in the queue, 1 = next
    eta: float | None = None  # expected start, while it waits
    hint: str = ""
    time_limit_seconds: float | None = None
    estimated_duration_seconds: float | None = None
    preemptible: bool = False  # may be stopped for something more urgent, and is run again
    why: str = ""  # of the last change that needs a word
    filler: bool = False
    preemptions: int = 0  # how often it was stopped for others
    suspended_seconds: float = 0.0  # how long it stood still for them
    preemption_gpu_seconds: float = 0.0  # held between being asked to stop and the end
    simulated: bool = False
    sweep_id: str | None = None
    parent_run_id: str | None = None
    chat_session_id: str | None = None
    is_archived: bool = False
    tags: tuple[str, ...] = ()
    reservation: str = ""
    note: str = ""  # what its submitter should know
    ignored: tuple[str, ...] = ()  # fields of the request that the server did not know, each with a hint
    dry_run: bool = False

    @property
    def waiting(self) -> bool:
        return self.status in WAITING

    @property
    def active(self) -> bool:
        return self.status in ACTIVE

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @property
    def ok(self) -> bool:
        return self.status == "finished"


@dataclass(frozen=True, slots=True)
class Explanation(Wire):
    """Why a run waits, all reasons at once, and what would start it."""

    raw: Mapping[str, Any]
    run_id: str = ""
    reasons: tuple[Reason, ...] = ()
    position: int | None = None  # 1 = next
    hint: str = ""
    status: str = ""
    eta: float | None = None


@dataclass(frozen=True, slots=True)
class Alternative(Wire):
    """What would start a run sooner."""

    raw: Mapping[str, Any]
    change: str = ""
    start: float | None = None
    sooner_seconds: float | None = None  # None: as it is, no start can be told
    now: bool = False


@dataclass(frozen=True, slots=True)
class Eta(Wire):
    """When a run is expected to start; None where that cannot be told."""

    raw: Mapping[str, Any]
    run_id: str = ""
    eta: float | None = None  # epoch seconds; if every run takes what is believed
    seconds: float | None = None  # from now
    status: str = ""
    p50: float | None = None  # as likely as not it has started by then
    p90: float | None = None  # 9 times of 10
    latest: float | None = None  # if everybody uses all of their time; None: somebody has no limit
    scenarios: int = 0
    confidence: str = ""  # good fair rough
    rests_on: str = ""
    why: str = ""  # no start can be told
    alternatives: tuple[Alternative, ...] = ()  # best first
    overdue: tuple[Overdue, ...] = ()  # runs in the way that should be gone


@dataclass(frozen=True, slots=True)
class LogChunk(Wire):
    """A piece of a run's output. Offsets are bytes."""

    raw: Mapping[str, Any]
    content: str = ""
    offset: int = 0
    total_size: int = 0
    has_more_before: bool = False
    has_more_after: bool = False
    next_offset: int | None = None
    encoding: str = ""  # of `content`: "" = text

    @property
    def data(self) -> bytes:
        if self.encoding == "base64":
            import base64  # most commands read no output

            return base64.b64decode(self.content)
        return self.content.encode("utf-8", "surrogatepass")

    @property
    def end(self) -> int:
        """Where the next piece begins."""
        if self.next_offset is not None:
            return self.next_offset
        return self.offset + len(self.data)


def run(data: Any) -> Run:
    data = table(data)
    attempts = tuple(build(Attempt, item, gpus=words(item.get("gpus"))) for item in rows(data.get("attempts") or []))
    return build(
        Run,
        data,
        id=_text(data["id"]),
        attempts=attempts,
        reasons=reasons(data.get("reasons")),
        gpus=words(data.get("gpus")),
        tags=words(data.get("tags")),
        ignored=words(data.get("ignored")),
    )


def runs(data: Any) -> list[Run]:
    return [run(item) for item in rows(data)]


def reasons(data: Any) -> tuple[Reason, ...]:
    return tuple(
        build(Reason, item, runs=words(item.get("runs"))) if isinstance(item, dict) else Reason({}, text=_text(item))
        for item in rows(data or [])
    )


def explanation(data: Any) -> Explanation:
    return build(Explanation, data, reasons=reasons(table(data).get("reasons")))


def eta(data: Any) -> Eta:
    data = table(data)
    others = tuple(build(Alternative, item) for item in rows(data.get("alternatives") or []))
    late = overdue(data.get("overdue"))
    return build(Eta, data, rests_on=_text(data.get("from") or ""), alternatives=others, overdue=late)


def log_chunk(data: Any) -> LogChunk:
    return build(LogChunk, data)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value
