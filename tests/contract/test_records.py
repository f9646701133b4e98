"""The doors' small documents, edits of runs that ended, and whose database it is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rota.adapters.store import kept
from rota.adapters.store import store as store_module
from rota.adapters.store.compare import compare
from rota.adapters.store.house import FILE, bind_house
from rota.adapters.store.store import SqlStore
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Submit
from rota.app.errors import CannotStart
from rota.app.ports import RunFilter, StoreUnusable
from rota.config import Settings
from rota.core import events as e
from rota.core.nesting import MAX_KEPT, is_deeper
from rota.core.run import Run, RunState, Spec
from rota.main import open_rota
from tests.app.house import until
from tests.contract.conftest import Opener
from tests.contract.house import House, cluster
from tests.contract.postgres import Postgres


def put(house: House, kind: str, name: str, body: str, *, parent: str = "", by: str = "ann") -> int:
    house.do(e.RecordPut(at=house.now, by=by, kind=kind, id=name, parent=parent, body=body))
    return house.state.version


def test_a_record_keeps_who_made_it_and_when(store: SqlStore) -> None:
    house = House(store)
    seq = put(house, "sweep", "s", '{"a":1}')
    made_at = house.now
    house.commit()
    house.now += 50
    put(house, "sweep", "s", '{"a":2}', parent="p", by="bob")
    house.commit()
    record = store.record("sweep", "s")
    assert record is not None
    assert (record.seq, record.at, record.by) == (seq, made_at, "ann")
    assert (record.body, record.parent) == ({"a": 2}, "p")
    assert store.record("alert", "s") is None
    put(house, "sweep", "s", "")
    house.commit()
    assert store.record("sweep", "s") is None


def test_one_batch_writes_removes_and_writes_again(store: SqlStore) -> None:
    house = House(store)
    put(house, "alert", "a", '{"n":1}')
    put(house, "alert", "b", '{"n":1}')
    house.commit()
    put(house, "alert", "a", "")
    again = put(house, "alert", "a", '{"n":2}', by="bob")
    put(house, "alert", "a", '{"n":3}')
    put(house, "alert", "b", '{"n":2}')
    put(house, "alert", "b", "")
    put(house, "alert", "c", '{"n":1}')
    put(house, "alert", "c", "")
    house.commit()
    (record,) = store.records("alert")
    assert (record.id, record.seq, record.by, record.body) == ("a", again, "bob", {"n": 3})


def test_pages_of_records_newest_first(store: SqlStore) -> None:
    house = House(store)
    for n in range(25):
        put(house, "alert", f"a{n:02}", f'{{"n":{n}}}', parent=f"run{n % 2}")
    put(house, "sweep", "other", "{}", parent="run0")
    house.commit()
    seen: list[int] = []
    before: int | None = None
    while page := store.records("alert", before=before, limit=10):
        seen += [record.body["n"] for record in page]
        before = page[-1].seq
    assert seen == list(range(24, -1, -1))
    assert [record.body["n"] for record in store.records("alert", parent="run1", limit=3)] == [23, 21, 19]
    assert store.records("alert", limit=-1) == []
    assert [store.count_records("alert", most) for most in (1, 25, 100)] == [1, 25, 25]


@pytest.mark.parametrize("odd", ["nul\0", "\x1a001a", "é你好", "half \udc80", "'; DROP TABLE records; --", "a\x1fb"])
def test_names_of_records_are_only_text(store: SqlStore, odd: str) -> None:
    house = House(store)
    put(house, odd, odd, '{"x":"\\ud83d"}', parent=odd, by=odd)
    house.commit()
    record = store.record(odd, odd)
    assert record is not None
    assert (record.kind, record.id, record.parent, record.by) == (odd, odd, odd, odd)
    assert store.records(odd, parent=odd) == [record]
    assert compare(store.replay(), store.load()) == []


def test_what_belongs_to_a_run_goes_with_it(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded bites: no call to compact takes more rows of a table than it should."""
    monkeypatch.setattr(store_module, "DROPPED_AT_ONCE", 10)
    house = House(store)
    cluster(house)
    old, young = house.submit(), house.submit()
    for n in range(25):
        put(house, "alert", f"old{n}", "{}", parent=old.id)
    put(house, "workspace", young.id, "{}", parent=young.id)
    put(house, "sweep", "s", "{}")
    house.end(old.id)
    house.commit()
    house.now += 100
    house.end(young.id)
    house.commit()
    bites = []
    while went := store.compact(house.state, before=0.0, keep_runs_since=house.now - 50):
        bites.append(went)
    assert bites == [10, 10, 6], "25 alerts, and the run with the last of them"
    assert store.records("alert") == []
    assert [run.id for run in store.runs(RunFilter())] == [young.id]
    assert store.record("workspace", young.id) is not None
    assert store.record("sweep", "s") is not None


def test_a_run_that_ended_can_be_renamed_and_put_away(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    run = house.submit(env={"A": "1"})
    house.plan()
    house.commit()
    house.finish(run.id)
    house.commit()
    ended = store.run(run.id)
    assert ended is not None
    house.edit(ended, name="new", group="g", labels={"a": "b"}, env={"A": "2"})
    renamed = house.state.touched[run.id]
    house.archive(renamed, True)
    house.commit()
    stored = store.run(run.id)
    assert stored is not None
    assert (stored.spec.name, stored.spec.group, stored.spec.labels, stored.spec.env) == (
        "new",
        "g",
        {"a": "b"},
        {"A": "2"},
    )
    assert (stored.archived_at, stored.state) == (house.now, RunState.SUCCEEDED)
    assert stored.past == ended.past
    assert run.id not in house.state.runs
    assert compare(store.replay(), store.load()) == []
    assert store.counts()[RunState.SUCCEEDED] == 0
    house.archive(stored, False)
    house.commit()
    assert store.counts()[RunState.SUCCEEDED] == 1


def test_a_run_submitted_and_edited_in_one_batch(store: SqlStore) -> None:
    house = House(store)
    run = house.submit(name="first", group="g")
    house.edit(run, name="second", group="h")
    house.commit()
    stored = store.run(run.id)
    assert stored is not None
    assert (stored.spec.name, stored.spec.group) == ("second", "h")
    assert [found.id for found in store.runs(RunFilter(group="h"))] == [run.id]
    assert store.runs(RunFilter(group="g")) == []
    assert compare(house.state, store.load()) == []


def test_caps_come_back(where: str, opener: Opener) -> None:
    house = House(opener(where))
    house.do(e.GroupCapped(at=house.now, group="s1", limit=3), e.GroupCapped(at=house.now, group="s2", limit=1))
    house.do(e.GroupCapped(at=house.now, group="s2", limit=0))
    house.commit()
    assert house.store.load().caps == {"s1": 3}
    house.store.compact(house.state, before=1e12, keep_runs_since=0.0)
    assert house.store.replay().caps == {"s1": 3}, "from the checkpoint"


# -- whose database it is -------------------------------------------------------------------------------------------
@pytest.fixture
def active(postgres: Postgres, tmp_path: Path, opener: Opener) -> tuple[str, House]:
    """A database with one active run, bound to the directory `one`."""
    url = postgres.new_database()
    house = House(opener(url))
    (tmp_path / "one").mkdir()
    bind_house(house.store, tmp_path / "one")
    cluster(house)
    house.submit()
    house.plan()
    house.commit()
    house.store.close()
    return url, house


def test_another_directory_is_refused_while_runs_are_active(
    active: tuple[str, House], tmp_path: Path, opener: Opener
) -> None:
    url, _ = active
    (tmp_path / "two").mkdir()
    store = opener(url)
    with pytest.raises(StoreUnusable) as refusal:
        bind_house(store, tmp_path / "two")
    assert str(tmp_path / "one") in str(refusal.value)
    assert str(tmp_path / "two") in str(refusal.value)
    bind_house(store, tmp_path / "one")  # its own is let in, also after the refusal
    bind_house(store, tmp_path / "one")


def test_a_moved_directory_is_still_the_same_house(active: tuple[str, House], tmp_path: Path, opener: Opener) -> None:
    url, _ = active
    (tmp_path / "one").rename(tmp_path / "elsewhere")
    bind_house(opener(url), tmp_path / "elsewhere")


def test_an_idle_database_goes_to_whoever_opens_it(active: tuple[str, House], tmp_path: Path, opener: Opener) -> None:
    url, house = active
    store = opener(url)
    house.restart(store)
    (run,) = house.state.runs.values()
    house.finish(run.id)
    house.commit()
    (tmp_path / "two").mkdir()
    bind_house(store, tmp_path / "two")
    house.submit()
    house.plan()
    house.commit()
    with pytest.raises(StoreUnusable, match="two"):
        bind_house(store, tmp_path / "one")
    assert compare(house.state, store.load()) == [], "the name of the house is no part of the state"


def test_a_damaged_name_is_not_replaced(active: tuple[str, House], tmp_path: Path, opener: Opener) -> None:
    url, _ = active
    (tmp_path / "one" / FILE).write_text("what?")
    with pytest.raises(StoreUnusable, match=FILE):
        bind_house(opener(url), tmp_path / "one")


class TestADirectoryThatHadAStore:
    """It gets no other one in silence: without its tokens the server would be open to everybody."""

    def test_the_url_may_name_the_file_that_it_has_anyway(self, tmp_path: Path, opener: Opener) -> None:
        url = f"sqlite:///{tmp_path / 'rota.db'}"
        bind_house(opener(url), tmp_path)
        bind_house(opener(url), tmp_path)
        other = tmp_path / "other"
        other.mkdir()
        opener(f"sqlite:///{other / 'rota.db'}")
        with pytest.raises(StoreUnusable, match="are in"):
            bind_house(opener(f"sqlite:///{tmp_path / 'third.db'}"), other)

    def test_not_an_empty_database_instead_of_its_own(self, postgres: Postgres, tmp_path: Path, opener: Opener) -> None:
        (tmp_path / "one").mkdir()
        bind_house(opener(postgres.new_database()), tmp_path / "one")
        other = opener(postgres.new_database())
        with pytest.raises(StoreUnusable, match="this database is empty"):
            bind_house(other, tmp_path / "one")
        (tmp_path / "one" / FILE).unlink()
        bind_house(other, tmp_path / "one")

    def test_not_sqlite_instead_of_a_database(self, postgres: Postgres, tmp_path: Path) -> None:
        url = postgres.new_database()
        with open_rota(Settings(tmp_path / "data", database_url=url, simulated=(1, 1))):
            pass
        with pytest.raises(CannotStart, match="ROTA_DATABASE_URL"), open_rota(Settings(tmp_path / "data")):
            pass
        assert not (tmp_path / "data" / "rota.db").exists()

    def test_not_a_database_instead_of_sqlite(self, postgres: Postgres, tmp_path: Path) -> None:
        with open_rota(Settings(tmp_path / "data", simulated=(1, 1))):
            pass
        settings = Settings(tmp_path / "data", database_url=postgres.new_database(), simulated=(1, 1))
        for match in (r"are in .*rota\.db", "has been used before"):
            with pytest.raises(CannotStart, match=match), open_rota(settings):
                pass
            for path in (tmp_path / "data").glob("rota.db*"):
                path.unlink()
        with open_rota(Settings(tmp_path / "new", database_url=settings.database_url, simulated=(1, 1))):
            pass

    def test_a_token_that_is_made_before_the_first_start_is_in_the_database(
        self, postgres: Postgres, tmp_path: Path
    ) -> None:
        """Else the server that was to be closed before its first start is open."""
        data, url = tmp_path / "data", postgres.new_database()
        outside = {name: value for name, value in os.environ.items() if not name.startswith("ROTA_")}
        env = {**outside, "ROTA_DATABASE_URL": url}

        def rota(*words: str) -> str:
            argv = [sys.executable, "-m", "rota", "token", *words, "--data-dir", str(data)]
            return subprocess.run(argv, env=env, check=True, capture_output=True, text=True, timeout=100).stdout

        assert rota("create", "--user", "ann", "--role", "admin", "-q").startswith("rota_")
        assert [one["user"] for one in json.loads(rota("list", "--json"))] == ["ann"]
        assert not (data / "rota.db").exists()

    def test_a_start_that_was_cut_short_is_no_store(self, postgres: Postgres, tmp_path: Path, opener: Opener) -> None:
        """The database is told first: a directory without a name is let in again."""
        store = opener(postgres.new_database())
        (tmp_path / "one").mkdir()
        bind_house(store, tmp_path / "one")
        (tmp_path / "one" / FILE).unlink()
        bind_house(store, tmp_path / "one")
        bind_house(store, tmp_path / "one")


def test_a_server_on_another_directory_does_not_start(postgres: Postgres, tmp_path: Path) -> None:
    """The whole way: the job of the first server runs on, and is not started a second time by a stranger."""
    url, me = postgres.new_database(), Principal("ann", Role.ADMIN)
    one, two = (Settings(tmp_path / name, database_url=url, simulated=(1, 2)) for name in ("one", "two"))
    with open_rota(one) as opened:
        rota = opened.service
        run: Run = rota.do(me, Submit(Spec("t", ("/bin/sleep", "100000"), "/")))
        until(lambda: rota.run(run.id).state is RunState.RUNNING, "it runs")
    with pytest.raises(CannotStart, match="belongs to the data directory"), open_rota(two):
        pass
    with open_rota(one) as opened:
        rota = opened.service
        assert rota.run(run.id).state is RunState.RUNNING
        rota.do(me, Cancel(run.id, grace_s=0.0))
        assert rota.wait(run.id, 60).attempts_made == 1
    with open_rota(two) as opened:
        assert opened.service.run(run.id).state is RunState.CANCELLED


def test_a_lost_directory_is_replaced_as_the_refusal_says(postgres: Postgres, tmp_path: Path) -> None:
    """A run was active when the machine broke: neither its directory nor its server will end it."""
    url, me = postgres.new_database(), Principal("ann", Role.ADMIN)
    one, two = (Settings(tmp_path / name, database_url=url, simulated=(1, 2)) for name in ("one", "two"))
    with open_rota(one) as opened:
        rota = opened.service
        ending = f"until [ -e {tmp_path}/over ]; do sleep 0.1; done"
        run: Run = rota.do(me, Submit(Spec("t", ("/bin/sh", "-c", ending), "/", max_retries=0)))
        until(lambda: rota.run(run.id).state is RunState.RUNNING, "it runs")
    (tmp_path / "over").touch()
    with pytest.raises(CannotStart, match="If that directory is lost") as caught, open_rota(two):
        pass
    found = re.search(r"write (\w+) into (\S+):", str(caught.value))
    assert found is not None
    Path(found[2]).write_text(found[1] + "\n")
    with open_rota(two) as opened:
        until(lambda: opened.service.run(run.id).state is RunState.LOST, "it is taken for lost")


def test_old_ones_pass_when_nothing_needs_them(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "IDS_AT_ONCE", 2)  # several questions
    house = House(store)
    cluster(house)
    lives, swept = house.submit(), house.submit(group="busy")
    for n in range(5):
        put(house, "journey", f"old{n}", "{}", parent="a session")
    put(house, "alert", "of a run that lives", "{}", parent=lives.id)
    put(house, "sweep", "busy", "{}")
    put(house, "sweep", "empty", "{}")
    put(house, "token", "t", "{}")
    house.commit()
    house.now += 100
    put(house, "journey", "young", "{}")
    house.commit()
    since = house.now - 50
    assert store.compact(house.state, before=0.0, keep_runs_since=since) == 0, "no kind was said to pass"
    passing = ("journey", "alert", "sweep")
    assert store.compact(house.state, before=0.0, keep_runs_since=since, passing=passing) == 6
    assert store.compact(house.state, before=0.0, keep_runs_since=since, passing=passing) == 0
    assert [record.id for record in store.records("journey")] == ["young"]
    assert store.record("alert", "of a run that lives") is not None
    assert [record.id for record in store.records("sweep")] == ["busy"], f"{swept.id} is still there"
    assert store.record("token", "t") is not None


def test_counts_say_up_to_where(store: SqlStore) -> None:
    house = House(store)
    cluster(house)
    house.submit()
    house.commit()
    counts, seq = store.counted()
    assert (counts[RunState.QUEUED], seq) == (1, house.state.version)


def test_what_an_older_version_took_in_too_deep_is_cut_and_told_once(
    store: SqlStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can show 900 levels: one such document must not close a whole list."""
    monkeypatch.setattr(kept, "_told", set())
    house = House(store)
    put(house, "sweep", "fine", '{"a":1}')
    put(house, "sweep", "deep", f'{{"name":"x [","z":{"[" * 900}"]"{"]" * 900},"after":{{"b":[2]}}}}')
    house.commit()
    for _ in range(3):
        deep, fine = store.records("sweep")
        assert (fine.body, deep.body["name"], deep.body["after"]) == ({"a": 1}, "x [", {"b": [2]})
        assert is_deeper(json.dumps(deep.body).encode(), MAX_KEPT - 1)
        assert not is_deeper(json.dumps(deep.body).encode(), MAX_KEPT)
    assert [text for text in caplog.messages if "deep" in text] == [
        f"sweep deep is nested deeper than {MAX_KEPT} levels; what is below them is shown as null"
    ]


def test_of_large_ones_so_many_are_read_as_have_room(store: SqlStore) -> None:
    house = House(store)
    for number in range(5):
        put(house, "sweep", f"s{number}", json.dumps({"text": "x" * 1000}))
    house.commit()
    first = store.records("sweep", most_bytes=2000)
    assert [record.id for record in first] == ["s4", "s3"]
    assert [record.id for record in store.records("sweep", before=first[-1].seq, most_bytes=1)] == ["s2"]
    assert len(store.records("sweep", most_bytes=1 << 20)) == len(store.records("sweep")) == 5
