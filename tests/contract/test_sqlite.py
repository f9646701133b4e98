"""SQLite and the things that happen to files: opening, refusing, locks, full disks."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from rota.adapters.store import schema, sqlite
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.adapters.store.store import SqlStore
from rota.app.ports import Fenced, RunFilter, StoreBroken, StoreBusy, StoreFull, StoreUnusable
from rota.core.check import check
from tests.contract.conftest import Opener
from tests.contract.house import House, cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rota.db"


def lived(path: Path, runs: int = 20) -> House:
    """A closed store with a little history in it."""
    house = House(open_store(path))
    cluster(house)
    for n in range(runs):
        house.submit("ann" if n % 2 else "bob", env={"N": "1"})
    for run_id in house.plan()[:5]:
        house.now += 10
        house.finish(run_id)
    house.commit()
    house.store.close()
    return house


def test_for_want_of_a_descriptor_it_is_busy_and_not_broken(path: Path) -> None:
    """A store that is broken ends the server; one that is busy is asked again."""
    lived(path)
    store = open_store(path)
    store.load()
    store._database.readers.dispose()  # whoever reads next opens the file anew
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(StoreBusy):
            store.runs(RunFilter(limit=1))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(store.runs(RunFilter(limit=1))) == 1
    store.close()


def beside(path: Path) -> dict[str, bytes]:
    """Every file of the directory, byte for byte."""
    return {file.name: file.read_bytes() for file in sorted(path.parent.iterdir())}


def refused(path: Path, match: str) -> None:
    before = beside(path)
    with pytest.raises(StoreUnusable, match=match):
        open_store(path)
    assert beside(path) == before


# -- opening --------------------------------------------------------------------------------------------------------
def test_the_settings_that_make_it_durable(path: Path) -> None:
    house = House(open_store(path))
    with house.store._writer.transaction() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "application_id")
        }
    wanted = {"journal_mode": "wal", "synchronous": 2, "busy_timeout": 2000, "foreign_keys": 0}
    assert found == {**wanted, "application_id": schema.APPLICATION_ID}
    for suffix in ("", "-wal", "-shm"):
        assert os.stat(f"{path}{suffix}").st_mode & 0o777 == 0o600
    with pytest.raises(StoreBroken, match="readonly"), house.store._read() as connection:
        connection.exec_driver_sql("DELETE FROM events")
    house.store.close()
    assert sorted(beside(path)) == ["rota.db"]


# Reads until its stdin ends.
READER = """
import sqlite3, sys
reader = sqlite3.connect(sys.argv[1], isolation_level=None)
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM events").fetchone()
print("reads", flush=True)
sys.stdin.read()
"""


def test_a_close_says_where_the_log_still_has_commits(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    house = House(open_store(path))
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        run = house.submit()
        house.commit()
        house.store.close()
        assert "rota.db-wal still belongs to the store" in caplog.text
        assert path.with_name("rota.db-wal").stat().st_size
        reader.communicate()
    caplog.clear()
    store = open_store(path)
    assert store.run(run.id) is not None
    store.close()
    assert "rota.db-wal" not in caplog.text


def test_where_others_can_search_its_directory_a_close_removes_nothing(path: Path, tmp_path: Path) -> None:
    """To remove a file waits for the lock of its directory, which who can search that can hold for ever."""
    path.parent.chmod(0o711)
    house = House(open_store(path))
    run = house.submit()
    house.commit()
    before = {file.name: file.stat().st_ino for file in path.parent.iterdir()}
    house.store.close()
    assert {file.name: file.stat().st_ino for file in path.parent.iterdir()} == before
    assert path.with_name("rota.db-wal").stat().st_size == 0
    alone = tmp_path / "copied" / "rota.db"
    alone.parent.mkdir(mode=0o700)
    alone.write_bytes(path.read_bytes())
    for each in (alone, path):
        store = open_store(each)
        assert store.run(run.id) is not None, "the file alone is the whole ledger"
        store.close()


def test_what_is_not_ours_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"# not a database\n" * 100)
    refused(path, "is not a SQLite database")
    path.write_bytes(b"short")
    refused(path, "is not a SQLite database")
    path.unlink()
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE theirs (x)")
    theirs.close()
    refused(path, "of another program")
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnusable, match=r"cannot open .*: Is a directory"):
        open_store(path)


def test_a_newer_database_is_refused_untouched(path: Path) -> None:
    lived(path)
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    newer.close()
    refused(path, r"newer Rota \(revision 9999, this one knows up to")


def test_a_newer_database_left_by_a_crash_is_refused_too(path: Path) -> None:
    """The revision may stand in the WAL only: its server was killed."""
    lived(path)
    script = (
        "import os, sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute(\"UPDATE alembic_version SET version_num = '9999'\")\n"
        "os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert (path.parent / "rota.db-wal").stat().st_size
    before = beside(path)
    with pytest.raises(StoreUnusable, match="newer Rota"):
        open_store(path)
    after = beside(path)
    assert (after["rota.db"], after["rota.db-wal"]) == (before["rota.db"], before["rota.db-wal"])


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    house = House(open_store(path))
    house.submit()
    house.commit()
    house.store.close()
    assert sorted(beside(path)) == ["rota.db"]


def test_names_with_odd_characters(tmp_path: Path, opener: Opener) -> None:
    path = tmp_path / "a b?#%41;é&mode=rw" / "rota.db"
    path.parent.mkdir()
    House(opener(str(path)))
    assert path.exists()


def test_unknown_schemes_and_missing_directories(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="mysql is not a database Rota knows"):
        open_store("mysql://x/y")
    with pytest.raises(StoreUnusable, match="No such file"):
        open_store(tmp_path / "no" / "rota.db")


def test_the_revisions_known_are_the_revisions_there() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(ROOT / "src/rota/adapters/store/migrations"))
    scripts = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(scripts)) == schema.REVISIONS


def test_the_migrated_database_is_the_schema(path: Path) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    open_store(path).close()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        found = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    engine.dispose()
    assert found == []


# -- damage ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("sql", "match"),
    [
        ("UPDATE runs SET priority = 4 WHERE seq = 7", "table runs, row '[0-9a-f]{12}': its facts are not what"),
        ("UPDATE runs SET spec = replace(spec, 'true', 'rm') WHERE seq = 7", "table runs, row .* its spec is not what"),
        ("UPDATE runs SET env = '{}' WHERE seq = 7", "table runs, row .* its spec is not what"),
        ("UPDATE runs SET live = 0 WHERE seq = 7", "table runs.* 14 live runs found, 15 were written|7"),
        ("UPDATE runs SET live = 1 WHERE live = 0", "table runs, row .* is succeeded and yet marked live"),
        ("DELETE FROM runs WHERE seq = 9", "table runs, row 'live': 14 live runs found, 15 were written"),
        ("UPDATE nodes SET body = replace(body, '4', '5') WHERE id = 'node2'", "table nodes, row 'node2'"),
        ("UPDATE usage SET gpu_s = gpu_s + 1 WHERE \"user\" = 'ann'", "table usage, row 'ann'"),
        ("UPDATE settings SET body = '{\"max_queue\":7}' WHERE key = 'policy'", "table settings, row 'policy'"),
        ("DELETE FROM settings WHERE key = 'paused'", "table settings, row 'paused': is missing"),
        ("UPDATE head SET next_seq = 1", "table head, row 1"),
        ("DELETE FROM head", "table head, row 1: is missing"),
    ],
)
def test_a_damaged_row_is_named(path: Path, opener: Opener, sql: str, match: str) -> None:
    lived(path)
    with sqlite3.connect(path) as hand:
        hand.execute(sql)
    hand.close()
    with pytest.raises(StoreBroken, match=match):
        opener(str(path)).load()


@pytest.mark.parametrize(
    ("column", "body", "match"),
    [
        ("spec", "{", "its spec cannot be read: JSONDecodeError"),
        ("spec", '{"name":"a"}', "its spec cannot be read"),
        ("spec", '{"name":"a","workdir":"/"}', "its spec cannot be read: KeyError"),
        ("spec", '{"name":"a","argv":1,"workdir":"/"}', "its spec cannot be read: TypeError"),
        ("spec", '{"name":"a","argv":[],"workdir":"/"', "its spec cannot be read: JSONDecodeError"),
        ("spec", '{"name":"a","argv":[],"workdir":"/","colour":"red"}', "its spec cannot be read: TypeError.*colour"),
        ("facts", "[", "its facts cannot be read: JSONDecodeError"),
        ("facts", '{"expected_s":1.0}', "its facts cannot be read: TypeError.*expected_from"),
        ("facts", '{"expected_s":1.0,"expected_from":"limit","past":[1]}', "its facts cannot be read"),
        ("state", "dancing", "there is no state 'dancing'"),
    ],
)
def test_a_row_that_is_whole_and_says_nothing_is_named(
    path: Path, opener: Opener, column: str, body: str, match: str
) -> None:
    """Its sums are right: another version, or a defect, wrote it."""
    from rota.adapters.store import runrows

    lived(path)
    with sqlite3.connect(path) as hand:
        hand.execute(f"UPDATE runs SET {column} = ? WHERE seq = 7", (body,))
        hand.row_factory = sqlite3.Row
        row = hand.execute("SELECT * FROM runs WHERE seq = 7").fetchone()
        spec_sum = runrows.spec_checksum(row["id"], row["spec"], row["env"])
        facts_sum = runrows.facts_checksum(*[row[name] for name in runrows.RUN_COLUMNS[:7]], row["facts"])
        hand.execute("UPDATE runs SET spec_sum = ?, facts_sum = ? WHERE seq = 7", (spec_sum, facts_sum))
    hand.close()
    with pytest.raises(StoreBroken, match=f"table runs, row '{row['id']}': {match}"):
        opener(str(path)).load()


@pytest.mark.parametrize(
    ("sql", "match"),
    [
        ("UPDATE events SET body = '{}' WHERE seq = 4", "table events, row 4: is not what was written"),
        ("DELETE FROM events WHERE seq = 4", "table events, row 4: is missing"),
        ("DELETE FROM events WHERE seq > 20", "the log ends at 20"),
        (
            "UPDATE events SET type = 'RunFrobbed', sum = :sum WHERE seq = 4",
            "row 4: event type 'RunFrobbed' is not known",
        ),
        ("UPDATE events SET version = 99, sum = :sum WHERE seq = 4", "row 4: event RunSubmitted has version 99"),
    ],
)
def test_a_damaged_or_unknown_event_is_named(path: Path, opener: Opener, sql: str, match: str) -> None:
    from rota.adapters.store.rows import checksum

    lived(path)
    with sqlite3.connect(path) as hand:
        row = list(hand.execute("SELECT * FROM events WHERE seq = 4").fetchone())
        row[2] = "RunFrobbed" if "Frobbed" in sql else row[2]
        row[3] = 99 if "99" in sql else row[3]
        hand.execute(sql, {"sum": checksum(*row[:7])} if ":sum" in sql else {})
    hand.close()
    store = opener(str(path))
    with pytest.raises(StoreBroken, match=match):
        store.replay()
    if "seq = 4" in sql and "DELETE" not in sql:
        with pytest.raises(StoreBroken, match="row 4"):
            store.events(0, 100)


# -- locks ----------------------------------------------------------------------------------------------------------
def test_a_newer_server_on_the_same_file_fences_the_older(path: Path, opener: Opener) -> None:
    older = House(opener(str(path)))
    newer = House(opener(str(path)))
    older.submit()
    with pytest.raises(Fenced):
        older.commit()
    newer.submit()
    newer.commit()
    assert compare(newer.state, newer.store.load()) == []
    assert len(newer.store.runs(RunFilter())) == 1


def test_held_by_another_process(path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """A9: the writer waits, then says busy; readers answer; the same batch goes in later, once."""
    monkeypatch.setattr(sqlite, "BUSY_S", 0.1)
    house = House(opener(str(path)))
    house.submit()
    house.commit()
    script = (
        "import sqlite3, sys\n"
        "c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); input()"
    )
    argv = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        house.submit()
        for _ in range(3):
            with pytest.raises(StoreBusy):
                house.commit()
            assert len(house.store.runs(RunFilter())) == 1
            assert len(house.store.load().runs) == 1
        other.communicate(b"\n")
    house.commit()
    assert compare(house.state, house.store.load()) == []
    assert compare(house.state, house.store.replay()) == []


# -- no space -------------------------------------------------------------------------------------------------------
def fill(house: House, most: int = 2000) -> None:
    """Submit until there is no space left."""
    for _ in range(most):
        house.submit(env={"FILL": "x" * 500})
        house.commit()


def test_full_and_free_again(path: Path, opener: Opener) -> None:
    """A7 in small: SQLite's own limit stands in for the disk's."""
    house = House(opener(str(path)))
    connection = house.store._writer._connection
    assert connection is not None
    raw = connection.connection.driver_connection
    assert raw is not None
    pages = raw.execute("PRAGMA page_count").fetchone()[0]
    raw.execute(f"PRAGMA max_page_count = {pages + 20}")
    with pytest.raises(StoreFull):
        fill(house)
    for _ in range(3):
        with pytest.raises(StoreFull):
            house.commit()
    stored = house.store.load()
    assert stored.version == house.state.version - 1
    assert check(stored) == []
    raw.execute("PRAGMA max_page_count = 1000000")
    house.commit()
    assert compare(house.state, house.store.load()) == []
    assert compare(house.state, house.store.replay()) == []


ON_A_FULL_DISK = """
import os, sys
from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.app.ports import RunFilter, StoreFull
from tests.contract.house import House
from tests.contract.test_sqlite import fill

where = sys.argv[1]
with open(f"{where}/ballast", "wb") as ballast:
    ballast.write(bytes(200_000))
house = House(open_store(f"{where}/rota.db"))
refusals = 0
try:
    fill(house)
except StoreFull:
    refusals += 1
for _ in range(5):
    try:
        house.commit()
    except StoreFull:
        refusals += 1
assert refusals == 6, refusals
known = house.store.load()
assert known.version == house.state.version - 1, (known.version, house.state.version)
assert compare(known, house.store.replay()) == []
assert house.store.runs(RunFilter(limit=5))
os.unlink(f"{where}/ballast")
house.commit()
assert compare(house.state, house.store.load()) == []
house.store.close()
again = open_store(f"{where}/rota.db")
assert compare(house.state, again.load()) == []
assert compare(house.state, again.replay()) == []
again.close()
print("as it should be")
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A7: a tmpfs of one MiB in a mount namespace of our own."""
    unshare = shutil.which("unshare")
    mount = f'mount -t tmpfs -o size=1m rota "{tmp_path}" && exec "$@"'
    inside = [unshare or "unshare", "-m", "sh", "-c", mount, "sh"]
    if unshare is None or subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces for this user")
    argv = [*inside, sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("as it should be\n", "")


def test_closing_twice_is_harmless(path: Path) -> None:
    store: SqlStore = open_store(path)
    store.close()
    store.close()


ROOM = 1 << 20


def sizes(path: Path) -> tuple[int, int, int]:
    """The bytes of its free pages, of its file and of its write-ahead log."""
    with sqlite.driver().connect(f"file:{path}?mode=ro", uri=True) as found:
        free, page = (found.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size"))
    return free * page, path.stat().st_blocks * 512, path.with_name("rota.db-wal").stat().st_size


def test_room_for_a_full_disk_is_inside_the_file_and_its_log(path: Path) -> None:
    """Neither goes back to the file system while the server runs, whatever is written."""
    lived(path)
    before = path.stat().st_size
    house = House(open_store(path))
    house.store.keep_room(house.state, ROOM)
    kept = sizes(path)
    assert kept[0] >= ROOM and kept[1] >= before + ROOM and kept[2] >= ROOM, kept
    for n in range(100):
        house.submit("ann", env={"N": f"{n}"})
        house.commit()
    assert sizes(path)[1:] == kept[1:], "a hundred commits need no block more"
    house.store.close()


def test_room_is_made_again_when_half_of_it_is_used_up_and_after_a_crash_on_the_way(path: Path) -> None:
    lived(path)
    with sqlite3.connect(path) as torn:
        torn.execute("CREATE TABLE spare_room (body BLOB)")
        torn.execute("INSERT INTO spare_room VALUES (zeroblob(?))", (ROOM,))
    house = House(open_store(path))
    house.store.keep_room(house.state, ROOM)
    kept = sizes(path)
    assert kept[0] >= ROOM
    with sqlite.driver().connect(path) as found:
        assert "spare_room" not in {name for (name,) in found.execute("SELECT name FROM sqlite_master")}
    for n in range(40):
        house.submit("ann", env={"N": f"{n}" * 30_000})
        house.commit()
    assert sizes(path)[0] < ROOM // 2
    house.store.keep_room(house.state, ROOM)
    assert sizes(path)[0] >= ROOM
    house.store.close()
