"""How a client gets its connection: a server that is busy, and names that stand for two addresses."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.cli.connect import _next_step
from rota.cli.lease import door as lease_door
from rota.cli.lease.acquire import Failed, acquire
from rota.cli.lease.door import Door, find_door
from rota.client.address import Address
from rota.client.aio import AsyncClient, Streams
from rota.client.errors import Unreachable
from rota.client.sync import Client, Sockets
from tests.client.stub import Asked, ok, stub


class Full:
    """A unix socket whose accept queue has no room."""

    def __init__(self, path: Path) -> None:
        self.url = f"unix://{path}"
        self.address = Address(self.url)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(0)
        self.waiting: list[socket.socket] = []
        while True:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            self.waiting.append(one)
            try:
                one.connect(str(path))
            except BlockingIOError:
                return

    def take_one(self) -> None:
        self.waiting.append(self.listener.accept()[0])

    def close(self) -> None:
        for one in (self.listener, *self.waiting):
            one.close()


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Full]:
    monkeypatch.chdir(tmp_path)
    found = Full(tmp_path / "s")
    yield found
    found.close()


def sync_connect(address: Address, timeout_s: float, between: Callable[[], None]) -> None:
    class Io(Sockets):
        def sleep(self, seconds: float) -> None:
            between()

    link = Io().connect(address, timeout_s)
    assert link.getpeername()
    link.close()


def async_connect(address: Address, timeout_s: float, between: Callable[[], None]) -> None:
    class Io(Streams):
        async def sleep(self, seconds: float) -> None:
            between()

    async def connect() -> None:
        io = Io()
        link = await io.connect(address, timeout_s)
        assert io.socket_of(link).getpeername()
        io.close(link)
        await io.leave()

    asyncio.run(connect())


both = pytest.mark.parametrize("connect", [sync_connect, async_connect])


@both
def test_a_full_queue_is_waited_for(full: Full, connect: Callable[..., None]) -> None:
    tries: list[int] = []

    def between() -> None:
        tries.append(1)
        if len(tries) == 3:
            full.take_one()

    connect(full.address, 600.0, between)
    assert len(tries) == 3


@both
def test_the_wait_for_a_full_queue_has_an_end(full: Full, connect: Callable[..., None]) -> None:
    with pytest.raises(Unreachable, match=r"the server at unix:.* is busy: too many connections wait") as told:
        connect(full.address, 0.05, lambda: None)
    assert told.value.busy and not told.value.sent
    assert _next_step(told.value) == "; try again in a moment"


def test_both_clients_say_that_it_is_busy(full: Full) -> None:
    with Client(full.url, connect_s=0.05, tries=1) as client, pytest.raises(Unreachable, match="is busy"):
        client.health()

    async def ask() -> None:
        async with AsyncClient(full.url, connect_s=0.05, tries=1) as client:
            await client.health()

    with pytest.raises(Unreachable, match="is busy"):
        asyncio.run(ask())


def test_a_lease_says_that_it_is_busy(full: Full, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_door, "CONNECT_S", 0.05)
    screen: Any = None
    with pytest.raises(Failed, match=r"is busy: .*; try again in a moment"):
        acquire(Door(full.url), 1, screen)


@pytest.mark.parametrize("needs_token", [True, False])
def test_a_lease_shows_the_token_at_a_unix_socket_only_when_it_is_asked_for(tmp_path: Path, needs_token: bool) -> None:
    """A socket that systemd made belongs to root, whoever serves there: only the server can say."""

    def reply(asked: Asked) -> bytes:
        if needs_token and asked.headers.get("x-auth-token") != "rota_x":
            return ok({"detail": "show a token (ROTA_TOKEN)"}, "401 Unauthorized", Connection="close")
        return ok({"job_id": "a", "gpus": "0"}, Connection="close")

    screen: Any = None
    with stub(reply, tmp_path / "s") as server:
        env = {"ROTA_URL": server.url, "ROTA_TOKEN": "rota_x"}
        assert acquire(find_door(env), 1, screen).gpus == "0"
        assert find_door(env).call("GET", "/jobs")[0] == 200
        shown = [asked.headers.get("x-auth-token") for asked in server.asked]
        assert shown == ([None, "rota_x"] * 2 if needs_token else [None, None])
        keys = {asked.headers["idempotency-key"] for asked in server.asked if asked.method == "POST"}
        assert len(keys) == 1


def test_a_lease_asks_once_more_at_most(tmp_path: Path) -> None:
    screen: Any = None
    token_file = tmp_path / "rota" / "token"
    with stub(lambda asked: ok({"detail": "no"}, "401 Unauthorized", Connection="close"), tmp_path / "s") as server:
        for more, tries in (({}, 1), ({"ROTA_TOKEN": "rota_x"}, 2)):
            server.asked.clear()
            with pytest.raises(Failed, match="not authorised: no"):
                acquire(find_door({"ROTA_URL": server.url, **more}), 1, screen)
            assert len(server.asked) == tries
        token_file.parent.mkdir()
        token_file.write_text("rota_x")
        token_file.chmod(0o644)
        with pytest.raises(Failed, match="can be read by others"):
            acquire(find_door({"ROTA_URL": server.url, "XDG_CONFIG_HOME": str(tmp_path)}), 1, screen)


@pytest.mark.parametrize("name", ["localhost", "LocalHost"])
def test_localhost_is_127_0_0_1_before_anything_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def create_connection(where: tuple[bytes, int], timeout_s: float) -> socket.socket:
        asked.append(where[0].decode())
        raise ConnectionRefusedError(111, "Connection refused")

    async def open_connection(host: str, port: int, **options: object) -> None:
        asked.append(host)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", create_connection)
    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    for connect in (sync_connect, async_connect):
        with pytest.raises(Unreachable, match="no server answers"):
            connect(Address(f"http://{name}:1"), 600.0, lambda: None)
        assert asked == ["127.0.0.1", name]
        asked.clear()
        with pytest.raises(Unreachable):
            connect(Address("http://gpu.example:1"), 600.0, lambda: None)
        assert asked == ["gpu.example"]
        asked.clear()


def test_a_certificate_that_is_refused_at_127_0_0_1_is_not_tried_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def open_connection(host: str, port: int, **options: object) -> None:
        asked.append(host)
        raise ssl.SSLCertVerificationError("self-signed certificate")

    monkeypatch.setattr(asyncio, "open_connection", open_connection)
    with pytest.raises(Unreachable, match="self-signed certificate"):
        async_connect(Address("https://localhost:1"), 600.0, lambda: None)
    assert asked == ["127.0.0.1"]


@both
def test_localhost_reaches_the_server_on_127_0_0_1(connect: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect(Address(f"http://localhost:{listener.getsockname()[1]}"), 600.0, lambda: None)
        taken, _ = listener.accept()
        taken.close()
