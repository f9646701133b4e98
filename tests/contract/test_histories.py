"""B8: whatever legally happens, the rows and the log tell the same story as the live state."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, text

from rota.adapters.store import schema
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.adapters.store.store import SqlStore
from rota.app.ports import RunFilter
from rota.core.check import check
from rota.core.run import PastAttempt
from tests.contract.house import GROUPS, Choice, House

number = st.integers(0, 60)
choices = st.lists(st.tuples(st.integers(0, 18), number, number), min_size=5, max_size=60)
# after which steps the pending events are committed, and at which the store is compacted, reopened
cadence = st.integers(1, 9)
EXAMPLES = 50 if os.environ.get("ROTA_HYPOTHESIS", "ci") == "ci" else 2_000


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return str(tmp_path_factory.mktemp("histories") / "rota.db")
    url: str = request.getfixturevalue("postgres").new_database()
    return url


@pytest.fixture(scope="module")
def empty_store(place: str) -> Iterator[SqlStore]:
    store = open_store(place)
    yield store
    store.close()


def wipe(store: SqlStore) -> None:
    """As new: far cheaper than a new database for each example."""
    with store._writer.transaction() as connection:
        for table in schema.metadata.sorted_tables:
            if table.name not in ("head", "settings"):
                connection.execute(delete(table))
        head = "UPDATE head SET epoch = 0, version = 0, at = 0, next_seq = 1, live = 0, sum = 3965078542"
        connection.execute(text(head))
        policy = "UPDATE settings SET body = '{}', sum = 1093449237 WHERE key = 'policy'"
        connection.execute(text(policy))
        for key, body, sum_ in (
            ("paused", '{"paused":false,"why":""}', 4191757547),
            ("server", '{"epoch":0,"boot_id":""}', 3234111663),
            ("caps", "{}", 2445800373),
        ):
            values = {"key": key, "body": body, "sum": sum_}
            connection.execute(text("UPDATE settings SET body = :body, sum = :sum WHERE key = :key"), values)


def agree(house: House) -> None:
    loaded = house.store.load()
    assert check(loaded) == []
    assert compare(house.state, loaded) == []
    replayed = house.store.replay()
    assert check(replayed) == []
    assert compare(house.state, replayed) == []


def live_through(store: SqlStore, steps: list[Choice], every: int, compact_every: int) -> House:
    house = House(store)
    for n, choice in enumerate(steps, 1):
        house.step(choice)
        if n % every == 0:
            house.commit()
        if n % (compact_every * 7) == 0:
            house.commit()
            house.store.compact(house.state, before=house.now - 5, keep_runs_since=0.0)
            agree(house)
        if n % 23 == 0:
            house.commit()
            house.restart(store)
            assert check(house.state) == []
    house.commit()
    return house


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=choices, every=cadence, compact_every=cadence)
def test_rows_and_log_agree(empty_store: SqlStore, steps: list[Choice], every: int, compact_every: int) -> None:
    wipe(empty_store)
    house = live_through(empty_store, steps, every, compact_every)
    agree(house)
    past: list[PastAttempt] = []
    for run_id, run in house.ended.items():
        assert empty_store.run(run_id) == run
        recorded = list(empty_store.attempts(run_id))
        assert [attempt.number for attempt in recorded] == list(range(1, run.attempts_made + 1))  # P5: each once
        past += recorded
    for run in house.state.runs.values():
        past += empty_store.attempts(run.id)
    for (kind, name), (seq, at, parent, says) in house.records.items():
        record = empty_store.record(kind, name)
        assert record is not None
        assert (record.seq, record.at, record.parent, record.body) == (seq, at, parent, {"n": says})
    for kind in ("alert", "sweep"):
        known = sorted((seq for (k, _), (seq, *_) in house.records.items() if k == kind), reverse=True)
        assert [record.seq for record in empty_store.records(kind)] == known
    everything = [*house.ended.values(), *house.state.runs.values()]
    for state, count in empty_store.counts().items():
        assert count == sum(run.state is state and run.archived_at is None for run in everything)
    for group in GROUPS:
        for archived in (None, True, False):
            wanted = {
                run.id
                for run in everything
                if run.spec.group == group and archived in (None, run.archived_at is not None)
            }
            assert {run.id for run in empty_store.runs(RunFilter(group=group, archived=archived))} == wanted
    total = sum(item.gpu_s for item in empty_store.totals(0.0, 1e12))
    assert total == pytest.approx(sum(attempt.gpu_s for attempt in past))
