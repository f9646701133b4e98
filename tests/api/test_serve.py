"""Connections: how long and how much is waited for, before there is a request at all. Real sockets, a small app."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import socket
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from rota.api import serve
from rota.api.connections import Connections
from rota.api.filereads import FileReads
from rota.api.receive_buffers import ReceiveBuffers
from rota.api.turns import Turns
from rota.app.errors import CannotStart
from rota.core.descriptors import HIGHEST, shares
from tests.api.kit import serving

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok" if "rota.whole" in scope else b"OK"})


async def web_socket(scope: Any, receive: Any, send: Any) -> None:
    """Says what is said to it."""
    if scope["type"] == "http":
        return await app(scope, receive, send)
    await receive()
    await send({"type": "websocket.accept"})
    while (said := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": said["text"]})


def talk(what: Talk, app: Any = app) -> None:
    async def inside() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        server = serve._Server(serve._config(app))
        task = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.005)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        try:
            async with asyncio.timeout(60):
                await what(reader, writer)
        finally:
            writer.close()
            server.should_exit = True
            await task

    asyncio.run(inside())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is cut off for being slow, as a machine may be, but by a test that is about it."""
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(60.0, 60.0))


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(0.2, 0.3))


@pytest.fixture
def hasty_with_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(60.0, 0.3))


def test_who_says_nothing_is_not_waited_for(hasty: None) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""

    talk(silent)


def test_nor_who_says_half_a_head(hasty: None) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        assert await reader.read() == b""

    talk(half)


def test_whether_a_caller_is_a_job_is_looked_at_once_it_asks_for_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed at once costs the event loop no look at the processes above its peer."""
    looks: list[socket.socket] = []
    monkeypatch.setattr(serve._Connection, "peer_uid", lambda link, quick=False: 7)

    async def is_job(self: object, link: socket.socket, uid: int) -> bool:
        looks.append(link)
        return False

    monkeypatch.setattr(serve._Connection, "_is_job", is_job)

    async def callers() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = serve._Server(serve._config(telling))
        task = asyncio.create_task(server.serve([listening]))
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.005)
                for _ in range(20):
                    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
                    writer.close()
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                for _ in range(2):
                    writer.write(HEAD + b"content-length: 0\r\n\r\n")
                    assert (await reader.readuntil(b"uid=7")).startswith(b"HTTP/1.1 200")
                writer.close()
        finally:
            server.should_exit = True
            await task

    asyncio.run(callers())
    assert len(looks) == 1


def test_what_comes_before_a_peer_is_looked_at_counts_among_what_no_request_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, each, count = 50_000, 20_000, 8
    buffers = ReceiveBuffers(bound)
    looks: list[socket.socket] = []
    monkeypatch.setattr(serve._Connection, "buffers", buffers)
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(600.0, 600.0))
    monkeypatch.setattr(serve._Connection, "peer_uid", lambda link, quick=False: 7)

    async def callers() -> None:
        go = asyncio.Event()

        async def is_job(self: object, link: socket.socket, uid: int) -> bool:
            looks.append(link)
            await go.wait()
            return False

        monkeypatch.setattr(serve._Connection, "_is_job", is_job)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = serve._Server(serve._config(telling))
        task = asyncio.create_task(server.serve([listening]))
        lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.005)
                body = b"x" * each
                for begun in range(count):
                    lines.append(await asyncio.open_unix_connection(tmp_path / "s"))
                    lines[-1][1].write(HEAD + b"content-length: %d\r\n\r\n" % each + body)
                    while len(looks) <= begun:
                        await asyncio.sleep(0.005)
                connections: set[Any] = server.server_state.connections
                assert 0 < sum(len(one._kept) for one in connections) <= buffers.size <= bound
                go.set()
                assert (await lines[-1][0].readuntil(b"uid=7")).startswith(b"HTTP/1.1 200")
                with contextlib.suppress(ConnectionError):
                    assert await lines[0][0].read() == b"", "the one that has waited longest is hung up on"
                for _, writer in lines:
                    writer.close()
                while buffers.size:
                    await asyncio.sleep(0.005)
        finally:
            go.set()
            for _, writer in lines:
                writer.close()
            server.should_exit = True
            await task

    asyncio.run(callers())


async def telling(scope: Any, receive: Any, send: Any) -> None:
    """Answer with who the caller is taken for."""
    name = scope["client"][0].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(name))]})
    await send({"type": "http.response.body", "body": name})


class StuckProcesses:
    """Those of account 7 cannot be looked at before `go`."""

    def __init__(self) -> None:
        self.go, self.accounts, self.of = threading.Event(), [8, 7, 7, 7], dict[int, int]()

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int:
        return self.of.setdefault(link.fileno(), self.accounts.pop())

    def account(self, uid: int) -> None:
        """Nobody asks for its name here."""

    def counted_as(self, uid: int) -> int:
        return uid

    def peer_attempt(self, link: socket.socket) -> str | None:
        if self.of[link.fileno()] == 7:
            self.go.wait(60)
        return None


def test_a_peer_that_cannot_be_looked_at_delays_nobody_else(tmp_path: Path) -> None:
    """A process can keep others from reading its environment for as long as it likes. Nobody waits for that but its
    own account, and not for ever: then it needs a token, or asks again."""
    processes = StuckProcesses()
    house: Any = SimpleNamespace(
        connections=Connections(shares(HIGHEST)),
        settings=SimpleNamespace(request_seconds=600.0),
        processes=processes,
        looks=FileReads("looks", of_one=2, limit_s=4.0),
        turns=Turns(),
        buffers=ReceiveBuffers(),
    )

    async def callers() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = serve._Server(serve._config(telling, serve.connection_of(house)))
        task = asyncio.create_task(server.serve([listening]))
        lines: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.005)
                for left in (3, 2, 1, 0):
                    lines.append(await asyncio.open_unix_connection(tmp_path / "s"))
                    lines[-1][1].write(HEAD + b"content-length: 4\r\n\r\nbo")
                    lines[-1][1].write(b"dy")
                    while len(processes.accounts) > left:
                        await asyncio.sleep(0.005)
                assert (await lines[-1][0].readuntil(b"=8")).endswith(b"uid=8")
                for reader, _ in lines[:3]:
                    assert (await reader.readuntil(b"=7")).endswith(b"unseen=7")
                assert not processes.go.is_set()
                processes.go.set()
                for reader, writer in lines[:3]:  # who asks again is looked at again
                    writer.write(HEAD + b"content-length: 0\r\n\r\n")
                    assert (await reader.readuntil(b"=7")).endswith(b"uid=7")
        finally:
            processes.go.set()
            for _, writer in lines:
                writer.close()
            server.should_exit = True
            await task

    asyncio.run(callers())


def test_a_peer_that_cannot_be_looked_at_is_looked_at_once_for_each_request(tmp_path: Path) -> None:
    """However many pieces that comes in."""
    looks = list[int]()

    class Blind(StuckProcesses):
        def peer_attempt(self, link: socket.socket) -> str | None:
            looks.append(link.fileno())
            raise OSError(errno.EMFILE, "Too many open files")

    house: Any = SimpleNamespace(
        connections=Connections(shares(HIGHEST)),
        settings=SimpleNamespace(request_seconds=600.0),
        processes=Blind(),
        looks=FileReads("looks", of_one=2, limit_s=4.0),
        turns=Turns(),
        buffers=ReceiveBuffers(),
    )
    came = asyncio.Event()

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        came.set()
        while (await receive()).get("more_body", False):
            came.set()
        await telling(scope, receive, send)

    async def caller() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = serve._Server(serve._config(reading, serve.connection_of(house)))
        task = asyncio.create_task(server.serve([listening]))
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.005)
                reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
                for number in (1, 2):
                    writer.write(HEAD + b"content-length: 8\r\n\r\n")
                    for _ in range(8):
                        await came.wait()
                        came.clear()
                        writer.write(b"x")
                    assert (await reader.readuntil(b"=7")).endswith(b"unseen=7")
                    came.clear()
                    assert len(looks) == number
                writer.close()
        finally:
            server.should_exit = True
            await task

    asyncio.run(caller())


class ManyIds:
    """Each connection has another id, and all are subordinate ids of account 5."""

    def __init__(self) -> None:
        self.ids = iter(range(900_000, 900_100))

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int:
        return next(self.ids)

    def counted_as(self, uid: int) -> int:
        return 5


def test_connections_of_subordinate_ids_count_for_their_account(tmp_path: Path) -> None:
    house: Any = SimpleNamespace(
        connections=Connections(shares(HIGHEST)),
        turns=Turns(),
        buffers=ReceiveBuffers(),
        settings=SimpleNamespace(request_seconds=600.0),
        processes=ManyIds(),
    )

    async def callers() -> None:
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(tmp_path / "s"))
        server = serve._Server(serve._config(telling, serve.connection_of(house)))
        task = asyncio.create_task(server.serve([listening]))
        lines: list[asyncio.StreamWriter] = []
        try:
            async with asyncio.timeout(60):
                while not server.started:
                    await asyncio.sleep(0.005)
                for _ in range(3):
                    lines.append((await asyncio.open_unix_connection(tmp_path / "s"))[1])
                while house.connections.count < 3:
                    await asyncio.sleep(0.005)
            assert list(house.connections._peers) == ["uid 5"]
        finally:
            for writer in lines:
                writer.close()
            server.should_exit = True
            await task

    asyncio.run(callers())


def test_nor_half_of_a_second_one(hasty_with_heads: None) -> None:
    """A first good request buys no time for the next."""

    async def second(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"ok")
        writer.write(HEAD)
        assert await reader.read() == b""

    talk(second)


def test_nor_a_body_that_nobody_wants_any_more(hasty_with_heads: None) -> None:
    async def rest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"content-length: 1000000\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nOK")
        with pytest.raises((ConnectionError, EOFError)):
            while True:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.02)
                if reader.at_eof():
                    raise EOFError

    talk(rest)


@pytest.mark.parametrize("head", [HEAD, HEAD + b"connection: close\r\n"], ids=["kept", "closed"])
def test_nor_an_answer_that_nobody_takes(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merely closed, it would stay for as long as the client does not read."""
    monkeypatch.setattr(serve, "TAKE_WITHIN_S", 0.3)
    size = 64 << 20  # more than the kernel keeps for a client

    async def long(scope: Any, receive: Any, send: Any) -> None:
        length = str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"x" * size})

    async def inside() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        server = serve._Server(serve._config(long))
        task = asyncio.create_task(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.005)
        with socket.create_connection(listening.getsockname()) as client:
            client.sendall(head + b"\r\n")
            async with asyncio.timeout(60):
                while not server.server_state.total_requests:
                    await asyncio.sleep(0.01)
                assert server.server_state.connections
                while server.server_state.connections:
                    await asyncio.sleep(0.01)
            # nothing stays in the kernel for it, either: that would be sent, and then a proper end
            with pytest.raises(ConnectionResetError):
                while client.recv(1 << 20):
                    pass
        server.should_exit = True
        await task

    asyncio.run(inside())


@pytest.mark.parametrize("is_forced", [False, True], ids=["asked", "asked twice"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_client_that_never_reads_does_not_hold_up_the_stop(
    loop: Any, is_forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled request writes a refusal, which waits behind the answer that is not read."""
    monkeypatch.setattr(serve, "TAKE_WITHIN_S", 90.0)  # by then the client would be given up in any case
    monkeypatch.setattr(serve, "PARTING_S", 0.1)
    size = 64 << 20  # more than the kernel keeps for a client
    begun = 0

    async def long_then_refused(scope: Any, receive: Any, send: Any) -> None:
        nonlocal begun
        begun += 1
        if begun == 1:
            length = str(size).encode()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
            await send({"type": "http.response.body", "body": b"x" * size})
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await app(scope, receive, send)

    async def inside(listening: socket.socket, client: socket.socket) -> None:
        server = serve._Server(serve._config(long_then_refused))
        task = asyncio.create_task(server.serve([listening]))
        client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2)
        async with asyncio.timeout(60):
            while begun < 2:
                await asyncio.sleep(0.005)
        server.should_exit, server.force_exit = True, is_forced
        await task

    listening = socket.create_server(("127.0.0.1", 0))
    with socket.create_connection(listening.getsockname()) as client:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(inside(listening, client))
            stopping_at = time.monotonic()
        assert time.monotonic() - stopping_at < 60, "the event loop has ended, and with it all requests"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_that_the_kernel_does_not_take_whole_is_not_read(loop: Any) -> None:
    """Also one that is smaller than the buffer that a transport has by default."""
    size = 60_000
    answered = 0

    async def short(scope: Any, receive: Any, send: Any) -> None:
        nonlocal answered
        length = str(size).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": b"x" * size})
        answered += 1

    async def inside() -> None:
        async with serving(short) as (address, connections):
            client = socket.create_connection(address)
            client.setblocking(False)
            with client:
                while not connections:
                    await asyncio.sleep(0.005)
                (connection,) = connections
                link = connection.transport.get_extra_info("socket")
                link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
                asked = 0
                while not connection.transport.get_write_buffer_size():
                    asked += 1
                    await asyncio.get_running_loop().sock_sendall(client, HEAD + b"content-length: 0\r\n\r\n")
                    while answered < asked:
                        await asyncio.sleep(0.005)
                taken = asyncio.ensure_future(connection.flow.drain())
                await asyncio.sleep(0)
                assert not taken.done()
                while not taken.done():
                    await asyncio.get_running_loop().sock_recv(client, 1 << 16)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(inside(), 60))


def test_a_large_body_is_not_copied_for_each_client() -> None:
    written: list[Any] = []
    transport: Any = SimpleNamespace(write=written.append, writelines=written.extend)
    head, small, large = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", b"x" * serve.COPIED, bytes(serve.COPIED + 1)
    corked = serve._Corked(transport, lambda: None)
    for body in (small, large):
        corked.write(head)
        corked.write(body)
    assert written == [head + small, head, large]
    assert written[-1] is large


class Marker:
    """Can be referred to weakly, as a scope and a list of headers cannot."""


@pytest.mark.parametrize(
    "request_", [b"content-length: 3\r\n\r\nabc", b"content-length: 9\r\n\r\nabc"], ids=["all", "half"]
)
def test_the_head_of_an_answered_request_is_not_kept(request_: bytes) -> None:
    marked: list[weakref.ref[Marker]] = []

    async def marking(scope: Any, receive: Any, send: Any) -> None:
        scope["marker"] = Marker()
        scope["headers"].append((b"marker", Marker()))
        marked.extend((weakref.ref(scope["marker"]), weakref.ref(scope["headers"][-1][1])))
        await app(scope, receive, send)

    async def inside() -> None:
        async with serving(marking) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            for count in (2, 4):
                writer.write(HEAD + b"x: y\r\n" + request_)
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2)
                while any(one() is not None for one in marked):
                    await asyncio.sleep(0.005)
                assert len(marked) == count
                (connection,) = connections
                assert (connection.url, connection.cycle.body) == (b"", b"")
                writer.write(b"x" * (6 if b"9" in request_ else 0))
            writer.close()

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(inside(), 60))
    finally:
        gc.enable()


@pytest.mark.parametrize("piece", [b"a" * 4096, b"x: " + b"a" * 4091 + b"\r\n"])
def test_a_head_has_an_end(piece: bytes) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD if piece.startswith(b"x") else HEAD + b"y: ")
        sent = 0
        try:
            while sent < 10 * serve.MAX_HEAD and not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
            assert b" 400 " in await reader.read()
        except ConnectionError:  # it was closed on us while we wrote
            return

    talk(endless)


def test_a_long_body_is_no_long_head() -> None:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = 20 * serve.MAX_HEAD
        for _ in range(3):
            writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b"x" * size)
            await writer.drain()
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nOK")

    talk(whole)


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
@pytest.mark.parametrize(
    "piece", [b"a" * 4096, b"\r\nx: " + b"a" * 4091, b"\r\nx:b" * 800], ids=["one long", "long", "short"]
)
def test_trailers_have_an_end(piece: bytes, answered: bool) -> None:
    """Also of a request whose answer goes on, as a stream of events does."""

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"event", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"0\r\ny: ")
        await reader.readuntil(b"OK" if answered else b"event\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):  # it may be closed on us while we write
            while sent < 40 * serve.MAX_HEAD and not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
            said = await reader.read()
            assert said.startswith(b"HTTP/1.1 400 ") if answered else not said, "no answer within one that goes on"

    talk(endless, app if answered else stream)


def test_trailers_are_no_headers() -> None:
    """A proxy has looked at the headers alone."""
    seen: list[Any] = []

    async def body_first(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        seen.append(scope["headers"])
        await app(scope, receive, send)

    async def trailer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(CHUNKED + b"3\r\nabc\r\n0\r\nx-auth-token: secret\r\nhost: y\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nok")

    talk(trailer, body_first)
    assert seen == [[(b"host", b"x"), (b"transfer-encoding", b"chunked")]] * 2


def test_what_a_body_has_around_its_chunks_is_no_long_trailer() -> None:
    async def small(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED)
        for _ in range(3 * serve.MAX_HEAD // 2000):
            writer.write((b"1;x=" + b"y" * 200 + b"\r\nx\r\n") * 10)
            await writer.drain()
        writer.write(b"0\r\n\r\n" + HEAD + b"\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nOK")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\nok")

    talk(small)


UPGRADE = (
    b" /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "rest",
    [
        b"content-length: 3\r\n\r\nabc",
        b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"x: y\r\n" * 200 + b"\r\n",
        b"x: " + b"y" * 10_000 + b"\r\n\r\n",
    ],
    ids=["body", "chunks", "many headers", "long header"],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_a_handshake_that_cannot_be_read_is_refused(method: bytes, rest: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(method + UPGRADE + rest)
        said = await reader.read()
        assert said.startswith(b"HTTP/1.1 400 ") and b"handshake" in said

    talk(odd, web_socket)


@pytest.mark.parametrize("rest", [b"content-length: 3\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n"])
def test_nor_is_the_body_of_a_handshake_waited_for(rest: bytes, hasty: None) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET" + UPGRADE + rest)
        assert not (await reader.read()).startswith(b"HTTP/1.1 101 ")

    talk(silent, web_socket)


@pytest.mark.parametrize("before", [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["first", "second"])
def test_a_web_socket_is_not_hung_up_on_for_its_head(before: bytes, hasty_with_heads: None) -> None:
    """Also one whose connection had a request before it, as proxies keep theirs."""

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if before:
            writer.write(before)
            assert b"200 OK" in await reader.readuntil(b"ok")
        writer.write(b"GET" + UPGRADE + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        with pytest.raises(TimeoutError):  # the text frame is sent last
            async with asyncio.timeout(1):
                await reader.read(1)
        writer.write(b"\x81\x82\x00\x00\x00\x00go")
        assert await reader.readexactly(4) == b"\x81\x02go"

    talk(watch, web_socket)


def test_what_a_web_socket_says_within_bounds_is_heard_in_order(hasty_with_heads: None) -> None:
    """More than is parsed in one turn, and cut where it may be."""

    async def two(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET" + UPGRADE + b"\r\n")
        await reader.readuntil(b"\r\n\r\n")
        words = [b"%03d" % number for number in range(200)]
        frames = b"".join(b"\x81\x83\0\0\0\0" + word for word in words)
        for at in range(0, len(frames), 700):
            writer.write(frames[at : at + 700])
            await writer.drain()
            await asyncio.sleep(0.01)
        for word in words:
            assert await reader.readexactly(5) == b"\x81\x03" + word

    talk(two, web_socket)


def test_an_upgrade_to_anything_else_is_a_plain_request(hasty_with_heads: None) -> None:
    """Some clients ask for HTTP/2 with their first request. They get their answer, however long it takes."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(1)
        await app(scope, receive, send)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(HEAD + b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\ncontent-length: 3\r\n\r\nabc")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\nok")

    talk(ask, slow)


def test_a_body_that_came_with_its_head_is_known_to_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """And none other: of all others the guard counts bytes and seconds."""
    monkeypatch.setattr(serve, "MAX_BODY", 10)
    post, chunked = HEAD + b"content-length: 3\r\n\r\n", HEAD + b"transfer-encoding: chunked\r\n\r\n"

    async def pieces(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def answer(*sent: bytes) -> bytes:
            for piece in sent:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)
            return (await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))[-2:]

        assert await answer(HEAD + b"\r\n") == b"ok"
        assert await answer(post + b"abc") == b"ok"
        assert await answer(post + b"a", b"bc") == b"OK"
        assert await answer(chunked + b"3\r\nabc\r\n0\r\n\r\n") == b"ok"
        assert await answer(chunked + b"3\r\nabc\r\n", b"0\r\n\r\n") == b"OK"
        assert await answer(chunked + b"5\r\nabcde\r\n6\r\nabcdef\r\n0\r\n\r\n") == b"OK", "too long to be believed"
        assert await answer(post + b"abc" + post + b"a", b"bc") == b"ok"  # and the next, which came in two
        assert (await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2))[-2:] == b"OK"

    talk(pieces)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
)
def test_loopback(host: str, loopback: bool) -> None:
    assert serve.is_loopback(host) is loopback


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "10.0.0.1", "localhost.evil.example", "127.0.0.1.nip.io", "2130706433"]
)
def test_not_loopback(host: str) -> None:
    assert not serve.is_loopback(host)


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotStart, match=f"port {port}.*--port"):
            serve.listen("127.0.0.1", port, 0)
        with pytest.raises(CannotStart, match="--lease-port"):
            serve.listen("127.0.0.1", 0, port)
        with pytest.raises(CannotStart, match=f"cannot both listen on port {port}.*--lease-port"):
            serve.listen("127.0.0.1", port, port)
    with pytest.raises(CannotStart, match="no address"):
        serve.listen("nowhere.invalid", 0, 0)
    with pytest.raises(CannotStart, match=r"192\.0\.2\.1 port 0: .*choose an address of this machine with --host"):
        serve.listen("192.0.2.1", 0, 0)  # of nobody: for documentation


async def in_pieces(scope: Any, receive: Any, send: Any) -> None:
    """Answers without a length, as long lists and event streams are."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for piece in (b"[1,\r\n", b"", b"2" * 100_000):
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"]", "more_body": scope["path"] == "/empty"})
    if scope["path"] == "/empty":  # the last piece has nothing in it
        await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("asked", [b"", b"connection: keep-alive\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/empty"])
def test_a_client_of_http_1_0_gets_no_chunks_but_the_end_of_the_connection(path: bytes, asked: bytes) -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET " + path + b" HTTP/1.0\r\nhost: x\r\n" + asked + b"\r\n")
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head
        assert b"\r\nconnection: close" in head
        assert body == b"[1,\r\n" + b"2" * 100_000 + b"]"

    talk(conversation, in_pieces)


def test_a_client_of_http_1_0_that_asks_for_the_head_alone_gets_that() -> None:
    async def conversation(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HEAD / HTTP/1.0\r\nhost: x\r\n\r\n")
        assert (await reader.read()).endswith(b"\r\n\r\n")

    talk(conversation, in_pieces)


@pytest.mark.parametrize(("version", "told"), [(b"1.0", b""), (b"1.1", b"HTTP/1.1 100 Continue\r\n\r\n")])
def test_a_client_that_knows_no_provisional_answer_gets_none(version: bytes, told: bytes) -> None:
    async def taking(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"ab"
        await app(scope, receive, send)

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        more = b"expect: 100-continue\r\nconnection: close\r\ncontent-length: 2\r\n\r\n"
        writer.write(b"POST / HTTP/" + version + b"\r\nhost: x\r\n" + more)
        assert await reader.readexactly(len(told)) == told
        writer.write(b"ab")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")

    talk(old, taking)
