"""Runs in the words of the lease door, which counts the GPUs flat, as if all nodes were one machine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rota.api.render.words import LEASE_WORDS, command_of
from rota.core.flat import Flat
from rota.core.run import Run


class Leased(BaseModel):
    id: str
    gpus: list[int]
    num_gpus: int
    status: str
    pid: int | None
    cmd: str
    user: str


def lease(flat: Flat, run: Run) -> dict[str, Any]:
    """Any run, as somebody at this door sees it; of one that is no lease the pid is known once it runs."""
    holder, attempt = run.spec.holder, run.attempt
    return {
        "id": run.id,
        "gpus": flat.numbers(run),
        "num_gpus": run.spec.request.gpus,
        "status": LEASE_WORDS[run.state],
        "pid": holder.pid if holder is not None else attempt.pid if attempt is not None else None,
        "cmd": command_of(run.spec.argv),
        "user": run.user,
    }
