"""A database of an older Rota is brought up to date in place and keeps everything."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, delete, insert, make_url, select

from rota.adapters.store import schema
from rota.adapters.store.compare import compare
from rota.adapters.store.migrate import migrate
from rota.adapters.store.open import open_store
from rota.app.ports import RunFilter
from rota.core import events as e
from rota.core.check import check
from rota.core.policy import Ordering
from rota.core.reservation import Reservation
from rota.core.resources import Slice
from rota.core.run import RunState
from tests.contract.conftest import Opener
from tests.contract.house import House, live
from tests.contract.postgres import Postgres

OLD = Path(__file__).parent / "revision_0001.sql"


def old_file(path: Path) -> Path:
    raw = sqlite3.connect(path)
    raw.executescript(OLD.read_text())
    raw.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    raw.close()
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store of revision 0001, as its own Rota left it."""
    path = old_file(tmp_path / "rota.db")
    if request.param == "sqlite":
        return str(path)
    server: Postgres = request.getfixturevalue("postgres")
    url = server.new_database()
    copy_to_postgres(path, url)
    return url


def copy_to_postgres(path: Path, url: str) -> None:
    old, new = create_engine(f"sqlite:///{path}"), create_engine(make_url(url).set(drivername="postgresql+psycopg"))
    tables = MetaData()
    with old.connect() as source, new.connect() as target, target.begin():
        migrate(target, "0001")
        tables.reflect(target)
        for table in tables.sorted_tables:
            found = [dict(row._mapping) for row in source.execute(select(table))]
            target.execute(delete(table))
            if found:
                target.execute(insert(table), found)
    old.dispose()
    new.dispose()


def test_everything_is_kept(old: str, opener: Opener) -> None:
    store = opener(old)
    state = store.load()
    assert check(state) == []
    assert compare(state, store.replay()) == [], "from its own checkpoint and the events after it"
    states: dict[str, set[RunState]] = {run.user: set() for run in store.runs(RunFilter())}
    for run in store.runs(RunFilter()):
        states[run.user].add(run.state)
        assert (run.spec.group, run.spec.holder, run.archived_at) == ("", None, None)
    assert states == {
        "ann": {RunState.FAILED, RunState.STARTING},
        "bob": {RunState.RUNNING, RunState.CANCELLED},
        "Zoë 你好": {RunState.HELD},
    }
    assert state.policy.ordering is Ordering.FAIR_SHARE
    assert (state.paused, state.pause_why, state.caps) == (True, "soon", {})
    assert (state.waiting, state.held, state.active) == (1, 1, 2)
    assert state.reservations == {}
    key = store.key("ann", "k2")
    assert key is not None
    first = store.run(key.run_id)
    assert first is not None
    assert (first.spec.env, first.spec.labels, first.past[0].exit.code) == ({"LR": "0.1"}, {"a": "b"}, 3)
    assert [attempt.number for attempt in store.attempts(first.id)] == [1]
    assert sum(store.counts().values()) == len(store.runs(RunFilter(archived=False))) == 5


def test_the_new_things_work_on_it(old: str, opener: Opener) -> None:
    house = House(opener(old))
    house.submit("ann", group="s1")
    ended = house.store.runs(RunFilter(states=frozenset({RunState.FAILED})))[0]
    house.edit(ended, name="better", group="s1")
    house.archive(ended, True)
    house.do(e.GroupCapped(at=house.now, group="s1", limit=2))
    house.do(e.RecordPut(at=house.now, by="ann", kind="sweep", id="s1", parent="", body='{"n":1}'))
    kept = Reservation("r1", "ann", "demo", house.now, house.now + 60, (Slice("node1", 1),), house.now)
    house.do(e.ReservationMade(at=house.now, by="ann", reservation=kept))
    house.commit()
    assert [run.spec.name for run in house.store.runs(RunFilter(group="s1", archived=True))] == ["better"]
    loaded = house.store.load()
    assert compare(house.state, loaded) == []
    assert compare(house.store.replay(), loaded) == []
    assert live(loaded) == live(house.state)


def test_it_is_upgraded_once_and_a_copy_of_the_old_file_is_still_good(tmp_path: Path) -> None:
    path = old_file(tmp_path / "rota.db")
    kept = shutil.copy(path, tmp_path / "before.db")
    open_store(path).close()
    after = path.read_bytes()
    open_store(path).close()
    raw = sqlite3.connect(path)
    assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [(schema.REVISIONS[-1],)]
    raw.close()
    assert path.read_bytes() == after
    open_store(kept).close()
