"""A plainly simulated inventory, for machines without GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from rota.core.node import Node, simulated_cluster


class SimulatedProbe:
    def __init__(self, nodes: int, gpus: int) -> None:
        self._nodes = simulated_cluster(nodes, gpus)

    def nodes(self) -> Sequence[Node]:
        return self._nodes
