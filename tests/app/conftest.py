"""The house every test of the app lives in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.app.house import House

Build = Callable[..., House]


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    """Makes closed houses; each is judged at the end of the test."""
    made: list[House] = []

    def make(nodes: int = 2, gpus: int = 4) -> House:
        made.append(House(tmp_path / f"house{len(made)}", nodes, gpus))
        return made[-1]

    yield make
    for each in made:
        each.finish()


@pytest.fixture
def house(build: Build) -> House:
    """Two nodes with four GPUs each."""
    return build().open()
