"""Runs in the words of the lease door, which counts the GPUs flat, as if all nodes were one machine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from rota.api.render.words import LEASE_WORDS
from rota.core.argv import command_of
from rota.core.flat import Flat
from rota.core.run import Run


class Leased(BaseModel):
    id: str
    gpus: list[int]
    num_gpus: int
    status: str
    pid: int | None
    user: str
    cmd: str | None = Field(None, description="Only of the caller's own, and for admins.")


def lease(flat: Flat, run: Run, *, own: bool) -> dict[str, Any]:
    """Any run, as a client of the lease API sees it; of one that is no lease the pid is known once it runs. A command
    line may hold a secret, and this API is open to every account of the machine: it is told to `own` callers only."""
    holder, attempt = run.spec.holder, run.attempt
    told = {
        "id": run.id,
        "gpus": flat.numbers(run),
        "num_gpus": run.spec.request.gpus,
        "status": LEASE_WORDS[run.state],
        "pid": holder.pid if holder is not None else attempt.pid if attempt is not None else None,
        "user": run.user,
    }
    return told | {"cmd": command_of(run.spec.argv)} if own else told
