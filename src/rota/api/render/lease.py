"""Runs in the words of the lease door, which counts the GPUs flat, as if all nodes were one machine."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from rota.api.render.words import LEASE_WORDS, command_of
from rota.app.views import View
from rota.core.resources import Placement, bits
from rota.core.run import Run


class Leased(BaseModel):
    id: str
    gpus: list[int]
    num_gpus: int
    status: str
    pid: int | None
    cmd: str
    user: str


class Flat:
    """The numbers of one moment: the second node's GPU 0 comes after the last of the first."""

    def __init__(self, view: View) -> None:
        self.total = 0
        self._before: dict[str, int] = {}
        for node in view.nodes.values():
            self._before[node.id] = self.total
            self.total += len(node.gpus)

    def numbers(self, placement: Placement) -> list[int]:
        return sorted(
            self._before[part.node] + gpu for part in placement if part.node in self._before for gpu in bits(part.gpus)
        )

    def held(self, view: View) -> list[int]:
        return sorted(number for run in view.active() if run.attempt for number in self.numbers(run.attempt.placement))

    def lease(self, run: Run) -> dict[str, Any]:
        """Any run, as somebody at this door sees it; of one that is no lease the pid is known once it runs."""
        holder, attempt = run.spec.holder, run.attempt
        return {
            "id": run.id,
            "gpus": self.numbers(attempt.placement) if attempt is not None else [],
            "num_gpus": run.spec.request.gpus,
            "status": LEASE_WORDS[run.state],
            "pid": holder.pid if holder is not None else attempt.pid if attempt is not None else None,
            "cmd": command_of(run.spec.argv),
            "user": run.user,
        }
