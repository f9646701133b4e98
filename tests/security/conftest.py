"""Servers that are attacked. Each is judged at its end like every other: no traceback, no process left, no GPU lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.security.kit import Lab


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    """`make_lab(env={...})`: 2 nodes x 8 GPUs, closed, with tokens for everybody."""
    with ExitStack() as stack:
        made: list[Lab] = []

        def make(**shape: Any) -> Lab:
            where = tmp_path / f"lab{len(made)}"
            where.mkdir()
            made.append(Lab(where, **shape))
            stack.enter_context(made[-1])
            return made[-1]

        yield make


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One for all tests of a module that do not get into each other's way."""
    with Lab(tmp_path_factory.mktemp("lab")) as made:
        assert isinstance(made, Lab)
        yield made
