"""Least room lost on any board: it finds a node whenever best fit does, and no other node would lose less."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.board import Board, Layout, kib
from rota.core.fragment import Packer
from rota.core.place import place
from rota.core.resources import Placement, Request, Slice, bits, lowest
from tests.unit.core.kit import of_gpus

TYPES = [("A100", 40.0), ("H100", 80.0)]
LIKE = [TYPES[0]] * 8


@st.composite
def boards(draw: st.DrawFn, odd: bool = True) -> Board:
    nodes = []
    for n in range(draw(st.integers(1, 5))):
        cards = draw(st.lists(st.sampled_from(TYPES), max_size=4)) if odd and draw(st.booleans()) else LIKE
        more = {"cpus": draw(st.sampled_from([16, 64])), "memory_gb": draw(st.sampled_from([64.0, 512.0]))}
        nodes.append(of_gpus(f"n{n}", cards, drained=draw(st.integers(0, 9)) == 0, **more))
    board = Board(Layout(nodes))
    for n, one in enumerate(nodes):
        taken = draw(st.integers(0, 255)) & board.free[n]
        board.take((Slice(one.id, taken, draw(st.integers(0, one.cpus)), draw(st.sampled_from([0.0, 32.0]))),))
    return board


plain = st.builds(Request, gpus=st.integers(0, 8))
requests = plain | st.builds(
    Request,
    gpus=st.integers(0, 8),
    gpu_type=st.sampled_from(["", "h100"]),
    cpus=st.sampled_from([0, 1, 7, 20]),
    memory_gb=st.sampled_from([0.0, 16.0, 60.0]),
)
times = st.floats(0.5, 100)


def matching(board: Board, node: int, shape: Request) -> list[int]:
    return [gpu.index for gpu in board.layout.nodes[node].gpus if shape.gpu_type in gpu.type.lower()]


def room(board: Board, node: int, typical: list[tuple[Request, float]]) -> float:
    """Said plainly, shape by shape: as many more as the GPUs, the CPUs and the memory of the node allow."""
    total = room = 0.0
    for shape, often in typical:
        size = min(shape.gpus, max(len(matching(board, n, shape)) for n in range(len(board.layout.nodes))))
        total += often * sqrt(size)
        count = len(set(matching(board, node, shape)) & set(bits(board.free[node])))
        limits = [float(count // size if size else 0)]
        if shape.cpus:
            limits.append(board.cpus[node] / shape.cpus)
        if shape.memory_gb:
            limits.append(board.memory_kib[node] / kib(shape.memory_gb))
        if min(limits) >= 1:
            room += often * sqrt(size) * size * min(limits)
    return 1000 * room / total if total else 0.0


def lost(board: Board, spot: Placement, typical: list[tuple[Request, float]]) -> float:
    node = board.layout.index[spot[0].node]
    after = board.copy()
    after.take(spot)
    return room(board, node, typical) - room(after, node, typical)


def on(board: Board, node: int, request: Request) -> Placement | None:
    gpus = [index for index in bits(board.free[node]) if index in matching(board, node, request)]
    if (not board.layout.nodes[node].usable and board.layout.nodes[node].drained) or len(gpus) < request.gpus:
        return None
    taken = lowest(sum(1 << index for index in gpus), request.gpus)
    spot = Slice(board.layout.nodes[node].id, taken, request.cpus, request.memory_gb)
    return (spot,) if board.holds(spot) else None


@settings(max_examples=300, deadline=None)
@given(boards(), st.lists(st.tuples(requests, times), max_size=6), st.lists(requests, min_size=1, max_size=4))
def test_a_node_is_found_if_there_is_one_and_no_other_would_lose_less(board, typical, wanted):
    packer = Packer(board.layout, tuple(typical))
    for request in wanted:  # one after another: what was remembered for one state must not be taken for another
        spots = [on(board, node, request) for node in range(len(board.layout.nodes))]
        node = packer.choose(board, request)
        assert (node is None) == all(spot is None for spot in spots)
        if node is None:
            continue
        spot = spots[node]
        assert spot is not None
        least = min(lost(board, other, typical) for other in spots if other is not None)
        assert lost(board, spot, typical) == pytest.approx(least, abs=1e-5)
        board.take(spot)


@settings(max_examples=150, deadline=None)
@given(boards(odd=False), st.lists(st.tuples(plain, times), max_size=4), plain)
def test_looking_at_one_node_of_each_number_of_free_gpus_finds_the_same_as_looking_at_all(board, typical, request):
    thorough = Packer(board.layout, tuple(typical))
    thorough._plain = False
    assert Packer(board.layout, tuple(typical)).choose(board, request) == thorough.choose(board, request)


@settings(max_examples=150, deadline=None)
@given(boards(), requests)
def test_with_nothing_typical_it_chooses_as_best_fit_does(board, request):
    spot = place(board, request)
    node = Packer(board.layout, ()).choose(board, request)
    if spot is None or len(spot) > 1:
        return
    assert node is not None
    assert board.layout.nodes[node].id == spot[0].node
