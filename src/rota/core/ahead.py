"""What the nodes will have free, and when a run could have a part of it: the stuff of bookings (core/conservative.py).

The future of each node is a row of steps: at each moment at which somebody there is expected to end or to begin, what
is free from then on. Where GPUs of a node are alike they are counted and not named: which of them a run gets is settled
when it starts, and since each is given back before the next booking needs it, there is always one.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import replace

from rota.core.board import Board, kib
from rota.core.place import shares
from rota.core.resources import Placement, Request, Slice, lowest

NO_NEED = -(1 << 62)  # of CPUs or memory that a run does not ask for
Step = tuple[int, int, int]  # GPUs that are free, as bits, or as many bits as there are; CPUs; memory in KiB
Need = tuple[Step, int]  # so much at least, on so many nodes


class NodeAhead:
    """What one node has free, from now on."""

    __slots__ = ("lowest", "steps", "times")

    def __init__(self, now: float, free: Step, lowest: list[int]) -> None:
        """`lowest`: so many of its GPUs, as bits, where they are only counted; else nothing."""
        self.lowest = lowest
        self.times, self.steps = [now], [free]

    def take(self, start: float, end: float, part: Slice) -> None:
        first, last = self._split(start), self._split(end)
        count, need_kib = part.gpus.bit_count(), kib(part.memory_gb) if part.memory_gb else 0
        for k in range(first, last):
            gpus, cpus, memory_kib = self.steps[k]
            left = self.lowest[max(0, gpus.bit_count() - count)] if self.lowest else gpus & ~part.gpus
            self.steps[k] = (left, cpus - part.cpus, memory_kib - need_kib)

    def _split(self, at: float) -> int:
        k = bisect_left(self.times, at)
        if k == len(self.times) or self.times[k] != at:
            self.times.insert(k, at)
            self.steps.insert(k, self.steps[k - 1])
        return k

    def first(self, at: float, length: float, least: Step, fit: int) -> float:
        """The first moment from which it has, all that time, so many of these GPUs and so much else; inf = never."""
        times, steps, (count, cpus, memory) = self.times, self.steps, least
        begins = math.inf
        for k in range(bisect_right(times, at) - 1, len(times)):
            free = steps[k]
            if (free[0] & fit).bit_count() < count or free[1] < cpus or free[2] < memory:
                begins = math.inf
                continue
            if begins == math.inf:
                begins = max(at, times[k])
            if k + 1 == len(times) or times[k + 1] >= begins + length:
                return begins
        return math.inf

    def throughout(self, at: float, until: float) -> Step:
        """What is free all that time."""
        first = bisect_right(self.times, at) - 1
        gpus, cpus, memory = self.steps[first]
        for k in range(first + 1, bisect_left(self.times, until, first + 1)):
            free = self.steps[k]
            gpus, cpus, memory = gpus & free[0], min(cpus, free[1]), min(memory, free[2])
        return gpus, cpus, memory


class Ahead:
    """Things are only ever taken: what does not fit once does not fit later in a pass."""

    def __init__(self, now: float, board: Board, *, named: bool) -> None:
        self.now, self.layout = now, board.layout
        counted = {} if named else {mask: _lowest_of(mask) for mask in set(self.layout.usable)}
        self.nodes = [
            NodeAhead(now, (usable, node.cpus, kib(node.memory_gb)), counted.get(usable, []))
            for usable, node in zip(self.layout.usable, self.layout.nodes, strict=True)
        ]
        self._nothing = board.emptied()
        self._needs: dict[Request, list[Need]] = {}
        self._bounds: dict[tuple[tuple[str, float], Step, int], tuple[list[int], list[float]]] = {}

    def take(self, start: float, end: float, spot: Placement) -> None:
        for part in spot:
            n = self.layout.index.get(part.node)
            if n is not None:  # else the node was removed while its work was dying
                self.nodes[n].take(start, end, part)

    def board(self, nodes: list[int], at: float, until: float) -> Board:
        """What these nodes have free through all of that time."""
        board = self._nothing.copy()
        for n in nodes:
            board.put(n, *self.nodes[n].throughout(at, until))
        return board

    def change(self, at: float) -> float:
        """The first moment after that at which anything changes; inf = nothing does."""
        following = ((node.times, bisect_right(node.times, at)) for node in self.nodes)
        return min((times[k] for times, k in following if k < len(times)), default=math.inf)

    def needs(self, request: Request) -> list[Need]:
        """What so many nodes must have at least, most nodes last; whether that is enough is for `place` to say."""
        known = self._needs.get(request)
        if known is None:
            needs = shares(self.layout, replace(request, cpus=0, memory_gb=0.0)) or (min(1, request.gpus),)
            cpus, memory = request.cpus or NO_NEED, kib(request.memory_gb) or NO_NEED
            counts = {share: sum(need >= share for need in needs) for share in sorted(needs, reverse=True)}
            known = self._needs[request] = [((share, cpus, memory), count) for share, count in counts.items()]
        return known

    def ripe(self, request: Request, at: float, length: float) -> tuple[float, list[int]]:
        """The first moment, then or later, at which as many nodes have as much as it needs, and which; inf = never."""
        while True:
            asked, firsts = at, [(at, 0)]
            for least, count in self.needs(request):
                firsts = self._firsts(request, least, count, at, length)
                if len(firsts) < count:
                    return math.inf, []
                at = max(at, firsts[count - 1][0])
            if at == asked or firsts[0][0] == at:
                return at, [n for first, n in firsts if first <= at]

    def _firsts(self, request: Request, least: Step, count: int, at: float, length: float) -> list[tuple[float, int]]:
        """When nodes have as much, first first: as many of them as are wanted, and all that have it as soon."""
        power = int(length).bit_length() - 1  # bounds are for the power of two that is not longer
        order, bounds = self._bounds_of((request.gpu_type, request.gpu_memory_gb), least, power)
        order.sort(key=bounds.__getitem__)
        fits, last = self.layout.fits(request), math.inf
        found: list[tuple[float, int]] = []
        for n in order:
            if bounds[n] > last:
                break
            bound = bounds[n] = self.nodes[n].first(bounds[n], 1 << power, least, fits[n])
            if bound > last:
                continue
            first = self.nodes[n].first(max(at, bound), length, least, fits[n])
            if first <= last and first < math.inf:
                insort(found, (first, n))
                if len(found) >= count:
                    last = found[count - 1][0]
        return found

    def _bounds_of(self, kind: tuple[str, float], least: Step, power: int) -> tuple[list[int], list[float]]:
        """No node has so much for so long before then: as bookings only take, that stays true for the whole pass."""
        known = self._bounds.get((kind, least, power))
        if known is None:
            # who needs no less, and for no less time, does not begin sooner
            easier = [
                bounds
                for (other, less, shorter), (_, bounds) in self._bounds.items()
                if other == kind and shorter <= power and all(a <= b for a, b in zip(less, least, strict=True))
            ]
            latest = [max(column) for column in zip([self.now] * len(self.nodes), *easier, strict=True)]
            known = self._bounds[kind, least, power] = (self.layout.open.copy(), latest)
        return known

    def can_begin(self, request: Request, length: float, nodes: list[int]) -> bool:
        """Whether these nodes may have room now. Those that have not are struck off."""
        fits, (least, count) = self.layout.fits(request), self.needs(request)[-1]
        while len(nodes) >= count:
            firsts = ((self.nodes[n].first(self.now, length, least, fits[n]), n) for n in nodes[-count:])
            busy = next((n for first, n in firsts if first > self.now), None)
            if busy is None:
                return True
            nodes.remove(busy)
        return False


def _lowest_of(mask: int) -> list[int]:
    return [lowest(mask, count) for count in range(mask.bit_count() + 1)]
