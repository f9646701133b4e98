"""What every Store does, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text

from rota.adapters.store import runrows
from rota.adapters.store.compare import compare
from rota.adapters.store.store import SqlStore
from rota.app.ports import Fenced, KeyRecord, RunFilter, StoreBroken, StoreError
from rota.core import events as e
from rota.core.check import check
from rota.core.policy import Limits, Ordering, Policy
from rota.core.reduce import reduce
from rota.core.resources import Request
from rota.core.run import ENDED, Cause, Dependency, Run, RunState, When
from rota.core.state import State
from tests.contract.conftest import Opener
from tests.contract.house import House, cluster


def same(house: House) -> None:
    """Rows and log both say what the live state says."""
    loaded = house.store.load()
    assert compare(house.state, loaded) == []
    assert compare(house.state, house.store.replay()) == []
    assert check(loaded) == []
    assert loaded.touched == {}


def test_a_new_store_is_empty(store: SqlStore) -> None:
    assert compare(store.load(), State()) == []
    assert compare(store.replay(), State()) == []
    assert store.runs(RunFilter()) == []
    assert store.events(0, 10) == []
    assert store.totals(0.0, 1e12) == []
    assert store.run("0" * 12) is None
    assert store.key("ann", "k") is None


def test_a_story_comes_back_whole(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    first = house.submit("ann", request=Request(gpus=4), env={"LR": "0.1", "PATH": "/bin"}, labels={"a": "b"})
    second = house.submit("bob", request=Request(gpus=8), depends_on=(Dependency(first.id, When.ENDED),))
    house.submit("bob", held=True)
    house.do(
        e.PolicySet(at=house.now, policy=Policy(ordering=Ordering.FAIR_SHARE, user_limits={"ann": Limits(gpus=4)}))
    )
    house.do(e.SchedulingPaused(at=house.now, why="soon"), e.SchedulingResumed(at=house.now))
    house.commit()
    same(house)
    assert house.plan() == [first.id]
    house.commit()
    house.begin(first.id)
    house.commit()
    same(house)
    house.now += 30
    house.finish(first.id, Cause.LOST, to=RunState.QUEUED)
    house.commit()
    same(house)
    house.now += 10
    assert house.plan() == [first.id]
    house.now += 5
    house.finish(first.id)
    house.commit()
    same(house)
    assert house.plan() == [second.id]
    house.commit()
    same(house)
    house.store.close()

    again = opener(where)
    assert compare(again.load(), house.state) == []
    assert again.run(first.id) == house.ended[first.id]
    assert [past.number for past in again.attempts(first.id)] == [1, 2]
    assert again.attempts(first.id) == list(house.ended[first.id].past)


def test_events_come_back_as_they_were(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    run = house.submit("ann", env={"A": "1"}, depends_on=(Dependency("f" * 12, When.FAILED),))
    house.plan()
    house.begin(run.id)
    house.finish(run.id)
    wanted = list(house.pending)
    house.commit()
    before = house.state.version - len(wanted)
    stored = store.events(before, 100)
    assert [item.event for item in stored] == wanted
    assert [item.seq for item in stored] == list(range(before + 1, house.state.version + 1))
    assert [item.event for item in store.events(0, 100, run_id=run.id)] == wanted
    assert [item.seq for item in store.events(before, 2)] == [before + 1, before + 2]
    assert store.events(house.state.version, 10) == []


def test_a_group_is_one_batch(store: SqlStore) -> None:
    house = House(store)
    cluster(house, 4, 8)
    for n in range(200):
        house.submit("ann" if n % 2 else "bob", request=Request(gpus=1))
    house.plan()
    house.commit()
    same(house)
    assert house.state.active == 32


def test_an_older_server_is_fenced(where: str, opener: Opener) -> None:
    house = House(opener(where))
    house.submit()
    house.commit()
    with house.store._writer.transaction() as connection:  # what a second server's begin_epoch does
        connection.execute(text("UPDATE head SET epoch = epoch + 1"))
    before = house.store.events(0, 1000)
    house.submit()
    with pytest.raises(Fenced):
        house.store.append(house.pending, house.state, [KeyRecord("ann", "k", "d", "r", 1.0)])
    with pytest.raises(Fenced):
        house.store.compact(house.state, 1e12, 1e12)
    assert house.store.events(0, 1000) == before
    assert len(house.store.runs(RunFilter())) == 1
    assert house.store.key("ann", "k") is None


def test_nothing_is_written_before_an_epoch_begins(store: SqlStore) -> None:
    state = store.load()
    event = e.SchedulingPaused(at=1.0)
    reduce(state, event)
    with pytest.raises(Fenced):
        store.append([event], state)
    assert store.events(0, 10) == []


def test_a_batch_that_does_not_follow_is_refused(store: SqlStore) -> None:
    house = House(store)
    house.submit()
    batch, touched = list(house.pending), dict(house.state.touched)
    house.commit()
    house.state.touched.update(touched)
    with pytest.raises(StoreBroken, match="out of step"):
        store.append(batch, house.state)
    house.state.touched.clear()
    house.submit()
    house.commit()
    same(house)


def test_idempotency_keys(store: SqlStore) -> None:
    house = House(store)
    run = house.submit()
    record = KeyRecord("ann", "key-1", "digest", run.id, house.now)
    house.commit([record])
    assert store.key("ann", "key-1") == record
    assert store.key("bob", "key-1") is None
    assert store.key("ann", "key-2") is None
    house.submit()
    with pytest.raises(StoreError):  # the same key twice: nothing of the batch is in
        house.commit([record])
    assert len(store.runs(RunFilter())) == 1


def test_gpu_seconds_are_recorded_exactly_once(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    run = house.submit(request=Request(gpus=4))
    house.plan()
    house.commit()
    house.now += 100
    house.finish(run.id, Cause.PREEMPTED, to=RunState.QUEUED)
    house.commit()
    house.now += 10
    house.plan()
    house.now += 50
    house.finish(run.id)
    house.commit()
    assert [past.gpu_s for past in store.attempts(run.id)] == [400.0, 200.0]
    with store._writer.transaction() as connection:
        # a second record of the same attempt is not a second row, whoever tries
        row = tuple(connection.execute(text("SELECT * FROM attempts WHERE number = 1")).one())
    with pytest.raises(StoreError), store._writer.transaction() as connection:
        connection.exec_driver_sql(store._sql.insert_attempt, row)
    assert [past.gpu_s for past in store.attempts(run.id)] == [400.0, 200.0]


def test_totals(store: SqlStore) -> None:
    house = House(store)
    cluster(house, 4, 4)
    for user, gpus in (("ann", 4), ("bob", 2), ("ann", 1)):
        house.submit(user, request=Request(gpus=gpus))
    started = house.plan()
    house.now += 10
    for run_id in started:
        house.finish(run_id)
    house.commit()
    at = house.now
    found = {total.user: (total.attempts, total.gpu_s) for total in store.totals(at, at + 1)}
    assert found == {"ann": (2, 50.0), "bob": (1, 20.0)}
    assert store.totals(0.0, at) == []
    assert store.totals(at + 1, at + 2) == []


def test_filters_and_cursors(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    for n in range(30):
        house.submit("ann" if n % 3 else "bob", request=Request(gpus=1))
    for run_id in house.plan()[:4]:
        house.finish(run_id, code=0 if int(run_id, 16) % 2 else 1)
    house.commit()
    everything = store.runs(RunFilter(limit=1000))
    assert [run.seq for run in everything] == list(range(30, 0, -1))
    for states in (frozenset({RunState.QUEUED}), ENDED, frozenset({RunState.QUEUED, RunState.FAILED}), frozenset()):
        for user in (None, "ann", "bob", "nobody"):
            wanted = [r for r in everything if (not states or r.state in states) and user in (None, r.user)]
            assert store.runs(RunFilter(user=user, states=states, limit=1000)) == wanted
            pages: list[Run] = []
            before = None
            while page := store.runs(RunFilter(user=user, states=states, before=before, limit=7)):
                assert len(page) <= 7
                pages += page
                before = page[-1].seq
            assert pages == wanted
    assert store.runs(RunFilter(limit=0)) == []


def paged(store: SqlStore, limit: int, most_bytes: int, **which: Any) -> list[list[int]]:
    """The numbers of the runs of each page."""
    pages: list[list[int]] = []
    before, more = None, True
    while more:
        page, more = store.runs_page(RunFilter(before=before, limit=limit, **which), most_bytes)
        pages.append([run.seq for run in page])
        before = page[-1].seq if page else None
    return pages


def test_a_page_of_runs_ends_by_number_or_by_bytes(store: SqlStore) -> None:
    house = House(store)
    for n in range(130):
        house.submit("ann" if n % 2 else "bob", argv=("true", "x" * 10_000))
    house.commit()
    everything = list(range(130, 0, -1))
    assert paged(store, 1000, 1 << 30) == [everything]
    assert paged(store, 130, 1 << 30) == [everything]
    assert paged(store, 129, 1 << 30) == [everything[:-1], [1]]
    assert paged(store, 1000, 1 << 30, user="nobody") == [[]]
    assert paged(store, 1000, 1) == [[seq] for seq in everything], "a page has at least one run"
    by_bytes = paged(store, 1000, 655_000)
    assert [seq for page in by_bytes for seq in page] == everything
    assert [len(page) for page in by_bytes] == [64, 64, 2]
    page, more = store.runs_page(RunFilter(limit=3), 655_000)
    assert (page, more) == (store.runs(RunFilter(limit=3)), True)


def test_ids_are_those_of_the_runs(store: SqlStore) -> None:
    house = House(store)
    for n in range(5):
        house.submit("ann" if n % 2 else "bob")
    house.commit()
    for which in (RunFilter(), RunFilter(user="bob"), RunFilter(before=4, limit=2), RunFilter(states=ENDED)):
        assert store.run_ids(which) == [run.id for run in store.runs(which)]


def test_environments_count_once_for_a_page_of_runs(store: SqlStore) -> None:
    house = House(store)
    shared = {"NAME": "x" * 10_000}
    for _ in range(60):
        house.submit(env=shared)
    for n in range(60):
        house.submit(env={"NAME": f"{n}" + "x" * 10_000})
    house.commit()
    assert [len(page) for page in paged(store, 1000, 205_000)] == [20, 20, 20, 60]


def test_compaction_keeps_what_is_live(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    for _ in range(12):
        house.submit(request=Request(gpus=1))
    for run_id in house.plan()[:5]:
        house.finish(run_id)
    house.commit([KeyRecord("ann", "old", "d", "r", house.now)])
    old_runs = set(house.ended)
    house.now += 1000
    cut = house.now - 1
    for run_id in [run.id for run in house.state.runs.values() if run.attempt][:2]:
        house.finish(run_id)
    house.commit([KeyRecord("ann", "new", "d", "r", house.now)])
    newer = house.state.version
    assert house.store.compact(house.state, before=cut, keep_runs_since=cut) > 0
    same(house)
    assert {item.event.at >= cut for item in house.store.events(0, 1000)} == {True}
    assert house.store.events(0, 1000)[-1].seq == newer
    kept = {run.id for run in house.store.runs(RunFilter(states=ENDED, limit=1000))}
    assert kept == set(house.ended) - old_runs
    assert all(house.store.attempts(run_id) == [] for run_id in old_runs)
    assert house.store.key("ann", "old") is None
    assert house.store.key("ann", "new") is not None
    assert house.store.compact(house.state, before=cut, keep_runs_since=cut) == 0

    house.plan()
    house.submit()
    house.commit()
    same(house)
    assert house.store.compact(house.state, before=1e12, keep_runs_since=0.0) > 0
    assert house.store.events(0, 10) == []
    same(house)
    house.submit()
    house.commit()
    same(house)
    house.store.close()
    house.restart(opener(where))
    same(house)


PAYLOADS = (
    "'; DROP TABLE runs; --",
    '"); DELETE FROM events; --',
    "%s %(id)s %% ? :id $1 {x}",
    "\\'; \\x00 \\u0000",
    "NULL",
    "a\x00b\x1a\x1a0000",
    "line\nbreak\ttab\r",
    "\udcff\udc80 raw bytes",
    "Zoë 你好 🚀 \u202e",
    "x" * 5000,
    "",
)


@pytest.mark.parametrize("odd", PAYLOADS, ids=range(len(PAYLOADS)))
def test_text_is_only_text(where: str, opener: Opener, odd: str) -> None:
    """E3: SQL, and anything else a person can type, in every text field."""
    house = House(opener(where), boot_id=odd)
    cluster(house)
    node = replace(house.state.nodes["node1"], id=f"n{odd}", hostname=odd, drain_why=odd, drained=True)
    house.do(e.NodeSeen(at=house.now, by=odd, node=node), e.SchedulingPaused(at=house.now, by=odd, why=odd))
    house.do(e.SchedulingResumed(at=house.now))
    house.do(e.PolicySet(at=house.now, policy=Policy(user_limits={odd: Limits(running=1)})))
    strings = {"name": odd, "argv": (odd, odd), "workdir": odd, "account": odd}
    run = house.submit(odd, **strings, env={odd: odd}, labels={odd: odd}, request=Request(gpu_type=odd[:0], gpus=1))
    other = house.submit(odd, held=True)
    house.do(e.RunReleased(at=house.now, by=odd, run_id=other.id))
    house.do(e.RunHeld(at=house.now, by=odd, run_id=other.id, why=odd))
    assert house.plan() == [run.id]
    house.commit([KeyRecord(odd, odd, odd, run.id, house.now)])
    same(house)
    attempt = house.state.runs[run.id].attempt
    assert attempt is not None
    stop = e.StopRequested(
        at=house.now,
        by=odd,
        run_id=run.id,
        attempt_id=attempt.id,
        cause=Cause.CANCELLED,
        signal=2,
        grace_s=1.0,
        for_run=odd,
    )
    house.do(stop)
    house.finish(run.id, Cause.CANCELLED, to=RunState.CANCELLED)
    house.commit()
    same(house)
    store = house.store
    assert store.key(odd, odd) == KeyRecord(odd, odd, odd, run.id, house.now)
    assert store.run(run.id) == house.ended[run.id]
    assert store.run(odd) is None
    assert {found.id for found in store.runs(RunFilter(user=odd))} == {run.id, other.id}
    assert [total.user for total in store.totals(0.0, 1e12)] == [odd]
    assert store.events(0, 100, run_id=odd) == []
    assert stop in [item.event for item in store.events(0, 100)]


def test_readers_see_whole_batches_while_the_writer_writes(store: SqlStore) -> None:
    """From any thread; a batch of ten runs is there or not, never five of it."""
    house = House(store)
    wrong: list[object] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            count = len(store.runs(RunFilter(limit=10_000)))
            if count % 10:
                wrong.append(count)
            loaded = store.load()
            if len(loaded.runs) % 10 or check(loaded):
                wrong.append(len(loaded.runs))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        for _ in range(10):
            house.submit()
        house.commit()
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_predictions_are_learnt_again(where: str, opener: Opener) -> None:
    house = House(opener(where))
    cluster(house)
    for _ in range(4):
        house.submit(argv=("train", "--lr", "0.1"))
        house.plan()
        house.now += 100
        for run in [run for run in house.state.runs.values() if run.attempt]:
            house.finish(run.id)
        house.commit()
    spec = next(iter(house.ended.values())).spec
    house.store.close()
    assert house.state.history.predict("ann", spec) == 100.0
    assert opener(where).load().history.predict("ann", spec) == 100.0


def test_a_run_knows_when_it_got_into_line(store: SqlStore) -> None:
    """Rows say so only where it is not the usual; those of an older Rota say nothing at all."""
    house = House(store)
    cluster(house)
    runs = [house.submit() for _ in range(4)]
    at_once, again, held, gone = (run.id for run in runs)
    first = house.now
    for run_id in (again, held):
        house.do(e.RunHeld(at=house.now, run_id=run_id))
    house.commit()
    house.now += 5
    house.do(e.RunReleased(at=house.now, run_id=again))
    house.end(gone)
    house.commit()
    wanted = {at_once: first, again: first + 5, held: first, gone: first}
    found = {run.id: run for run in store.runs(RunFilter())}
    assert {run_id: run.queued_at for run_id, run in found.items()} == wanted
    assert compare(store.replay(), store.load()) == []
    store.compact(house.state, before=1e12, keep_runs_since=0.0)
    assert compare(store.replay(), store.load()) == [], "from a checkpoint as well"
    assert '"queued_at"' not in runrows.facts_text(found[at_once]), "nothing is written for most"


def test_a_row_that_does_not_say_when_it_got_into_line(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    run = house.submit()
    never = replace(run, state=RunState.CANCELLED, queued_at=None)
    assert '"queued_at":null' in runrows.facts_text(never), "stopped before it ever was in line"
    assert '"queued_at"' not in runrows.facts_text(replace(run, state=RunState.HELD, queued_at=None))


def test_what_differs_between_runs_is_told_from_what_they_share(store: SqlStore) -> None:
    """A name or a command may hold what looks like a later field; runs that share all else differ in these alone."""
    house = House(store)
    cluster(house)
    odd = ["plain", ',"workdir":"/other"', '{"argv":[]}', '\\",\\"workdir\\":', "é\0\ud800"]
    wanted = {}
    for name in odd:
        for more in ({}, {"labels": {"workdir": "x"}}, {"env": {"A": "1"}}, {"depends_on": (Dependency("none"),)}):
            run = house.submit(name=name, argv=("echo", name, "workdir", ":"), **more)
            wanted[run.id] = run.spec
    house.commit()
    same(house)
    assert {run_id: run.spec for run_id, run in store.load().runs.items()} == wanted
    assert {run.id: run.spec for run in store.runs(RunFilter())} == wanted
    for run_id, spec in wanted.items():
        assert (found := store.run(run_id)) is not None and found.spec == spec


def test_room_for_a_full_disk_changes_nothing_that_is_stored(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    house.submit()
    house.commit()
    for size in (1 << 20, 1 << 18):
        store.keep_room(house.state, size)
        house.submit()
        house.commit()
    assert len(store.load().runs) == len(store.replay().runs) == 3


def test_a_server_that_was_fenced_off_makes_no_room(store: SqlStore, where: str, opener: Opener) -> None:
    house = House(store)
    house.commit()
    if where.startswith("postgresql"):
        store.keep_room(house.state, 1 << 20)  # a database elsewhere needs no room of ours: nothing happens
        return
    House(opener(where))
    with pytest.raises(Fenced):
        store.keep_room(house.state, 1 << 20)
