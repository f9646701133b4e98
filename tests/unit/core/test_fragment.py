"""Least room lost: CPUs are kept beside GPUs, gangs' nodes whole; without anything typical it is best fit."""

from __future__ import annotations

import pytest

from rota.core.board import Board, Layout
from rota.core.fragment import Mix, Packer, Shape
from rota.core.place import place
from rota.core.resources import Request, Slice, mask_of
from rota.core.shapes import REFRESH, TYPICAL, Shapes
from tests.unit.core.kit import node, of_gpus

EIGHT = (1000,) * 8


def board(*nodes, **taken) -> Board:
    """A board with these GPUs taken: board(node("a"), a=[0, 1])."""
    made = Board(Layout(nodes))
    made.take(tuple(Slice(name, mask_of(gpus)) for name, gpus in taken.items()))
    return made


def chosen(on: Board, request: Request, *typical: Request) -> str | None:
    number = Packer(on.layout, tuple((shape, 1.0) for shape in typical)).choose(on, request)
    return None if number is None else on.layout.nodes[number].id


def best_fit(on: Board, request: Request) -> str:
    spot = place(on, request)
    assert spot is not None
    return spot[0].node


@pytest.mark.parametrize(
    ("shape", "free", "cpus", "memory", "room"),
    [
        (Shape(1), EIGHT, 0, 0, 8000),
        (Shape(1, cpus=10), EIGHT, 20, 0, 2000),  # the CPUs of six GPUs are gone
        (Shape(1, cpus=10), EIGHT, 25, 0, 2500),
        (Shape(1, cpus=10), EIGHT, 9, 0, 0),  # not even one
        (Shape(1, cpus=10, memory=64), EIGHT, 80, 192, 3000),
        (Shape(4), EIGHT[:7], 0, 0, 4000),  # gangs come whole
        (Shape(8), EIGHT[:7], 0, 0, 0),
        (Shape(1, mask=0b11), EIGHT, 0, 0, 2000),
        (Shape(1, milli=470), (1000, 530, 460), 0, 0, 1530),
        (Shape(0, cpus=4), EIGHT, 64, 0, 0),  # a run without GPUs needs no room for GPUs
    ],
)
def test_the_room_for_a_shape_is_what_runs_of_it_could_still_fill(shape, free, cpus, memory, room):
    assert Mix([shape]).room(free, cpus, memory) == room


def test_room_is_the_mean_over_the_shapes_by_times_and_the_root_of_their_gpus():
    mix = Mix([Shape(1, times=2.0), Shape(4, times=1.0)])  # both weigh the same
    assert mix.room(EIGHT[:3], 0, 0) == pytest.approx(1500)


def test_a_run_that_wants_many_cpus_goes_where_there_are_many_for_each_gpu():
    nodes = board(node("poor", cpus=64), node("rich", cpus=256), poor=[0])
    hungry = Request(1, cpus=32)
    assert best_fit(nodes, hungry) == "poor"
    assert chosen(nodes, hungry, Request(1, cpus=8)) == "rich"


def test_a_small_run_does_not_break_the_last_room_for_a_gang():
    nodes = board(node("four"), node("five"), four=range(4), five=range(3))
    assert best_fit(nodes, Request(1)) == "four"
    assert chosen(nodes, Request(1), Request(1), Request(4)) == "five"


def test_a_run_without_gpus_goes_where_no_gpu_is_waiting_for_its_cpus():
    nodes = board(node("free"), node("full"), full=range(8))
    assert chosen(nodes, Request(0, cpus=32), Request(1, cpus=8)) == "full"


def test_gpus_that_others_cannot_do_without_are_kept_for_them():
    nodes = board(node("new", kind="H100"), node("old", kind="A100"), new=[0])
    assert best_fit(nodes, Request(1)) == "new"
    assert chosen(nodes, Request(1), Request(1), Request(1, gpu_type="h100")) == "old"


def test_on_a_node_of_two_types_only_gpus_that_will_do_are_counted():
    mixed = of_gpus("mixed", [("A100", 40.0)] * 2 + [("H100", 80.0)] * 2)
    nodes = board(mixed, node("full", kind="H100"), full=range(8), mixed=[2, 3])
    assert chosen(nodes, Request(1, gpu_type="h100"), Request(1)) is None
    assert chosen(nodes, Request(2), Request(1, gpu_type="h100")) == "mixed"
    nodes = board(mixed, node("old", kind="A100"))  # its lowest GPU costs nobody who wants the highest
    assert chosen(nodes, Request(1), Request(1, gpu_type="h100")) == "mixed"


def test_with_nothing_typical_it_is_best_fit():
    nodes = board(node("a"), node("b"), node("c"), b=[0, 1, 2], c=[0, 1, 2])
    assert chosen(nodes, Request(3)) == best_fit(nodes, Request(3)) == "b"


def test_what_fits_nowhere_is_said_so_and_drained_nodes_are_left_alone():
    assert chosen(board(node("a"), a=[0]), Request(8), Request(1)) is None
    assert chosen(board(node("a", cpus=4)), Request(1, cpus=5), Request(1)) is None
    assert chosen(board(node("a", drained=True), node("b")), Request(1), Request(1, cpus=1)) == "b"


def test_the_typical_shapes_are_those_of_late_and_stay_the_same_object_for_a_while():
    shapes = Shapes()
    for _ in range(3000):
        shapes.add(Request(1))
    first = shapes.typical()
    assert [request.gpus for request, _ in first] == [1]
    for _ in range(REFRESH - 1):
        shapes.add(Request(2))
    thought = shapes.copy()
    for _ in range(3000):
        thought.add(Request(2))
    assert [request.gpus for request, _ in thought.typical()] == [2, 1]
    assert shapes.typical() is first  # whatever was thought up on a copy


def test_however_many_shapes_come_few_are_kept_and_the_frequent_ones_are_among_them():
    shapes = Shapes()
    for number in range(20 * TYPICAL):
        shapes.add(Request(1, memory_gb=1 + number))
        shapes.add(Request(8))
    typical = shapes.typical()
    assert len(typical) == TYPICAL
    assert typical[0][0] == Request(8)
