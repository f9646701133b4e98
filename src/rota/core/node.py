"""Nodes and their GPUs, as a probe saw them."""

from __future__ import annotations

from dataclasses import dataclass

from rota.core.resources import mask_of


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int  # the node's own number
    uuid: str
    type: str
    memory_gb: float
    healthy: bool = True
    why: str = ""  # when unhealthy
    minor: int | None = None  # of its device file, where that is not its index


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    hostname: str
    gpus: tuple[Gpu, ...]
    cpus: int
    memory_gb: float
    simulated: bool = False
    drained: bool = False
    drain_why: str = ""
    alive: bool = True  # a node that is gone keeps its place in the ledger until its work is known dead

    @property
    def usable(self) -> int:
        """The GPUs that may be given out, as bits."""
        if self.drained or not self.alive:
            return 0
        return mask_of(gpu.index for gpu in self.gpus if gpu.healthy)


def simulated_cluster(nodes: int, gpus: int, gpu_type: str = "H100", memory_gb: float = 80.0) -> tuple[Node, ...]:
    """N nodes x M GPUs on this one machine: the jobs are real, the GPU numbers are not."""
    return tuple(
        Node(
            id=f"node{n}",
            hostname=f"node{n}",
            gpus=tuple(Gpu(i, f"SIM-{n}-{i}", f"Simulated {gpu_type}", memory_gb) for i in range(gpus)),
            cpus=128,
            memory_gb=1024.0,
            simulated=True,
        )
        for n in range(1, nodes + 1)
    )
