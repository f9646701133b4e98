"""What kind of cluster this is: what was detected, what the house's own ledger says, and what a person set by hand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from rota.api.house import House
from rota.app.ports import Cluster, Record

KIND, MANUAL = "cluster", "manual"
LABELS = {
    "unknown": "Unknown",
    "slurm": "Slurm",
    "local_gpu": "Local GPU",
    "kubernetes": "Kubernetes",
    "ray": "Ray",
    "shared_head_node": "Shared GPU Head Node",
    "cpu_only": "CPU Only",
}
ALIASES = {
    "localgpu": "local_gpu",
    "local_gpu_cluster": "local_gpu",
    "shared_gpu": "shared_head_node",
    "shared_gpu_head_node": "shared_head_node",
    "head_node": "shared_head_node",
    "k8s": "kubernetes",
}
STATUSES = ("unknown", "healthy", "degraded", "offline")
SOURCES = ("unset", "manual", "detected")


def type_of(word: str) -> str | None:
    """The type somebody means by this word."""
    plain = word.strip().lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    return plain if plain in LABELS else None


class Survey:
    """Remembers the last detection, and runs at most one at a time: whoever asks meanwhile gets the same one."""

    def __init__(self) -> None:
        self.last: Cluster | None = None
        self.at: float | None = None
        self._under_way: asyncio.Task[Cluster] | None = None

    async def detect(self, house: House) -> Cluster:
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(asyncio.to_thread(house.detector.detect))
        found = await asyncio.shield(self._under_way)
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
        last = self.last
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
        if self.last is None or (simulated and not house.settings.cluster_type):
            answer["type"] = "local_gpu"
            answer["confidence"] = None if self.last is None else 1.0
            answer.setdefault("description", f"{gpus} GPUs on {len(nodes)} nodes.")
        return answer
