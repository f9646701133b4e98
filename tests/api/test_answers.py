"""Long answers: whole where they are of ordinary size, else made while they are read, and what is kept is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest

from rota.api import answers
from rota.api.answers import PIECE, WHOLE, array_of, dumps, listed
from rota.api.house import House
from rota.api.render import job
from rota.api.render.job import Jobs, job_of
from rota.api.server import guarded
from rota.app.commands import Pause, Submit
from rota.app.ports import PAGE_BYTES
from rota.core.resources import Request
from rota.core.run import Run, RunState, Spec
from tests.api.kit import ROOT, serving

TEXT = dumps("x" * 1000)


class Parts:
    """Counts what was made of a list so long."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.made = 0

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(self.count):
            self.made += len(TEXT)
            yield TEXT


def sent_of(parts: Parts) -> tuple[dict[bytes, bytes], bytes, list[int]]:
    """The headers, the body, and at each piece the bytes that were made and not yet sent."""
    headers: dict[bytes, bytes] = {}
    body = bytearray()
    ahead: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            headers.update(message["headers"])
        else:
            ahead.append(parts.made - len(body))
            body.extend(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    asyncio.run(listed(array_of(parts))({"type": "http", "method": "GET", "rota.holds": lambda: True}, receive, send))
    return headers, bytes(body), ahead


@pytest.mark.parametrize("count", [0, 1, 3000])
def test_a_list_of_ordinary_size_has_a_length(count):
    headers, body, _ = sent_of(Parts(count))
    assert json.loads(body) == ["x" * 1000] * count
    assert headers[b"content-length"] == str(len(body)).encode()
    assert headers[b"content-type"] == b"application/json"


def test_a_long_list_is_made_while_it_is_read():
    parts = Parts(4 * WHOLE // len(TEXT))
    headers, body, ahead = sent_of(parts)
    assert json.loads(body) == ["x" * 1000] * parts.count
    assert b"content-length" not in headers
    assert headers[b"content-type"] == b"application/json"
    assert max(ahead) <= WHOLE + 2 * PIECE


def test_the_lists_of_the_server_are_the_same_in_pieces(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.service.do(ROOT, Pause())  # so that nothing changes meanwhile
    for number in range(20):
        spec = Spec(f"run {number}", ("true",), "/", request=Request(gpus=2), group="s")
        house.service.do(ROOT, Submit(spec, user="ann", held=number > 17))
    paths = ("/queue", "/jobs", "/runs?limit=7", "/sweeps")

    async def ask() -> list[tuple[dict[str, str], Any]]:
        async with serving(guarded(house), house) as (address, _):
            return [await asyncio.to_thread(fetched, address, path) for path in paths]

    whole = asyncio.run(ask())
    monkeypatch.setattr(answers, "WHOLE", 100)
    monkeypatch.setattr(answers, "PIECE", 10)
    in_pieces = asyncio.run(ask())
    assert [body for _, body in in_pieces] == [body for _, body in whole]
    assert len(whole[2][1]) == 7
    assert in_pieces[2][0]["x-next-cursor"] == whole[2][0]["x-next-cursor"]
    assert all("content-length" in headers for headers, _ in whole)
    assert [headers.get("transfer-encoding") for headers, _ in in_pieces[:3]] == ["chunked"] * 3


def test_a_page_of_runs_with_long_commands_is_short(house: House) -> None:
    house.service.do(ROOT, Pause())
    made = []
    for number in range(45):
        spec = Spec(f"run {number}", ("true", "x" * 100_000), "/")
        made.append(house.service.do(ROOT, Submit(spec, user="ann", held=True)).id)

    async def ask() -> list[tuple[dict[str, str], Any]]:
        async with serving(guarded(house), house) as (address, _):
            first = await asyncio.to_thread(fetched, address, "/runs?limit=1000")
            rest = f"/runs?limit=1000&cursor={first[0]['x-next-cursor']}"
            return [first, await asyncio.to_thread(fetched, address, rest)]

    first, rest = asyncio.run(ask())
    assert len(first[1]) == PAGE_BYTES // 100_500
    assert [run["id"] for run in first[1] + rest[1]] == made[::-1]
    assert "x-next-cursor" not in rest[0]


def fetched(address: tuple[str, int], path: str) -> tuple[dict[str, str], Any]:
    link = HTTPConnection(*address, timeout=60)
    link.request("GET", path)
    answer = link.getresponse()
    body = json.loads(answer.read())
    link.close()
    assert answer.status == 200, body
    return {name.lower(): value for name, value in answer.getheaders()}, body


# -- the texts of jobs that are kept ----------------------------------------------------------------------------------
def runs(count: int, command: str = "true") -> list[Run]:
    spec = Spec("one", (command,), "/")
    return [
        Run(f"{number:012x}", number, "ann", spec, RunState.QUEUED, 2, 1.0, 60.0, "default") for number in range(count)
    ]


def test_the_texts_of_jobs_that_are_kept_are_bounded_in_number(monkeypatch):
    monkeypatch.setattr(job, "KEPT", 10)
    jobs, many = Jobs(), runs(40)
    waiting, active = many[:20], many[20:]
    for _ in range(2):
        for some in (waiting, active):
            assert [json.loads(text) for text in jobs.many(some)] == [job_of(run) for run in some]
        expected = [run.id for run in (*waiting[:5], *active[:5])]
        assert list(jobs._made) == expected, "the first of both lists are found again the next time"
    for run in many:
        jobs.one(run)
    assert len(jobs._made) == 10


def test_the_texts_of_jobs_that_are_kept_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(job, "KEPT_BYTES", 50_000)
    jobs, many = Jobs(), runs(20, "x" * 10_000)
    for _ in range(2):
        assert [json.loads(text) for text in jobs.many(many)] == [job_of(run) for run in many]
    for run in many:
        jobs.one(run)
        jobs.one(replace(run, priority=3))
    kept = sum(len(text) for _, text in jobs._made.values())
    assert jobs._size == kept <= 50_000
    assert jobs._made
