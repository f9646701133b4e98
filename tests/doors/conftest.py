"""Servers for the tests of the doors. Each is judged at its end, whatever the test was about."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.doors.server import Server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """2 nodes x 8 GPUs, all free, nothing known."""
    with Server(tmp_path) as made:
        yield made


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Servers of another shape: `make_server(nodes=1, gpus=2, env={...}, flags=[...])`."""
    with ExitStack() as stack:
        made: list[Server] = []

        def make(**shape: Any) -> Server:
            where = tmp_path / f"server{len(made)}"
            where.mkdir()
            made.append(Server(where, **shape))
            return stack.enter_context(made[-1])

        yield make


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests of a module that leave nothing behind: those that only ask, or are refused."""
    with Server(tmp_path_factory.mktemp("common")) as made:
        yield made
