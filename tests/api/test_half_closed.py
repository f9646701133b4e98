"""A client of the unix socket that closes its own direction behind its request is answered; one that leaves is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from rota.api import serve
from rota.api.passrights import Listener
from tests.api.test_serve import app

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx"


class Waiting:
    """Answers when it is told to, and notes whether the client left before."""

    def __init__(self) -> None:
        self.asked, self.may_answer, self.gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        leaving = asyncio.create_task(self._note(receive))
        await asyncio.wait([leaving, asyncio.create_task(self.may_answer.wait())], return_when="FIRST_COMPLETED")
        leaving.cancel()
        await app(scope, receive, send)

    async def _note(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone.set()


@asynccontextmanager
async def connected(kind: type[socket.socket], path: Path, application: Any) -> AsyncIterator[socket.socket]:
    listening = kind(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    server = serve._Server(serve._config(application))
    task = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0.005)
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, str(path))
        yield client
    server.should_exit = True
    await task


async def said(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    got = b""
    while piece := await asyncio.get_running_loop().sock_recv(client, 4096):
        got += piece
    return got


def run(story: Callable[[], Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(story(), 60))


kinds = pytest.mark.parametrize("kind", [socket.socket, Listener])


@kinds
@pytest.mark.parametrize("count", [1, 3])
def test_the_answers_come_and_then_the_end(kind: type[socket.socket], count: int, tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting()
        async with connected(kind, tmp_path / "s", waiting) as client:
            await asyncio.get_running_loop().sock_sendall(client, GET * count)
            client.shutdown(socket.SHUT_WR)
            await waiting.asked.wait()
            await asyncio.sleep(0.05)  # for the end to be read, which is the case that is meant; it may come later
            assert not waiting.gone.is_set()
            waiting.may_answer.set()
            assert (await said(client)).count(b"HTTP/1.1 200 OK\r\n") == count

    run(story)


@kinds
def test_a_client_that_leaves_is_gone_at_once(kind: type[socket.socket], tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting()
        async with connected(kind, tmp_path / "s", waiting) as client:
            await asyncio.get_running_loop().sock_sendall(client, GET)
            await waiting.asked.wait()
            client.close()
            await waiting.gone.wait()

    run(story)


@kinds
def test_it_is_not_waited_for_without_end(
    kind: type[socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "TAKE_WITHIN_S", 0.2)

    async def story() -> None:
        waiting = Waiting()
        async with connected(kind, tmp_path / "s", waiting) as client:
            await asyncio.get_running_loop().sock_sendall(client, GET)
            client.shutdown(socket.SHUT_WR)
            await waiting.gone.wait()
            assert await said(client) == b""

    run(story)


@kinds
@pytest.mark.parametrize("sent", [b"", GET[:9], HALF_A_BODY])
def test_half_a_request_is_none(kind: type[socket.socket], sent: bytes, tmp_path: Path) -> None:
    async def story() -> None:
        async with connected(kind, tmp_path / "s", Waiting()) as client:
            await asyncio.get_running_loop().sock_sendall(client, sent)
            client.shutdown(socket.SHUT_WR)
            assert await said(client) == b""

    run(story)
