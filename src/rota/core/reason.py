"""One reason why a run waits."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.resources import Request

SHOWN = 10  # blocking runs named per reason


@dataclass(frozen=True, slots=True)
class Reason:
    code: str  # held dependency backoff window paused max_concurrent user_runs user_gpus group impossible nodes
    # resources overdue reserved stopping protected reservation filler order disk; of an active run: overdue stalled
    text: str
    runs: tuple[str, ...] = ()  # who stands in the way
    until: float | None = None


def describe(request: Request) -> str:
    words = f"{request.gpus} GPU{'' if request.gpus == 1 else 's'}"
    if request.gpu_type:
        words += f" of type {request.gpu_type}"
    if request.gpu_memory_gb:
        words += f" with {request.gpu_memory_gb:g} GB"
    if request.nodes > 1:
        words += f" on {request.nodes} nodes"
    if request.cpus:
        words += f", {request.cpus} CPUs"
    if request.memory_gb:
        words += f", {request.memory_gb:g} GB of memory"
    return words
