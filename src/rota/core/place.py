"""Where a run goes: best fit on one node, so that whole nodes stay free; gangs all or nothing.

- One node's worth or less goes to the node with the fewest free GPUs that still holds it, lowest number first.
- More than one node's worth takes whole nodes, the remainder by best fit.
- `nodes=k` takes the same share on k nodes; `span` may be split freely when no single node has room.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rota.core.board import Board, Layout, kib
from rota.core.resources import Placement, Request, Slice, lowest

if TYPE_CHECKING:
    from rota.core.fragment import Packer

Eligible = tuple[tuple[int, int], ...]


def place(board: Board, request: Request, packer: Packer | None = None) -> Placement | None:
    """GPUs for the request out of what is free on the board, or None. The board is not changed.

    What fits on one node goes where the packer says, if there is one; whether it fits is the same with and without.
    """
    if request.gpus > board.free_gpus:
        return None
    eligible = board.layout.eligible(request)
    if request.nodes:
        return _even(board, request, eligible)
    largest = _largest(board.layout, eligible)
    if request.gpus > largest:
        whole = _whole_nodes(board, request, eligible, largest)
        return _spread(board, request, eligible) if whole is None and request.span else whole
    if packer is None:
        node = next(_by_fit(board, request, eligible, request.gpus), None)
    else:
        node = packer.choose(board, request)
    if node is not None:
        return (_slice(board, node, request, request.gpus),)
    return _spread(board, request, eligible) if request.span and request.gpus > 1 else None


def could_ever_fit(layout: Layout, request: Request) -> bool:
    """On an empty cluster with every node back and healthy: what this says no to is refused at the door."""
    known = layout.possible.get(request)
    if known is None:
        if len(layout.possible) > 10_000:  # shapes come from users: keep the memo bounded
            layout.possible.clear()
        known = layout.possible[request] = place(_full(layout), request) is not None
    return known


def _full(layout: Layout) -> Board:
    board = Board(layout)
    for n, node in enumerate(layout.nodes):
        installed = sum(1 << gpu.index for gpu in node.gpus)
        for bucket in board.buckets:
            for count in range(len(bucket)):
                bucket[count] &= ~(1 << n)
        board.free[n] = installed
        board.buckets[layout.kind_of[n]][len(node.gpus)] |= 1 << n
    board.free_gpus = sum(mask.bit_count() for mask in board.free)
    return board


def _largest(layout: Layout, eligible: Eligible) -> int:
    return max((mask.bit_count() for _, mask in eligible), default=0)


def _by_fit(board: Board, request: Request, eligible: Eligible, need: int) -> Iterator[int]:
    """Nodes with at least `need` free GPUs that qualify: fewest free first, then lowest number."""
    simple = not request.cpus and not request.memory_gb
    for count in range(need, board.layout.max_gpus + 1):
        nodes = 0
        whole = simple
        for kind, mask in eligible:
            nodes |= board.buckets[kind][count]
            whole = whole and mask.bit_count() == len(board.layout.kinds[kind].gpus)
        while nodes:
            low = nodes & -nodes
            nodes ^= low
            node = low.bit_length() - 1
            if whole or _qualifies(board, node, request, eligible, need):
                yield node


def _qualifies(board: Board, node: int, request: Request, eligible: Eligible, need: int) -> bool:
    if request.cpus and request.cpus > board.cpus[node]:
        return False
    if request.memory_gb and kib(request.memory_gb) > board.memory_kib[node]:
        return False
    return (board.free[node] & _mask(board.layout, node, eligible)).bit_count() >= need


def _mask(layout: Layout, node: int, eligible: Eligible) -> int:
    kind = layout.kind_of[node]
    return next((mask for number, mask in eligible if number == kind), 0)


def _slice(board: Board, node: int, request: Request, count: int) -> Slice:
    gpus = 0
    if count:
        gpus = lowest(board.free[node] & _mask(board.layout, node, board.layout.eligible(request)), count)
    return Slice(board.layout.nodes[node].id, gpus, request.cpus, request.memory_gb)


def _even(board: Board, request: Request, eligible: Eligible) -> Placement | None:
    share, uneven = divmod(request.gpus, request.nodes)
    if uneven:
        return None
    chosen = []
    for node in _by_fit(board, request, eligible, share):
        chosen.append(node)
        if len(chosen) == request.nodes:
            return tuple(_slice(board, n, request, share) for n in sorted(chosen))
    return None


def _whole_nodes(board: Board, request: Request, eligible: Eligible, largest: int) -> Placement | None:
    if not largest:
        return None
    full, rest = divmod(request.gpus, largest)
    chosen = []
    for node in _by_fit(board, request, eligible, largest):
        chosen.append(node)
        if len(chosen) == full:
            break
    if len(chosen) < full:
        return None
    parts = [_slice(board, n, request, largest) for n in sorted(chosen)]
    if rest:
        last = next((n for n in _by_fit(board, request, eligible, rest) if n not in chosen), None)
        if last is None:
            return None
        parts.append(_slice(board, last, request, rest))
    return tuple(parts)


def _spread(board: Board, request: Request, eligible: Eligible) -> Placement | None:
    """Over as few nodes as possible: the emptiest first."""
    nodes = list(_by_fit(board, request, eligible, 1))
    left = request.gpus
    parts: list[tuple[int, int]] = []
    for node in reversed(nodes):
        count = min(left, (board.free[node] & _mask(board.layout, node, eligible)).bit_count())
        parts.append((node, count))
        left -= count
        if not left:
            return tuple(_slice(board, n, request, c) for n, c in sorted(parts))
    return None


def shares(layout: Layout, request: Request) -> tuple[int, ...]:
    """How many GPUs it needs on how many nodes; () = that may turn out this way or that."""
    if request.span or not request.gpus or request.cpus or request.memory_gb:
        return ()
    if request.nodes:
        share, uneven = divmod(request.gpus, request.nodes)
        return () if uneven else (share,) * request.nodes
    largest = _largest(layout, layout.eligible(request))
    if not largest:
        return ()
    full, rest = divmod(request.gpus, largest)
    return (largest,) * full + ((rest,) if rest else ())
