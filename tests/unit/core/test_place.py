"""Where a run goes: best fit, low numbers, whole nodes kept free, gangs all or nothing, nothing unfit given out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.board import Board, Layout
from rota.core.place import could_ever_fit, place
from rota.core.resources import Request, Slice, mask_of
from tests.unit.core.kit import broken, node, of_gpus, where


def board(*nodes, **taken) -> Board:
    """A board with these GPUs taken: board(node("a"), a=[0, 1])."""
    made = Board(Layout(nodes))
    made.take(tuple(Slice(name, mask_of(gpus)) for name, gpus in taken.items()))
    return made


def test_an_empty_node_gives_its_lowest_numbers():
    assert where(place(board(node("a")), Request(3))) == {"a": [0, 1, 2]}


def test_gaps_are_filled_from_below():
    assert where(place(board(node("a"), a=[0, 2, 3]), Request(3))) == {"a": [1, 4, 5]}


def test_the_fullest_node_that_still_holds_it_is_taken_so_that_whole_nodes_stay_free():
    nodes = board(node("a"), node("b"), node("c"), b=[0, 1, 2, 3, 4], c=[0, 1, 2])
    assert where(place(nodes, Request(3))) == {"b": [5, 6, 7]}
    assert where(place(nodes, Request(4))) == {"c": [3, 4, 5, 6]}
    assert where(place(nodes, Request(6))) == {"a": [0, 1, 2, 3, 4, 5]}


def test_among_nodes_alike_the_first_is_taken():
    assert where(place(board(node("a"), node("b")), Request(8))) == {"a": list(range(8))}
    assert where(place(board(node("a"), node("b"), a=[0], b=[5]), Request(1))) == {"a": [1]}


def test_a_run_that_fits_on_a_node_is_not_split_when_none_has_room():
    half = board(node("a"), node("b"), a=range(4), b=range(4))
    assert place(half, Request(5)) is None
    assert where(place(half, Request(5, span=True))) == {"a": [4, 5, 6, 7], "b": [4]} or where(
        place(half, Request(5, span=True))
    ) == {"a": [4], "b": [4, 5, 6, 7]}


def test_a_spanning_run_stays_on_one_node_when_one_has_room():
    assert where(place(board(node("a"), node("b"), a=[0]), Request(7, span=True))) == {"a": list(range(1, 8))}


def test_a_spanning_run_uses_as_few_nodes_as_it_can():
    nodes = board(node("a"), node("b"), node("c"), a=range(6), b=range(2), c=range(3))
    spot = place(nodes, Request(8, span=True))
    assert where(spot) == {"b": [2, 3, 4, 5, 6, 7], "c": [3, 4]}


def test_a_spanning_run_larger_than_a_node_may_be_split_freely_too():
    half = board(node("a"), node("b"), a=range(2), b=range(2))
    assert place(half, Request(12)) is None, "without span it wants one whole node"
    spot = place(half, Request(12, span=True))
    assert spot is not None
    assert sum(len(gpus) for gpus in (where(spot) or {}).values()) == 12
    uneven = Layout((node("a", 8), node("b", 2), node("c", 2)))
    assert could_ever_fit(uneven, Request(12, span=True))


def test_more_than_a_node_takes_whole_nodes_and_the_remainder_by_best_fit():
    nodes = board(node("a"), node("b"), node("c"), node("d"), a=[0, 1, 2], d=[0, 1, 2, 3])
    assert where(place(nodes, Request(20))) == {"b": list(range(8)), "c": list(range(8)), "d": [4, 5, 6, 7]}
    assert where(place(nodes, Request(21))) == {"b": list(range(8)), "c": list(range(8)), "a": [3, 4, 5, 6, 7]}


def test_a_gang_gets_all_or_nothing():
    nodes = board(node("a"), node("b"), a=[0])
    assert place(nodes, Request(16)) is None
    assert place(nodes, Request(16, nodes=2)) is None
    assert nodes.free_gpus == 15, "asking takes nothing"


def test_an_even_split_takes_the_same_share_on_exactly_that_many_nodes():
    nodes = board(node("a"), node("b"), node("c"), b=range(3), c=range(4))
    assert where(place(nodes, Request(8, nodes=2))) == {"b": [3, 4, 5, 6], "c": [4, 5, 6, 7]}
    assert where(place(nodes, Request(3, nodes=3))) == {"a": [0], "b": [3], "c": [4]}
    assert place(nodes, Request(4, nodes=4)) is None, "there are three nodes"


def test_exactly_one_node_means_one_node():
    nodes = board(node("a"), node("b"))
    assert where(place(nodes, Request(8, nodes=1))) == {"a": list(range(8))}
    assert place(nodes, Request(12, nodes=1)) is None
    assert place(board(node("a"), node("b"), a=[0], b=[0]), Request(8, nodes=1, span=True)) is None
    assert not could_ever_fit(nodes.layout, Request(12, nodes=1))


def test_a_share_that_is_not_even_is_never_rounded_down():
    assert place(board(node("a"), node("b")), Request(5, nodes=2)) is None


def test_the_type_is_a_part_of_the_name_in_any_case_and_the_memory_a_minimum():
    nodes = board(node("a", kind="NVIDIA A100-SXM4-40GB", gpu_gb=40), node("b", kind="NVIDIA H100 80GB", gpu_gb=80))
    assert where(place(nodes, Request(1, gpu_type="h100"))) == {"b": [0]}
    assert where(place(nodes, Request(1, gpu_type="A100"))) == {"a": [0]}
    assert where(place(nodes, Request(1, gpu_memory_gb=41))) == {"b": [0]}
    assert where(place(nodes, Request(1, gpu_memory_gb=40))) == {"a": [0]}
    assert place(nodes, Request(1, gpu_type="a100", gpu_memory_gb=80)) is None
    assert place(nodes, Request(1, gpu_type="B200")) is None


def test_on_a_node_of_mixed_gpus_only_those_that_qualify_are_given():
    mixed = board(of_gpus("a", [("A100", 40), ("H100", 80), ("A100", 40), ("H100", 80)]))
    assert where(place(mixed, Request(2, gpu_type="H100"))) == {"a": [1, 3]}
    assert place(mixed, Request(3, gpu_type="H100")) is None
    mixed.take((Slice("a", 0b0010),))
    assert place(mixed, Request(2, gpu_type="H100")) is None, "three are free, one of them an H100"
    assert where(place(mixed, Request(1, gpu_type="H100"))) == {"a": [3]}


def test_one_nodes_worth_is_counted_in_gpus_that_qualify():
    """Four H100 sit on two nodes of four GPUs each: asking for four means two whole halves, not one node."""
    pair = [("A100", 40.0), ("H100", 80.0)] * 2
    nodes = board(of_gpus("a", pair), of_gpus("b", pair))
    assert where(place(nodes, Request(4, gpu_type="H100"))) == {"a": [1, 3], "b": [1, 3]}


def test_cpus_and_memory_are_counted_per_node_and_only_when_asked_for():
    nodes = board(node("a", cpus=8, memory_gb=100.0), node("b", cpus=32, memory_gb=50.0))
    assert where(place(nodes, Request(1, cpus=16))) == {"b": [0]}
    assert where(place(nodes, Request(1, memory_gb=60))) == {"a": [0]}
    assert place(nodes, Request(1, cpus=16, memory_gb=60)) is None
    nodes.take((Slice("b", 1, cpus=20, memory_gb=0.0),))
    assert place(nodes, Request(1, cpus=16)) is None
    assert where(place(nodes, Request(1, cpus=12))) == {"b": [1]}
    spot = place(nodes, Request(2, nodes=2, cpus=8))
    assert spot is not None
    assert [part.cpus for part in spot] == [8, 8]


def test_who_asks_for_no_cpus_is_not_refused_for_want_of_them():
    """A node came back with fewer CPUs than its running work holds: below zero, and of no matter to the others."""
    mixed = board(of_gpus("a", [("A100", 40.0), ("H100", 80.0)], cpus=4))
    mixed.take((Slice("a", 1, cpus=8, memory_gb=0.0),))
    assert where(place(mixed, Request(1, gpu_type="H100"))) == {"a": [1]}
    assert where(place(mixed, Request(1, memory_gb=10))) == {"a": [1]}
    assert place(mixed, Request(1, cpus=1)) is None


def test_memory_taken_and_given_back_is_all_there_again():
    """In whatever order: a run that wants all of a node's memory must not wait for ever for the last bit of a float."""
    ledger = board(node("a", memory_gb=16.0))
    parts = [(Slice("a", 1 << i, memory_gb=gb),) for i, gb in enumerate([0.2, 2.3, 0.1])]
    for part in parts:
        ledger.take(part)
    for part in parts:
        ledger.give(part)
    assert place(ledger, Request(1, memory_gb=16.0)) is not None


def test_a_run_without_gpus_needs_a_node_with_the_cpus_and_takes_no_gpu():
    nodes = board(node("a", cpus=4), node("b", cpus=64), b=range(8))
    assert place(nodes, Request(0, cpus=16)) == (Slice("b", 0, cpus=16),)
    assert place(nodes, Request(0, cpus=65)) is None
    assert place(board(node("cpu-only", gpus=0)), Request(0, cpus=1)) == (Slice("cpu-only", 0, cpus=1),)
    assert place(board(node("a", drained=True)), Request(0)) is None


def test_drained_dead_and_unhealthy_is_given_to_nobody():
    assert place(board(node("a", drained=True)), Request(1)) is None
    assert place(board(node("a", alive=False)), Request(1)) is None
    sick = board(broken(node("a"), 0, 1, 5))
    assert where(place(sick, Request(4))) == {"a": [2, 3, 4, 6]}
    assert place(sick, Request(6)) is None
    assert where(place(board(broken(node("a"), 0), node("b")), Request(8))) == {"b": list(range(8))}


def test_what_a_broken_gpu_gives_back_stays_out():
    ledger = board(broken(node("a"), 1))
    ledger.take((Slice("a", 0b10),))
    ledger.give((Slice("a", 0b10),))
    assert place(ledger, Request(8)) is None
    assert ledger.free_gpus == 7


@pytest.mark.parametrize(
    ("request_", "possible"),
    [
        (Request(8), True),
        (Request(9), True),  # one node of eight, and one of another
        (Request(16), True),
        (Request(17), False),
        (Request(16, nodes=2), True),
        (Request(4, nodes=4), False),
        (Request(1, gpu_type="H100"), True),
        (Request(1, gpu_type="TPU"), False),
        (Request(1, gpu_memory_gb=81), False),
        (Request(1, cpus=64), True),
        (Request(1, cpus=65), False),
        (Request(1, memory_gb=512), True),
        (Request(1, memory_gb=513), False),
        (Request(0), True),
        (Request(0, cpus=65), False),
    ],
)
def test_what_could_ever_fit_is_judged_on_the_whole_cluster_whatever_its_state(request_, possible):
    """Full, drained, dead, sick: all of that may pass. What no state of these nodes could give is refused."""
    good = (node("a"), node("b"))
    for nodes in (
        good,
        tuple(replace(n, drained=True) for n in good),
        tuple(replace(n, alive=False) for n in good),
        tuple(broken(n, *range(8)) for n in good),
    ):
        layout = Layout(nodes)
        assert could_ever_fit(layout, request_) is possible
        assert could_ever_fit(layout, request_) is possible, "asked again, the memo says the same"


def test_without_nodes_nothing_fits():
    empty = Board(Layout(()))
    assert place(empty, Request(1)) is None
    assert place(empty, Request(0)) is None
    assert place(empty, Request(2, nodes=2)) is None
