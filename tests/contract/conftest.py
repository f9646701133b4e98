"""Where the contract runs: a SQLite file, and a database of a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.adapters.store.open import open_store
from rota.adapters.store.store import SqlStore
from tests.contract.postgres import Postgres, find_binaries

NO_POSTGRES = "no PostgreSQL here: initdb and postgres are neither on PATH nor in /usr/lib/postgresql/*/bin"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip(NO_POSTGRES)
    with Postgres(binaries) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for one new store."""
    if request.param == "sqlite":
        return str(tmp_path / "rota.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


Opener = Callable[[str], SqlStore]


@pytest.fixture
def opener() -> Iterator[Opener]:
    """Opens stores and closes them when the test is over."""
    opened: list[SqlStore] = []

    def open_one(where: str) -> SqlStore:
        opened.append(open_store(where))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(where: str, opener: Opener) -> SqlStore:
    return opener(where)
