"""What is PostgreSQL's own: one server at a time, and connections that get lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from rota.adapters.store import postgres as postgres_module
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.app.ports import Fenced, RunFilter, StoreBusy, StoreUnusable
from tests.contract.conftest import Opener
from tests.contract.house import House
from tests.contract.postgres import Postgres, find_binaries


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.new_database()


@pytest.fixture
def admin(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def cut(admin: Any, house: House) -> None:
    """The writer's connection dies."""
    pid = house.store._database._pid  # type: ignore[attr-defined]
    assert admin.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,)).fetchone() == (True,)


def test_a_session_that_is_just_ending_is_waited_for(url: str, opener: Opener) -> None:
    """As after a restart: PostgreSQL ends the session of the server before a moment after that server has gone."""
    before = opener(url)
    leaving = threading.Timer(0.5, before.close)
    leaving.start()
    opener(url).begin_epoch()
    leaving.join()


def test_the_second_server_is_refused(url: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_module, "START_WAIT_S", 0.1)
    first = House(opener(url))
    with pytest.raises(StoreBusy, match=r"another Rota server \(backend \d+, from this machine\)"):
        open_store(url)
    first.submit()
    first.commit()
    first.store.close()
    assert compare(opener(url).load(), first.state) == []


@pytest.mark.parametrize("scheme", ["postgres://", "postgresql://", "postgresql+psycopg://"])
def test_the_usual_urls(url: str, opener: Opener, scheme: str) -> None:
    opener(url.replace("postgresql://", scheme)).begin_epoch()


def test_a_lost_connection_is_busy_and_then_found_again(url: str, opener: Opener, admin: Any) -> None:
    house = House(opener(url))
    house.submit()
    house.commit()
    cut(admin, house)
    house.submit()
    with pytest.raises(StoreBusy):
        house.commit()
    assert len(house.store.runs(RunFilter())) == 1
    house.commit()  # the same batch again
    assert compare(house.state, house.store.load()) == []
    with pytest.raises(StoreBusy):
        open_store(url)  # the lock was taken again


def test_a_server_that_lost_its_connection_and_its_place_is_fenced(url: str, opener: Opener, admin: Any) -> None:
    house = House(opener(url))
    cut(admin, house)
    other = House(opener(url))
    house.submit()
    with pytest.raises(StoreBusy):  # its own connection is found dead first
        house.commit()
    with pytest.raises(Fenced):
        house.commit()
    other.submit()
    other.commit()
    assert compare(other.state, other.store.load()) == []
    other.store.close()
    with pytest.raises(Fenced):  # the lock is free again, but the epoch has moved
        house.commit()


def lose_the_answer(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next COMMIT is made, and the connection dies before the answer comes."""
    dialect = house.store._database._writing.dialect  # type: ignore[attr-defined]
    real = dialect.do_commit

    def commit(raw: Any) -> None:
        real(raw)
        monkeypatch.undo()
        raw.driver_connection.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(dialect, "do_commit", commit)


def test_a_commit_whose_answer_was_lost_is_not_made_twice(
    url: str, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House(opener(url))
    house.submit()
    lose_the_answer(house, monkeypatch)
    house.commit()  # looks it up on a new connection: it was made
    house.submit()
    house.commit()
    assert compare(house.state, house.store.load()) == []
    assert compare(house.state, house.store.replay()) == []


def test_a_commit_in_doubt_is_settled_later(url: str, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(opener(url))
    database = house.store._database
    house.submit()
    lose_the_answer(house, monkeypatch)
    real = database.reconnect_writer

    def unreachable() -> Any:
        database.reconnect_writer = real  # type: ignore[method-assign]
        raise StoreBusy("still down")

    database.reconnect_writer = unreachable  # type: ignore[method-assign]
    with pytest.raises(StoreBusy):
        house.commit()
    house.commit()  # the same batch: known to be in by now
    assert compare(house.state, house.store.replay()) == []

    house.submit()
    lose_the_answer(house, monkeypatch)
    database.reconnect_writer = unreachable  # type: ignore[method-assign]
    with pytest.raises(StoreBusy):
        house.commit()
    house.submit()  # not the same batch: what it builds on is not what is there
    with pytest.raises(StoreBusy, match="load the state again"):
        house.commit()
    house.restart(house.store)  # what the engine does then
    assert house.state.waiting == 2
    house.submit()
    house.commit()
    assert compare(house.state, house.store.replay()) == []


def test_it_survives_a_restart_of_the_database(opener: Opener) -> None:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL here")
    with Postgres(binaries) as server:
        url = server.new_database()
        house = House(opener(url))
        house.submit()
        house.commit()
        server.stop()
        house.submit()
        for _ in range(2):
            with pytest.raises(StoreBusy):
                house.commit()
        with pytest.raises(StoreBusy):
            house.store.load()
        server.start()
        house.commit()
        assert compare(house.state, house.store.load()) == []
        assert compare(house.state, house.store.replay()) == []
        house.store.close()


def test_other_peoples_databases_are_left_alone(url: str, admin: Any, opener: Opener) -> None:
    admin.execute("CREATE TABLE theirs (id int)")
    with pytest.raises(StoreUnusable, match="another program"):
        open_store(url)
    names = admin.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    assert names == [("theirs",)]


def test_a_newer_database_is_refused(url: str, admin: Any, opener: Opener) -> None:
    opener(url).close()
    admin.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreUnusable, match="newer Rota"):
        open_store(url)
    assert admin.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_no_server_there() -> None:
    with pytest.raises(StoreUnusable, match="cannot connect to postgresql") as caught:
        open_store("postgresql://rota:hunter2@/x?host=/nonexistent")
    assert "hunter2" not in str(caught.value)


def test_a_row_held_by_somebody_is_busy(url: str, opener: Opener) -> None:
    house = House(opener(url))
    house.submit()
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM head FOR UPDATE")
        with pytest.raises(StoreBusy):
            house.commit()
        assert house.store.runs(RunFilter()) == []
    house.commit()
    assert compare(house.state, house.store.load()) == []
