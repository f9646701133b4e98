"""The floor of the disk: of bytes and of inodes, each by the size of the file system."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from rota.adapters.backends import records
from rota.adapters.ballast import Ballast
from rota.adapters.space import FreeSpace, inode_floor


@pytest.mark.parametrize(
    ("inodes", "floor"),
    [(0, 0), (3_000, 150), (50_000, 1_000), (6_500_000, 65_000), (1_000_000_000, 100_000)],
)
def test_the_floor_of_inodes_goes_by_how_many_there_are(inodes: int, floor: int) -> None:
    assert inode_floor(inodes) == floor


def with_inodes(monkeypatch: pytest.MonkeyPatch, total: int, free: int) -> None:
    """As a file system of that kind would say it."""
    fields = list(os.statvfs("/"))
    fields[5:8] = total, free, free
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))


def test_a_file_system_without_a_number_of_inodes_is_never_short_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FreeSpace([tmp_path], 1)
    with_inodes(monkeypatch, 0, 0)
    assert disk.shortage() == ""


def test_inodes_that_come_back_must_exceed_the_floor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FreeSpace([tmp_path], 1)
    with_inodes(monkeypatch, 200_000, 1_999)
    assert "has 1,999 inodes free (each file takes one), below the floor of 2,000" in disk.shortage()
    with_inodes(monkeypatch, 200_000, 2_050)
    assert disk.shortage()
    with_inodes(monkeypatch, 200_000, 2_100)
    assert disk.shortage() == ""


def test_the_ballast_is_kept_while_there_is_room_and_given_up_once(tmp_path: Path) -> None:
    disk = FreeSpace([tmp_path], 1 << 20, Ballast(tmp_path, tmp_path))
    assert not disk.relieve(), "there is none before the first look"
    assert disk.shortage() == ""
    ballast, spares = tmp_path / "rota.ballast", tmp_path / "spare"
    assert ballast.stat().st_blocks * 512 >= 1 << 17 and ballast.stat().st_mode & 0o777 == 0o600
    assert len(list(spares.iterdir())) == 128
    (spares / "7").unlink()
    assert disk.relieve() and not ballast.exists() and not disk.relieve()
    assert disk.shortage() == "" and ballast.exists() and (spares / "7").exists()


def test_without_a_floor_there_are_spare_files_only(tmp_path: Path) -> None:
    disk = FreeSpace([tmp_path], 0, Ballast(tmp_path, tmp_path))
    assert disk.shortage() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["spare"]


def test_a_file_system_that_counts_no_inodes_is_not_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network and FUSE file systems name a number of inodes, and none of them free, for ever."""
    disk = FreeSpace([tmp_path], 1)
    with_inodes(monkeypatch, 1_000_000, 0)
    assert disk.shortage() == ""
    with_inodes(monkeypatch, 1_000_000, 500_000)
    assert disk.shortage() == ""
    with_inodes(monkeypatch, 1_000_000, 0)
    assert "has 0 inodes free" in disk.shortage(), "it does count them"


def test_where_no_file_can_be_made_no_inode_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FreeSpace([tmp_path / "gone"], 1)
    with_inodes(monkeypatch, 1_000_000, 0)
    assert "has 0 inodes free" in disk.shortage()


def test_what_a_killed_server_left_half_made_is_made_again(tmp_path: Path) -> None:
    ballast, spares = tmp_path / "rota.ballast", tmp_path / "spare"
    spares.mkdir(mode=0o700)
    ballast.touch(0o600)
    (spares / "3").touch(0o600)
    assert FreeSpace([tmp_path], 1 << 20, Ballast(tmp_path, tmp_path)).shortage() == ""
    assert ballast.stat().st_size == 1 << 17
    assert [path.stat().st_size for path in spares.iterdir()] == [records.SPARE_BYTES] * 128


def test_many_threads_may_look_at_once(tmp_path: Path) -> None:
    """Each call that brings metrics looks at the disk, and so does the writer."""
    for number in range(20):
        where = tmp_path / str(number)
        where.mkdir()
        disk = FreeSpace([where], 1 << 20, Ballast(where, where))
        with ThreadPoolExecutor(4) as threads:
            assert [*threads.map(lambda _, disk=disk: disk.shortage(), range(4))] == [""] * 4
        assert len(list((where / "spare").iterdir())) == 128


def test_what_cannot_be_set_aside_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "spare").touch()
    disk = FreeSpace([tmp_path], 1 << 20, Ballast(tmp_path, tmp_path))
    assert [disk.shortage(), disk.shortage()] == ["", ""]
    assert caplog.text.count("no room can be set aside") == 1


def test_a_record_on_a_full_disk_takes_no_file_but_a_spare_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of a directory beside the data directory that is called the same, nor anything else among its own."""
    data, beside = tmp_path / "rota", tmp_path / "spare"
    for path in (data / "leases" / "ended", data / "spare", beside):
        path.mkdir(parents=True)
    foreign = [beside / "thesis.tex", data / "spare" / "note", data / "spare" / "link"]
    foreign[0].write_bytes(b"X" * records.SPARE_BYTES)
    foreign[0].chmod(0o600)
    foreign[1].write_bytes(b"X" * 10_000)
    foreign[2].symlink_to(foreign[0])
    before = [path.read_bytes() for path in foreign]
    real = records._write

    def full(path: str, content: bytes, flags: int, *, durable: bool) -> None:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, flags, durable=durable)

    monkeypatch.setattr(records, "_write", full)
    for where in (data / "leases", data / "leases" / "ended"):
        with pytest.raises(OSError, match="No space"):
            records.publish(str(data), str(where), "one", b"{}")
        assert [path.read_bytes() for path in foreign] == before
        records.make_spare(str(data / "spare" / "0"))
        assert records.publish(str(data), str(where), "one", b"{}")
        assert records.read(str(where / "one")) == {} and not (data / "spare" / "0").exists()
    assert [path.read_bytes() for path in foreign] == before


def test_a_spare_file_without_blocks_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the data directory may have holes where the spare files had blocks."""
    pool = tmp_path / "spare"
    pool.mkdir()
    hollow = [pool / name for name in "012"]
    for path in hollow:
        path.touch(0o600)
        os.truncate(path, records.SPARE_BYTES)
    records.make_spare(str(pool / "whole"))
    monkeypatch.setattr(os, "listdir", lambda _: ["0", "1", "whole", "2"])
    real = records._write

    def full(path: str, content: bytes, flags: int, *, durable: bool) -> None:
        if flags & os.O_CREAT or not os.stat(path).st_blocks:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, flags, durable=durable)

    monkeypatch.setattr(records, "_write", full)
    assert records.publish(str(tmp_path), str(tmp_path), "one", b'{"n": 1}')
    assert records.read(str(tmp_path / "one")) == {"n": 1}
    assert [path.exists() for path in hollow] == [False, False, True], "it is of no use where it is, either"


def test_the_ballast_is_held_so_that_no_look_waits_and_given_up_whole(tmp_path: Path) -> None:
    """What is open is found without the lock of its directory; and blocks of a file that is open are not free."""
    ballast = Ballast(tmp_path, tmp_path)
    ballast.keep(1 << 20)
    assert _open_below(tmp_path) == [str(tmp_path / "rota.ballast"), str(tmp_path / "spare")]
    (tmp_path / "rota.ballast").unlink()
    ballast.keep(1 << 20)
    assert (tmp_path / "rota.ballast").exists(), "somebody removed it"
    assert ballast.give_up()
    assert _open_below(tmp_path) == [str(tmp_path / "spare")]
    ballast.close()
    assert _open_below(tmp_path) == []


def _open_below(place: Path) -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that listed them
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(path for path in found if path.startswith(f"{place}/"))
