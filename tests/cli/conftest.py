"""A shell with a data directory of its own, whose house is judged at the end of every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.rota import Shell
from tests.cli.server import Server, running_server


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    made.finish()


@pytest.fixture(scope="module")
def one_server() -> Iterator[Server]:
    with running_server() as made:
        yield made


@pytest.fixture
def server(one_server: Server) -> Iterator[Server]:
    """A real server with nothing on it, shared by the tests of a file."""
    yield one_server
    one_server.clear()
