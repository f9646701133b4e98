"""The one ledger of GPUs: which are free on which node.

The live board belongs to the State and changes only in `reduce`. A decision, a reservation or a forecast works on a
copy, which costs a few list copies: nodes are numbered, and each bucket ("nodes of this kind with k GPUs free") is one
int with a bit per node, so that the first node of a bucket is found with one bit operation whatever the cluster's size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rota.core.node import Node
from rota.core.resources import Placement, Request, Slice, mask_of


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes with the same GPUs at the same numbers are one kind to the placer."""

    gpus: tuple[tuple[int, str, float], ...]  # index, type in lower case, memory

    def matching(self, request: Request) -> int:
        wanted = request.gpu_type.lower()
        return mask_of(i for i, kind, memory in self.gpus if wanted in kind and memory >= request.gpu_memory_gb)


class Layout:
    """What does not change while nodes stay as they are; shared by all copies of a board."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes: tuple[Node, ...] = tuple(nodes)
        self.index = {node.id: n for n, node in enumerate(self.nodes)}
        self.usable = [node.usable for node in self.nodes]
        self.open = [n for n, node in enumerate(self.nodes) if node.alive and not node.drained]
        kinds: dict[Kind, int] = {}
        self.kind_of: list[int] = []
        for node in self.nodes:
            kind = Kind(tuple((gpu.index, gpu.type.lower(), gpu.memory_gb) for gpu in node.gpus))
            self.kind_of.append(kinds.setdefault(kind, len(kinds)))
        self.kinds = tuple(kinds)
        self.gpus = sum(len(node.gpus) for node in self.nodes)
        self.in_service = sum(self.usable[n].bit_count() for n in self.open)
        self.max_gpus = max((len(kind.gpus) for kind in self.kinds), default=0)
        self._eligible: dict[Request, tuple[tuple[int, int], ...]] = {}
        self._fits: dict[Request, list[int]] = {}
        self.possible: dict[Request, bool] = {}  # memo of place.could_ever_fit

    def eligible(self, request: Request) -> tuple[tuple[int, int], ...]:
        """(kind, bits of its GPUs that qualify) for each kind of node that could serve the request."""
        known = self._eligible.get(request)
        if known is None:
            pairs = [(number, kind.matching(request)) for number, kind in enumerate(self.kinds)]
            known = tuple((number, mask) for number, mask in pairs if mask or not request.gpus)
            if len(self._eligible) > 10_000:  # shapes come from users: keep the memo bounded
                self._eligible.clear()
            self._eligible[request] = known
        return known

    def fits(self, request: Request) -> list[int]:
        """For each node the bits of the GPUs that may be given out and qualify."""
        known = self._fits.get(request)
        if known is None:
            masks = dict(self.eligible(request))
            if len(self._fits) > 100:  # a list over all nodes each
                self._fits.clear()
            known = self._fits[request] = [
                usable & masks.get(kind, 0) for usable, kind in zip(self.usable, self.kind_of, strict=True)
            ]
        return known


def kib(memory_gb: float) -> int:
    """Memory is counted in whole KiB: floats taken and given back in another order would not add up again."""
    return round(memory_gb * (1 << 20))


class Board:
    __slots__ = ("buckets", "cpus", "free", "free_gpus", "layout", "memory_kib")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.free: list[int] = list(layout.usable)
        self.cpus: list[int] = [node.cpus for node in layout.nodes]
        self.memory_kib: list[int] = [kib(node.memory_gb) for node in layout.nodes]
        self.refill()

    def refill(self) -> None:
        layout = self.layout
        counts = [mask.bit_count() for mask in self.free]
        self.free_gpus = sum(counts[n] for n in layout.open)
        members: list[list[list[int]]] = [[[] for _ in range(layout.max_gpus + 1)] for _ in layout.kinds]
        for n in layout.open:
            members[layout.kind_of[n]][counts[n]].append(n)
        self.buckets: list[list[int]] = [[mask_of(nodes) for nodes in bucket] for bucket in members]

    def copy(self) -> Board:
        twin = Board.__new__(Board)
        twin.layout = self.layout
        twin.free = self.free.copy()
        twin.cpus = self.cpus.copy()
        twin.memory_kib = self.memory_kib.copy()
        twin.buckets = [bucket.copy() for bucket in self.buckets]
        twin.free_gpus = self.free_gpus
        return twin

    def take(self, placement: Placement) -> None:
        for part in placement:
            n = self.layout.index.get(part.node)
            if n is None:  # as below
                continue
            self._set_free(n, self.free[n] & ~part.gpus)
            if part.cpus or part.memory_gb:
                self.cpus[n] -= part.cpus
                self.memory_kib[n] -= kib(part.memory_gb)

    def give(self, placement: Placement) -> None:
        for part in placement:
            n = self.layout.index.get(part.node)
            if n is None:  # the node was removed while its work was dying
                continue
            self._set_free(n, self.free[n] | (part.gpus & self.layout.usable[n]))
            if part.cpus or part.memory_gb:
                self.cpus[n] += part.cpus
                self.memory_kib[n] += kib(part.memory_gb)

    def after(self, given: Iterable[Placement]) -> Board:
        """A copy with all of these given back: one pass over the nodes instead of one move of buckets for each."""
        twin = Board.__new__(Board)
        twin.layout = self.layout
        twin.free, twin.cpus, twin.memory_kib = self.free.copy(), self.cpus.copy(), self.memory_kib.copy()
        index, usable, free = self.layout.index, self.layout.usable, twin.free
        for placement in given:
            for part in placement:
                n = index.get(part.node)
                if n is None:
                    continue
                free[n] |= part.gpus & usable[n]
                if part.cpus or part.memory_gb:
                    twin.cpus[n] += part.cpus
                    twin.memory_kib[n] += kib(part.memory_gb)
        twin.refill()
        return twin

    def emptied(self) -> Board:
        """One of the same nodes on which nothing is free."""
        twin = self.copy()
        for n in range(len(self.free)):
            twin.put(n, 0, 0, 0)
        return twin

    def put(self, n: int, free: int, cpus: int, memory_kib: int) -> None:
        """This is free on a node now."""
        self._set_free(n, free)
        self.cpus[n], self.memory_kib[n] = cpus, memory_kib

    def holds(self, part: Slice) -> bool:
        """Are these very GPUs free, and the CPUs and memory with them?"""
        n = self.layout.index.get(part.node)
        if n is None:
            return False
        return (
            part.gpus & ~self.free[n] == 0
            and (not part.cpus or part.cpus <= self.cpus[n])
            and (not part.memory_gb or kib(part.memory_gb) <= self.memory_kib[n])
        )

    def _set_free(self, n: int, free: int) -> None:
        before, after = self.free[n].bit_count(), free.bit_count()
        self.free[n] = free
        if before == after:
            return
        bucket = self.buckets[self.layout.kind_of[n]]
        bit = 1 << n
        if bucket[before] & bit:  # drained nodes stand in no bucket
            bucket[before] ^= bit
            bucket[after] |= bit
            self.free_gpus += after - before
