"""The floor of the disk: of bytes and of inodes, each by the size of the file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
