"""Closed connections leave no reference cycles: the garbage collector, which comes rarely, is not needed for them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import subprocess
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import uvloop

from rota.api import accept, serve
from rota.api.answers import WHOLE, listed
from rota.api.house import House
from rota.api.patient import Patient
from rota.api.server import guarded
from tests.api.kit import serving
from tests.api.test_serve import HEAD, UPGRADE, app, web_socket

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HANDSHAKE = b"GET" + UPGRADE + b"\r\n"
GOODBYE, NO_FRAME = b"\x88\x80\x00\x00\x00\x00", b"\xff\x80\x00\x00\x00\x00"


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(600.0, 600.0))
    # pytest keeps the records, and with them the tracebacks of errors
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "disabled", True)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def until_gone(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def failing(scope: Any, receive: Any, send: Any) -> None:
    raise RuntimeError("the application fails")


async def refusing(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 4401})


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
    await send({"type": "websocket.http.response.body", "body": b"no"})


async def streaming(scope: Any, receive: Any, send: Any) -> None:
    async def content() -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\n\n"
        await asyncio.sleep(600)
        yield b"retry: 1000\n\n"

    scope["rota.holds"] = lambda: True
    await Patient(content())(scope, receive, send)


async def listing(scope: Any, receive: Any, send: Any) -> None:
    scope["rota.holds"] = lambda: True
    await listed(b"x" * 1000 for _ in range(4 * WHOLE // 1000))(scope, receive, send)


def known(connections: set[Any]) -> dict[str, weakref.ref[Any]]:
    """Weak references to each connection and to the objects that it refers to."""
    found = dict[str, weakref.ref[Any]]()
    for one in connections:
        parts = (one, getattr(one, "cycle", None), getattr(one, "conn", None), getattr(one, "flow", None))
        found |= {f"{type(part).__name__} {id(part)}": weakref.ref(part) for part in parts if part is not None}
    return found


async def story(application: Any, sent: bytes, then: bytes, ending: str) -> list[str]:
    """Return what is left of a connection that sent these bytes, and then others, and that ended so."""
    loop = asyncio.get_running_loop()
    async with serving(application) as (address, connections):
        made = dict[str, weakref.ref[Any]]()
        client = socket.create_connection(address)
        client.setblocking(False)
        with client:
            while not connections:
                await asyncio.sleep(0.001)
            made |= known(connections)
            await loop.sock_sendall(client, sent)
            if ending == "answered" or then:
                await loop.sock_recv(client, 1)
            else:
                await asyncio.sleep(0.02)  # for the server to begin, which is the case that is meant; it may come later
            made |= known(connections)
            with contextlib.suppress(ConnectionError):
                await loop.sock_sendall(client, then)
                while ending == "by the server" and await loop.sock_recv(client, 1000):
                    pass
            if ending == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, serve.DROP_UNSENT)
        until = loop.time() + 30
        while connections or (any(one() is not None for one in made.values()) and loop.time() < until):
            await asyncio.sleep(0.005)
        return [name for name, one in made.items() if one() is not None]


@pytest.mark.parametrize(
    ("application", "sent", "then", "ending"),
    [
        pytest.param(app, b"", b"", "closed", id="silent"),
        pytest.param(app, GET[:10], b"", "closed", id="half a head"),
        pytest.param(app, GET, b"", "answered", id="answer that is not read"),
        pytest.param(app, GET, b"", "reset", id="reset"),
        pytest.param(app, b"\r\nno request\r\n\r\n", b"", "by the server", id="no request"),
        pytest.param(app, HEAD + b"x: y\r\n" * 300 + b"\r\n", b"", "by the server", id="refused head"),
        pytest.param(failing, GET, b"", "by the server", id="failing"),
        pytest.param(streaming, GET, b"", "answered", id="stream of events"),
        pytest.param(streaming, GET, b"", "reset", id="stream of events that is reset"),
        pytest.param(listing, GET, b"", "answered", id="long list"),
        pytest.param(listing, GET, b"", "reset", id="long list that is reset"),
        pytest.param(until_gone, GET, b"", "closed", id="closed before the answer"),
        pytest.param(until_gone, GET * 5, b"", "closed", id="closed before several answers"),
        pytest.param(until_gone, HEAD + b"content-length: 9\r\n\r\nx", b"", "reset", id="half a body"),
        pytest.param(web_socket, HANDSHAKE, b"", "answered", id="web socket"),
        pytest.param(web_socket, HANDSHAKE, b"", "reset", id="web socket that is reset"),
        pytest.param(web_socket, HANDSHAKE, GOODBYE, "by the server", id="web socket that says goodbye"),
        pytest.param(web_socket, HANDSHAKE, NO_FRAME, "by the server", id="web socket with a bad frame"),
        pytest.param(web_socket, HANDSHAKE, b"\x81\x80\0\0\0\0" * 4000, "by the server", id="web socket that floods"),
        pytest.param(refusing, HANDSHAKE, b"", "by the server", id="refused web socket"),
        pytest.param(answering, HANDSHAKE, b"", "by the server", id="web socket refused with an answer"),
        pytest.param(failing, HANDSHAKE, b"", "by the server", id="failing web socket"),
        pytest.param(app, b"POST" + UPGRADE + b"\r\n", b"", "by the server", id="handshake with a wrong method"),
        pytest.param(app, HANDSHAKE.replace(b"-version", b"-no"), b"", "by the server", id="handshake without version"),
    ],
)
def test_a_closed_connection_is_freed_without_the_collector(
    application: Any, sent: bytes, then: bytes, ending: str
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(asyncio.wait_for(story(application, sent, then, ending), 90))
    assert left == []


def asking(method: str, path: str, body: bytes = b"", more: str = "") -> bytes:
    length = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n" if body else ""
    return f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{length}{more}\r\n".encode() + body


@pytest.mark.parametrize("ending", ["answered", "reset"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(asking("GET", "/static/app.js"), id="file"),
        pytest.param(asking("GET", "/static/app.js") * 100, id="files that nobody reads"),
        pytest.param(asking("GET", "/", more="accept: text/html\r\n") * 100, id="dashboards that nobody reads"),
        pytest.param(asking("GET", "/openapi.json") * 100, id="API documents that nobody reads"),
        pytest.param(asking("GET", "/nowhere"), id="404"),
        pytest.param(asking("GET", "/runs/ffffffffffff"), id="404 of a read"),
        pytest.param(asking("GET", "/runs/ffffffffffff/logs"), id="404 of a log"),
        pytest.param(asking("POST", "/runs/ffffffffffff/stop", b"{}"), id="404 of a look before a change"),
        pytest.param(asking("POST", "/release", b'{"job_id": "ffffffffffff"}'), id="404 of a change"),
        pytest.param(asking("PATCH", "/runs"), id="405"),
        pytest.param(asking("OPTIONS", "/runs"), id="OPTIONS"),
        pytest.param(asking("POST", "/runs", b"{"), id="422"),
        pytest.param(asking("POST", "/runs?dry_run=true", b'{"name": "a", "command": "true"}'), id="dry run"),
        pytest.param(asking("POST", "/release?dry_run=true", b'{"job_id": "ffffffffffff"}'), id="refused dry run"),
        pytest.param(asking("GET", "/queue") * 8, id="lists"),
    ],
)
def test_so_is_what_the_server_answers(house: House, sent: bytes, ending: str) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        left = runner.run(asyncio.wait_for(story(guarded(house), sent, b"", ending), 90))
    assert left == []


def unsent(near: tuple[str, int], far: tuple[str, int]) -> int:
    """Return the bytes that the kernel has at one end and the other end has not taken."""
    with open("/proc/net/tcp", encoding="ascii") as file:
        for line in file.readlines()[1:]:
            _, at, to, _, queues, *_ = line.split()
            if [int(end.partition(":")[2], 16) for end in (at, to)] == [near[1], far[1]]:
                return int(queues.partition(":")[0], 16)
    raise AssertionError("there is no such connection")


def test_the_kernel_keeps_little_of_what_nobody_reads(house: House) -> None:
    async def ask() -> int:
        async with serving(guarded(house), house) as (address, _):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # else it grows with what it takes
                client.connect(address)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, asking("GET", "/openapi.json") * 40)
                seen = [0] * 10
                while not seen[-1] or len(set(seen[-10:])) > 1:  # until it grows no more
                    await asyncio.sleep(0.05)
                    seen.append(unsent(address, client.getsockname()))
                return max(seen)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        most = runner.run(asyncio.wait_for(ask(), 90))
    assert 0 < most < 4 * accept.MAX_UNSENT


def futures() -> int:
    return sum(isinstance(one, Future) for one in gc.get_objects())


def test_a_client_that_waited_for_gpus_leaves_nothing(shared: House) -> None:
    async def inside(pid: int) -> None:
        loop = asyncio.get_running_loop()
        asked = asking("POST", "/acquire", b'{"pid": %d, "num_gpus": 2}' % pid, "x-auth-token: open sesame\r\n")
        async with serving(guarded(shared), shared) as (address, connections):
            clients = list[socket.socket]()

            async def client() -> socket.socket:
                one = socket.create_connection(address)
                clients.append(one)
                one.setblocking(False)
                await loop.sock_sendall(one, asked)
                return one

            assert (await loop.sock_recv(await client(), 12)) == b"HTTP/1.1 200"
            before = futures()
            for _ in range(5):
                await client()
            await until_there(lambda: len(shared.service.view().queue()) == 5)
            assert futures() >= before + 5
            for one in clients:
                one.close()
            await until_there(lambda: not connections and not shared.service.view().queue())
            # the writer has the answers of its last turn until the next one, which the question is
            await until_there(lambda: shared.service.ask(lambda state, now: True) and futures() < before + 5)

    async def until_there(is_there: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_there():
                await asyncio.sleep(0.01)

    holder = subprocess.Popen(["sleep", "600"])
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(inside(holder.pid))
    finally:
        holder.kill()
        holder.wait()
