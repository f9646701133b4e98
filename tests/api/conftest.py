"""Houses with a gate, a guard and a hub, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.api.house import House
from tests.api.kit import opened


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Nothing known, no token made."""
    with opened(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Closed by the shared token `open sesame`; for tests that leave nothing behind."""
    with opened(tmp_path_factory.mktemp("shared"), shared_token="open sesame") as made:
        yield made
