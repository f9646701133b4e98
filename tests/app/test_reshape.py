"""The simulated cluster in another size: remembered, not undone by the next look, and never under running work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.app.commands import Cancel, Reshape
from rota.app.errors import Conflict, Forbidden, Invalid
from rota.core.node import simulated_cluster
from rota.core.resources import Request
from tests.app.house import ANN, until


def size(house) -> tuple[int, int]:
    return len(house.rota.view().nodes), house.rota.view().total_gpus()


def look(house) -> None:
    """What the periodic probe does."""
    house.rota.see_nodes(simulated_cluster(*house.settings.simulated))


def test_it_grows_and_shrinks_and_the_probe_does_not_undo_it(house):
    assert size(house) == (2, 8)
    nodes = house.do(Reshape(3, 2))
    assert [(node.id, len(node.gpus)) for node in nodes] == [("node1", 2), ("node2", 2), ("node3", 2)]
    assert size(house) == (3, 6)
    look(house)
    assert size(house) == (3, 6)
    house.wait(house.submit("true", request=Request(6, span=True)))
    house.do(Reshape(1, 8))
    look(house)
    assert size(house) == (1, 8)
    house.reopen()
    assert size(house) == (1, 8), "a restart keeps it"
    house.wait(house.submit("true", 8))


def test_a_server_started_with_another_size_has_that_size(house):
    house.do(Reshape(3, 2))
    house.close()
    house.settings = replace(house.settings, simulated=(2, 3))
    house.open()
    assert size(house) == (2, 6)
    look(house)
    assert size(house) == (2, 6)
    house.close()
    house.settings = replace(house.settings, simulated=(2, 4))
    house.open()
    assert size(house) == (2, 8), "the old shape was given up for good"


def test_not_while_anything_runs(house):
    run_id = house.running()
    with pytest.raises(Conflict, match="1 run"):
        house.do(Reshape(3, 2))
    assert size(house) == (2, 8)
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    until(lambda: not house.rota.view().active(), "it has ended")
    house.do(Reshape(3, 2))


def test_not_on_real_gpus(house):
    real = tuple(replace(node, simulated=False) for node in simulated_cluster(2, 4))
    house.rota.see_nodes(real)
    with pytest.raises(Conflict, match="real GPUs"):
        house.do(Reshape(3, 2))
    assert size(house) == (2, 8)


@pytest.mark.parametrize(
    ("nodes", "gpus", "field"),
    [(0, 1, "nodes"), (-1, 1, "nodes"), (5001, 1, "nodes"), (1, -1, "gpus"), (1, 65, "gpus"), (2.0, 1, "nodes")],
)
def test_sizes_that_make_no_sense(house, nodes, gpus, field):
    with pytest.raises(Invalid) as refusal:
        house.do(Reshape(nodes, gpus))
    assert refusal.value.field == field
    with pytest.raises(Forbidden):
        house.do(Reshape(1, 1), ANN)


def test_a_large_one_in_a_bearable_time(house):
    house.do(Reshape(1000, 8))
    assert size(house) == (1000, 8000)
    look(house)
    assert size(house) == (1000, 8000)
    house.do(Reshape(2, 4))
