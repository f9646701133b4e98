"""Servers that the tests share, one of each shape, and a shell with a data directory of its own. Each is judged at its
end as every house is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.lab import Lab
from tests.cli.rota import Shell


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command says what of the checkout it is called in is not kept, and this one may have anything lie about."""
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.finish()


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as made:
        yield made


@pytest.fixture(scope="session")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("box"), nodes=1) as made:
        yield made


@pytest.fixture
def lab(shared_lab: Lab, tmp_path: Path) -> Iterator[Lab]:
    """2 nodes x 4 GPUs, all free; nothing in sight, and a home of its own."""
    with shared_lab.visit(tmp_path / "home"):
        yield shared_lab


@pytest.fixture
def box(shared_box: Lab, tmp_path: Path) -> Iterator[Lab]:
    """One machine with 4 GPUs, used through its lease door."""
    with shared_box.visit(tmp_path / "home"):
        shared_box.env["GPUSCHED_URL"] = shared_box.server.lease_url
        yield shared_box
