"""Environments are stored once, and for as long as a run or an event refers to them."""

from __future__ import annotations

import zlib

import pytest
from sqlalchemy import select

from rota.adapters.store import envs, sql
from rota.adapters.store import schema as s
from rota.adapters.store.compare import compare
from rota.adapters.store.rows import Damaged
from rota.adapters.store.store import SqlStore
from rota.app.ports import RunFilter
from rota.core import events as e
from tests.contract.conftest import Opener
from tests.contract.house import House

ENV = {f"VARIABLE_{n}": f"{n} é\x01" * 10 for n in range(100)}
OTHER = {**ENV, "LR": "0.1"}


def texts(store: SqlStore) -> dict[str, str]:
    with store._read() as connection:
        return {row.id: row.body for row in connection.execute(select(s.envs))}


def columns(store: SqlStore) -> list[str]:
    with store._read() as connection:
        return list(connection.execute(select(s.runs.c.env).order_by(s.runs.c.seq)).scalars())


def test_equal_environments_are_one_text(where: str, opener: Opener) -> None:
    house = House(opener(where))
    specs = [dict(ENV), dict(ENV), OTHER, {"A": "short"}, {}, dict(ENV)]
    runs = [house.submit(env=env) for env in specs]
    house.commit()
    runs.append(house.submit(env=dict(ENV)))
    house.commit()
    assert len(texts(house.store)) == 2
    said = columns(house.store)
    assert said[0] == said[1] == said[5] == said[6] and said[0].startswith("=")
    assert said[3:5] == ['{"A":"short"}', "{}"]

    def judge(store: SqlStore) -> None:
        assert [dict(run.spec.env) for run in reversed(store.runs(RunFilter()))] == [*specs, ENV]
        assert (found := store.run(runs[2].id)) is not None and found.spec.env == OTHER
        submitted = [item.event for item in store.events(0, 100) if isinstance(item.event, e.RunSubmitted)]
        assert [dict(event.spec.env) for event in submitted] == [*specs, ENV]
        state = store.load()
        assert compare(state, house.state) == [] and compare(state, store.replay()) == []
        held = [state.runs[run.id].spec.env for run in runs]
        assert held[0] is held[1] is held[5] is held[6], "and one object"

    judge(house.store)
    house.store.close()
    judge(opener(where))


def test_a_checkpoint_has_an_environment_once(store: SqlStore) -> None:
    house = House(store)
    for _ in range(3):
        house.submit(env=ENV)
    house.submit(env=OTHER)
    house.submit()
    house.commit()
    store.compact(house.state, before=1e12, keep_runs_since=0.0)
    assert store.events(0, 100) == []
    with store._read() as connection:
        blob = connection.execute(select(s.checkpoints.c.body)).scalar_one()
    assert zlib.decompress(blob).count(b"VARIABLE_99") == 2
    assert compare(store.replay(), house.state) == []


def test_a_text_stays_while_a_run_or_an_event_needs_it(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envs, "SLACK", 0)
    monkeypatch.setattr(sql, "SLACK", 0)
    store._sql = sql.Statements(store._database.readers.dialect)
    house = House(store)
    first, second = house.submit(env=ENV), house.submit(env=OTHER)
    house.commit()
    for run in (first, second):
        house.end(run.id)
    house.commit()
    house.now += 100.0
    ended = store.run(second.id)
    assert ended is not None
    house.edit(ended, name="renamed")
    house.submit()
    house.commit()

    def tidy(before: float, keep_runs_since: float) -> set[str]:
        while store.compact(house.state, before, keep_runs_since):
            pass
        assert compare(store.load(), store.replay()) == []
        assert store.events(0, 1000), "each can be read"
        return {"LR" if '"LR"' in text else "plain" for text in texts(store).values()}

    assert tidy(before=0.0, keep_runs_since=0.0) == {"plain", "LR"}
    assert tidy(before=house.now - 50, keep_runs_since=0.0) == {"plain", "LR"}, "the runs are still there"
    assert tidy(before=house.now - 50, keep_runs_since=house.now - 50) == {"LR"}, "the edit is in the log"
    house.now += 100.0
    last = house.submit()
    house.commit()
    assert tidy(before=house.now - 50, keep_runs_since=house.now - 50) == set()
    assert store.run(last.id) is not None
    again = house.submit(env=ENV)
    house.commit()
    assert store.load().runs[again.id].spec.env == ENV, "one that went is written again"


def test_a_text_that_is_missing_or_changed_is_noticed(store: SqlStore) -> None:
    house = House(store)
    run = house.submit(env=ENV)
    house.commit()
    with store.transaction() as connection:
        connection.execute(s.envs.update().values(body="{}"))
    with pytest.raises(Damaged, match="is not what was written"):
        store.run(run.id)
    with store.transaction() as connection:
        connection.execute(s.envs.delete())
    with pytest.raises(Damaged, match="is missing"):
        store.load()
    with pytest.raises(Damaged, match="is missing"):
        store.replay()
