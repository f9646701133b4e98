"""What kind of cluster this machine belongs to. The first that matches wins; everything seen is told as a signal.

Whoever forces a kind (a person, or the environment) gets it, with what that kind shows of itself. The number of GPUs is
the cluster's own, not this machine's, and nothing is called healthy that has not answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rota.adapters.detect import sightings
from rota.adapters.detect.sightings import Sighting
from rota.app.ports import Cluster
from rota.core.clusters import LABELS, canonical

FORCED_BY = ("ROTA_CLUSTER_TYPE", "RESEARCH_AGENT_CLUSTER_TYPE")
SHARED_FROM = 3  # hosts in the ssh config
MOMENT_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    kubernetes: Sighting
    slurm: Sighting
    ray: Sighting
    local: Sighting
    ssh_hosts: int

    def of(self, kind: str) -> Sighting:
        none = Sighting(head=sightings.hostname() if kind == "shared_head_node" else None)
        by_kind = {"kubernetes": self.kubernetes, "slurm": self.slurm, "ray": self.ray, "local_gpu": self.local}
        return by_kind.get(kind, none)

    @property
    def signals(self) -> tuple[str, ...]:
        ssh = (f"{self.ssh_hosts} hosts in the ssh config",) if self.ssh_hosts else ()
        return (*self.kubernetes.signals, *self.slurm.signals, *self.ray.signals, *self.local.signals, *ssh)


class ClusterDetector:
    def __init__(self, env: Mapping[str, str], count_gpus: Callable[[], int]) -> None:
        self._env, self._count_gpus = env, count_gpus
        self._seen: tuple[float, _Seen] | None = None  # when it was looked last, and what was there

    def detect(self, preferred: str | None = None) -> Cluster:
        seen = self._recent()
        if preferred is not None:
            kind = canonical(preferred)
            if kind is None:
                raise ValueError(f"{preferred[:50]!r} is no kind of cluster; use one of {', '.join(LABELS)}")
            return _cluster(kind, 1.0, seen, ("chosen by hand",))
        for name in FORCED_BY:
            kind = canonical(self._env.get(name, ""))
            if kind is not None:
                return _cluster(kind, 0.98, seen, (f"{name} is set",))
        return _cluster(*_first_match(seen), seen)

    def _recent(self) -> _Seen:
        """What was seen a moment ago is seen once: those who asked meanwhile, each with a preference, waited for it."""
        if self._seen is None or time.monotonic() - self._seen[0] > MOMENT_S:
            seen = self._look()
            self._seen = time.monotonic(), seen
        return self._seen[1]

    def _look(self) -> _Seen:
        """All at once: each asks programs or ports that may take their time to say nothing."""
        env = self._env
        with ThreadPoolExecutor(4, "rota-detect") as pool:
            kubernetes, slurm = pool.submit(sightings.kubernetes, env), pool.submit(sightings.slurm, env)
            ray = pool.submit(sightings.ray, env)
            local = pool.submit(sightings.local_gpus, self._count_gpus, sightings.hostname())
            return _Seen(kubernetes.result(), slurm.result(), ray.result(), local.result(), sightings.ssh_hosts(env))


def _first_match(seen: _Seen) -> tuple[str, float]:
    if seen.kubernetes.there:
        return "kubernetes", 0.93 if seen.kubernetes.sure else 0.82
    if seen.slurm.there:
        return "slurm", 0.90 if seen.slurm.sure else 0.80
    if seen.local.there and seen.ray.there:
        return "ray", 0.88 if seen.ray.sure else 0.78
    if seen.local.there:
        return "local_gpu", 0.78 if (seen.local.gpus or 0) > 1 else 0.68
    if seen.ray.there:
        return "ray", 0.85 if seen.ray.sure else 0.70
    if seen.ssh_hosts >= SHARED_FROM:
        return "shared_head_node", 0.64
    return "cpu_only", 0.35


def _cluster(kind: str, confidence: float, seen: _Seen, why: tuple[str, ...] = ()) -> Cluster:
    sighting = seen.of(kind)
    status = sighting.status
    if kind == "cpu_only":
        sighting, status = Sighting(nodes=1, gpus=0, head=sightings.hostname()), "healthy"  # this machine answers
    return Cluster(
        type=kind,
        status=status,
        confidence=confidence,
        description=_describe(kind, sighting, seen),
        head_node=sighting.head,
        node_count=sighting.nodes if kind != "shared_head_node" else seen.ssh_hosts or None,
        gpu_count=sighting.gpus,
        signals=(*why, *seen.signals),
        slurm_nodes=seen.slurm.nodes or 0,
        kubernetes_nodes=seen.kubernetes.nodes or 0,
        ssh_hosts=seen.ssh_hosts,
    )


def _describe(kind: str, sighting: Sighting, seen: _Seen) -> str:
    if kind == "cpu_only":
        return "This machine alone, without a GPU that can be seen."
    if kind == "unknown":
        return "Nobody has said what this is."
    if kind == "shared_head_node":
        return f"A head node from which {seen.ssh_hosts} hosts are reached by ssh."
    if sighting.locked:
        return f"{LABELS[kind]}, which wants a token: set RAY_ADDRESS and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH)."
    if not sighting.nodes:
        return f"{LABELS[kind]}, which has not answered."
    nodes = f"{sighting.nodes} node{'s' if sighting.nodes > 1 else ''}"
    gpus = "" if sighting.gpus is None else f", {sighting.gpus} GPU{'' if sighting.gpus == 1 else 's'}"
    unfit = f", {sighting.unfit} of them not fit for work" if sighting.unfit else ""
    return f"{LABELS[kind]}: {nodes}{gpus}{unfit}."
