"""What a server tells of itself, and to whom."""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio.to_thread
import pytest

from rota.api.house import House
from rota.api.server import guarded
from tests.api.kit import acall, call, issue, opened
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


@pytest.mark.parametrize("path", ["/health", "/healthz", "/readyz"])
def test_that_it_is_up_is_told_without_any_thread(shared: House, path: str) -> None:
    token, _ = issue(shared.service, shared.gate)

    async def story() -> None:
        threads = anyio.to_thread.current_default_thread_limiter()
        while threads.available_tokens:
            threads.acquire_on_behalf_of_nowait(object())
        async with asyncio.timeout(60):
            answer = await acall(guarded(shared), path, headers={"x-auth-token": token})
        assert (answer.status, answer.json["status"]) == (200, "ok")

    asyncio.run(story())
