"""What kind of cluster this is: what was detected, what the house's own ledger says, and what a person set by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.requests import Request

from rota.api.filereads import FileReads
from rota.api.house import House
from rota.app.ports import Cluster, Record
from rota.core.clusters import LABELS, canonical

KIND, MANUAL = "cluster", "manual"
STATUSES = ("unknown", "healthy", "degraded", "offline")
SAID = 0.98  # confidence in what the settings say
SOURCES = ("unset", "manual", "detected")
MAX_CALLS, MAX_CALLS_OF_ONE = 64, 4  # of those with a preference: worked on and waiting
LIMIT_S = 30.0  # for both; a detection takes 10 s at most, unless a driver hangs


def survey_of(request: Request) -> Survey:
    """The one of this server."""
    state = request.app.state
    if not hasattr(state, "survey"):
        state.survey = Survey()
    survey: Survey = state.survey
    return survey


class Survey:
    """Remembers the last detection. At most one is under way, in a thread of its own: those who ask meanwhile get the
    same one, or with a preference wait in line, where each party stands once."""

    def __init__(self) -> None:
        self.last: Cluster | None = None
        self.at: float | None = None
        self._under_way: asyncio.Task[Cluster] | None = None
        self._thread = FileReads(
            "rota-detect",
            threads=1,
            of_one=1,
            calls=MAX_CALLS,
            calls_of_one=MAX_CALLS_OF_ONE,
            limit_s=LIMIT_S,
            doing="detecting the cluster for",
        )

    async def detect(self, house: House, party: str, preferred: str | None = None) -> Cluster:
        """`preferred`: a kind somebody insists on; what it shows of itself is looked for all the same."""
        if preferred is not None:
            return self._keep(await self._thread.read(party, lambda: house.detector.detect(preferred)))
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._thread.read("everybody", house.detector.detect))
        return self._keep(await asyncio.shield(self._under_way))

    def _keep(self, found: Cluster) -> Cluster:
        self.last, self.at = found, time.time()
        return found

    def cluster(self, house: House, manual: Record | None) -> dict[str, Any]:
        answer = self._found(house) | self._ledger(house)
        answer["last_detected_at"] = self.at
        answer["updated_at"] = max(self.at or 0.0, house.started_at)
        if manual is not None:
            body = dict(manual.body)
            answer["details"] = {**answer["details"], **body.pop("details", {})}
            answer["updated_at"] = max(answer["updated_at"], body.pop("updated_at", manual.at))
            answer |= {name: body[name] for name in answer.keys() & body.keys()}
        answer["label"] = LABELS[answer["type"]]
        return answer

    def _found(self, house: House) -> dict[str, Any]:
        last = self.last or _said(house.settings.cluster_type)
        return {
            "type": "unknown" if last is None else last.type,
            "status": "unknown" if last is None else last.status,
            "source": "unset" if last is None else "detected",
            "label": "",
            "description": "Nothing has been detected yet." if last is None else last.description,
            "head_node": None if last is None else last.head_node,
            "node_count": None if last is None else last.node_count,
            "gpu_count": None if last is None else last.gpu_count,
            "notes": None,
            "confidence": None if last is None else last.confidence,
            "details": {
                "signals": [] if last is None else list(last.signals),
                "slurm_nodes": 0 if last is None else last.slurm_nodes,
                "kubernetes_nodes": 0 if last is None else last.kubernetes_nodes,
                "ssh_hosts": 0 if last is None else last.ssh_hosts,
                "simulated": False,
            },
        }

    def _ledger(self, house: House) -> dict[str, Any]:
        """What the house gives out itself, it knows better than any detection."""
        nodes = list(house.service.nodes().values())
        gpus = sum(len(node.gpus) for node in nodes)
        if not gpus:
            return {}
        fit = [node for node in nodes if node.alive and all(gpu.healthy for gpu in node.gpus)]
        answer: dict[str, Any] = {
            "node_count": len(nodes),
            "gpu_count": gpus,
            "status": "healthy" if len(fit) == len(nodes) else "degraded" if fit else "offline",
        }
        simulated = any(node.simulated for node in nodes)
        if simulated:
            words = f"A simulated cluster of {len(nodes)} nodes with {gpus} GPUs: the jobs are real, the GPUs are not."
            answer["details"] = {**self._found(house)["details"], "simulated": True}
            answer["description"] = words
        if not house.settings.cluster_type and (self.last is None or simulated):
            answer["type"] = "local_gpu"
            answer["confidence"] = None if self.last is None else 1.0
            answer.setdefault("description", f"{gpus} GPUs on {len(nodes)} nodes.")
        return answer


def _said(word: str) -> Cluster | None:
    """What the server was told at its start that it stands on, before anybody has looked."""
    kind = canonical(word)
    if kind is None:
        return None
    words = f"{LABELS[kind]}, as this server was told at its start."
    return Cluster(kind, "unknown", SAID, words, signals=("the server's settings say so",))
