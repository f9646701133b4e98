"""How a client gets its connection: a server that is busy, and names that stand for two addresses."""

from __future__ import annotations

import asyncio
import os
import socket
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


def test_a_lease_of_another_persons_server_shows_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rota.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    env = {"ROTA_URL": f"unix://{path}", "ROTA_TOKEN": "rota_x"}
    owner = path.stat().st_uid
    assert find_door(env).token == ""
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    monkeypatch.setattr(lease_door, "FIRST_PERSON", owner + 1)
    assert find_door(env).token == "", "a server of the system knows every account"
    monkeypatch.setattr(lease_door, "FIRST_PERSON", owner)
    assert find_door(env).token == "rota_x"
    listener.close()


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


@both
def test_localhost_reaches_the_server_on_127_0_0_1(connect: Callable[..., None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect(Address(f"http://localhost:{listener.getsockname()[1]}"), 600.0, lambda: None)
        taken, _ = listener.accept()
        taken.close()
