from __future__ import annotations

from pathlib import Path

import pytest

from rota.core.node import simulated_cluster
from rota.sim.cluster import BadCluster, read_cluster


def test_the_short_form() -> None:
    assert read_cluster("2x8") == simulated_cluster(2, 8)
    assert len(read_cluster("72x8")) == 72


def test_a_file_with_kinds_of_nodes(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text('[[node]]\ncount = 2\ngpus = 8\ntype = "A100"\ncpus = 64\nmemory_gb = 512.5\n[[node]]\ngpus = 4\n')
    big, twin, small = read_cluster(str(file))
    assert (big.id, len(big.gpus), big.gpus[0].type, big.cpus, big.memory_gb) == (
        "node1", 8, "Simulated A100", 64, 512.5
    )  # fmt: skip
    assert (twin.id, len(twin.gpus)) == ("node2", 8)
    assert (small.id, len(small.gpus), small.gpus[0].type) == ("node3", 4, "Simulated H100")
    assert len({gpu.uuid for node in (big, twin, small) for gpu in node.gpus}) == 8 + 8 + 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpus = 8\n", "gpus: unknown key"),
        ("", "node: is missing"),
        ("node = 3\n", "node: is missing"),
        ("[[node]]\ncount = 2\n", "node 1: gpus: is missing"),
        ("[[node]]\ngpus = 8\n[[node]]\ngpu = 8\n", "node 2: gpu: unknown key, use count, gpus"),
        ("[[node]]\ngpus = 8.5\n", "node 1: gpus: 8.5 is wrong, use a whole number, 0 to 64"),
        ("[[node]]\ngpus = true\n", "node 1: gpus: True is wrong"),
        ("[[node]]\ngpus = 65\n", "node 1: gpus: 65 is wrong"),
        ("[[node]]\ngpus = 8\nmemory_gb = nan\n", "node 1: memory_gb: nan is wrong"),
        ("[[node]]\ngpus = 8\ncount = 0\n", "node 1: count: 0 is wrong"),
        ("[[node]]\ngpus = 8\ncount = 9999\n[[node]]\ngpus = 1\ncount = 9\n", "node 2: count: more than 10000 nodes"),
        ("[[node]]\ngpus = 8\ntype = 3\n", "node 1: type: 3 is not a text"),
        ("[[node]]\ngpus = 0\n", "gpus: no node has any"),
        ("[[node]\n", "nor a TOML file"),
    ],
)
def test_a_bad_file_is_refused_by_node_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(BadCluster) as caught:
        read_cluster(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["0x8", "2x0", "2x65", "99999x8"])
def test_sizes_that_make_no_sense(text: str) -> None:
    with pytest.raises(BadCluster, match=f"^{text}: use 1 to 10000 nodes x 1 to 64 GPUs"):
        read_cluster(text)


@pytest.mark.parametrize("text", ["", "2", "2x", "nowhere.toml", "a\0b", "2x8x4"])
def test_neither_a_size_nor_a_file(text: str) -> None:
    with pytest.raises(BadCluster, match="neither NODESxGPUS"):
        read_cluster(text)
