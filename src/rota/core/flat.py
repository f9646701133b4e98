"""GPUs counted flat, as if all nodes were one machine: the second node's GPU 0 comes after the last of the first."""

from __future__ import annotations

from collections.abc import Iterable

from rota.core.node import Node
from rota.core.resources import bits
from rota.core.run import Run


class Flat:
    def __init__(self, nodes: Iterable[Node]) -> None:
        self.total = 0
        self._before: dict[str, int] = {}
        for node in nodes:
            self._before[node.id] = self.total
            self.total += len(node.gpus)

    def numbers(self, run: Run) -> list[int]:
        """Of the GPUs it holds, sorted; of a node that is gone, none."""
        placement = run.attempt.placement if run.attempt is not None else ()
        return sorted(
            self._before[part.node] + gpu for part in placement if part.node in self._before for gpu in bits(part.gpus)
        )
