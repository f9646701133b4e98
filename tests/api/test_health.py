"""What a server tells of itself, and to whom."""

from __future__ import annotations

from pathlib import Path

from rota.api.server import guarded
from tests.api.kit import call, opened
from tests.app.house import until

MORE_THAN_ANY_DISK_MB = 100_000_000


def test_strangers_learn_that_there_is_trouble_but_not_what(tmp_path: Path) -> None:
    with opened(tmp_path, shared_token="open sesame", disk_floor_mb=MORE_THAN_ANY_DISK_MB) as house:
        guard = guarded(house)
        known = {"x-auth-token": "open sesame"}
        until(lambda: call(guard, "/readyz").status == 503, "it has noticed that the disk is full")
        for path, field in (("/readyz", "detail"), ("/health", "trouble"), ("/", "trouble")):
            assert str(tmp_path) in call(guard, path, headers=known).json[field]
            told = call(guard, path)
            assert "cannot take work" in told.json[field]
            assert str(tmp_path).encode() not in told.body and b"MiB" not in told.body


def test_an_open_server_tells_everybody(tmp_path: Path) -> None:
    with opened(tmp_path, disk_floor_mb=MORE_THAN_ANY_DISK_MB) as house:
        guard = guarded(house)
        until(lambda: call(guard, "/readyz").status == 503, "it has noticed that the disk is full")
        for path, field in (("/readyz", "detail"), ("/health", "trouble")):
            assert str(tmp_path) in call(guard, path).json[field]
