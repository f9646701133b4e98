"""Fragmentation-aware placement: a run goes where it takes the least room from what usually comes.

The room of a node for a shape is the GPUs that runs of that shape could still fill there, one after another, before its
GPUs, CPUs or memory are used up; none, if not even one fits. The room of a node is the mean over the typical shapes.
GPUs that are free but have no room for anybody (no CPUs left beside them, too few for a gang, of the wrong type) are
fragments. The node chosen is the one that loses the least room, and among equals the one best fit would have chosen.

This is the fragmentation gradient descent of Weng et al. (USENIX ATC 2023) with one change: they ask whether *one* more
run of a shape fits, here it is *how many* fit. A node whose CPUs run out faster than its GPUs is seen long before its
last CPU is gone, which is what packs clusters that are short of CPUs: docs/SCHEDULING.md has the figures.

A shape counts by how often it is asked for, times the square root of its GPUs. By heads alone wide gangs lose their
nodes to the many small runs; by GPUs alone everything is crammed onto few nodes, and their CPUs do not last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from rota.core.board import Board, Layout, kib
from rota.core.resources import Request, lowest, mask_of
from rota.core.shapes import Typical

WHOLE = 1000  # thousandths of a GPU: the scoring holds for shares of GPUs as well, though Rota gives out none
REMEMBERED = 200_000  # numbers kept; each can be computed again

Part = tuple[int, int, int, int, float]  # GPUs, CPUs, memory, thousandths of GPUs in all, weight
NodeState = tuple[int, int, int, int]  # kind, free GPUs (bits), CPUs, memory in KiB


@dataclass(frozen=True, slots=True)
class Shape:
    """What a run needs on one node."""

    gpus: int
    cpus: int = 0  # 0 = not counted
    memory: int = 0  # 0 = not counted; in whatever unit the node's is in
    milli: int = WHOLE  # of each of its GPUs
    mask: int = -1  # the GPUs of the node that will do, as bits
    times: float = 1.0  # how often it is asked for

    @property
    def weight(self) -> float:
        return self.times * sqrt(self.gpus * self.milli)


class Mix:
    """Typical shapes, made ready to be asked how much room a node has for them."""

    def __init__(self, shapes: Iterable[Shape]) -> None:
        some = [shape for shape in shapes if shape.gpus]  # runs without GPUs leave none unused
        total = sum(shape.weight for shape in some)
        self._groups: dict[tuple[int, int], list[Part]] = {}
        for one in some:
            part = (one.gpus, one.cpus, one.memory, one.gpus * one.milli, one.weight / total)
            self._groups.setdefault((one.mask, one.milli), []).append(part)

    def room(self, free: Sequence[int], cpus: int, memory: int) -> float:
        """In thousandths of a GPU, on a node with so much free of each GPU."""
        room = 0.0
        for (mask, milli), parts in self._groups.items():
            fitting = [share for at, share in enumerate(free) if share >= milli and mask >> at & 1]
            count, usable = len(fitting), sum(fitting)
            for gpus, need_cpus, need_memory, size, weight in parts:
                if gpus > count or need_cpus > cpus or need_memory > memory:
                    continue
                # gangs come whole; but CPUs for half a run more are worth half of it: somebody smaller may come
                most: float = usable if gpus == 1 else count // gpus * size
                if need_cpus * most > size * cpus:
                    most = size * cpus / need_cpus
                if need_memory * most > size * memory:
                    most = size * memory / need_memory
                room += weight * most
        return room


class Packer:
    """Chooses nodes on the boards of one layout while one set of shapes is typical."""

    def __init__(self, layout: Layout, typical: Typical) -> None:
        self.layout, self.typical = layout, typical
        self._every = [mask_of(index for index, _, _ in kind.gpus) for kind in layout.kinds]
        shapes = [[self._shape(request, times, kind) for request, times in typical] for kind in range(len(self._every))]
        # by kind: one of its GPUs is as good as another, so that only their number counts
        self._alike = [all(one.mask in (0, -1) for one in ones) for ones in shapes]
        # nobody's CPUs and memory are counted, so that nodes of a kind differ in their free GPUs alone
        self._plain = all(self._alike) and not any(request.cpus or request.memory_gb for request, _ in typical)
        self._mixes = [Mix(ones) for ones in shapes]
        self._forget()

    def _forget(self) -> None:
        self._lost: dict[Request, dict[NodeState, float]] = {}
        self._rooms: dict[NodeState, float] = {}
        self._remembered = 0

    def _shape(self, request: Request, times: float, kind: int) -> Shape:
        masks = dict(self.layout.eligible(request))
        if request.nodes:
            gpus = request.gpus // request.nodes
        elif request.span:
            gpus = min(request.gpus, 1)
        else:  # more than a node's worth takes whole nodes
            gpus = min(request.gpus, max((mask.bit_count() for mask in masks.values()), default=0))
        mask = masks.get(kind, 0)
        if mask == self._every[kind]:
            mask = -1
        return Shape(gpus, request.cpus, kib(request.memory_gb), mask=mask, times=times)

    def choose(self, board: Board, request: Request) -> int | None:
        """The node that loses the least room to a run which is to be on one node, by its number; None = none fits."""
        if self._remembered > REMEMBERED:
            self._forget()
        lost = self._lost.get(request)
        if lost is None:
            self._remembered += 1
            lost = self._lost[request] = {}
        masks = dict(self.layout.eligible(request))
        best, least, fewest = None, inf, 0
        kinds, free, cpus, memory = self.layout.kind_of, board.free, board.cpus, board.memory_kib
        for node in self._candidates(board, request, masks):
            state = (kinds[node], free[node], cpus[node], memory[node])
            known = lost.get(state)
            if known is None:
                known = lost[state] = self._loss(state, request, masks.get(state[0], 0))
            if known < least or (known == least < inf and state[1].bit_count() < fewest):
                best, least, fewest = node, known, state[1].bit_count()
        return best

    def _candidates(self, board: Board, request: Request, masks: Mapping[int, int]) -> Iterable[int]:
        """Every node that may differ from the others: often the first of those with the same number of free GPUs."""
        counted = request.cpus or request.memory_gb or any(mask != self._every[kind] for kind, mask in masks.items())
        if counted or not self._plain:
            return self.layout.open
        return sorted((nodes & -nodes).bit_length() - 1 for bucket in board.buckets for nodes in bucket if nodes)

    def _loss(self, state: NodeState, request: Request, mask: int) -> float:
        kind, free, cpus, memory = state
        need_kib = kib(request.memory_gb)
        self._remembered += 1
        if (free & mask).bit_count() < request.gpus or request.cpus > cpus or need_kib > memory:
            return inf
        left = (kind, free & ~lowest(free & mask, request.gpus), cpus - request.cpus, memory - need_kib)
        return round(self._room(state) - self._room(left), 6)  # equal is to be equal, however it was summed up

    def _room(self, state: NodeState) -> float:
        kind, free, cpus, memory = state
        if self._alike[kind]:
            free = (1 << free.bit_count()) - 1
            state = (kind, free, cpus, memory)
        known = self._rooms.get(state)
        if known is None:
            self._remembered += 1
            shares = [WHOLE if free >> at & 1 else 0 for at in range(free.bit_length())]
            known = self._rooms[state] = self._mixes[kind].room(shares, cpus, memory)
        return known
