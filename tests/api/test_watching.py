"""Streams, over real sockets: who stops being welcome or stops reading is let go, and "from now on" has a number."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from rota.api import bell, follow, hub, patient, serve
from rota.api.doors import stream
from rota.api.house import House
from rota.api.hub import Told
from rota.api.server import guarded
from rota.app.commands import Pause, Resume
from rota.core import events as e
from tests.api.kit import ROOT, issue, opened, revoke

PATIENCE_S = 60.0


class Doors:
    """The doors of a house, on a port of their own."""

    def __init__(self, house: House, port: int, server: Any) -> None:
        self.house, self.port, self.server = house, port, server

    @property
    def lines(self) -> int:
        return len(self.server.server_state.connections)

    async def open(self, path: str, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(
            "\r\n".join((f"GET {path} HTTP/1.1", "host: localhost", "connection: close", *headers, "", "")).encode()
        )
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"\r\n\r\n")
        return reader, writer

    def ws(self, path: str = "/ws", **headers: str) -> Any:
        return connect(
            f"ws://127.0.0.1:{self.port}{path}", open_timeout=60, additional_headers=headers, ping_interval=None
        )

    async def happen(self) -> int:
        """Two events; the number of the second."""
        await asyncio.wrap_future(self.house.service.send(ROOT, Pause("a look")))
        await asyncio.wrap_future(self.house.service.send(ROOT, Resume()))
        await until(lambda: self.house.hub.last >= self.house.service.view().version)
        return self.house.hub.last


def told(text: bytes) -> list[int]:
    return [int(line[4:]) for line in text.split(b"\n") if line.startswith(b"id: ")]


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0.01)


def story(where: Path, what: Callable[[Doors], Awaitable[None]], **settings: Any) -> None:
    async def inside(house: House) -> None:
        await house.hub.open()
        listening = socket.create_server(("127.0.0.1", 0))
        server = serve._Server(serve._config(guarded(house)))
        task = asyncio.create_task(server.serve([listening]))
        await until(lambda: server.started)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await what(Doors(house, listening.getsockname()[1], server))
        finally:
            house.hub.close()
            server.should_exit = True
            await task

    with opened(where, **settings) as house, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(inside(house))


def test_a_revoked_token_hears_nothing_more(tmp_path: Path) -> None:
    async def what(doors: Doors) -> None:
        gate, service = doors.house.gate, doors.house.service
        ann, token = await asyncio.to_thread(issue, service, gate)
        ben, _ = await asyncio.to_thread(issue, service, gate, "ben")
        reader, writer = await doors.open("/events", f"x-auth-token: {ann}")
        other, to_other = await doors.open("/events", f"authorization: Bearer {ben}")
        async with doors.ws(**{"X-Auth-Token": ann}) as watch:
            assert json.loads(await watch.recv())["type"] == "Hello"
            before = await doors.happen()
            assert [json.loads(await watch.recv())["seq"] for _ in range(2)] == [before - 1, before]
            await asyncio.to_thread(revoke, service, gate, token)
            with pytest.raises(ConnectionClosed) as closed:
                await watch.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401
        heard = await reader.read()
        assert heard.endswith(b"0\r\n\r\n"), "at once, and in good order"
        assert told(heard)[-1] == before
        after = await doors.happen()
        await other.readuntil(f"id: {after}\n".encode())  # who is welcome goes on
        writer.close()
        to_other.close()

    story(tmp_path, what)


def test_who_came_in_without_a_token_hears_nothing_more_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "BEAT_S", 0.1)

    async def what(doors: Doors) -> None:
        gate, service = doors.house.gate, doors.house.service
        made = await asyncio.to_thread(_post, doors.port, "/runs", {"name": "n", "command": "true"}, "")
        (events, one), (log, two) = (
            await doors.open("/events"),
            await doors.open(f"/runs/{made['id']}/logs/stream"),
        )
        async with doors.ws() as watch:
            assert json.loads(await watch.recv())["type"] == "Hello"
            await asyncio.to_thread(issue, service, gate)
            with pytest.raises(ConnectionClosed) as closed:
                await watch.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4401
        assert (await events.read()).endswith(b"0\r\n\r\n")
        assert (await log.read()).endswith(b"0\r\n\r\n")
        one.close()
        two.close()

    story(tmp_path, what)


def test_an_expired_one_hears_no_event_and_no_log_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BEAT_S", 0.1)

    async def what(doors: Doors) -> None:
        gate, service = doors.house.gate, doors.house.service
        ann, _ = await asyncio.to_thread(issue, service, gate, "ann", "admin", expires_s=1000)
        head = f"x-auth-token: {ann}"
        made = await asyncio.to_thread(_post, doors.port, "/runs", {"name": "n", "command": "true"}, ann)
        (events, one), (log, two) = (
            await doors.open("/events", head),
            await doors.open(f"/runs/{made['id']}/logs/stream", head),
        )
        await log.readuntil(b"still here")
        later = gate._now() + 2000
        monkeypatch.setattr(gate, "_now", lambda: later)
        last = await doors.happen()
        heard = await events.read()
        assert last not in told(heard)
        assert (await log.read()).endswith(b"0\r\n\r\n")
        one.close()
        two.close()

    story(tmp_path, what)


def test_who_needed_no_token_is_let_go_when_there_is_one(tmp_path: Path) -> None:
    async def what(doors: Doors) -> None:
        reader, writer = await doors.open("/events")
        await asyncio.to_thread(issue, doors.house.service, doors.house.gate)
        assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()

    story(tmp_path, what)


@pytest.mark.parametrize("path", ["/events?after=0", "/ws?after=0"])
def test_who_reads_nothing_is_hung_up_on(
    tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (patient, stream):
        monkeypatch.setattr(module, "SEND_WITHIN_S", 0.5)
    monkeypatch.setattr(stream, "CLOSE_WITHIN_S", 0.5)

    async def what(doors: Doors) -> None:
        house_hub = doors.house.hub
        first = house_hub.last + 1  # more than all buffers on the way can take
        long = e.SchedulingPaused(at=0.0, by="ann", why="x" * 100_000)
        house_hub._ring += [Told(seq, long, None) for seq in range(first, first + 400)]
        house_hub.last = first + 399
        with socket.create_connection(("127.0.0.1", doors.port)) as deaf:
            upgrade = "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
            key = "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            more = upgrade + key if path.startswith("/ws") else ""
            deaf.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n".encode())
            await until(lambda: house_hub.watchers == 1)
            await until(lambda: house_hub.watchers == 0)
            await until(lambda: doors.lines == 0)  # and what it did not read is gone, too

    with caplog.at_level(logging.WARNING):
        story(tmp_path, what)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []


def test_from_now_on_has_a_number_to_come_back_with(tmp_path: Path) -> None:
    async def what(doors: Doors) -> None:
        await doors.happen()
        reader, writer = await doors.open("/events")
        hello = await reader.readuntil(b'"seq"')
        (now,) = told(hello)
        assert b"event: hello\n" in hello
        assert now == doors.house.hub.last
        writer.close()  # before anything happened
        async with doors.ws() as watch:
            assert json.loads(await watch.recv()) == {"seq": now, "type": "Hello"}
        last = await doors.happen()
        reader, writer = await doors.open("/events", f"last-event-id: {now}")
        heard = await reader.readuntil(f"id: {last}\n".encode())
        assert told(heard) == [now + 1, last]
        assert b"hello" not in heard, "who says where it is needs no greeting"
        writer.close()
        async with doors.ws(f"/ws?after={now}") as watch:
            assert [json.loads(await watch.recv())["seq"] for _ in range(2)] == [now + 1, last]

    story(tmp_path, what)


def test_one_caller_has_so_many_watchers_and_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_OF_ONE", 2)

    async def what(doors: Doors) -> None:
        gate, service = doors.house.gate, doors.house.service
        ann, _ = await asyncio.to_thread(issue, service, gate)
        ben, _ = await asyncio.to_thread(issue, service, gate, "ben")
        lines = [await doors.open("/events?after=0", f"x-auth-token: {ann}") for _ in range(2)]
        await until(lambda: doors.house.hub.watchers == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.port)
        writer.write(f"GET /events HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {ann}\r\n\r\n".encode())
        answer = await reader.readuntil(b"}")
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 5\r\n" in answer.lower()
        assert b"ann has 2 watchers of events already; close some before opening more" in answer
        async with doors.ws("/ws?after=0", **{"X-Auth-Token": ann}) as watch:
            with pytest.raises(ConnectionClosed) as closed:
                await watch.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 4013
        lines.append(await doors.open("/events?after=0", f"x-auth-token: {ben}"))
        await lines[-1][0].readuntil(b"id: ")
        lines[0][1].close()
        await until(lambda: doors.house.hub.watchers == 2)
        lines.append(await doors.open("/events", f"x-auth-token: {ann}"))
        for one in (writer, *(each for _, each in lines[1:])):
            one.close()

    story(tmp_path, what)


@pytest.mark.parametrize("what_log", ["logs", "sidecar-logs"])
def test_one_caller_follows_so_many_logs(tmp_path: Path, what_log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell, "MAX_OF_ONE", 2)

    async def what(doors: Doors) -> None:
        gate, service = doors.house.gate, doors.house.service
        root, _ = await asyncio.to_thread(issue, service, gate, "root", "admin")
        ann, _ = await asyncio.to_thread(issue, service, gate)
        body = {"name": "n", "command": "true", "auto_start": False}
        made = await asyncio.to_thread(_post, doors.port, "/runs", body, root)
        path = f"/runs/{made['id']}/{what_log}/stream"
        lines = [await doors.open(path, f"x-auth-token: {ann}") for _ in range(2)]
        for reader, _ in lines:
            await reader.readuntil(b"initial")
        reader, writer = await asyncio.open_connection("127.0.0.1", doors.port)
        writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-auth-token: {ann}\r\n\r\n".encode())
        answer = await reader.readuntil(b"}")
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"ann follows 2 logs already; close some before opening more" in answer
        lines.append(await doors.open(path, f"x-auth-token: {root}"))
        await lines[-1][0].readuntil(b"initial")
        for one in (writer, *(each for _, each in lines)):
            one.close()
        await until(lambda: not doors.house.bell._of_caller)

    story(tmp_path, what)


def _post(port: int, path: str, body: Any, token: str) -> Any:
    from tests.security.kit import ask

    return ask(port, "POST", path, body, token=token).ok()
