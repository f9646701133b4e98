"""A stand-in lease door and a person who uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli2.kit import Person, StandIn


@pytest.fixture
def server() -> Iterator[StandIn]:
    made = StandIn()
    yield made
    made.kill()


@pytest.fixture
def person(tmp_path: Path, server: StandIn) -> Iterator[Person]:
    made = Person(tmp_path, server.url)
    yield made
    made.finish()
