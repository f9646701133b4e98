"""Heads of requests are bounded while they are parsed: before anything of them is kept, decoded or looked at."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from rota.api import heads, serve
from rota.api.guard import Guard
from rota.api.house import House
from tests.api.kit import serving
from tests.api.test_serve import app, talk
from tests.api.test_turns import Noting

GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(60.0, 60.0))


def test_a_head_that_never_ends_has_no_more_headers_in_memory_than_a_request_may_have() -> None:
    """64 KiB of `a:` are 16,000 headers, which were two megabytes in memory for as long as a head may take."""

    async def story() -> None:
        most = 0
        async with serving(app) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET + b"a:\r\n" * 15_000)
            answer = asyncio.ensure_future(reader.read())
            while not answer.done():
                most = max([most, *(len(each.headers or ()) for each in connections)])
                await asyncio.sleep(0)
            assert answer.result().startswith(b"HTTP/1.1 431 "), "it is not waited for the end"
            assert b"200 headers" in answer.result()
            writer.close()
        assert most <= heads.MOST_HEADERS

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (GET + b"a:\r\n" * 15_500 + b"\r\n", 431),
        (GET + b"x: " + b"a" * 9_000 + b"\r\n\r\n", 431),
        (GET + b"a" * 9_000 + b": x\r\n\r\n", 431),
        (b"GET /" + b"%41" * 21_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 414),
        (b"GET /" + b"%41" * 3_500 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 414),
        (b"GET /healthz?" + b"a" * 60_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", 414),
        (GET + b"upgrade: x\r\nconnection: upgrade" + b"," * 60_000 + b"\r\n\r\n", 431),
    ],
    ids=["many", "long value", "long name", "long path", "path over its bound", "long query", "many commas"],
)
def test_what_is_too_much_never_gets_to_the_application(
    request_: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[Any] = []
    unquoted: list[str] = []
    monkeypatch.setattr("urllib.parse.unquote", unquoted.append)

    async def noting(scope: Any, receive: Any, send: Any) -> None:
        called.append(scope)
        await app(scope, receive, send)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(request_)
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 %d " % status), said
        assert b'"detail":"' in said

    talk(ask, noting)
    assert not called and not unquoted


def test_what_a_head_may_have_is_served_in_whatever_pieces_it_comes() -> None:
    many = b"".join(b"x-%d: y\r\n" % number for number in range(heads.MOST_HEADERS - 1))
    good = [
        GET + many + b"\r\n",
        GET + (b"x: " + b"a" * heads.LONGEST_VALUE + b"\r\n") * 7 + b"\r\n",
        GET + b"cookie: " + b"a=b; " * 10_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 8_000 + b"?" + b"b" * 8_000 + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        b"GET http://127.0.0.1/healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    ]

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for request_ in good:
            for size in (len(request_), 700):
                for at in range(0, len(request_), size):
                    writer.write(request_[at : at + size])
                    await writer.drain()
                    await asyncio.sleep(0)
                assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 "), request_[:80]

    talk(ask)


def test_which_protocol_a_head_asks_for_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not for each chunk of the body again: eight headers of commas cost ten milliseconds each time."""
    asked: list[int] = []
    find = heads.BoundedHeads._asked_upgrade

    def counting(self: heads.BoundedHeads) -> bytes | None:
        asked.append(1)
        return find(self)

    monkeypatch.setattr(heads.BoundedHeads, "_asked_upgrade", counting)
    commas = b"connection: upgrade" + b"," * 8_000 + b"\r\n"
    body = b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 100 + b"0\r\n\r\n"

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\nupgrade: x\r\n" + commas * 6 + body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    talk(ask)
    assert len(asked) == 1


@pytest.mark.parametrize("behind", [b"", b" ", b"\t "])
def test_a_body_is_refused_by_its_length_whatever_space_is_behind_that(shared: House, behind: bytes) -> None:
    async def story() -> None:
        async with serving(Guard(Noting(), shared), shared) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            head = b"POST /login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99999999999"
            writer.write(head + behind + b"\r\n\r\n")
            said = await reader.readuntil(b"\r\n")
            assert said.startswith(b"HTTP/1.1 413 "), said
            writer.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_the_number_in_a_content_length_counts_without_the_space_around_it() -> None:
    values = (b"5", b" 5", b"5 ", b"5\t", b"5 5", b"", b" ", b"+5", b"5\n")
    assert [heads.content_length(value) for value in values] == [5, 5, 5, 5, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("digits", [21, 4_301, 8_000])
def test_a_content_length_of_thousands_of_zeros_is_refused_without_a_traceback(
    shared: House, digits: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with serving(Guard(Noting(), shared), shared) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET + b"content-length: " + b"0" * digits + b"\r\n\r\n")
            async with asyncio.timeout(30):
                said = await reader.read()
            assert said.startswith(b"HTTP/1.1 400 "), said
            assert b"Content-Length has 20 digits" in said
            writer.close()

    asyncio.run(asyncio.wait_for(story(), 60))
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]
