"""P1: acknowledged = durable. Kills, fsyncs that fail, flipped bits."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.adapters.store.compare import compare
from rota.adapters.store.open import open_store
from rota.app.ports import StoreBroken, StoreUnusable
from rota.core.check import check
from rota.core.state import State
from tests.contract.house import House
from tests.contract.test_sqlite import beside, lived

ROOT = Path(__file__).parents[2]


def appender(path: Path, batches: int, *before: str) -> subprocess.Popen[str]:
    argv = [*before, sys.executable, "-m", "tests.contract.appender", str(path), str(batches)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def acks(said: str) -> list[int]:
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("ack ") and line[4:].isdigit()]


def whole(path: Path) -> State:
    """The store opens, and its rows and its log agree."""
    store = open_store(path)
    loaded = store.load()
    assert check(loaded) == []
    assert compare(loaded, store.replay()) == []
    store.close()
    return loaded


def kill_many(path: Path, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(kills):
        child = appender(path, 1_000_000)
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        said, wrong = child.communicate()
        assert wrong == ""
        assert acks(first + said)
        assert whole(path).version >= acks(first + said)[-1]


def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    kill_many(tmp_path / "rota.db", 20, seed=1)


@pytest.mark.soak
def test_kill_9_a_thousand_times(tmp_path: Path) -> None:
    kill_many(tmp_path / "rota.db", 1_000, seed=2)


@pytest.mark.parametrize("when", [1, 4, 17])
def test_an_fsync_that_fails_is_never_acknowledged(tmp_path: Path, when: int) -> None:
    """A8: strace fails each sync from the n-th on."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("no strace here")
    path = tmp_path / "rota.db"
    lived(path)
    started = whole(path)
    syncs = "fsync,fdatasync"  # which of them depends on how SQLite was built
    inject = ["-e", f"trace={syncs}", "-e", f"inject={syncs}:error=EIO:when={when}+"]
    child = appender(path, 50, strace, "-f", "--seccomp-bpf", "-o", "/dev/null", *inject)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 1
    assert said.splitlines()[-1].startswith("refused StoreBroken"), said
    after = whole(path)
    assert after.version >= max([started.version, *acks(said)])


def flip_many(path: Path, tries: int, seed: int) -> dict[str, int]:
    """Flip one byte of a closed store, at `tries` places, each time in a fresh copy: what came of it."""
    lived(path, runs=60)
    wanted = whole(path)
    original = path.read_bytes()
    chance = random.Random(seed)
    found = {"refused at opening": 0, "refused at loading": 0, "same": 0}
    for n in range(tries):
        at = n if n < 100 else chance.randrange(len(original))  # all of the header, then anywhere
        damaged = bytearray(original)
        damaged[at] ^= 1 << chance.randrange(8)
        copy = path.parent / f"copy{n}" / "rota.db"
        copy.parent.mkdir(mode=0o700)  # where others may search it, an empty log stays after a close
        copy.write_bytes(damaged)
        outcome = try_to_start(copy, wanted)
        if outcome != "same":
            assert beside(copy) == {"rota.db": bytes(damaged)}, f"byte {at}: {outcome}, but it was touched"
        found[outcome] += 1
        shutil.rmtree(copy.parent)
    return found


def try_to_start(path: Path, wanted: State) -> str:
    try:
        store = open_store(path)
    except (StoreUnusable, StoreBroken):
        return "refused at opening"
    try:
        loaded = store.load()
    except StoreBroken:
        return "refused at loading"
    finally:
        store.close()
    assert compare(loaded, wanted) == []
    return "same"


def test_no_flipped_bit_gives_a_wrong_state(tmp_path: Path) -> None:
    """A10: refused and left alone, or the very same state."""
    found = flip_many(tmp_path / "rota.db", 250, seed=3)
    assert found["refused at opening"] + found["refused at loading"] > 20, found


@pytest.mark.soak
def test_no_flipped_bit_gives_a_wrong_state_at_length(tmp_path: Path) -> None:
    flip_many(tmp_path / "rota.db", 20_000, seed=4)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    lived(path)
    wanted = whole(path)
    original = path.read_bytes()
    for size in (50, 100, 4096, 5000, len(original) // 2, len(original) - 4096, len(original) - 1):
        path.write_bytes(original[:size])
        before = beside(path)
        assert try_to_start(path, wanted).startswith("refused"), size
        assert beside(path) == before


def crashed(path: Path, batches: int) -> tuple[dict[str, bytes], list[State]]:
    """The files as a kill leaves them, with a full WAL, and the states that the last two batches made."""
    house = House(open_store(path))
    states = []
    for n in range(batches):
        house.submit(labels={"n": str(n)})
        house.commit()
        states.append(house.store.load())
    left = {name: body for name, body in beside(path).items() if name.endswith(("db", "db-wal"))}
    house.store.close()
    return left, states[-2:]


def test_a_damaged_wal_loses_no_acknowledged_commit_in_silence(tmp_path: Path) -> None:
    """A flip in the very last commit looks like the torn end of a power cut; any other must be noticed."""
    left, (before, last) = crashed(tmp_path / "rota.db", 30)
    wal = left["rota.db-wal"]
    chance = random.Random(5)
    found = {"refused": 0, "same": 0, "torn": 0}
    for n in range(150):
        at = n if n < 56 else chance.randrange(len(wal))  # the header, the first frame's header, then anywhere
        damaged = bytearray(wal)
        damaged[at] ^= 1 << chance.randrange(8)
        copy = tmp_path / f"copy{n}" / "rota.db"
        copy.parent.mkdir()
        copy.write_bytes(left["rota.db"])
        copy.with_name("rota.db-wal").write_bytes(damaged)
        try:
            store = open_store(copy)
        except StoreUnusable:
            found["refused"] += 1
            after = beside(copy)
            assert (after["rota.db"], after["rota.db-wal"]) == (left["rota.db"], bytes(damaged))
            continue
        loaded = store.load()
        store.close()
        if compare(loaded, last) == []:
            found["same"] += 1
        else:
            assert compare(loaded, before) == [], f"byte {at} of the WAL"
            found["torn"] += 1
    assert found["refused"] > 100, found


def test_a_torn_end_of_the_wal_is_no_reason_to_refuse(tmp_path: Path) -> None:
    left, (before, last) = crashed(tmp_path / "rota.db", 10)
    wal = left["rota.db-wal"]
    for n, cut in enumerate((1, 100, 4096, 4120, 5000)):
        copy = tmp_path / f"copy{n}" / "rota.db"
        copy.parent.mkdir()
        copy.write_bytes(left["rota.db"])
        copy.with_name("rota.db-wal").write_bytes(wal[:-cut])
        store = open_store(copy)
        assert [] in (compare(store.load(), last), compare(store.load(), before))
        store.close()


def cut_power(path: Path, cuts: int, seed: int) -> None:
    """A6: after a power cut the WAL is there up to what was synced, and any prefix of what was written after that."""
    house = House(open_store(path))
    database = path.read_bytes()
    synced: list[tuple[int, int]] = []  # how long the WAL was when a version had been acknowledged
    for n in range(40):
        for _ in range(1 + n % 4):
            house.submit(labels={"n": str(n)})
        house.commit()
        synced.append((path.with_name("rota.db-wal").stat().st_size, house.state.version))
    wal = path.with_name("rota.db-wal").read_bytes()
    assert path.read_bytes() == database  # no checkpoint yet: the WAL holds it all
    house.store.close()
    chance = random.Random(seed)
    for n in range(cuts):
        length = chance.randrange(synced[0][0], len(wal) + 1)
        copy = path.parent / f"cut{n}" / "rota.db"
        copy.parent.mkdir()
        copy.write_bytes(database)
        copy.with_name("rota.db-wal").write_bytes(wal[:length])
        assert whole(copy).version >= max(version for size, version in synced if size <= length)
        shutil.rmtree(copy.parent)


def test_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    cut_power(tmp_path / "rota.db", 60, seed=6)


@pytest.mark.soak
def test_many_power_cuts(tmp_path: Path) -> None:
    cut_power(tmp_path / "rota.db", 2_000, seed=7)
