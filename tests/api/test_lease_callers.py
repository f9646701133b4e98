"""Looks at who calls the lease port: never on the event loop, which all callers share."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends.lookers import Lookers
from rota.api.server import guarded_leases
from rota.app.ports import Seen, Unseen
from tests.api.kit import opened, serving


async def answer(address: tuple[str, int], method: str, path: str, body: Any = None) -> tuple[int, Any]:
    reader, writer = await asyncio.open_connection(*address)
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
    said = await reader.read()
    writer.close()
    return int(said.split()[1]), json.loads(said.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_the_table_of_sockets_is_never_read_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Where the kernel cannot find one socket, all are read, and others decide how many there are."""
    slow: list[threading.Thread] = []

    with opened(tmp_path) as house:
        real = house.processes.peer_uid

        def peer_uid(link: socket.socket, *, quick: bool = False) -> int | None:
            if not quick:
                slow.append(threading.current_thread())
            return real(link, quick=quick) if known else None

        monkeypatch.setattr(house.processes, "peer_uid", peer_uid)

        async def story() -> None:
            async with asyncio.timeout(60), serving(guarded_leases(house, True), house) as (address, _):
                status, given = await answer(address, "POST", "/acquire", {"pid": os.getpid(), "num_gpus": 1})
                if not known:
                    assert status == 403
                    assert "the kernel cannot tell" in given["error"]
                    assert "token" in given["error"]
                    assert (await answer(address, "GET", "/jobs"))[0] == 200
                    return
                assert status == 200, given
                assert [job["id"] for job in (await answer(address, "GET", "/jobs"))[1]] == [given["job_id"]]
                assert await answer(address, "POST", "/release", {"job_id": given["job_id"]}) == (
                    200,
                    {"released": True},
                )

        asyncio.run(story())
    assert len(slow) == (3 if known else 2)
    assert threading.main_thread() not in slow


def test_a_lease_cannot_be_given_back_where_the_caller_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as house:

        async def story() -> None:
            async with asyncio.timeout(60), serving(guarded_leases(house, True), house) as (address, _):
                given = (await answer(address, "POST", "/acquire", {"pid": os.getpid(), "num_gpus": 1}))[1]
                monkeypatch.setattr(house.processes, "peer_uid", lambda link, quick=False: None)
                status, said = await answer(address, "POST", "/release", {"job_id": given["job_id"]})
                assert status == 403
                assert "the kernel cannot tell" in said["error"]
                assert "token" in said["error"]

        asyncio.run(story())


def test_a_process_whose_look_does_not_end_is_refused_for_now_and_others_get_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no time of the event loop, and an answer tells the client to ask again."""
    with opened(tmp_path) as house:
        look = house.processes.look

        def unseen(pid: int, asker: str) -> Seen | None:
            if pid == os.getppid():
                raise Unseen("a look for account 7 has not ended in time")
            return look(pid, asker)

        monkeypatch.setattr(house.processes, "look", unseen)

        async def story() -> None:
            async with asyncio.timeout(60), serving(guarded_leases(house, True), house) as (address, _):
                status, said = await answer(address, "POST", "/acquire", {"pid": os.getppid(), "num_gpus": 1})
                assert (status, said) == (
                    503,
                    {"error": "the process cannot be looked at: a look for account 7 has not ended in time; ask again"},
                )
                assert (await answer(address, "POST", "/acquire", {"pid": os.getpid(), "num_gpus": 1}))[0] == 200

        asyncio.run(story())


def test_no_look_is_made_once_a_process_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs are given on the loop's thread, which would wait for it."""
    looks: list[str] = []
    real = Lookers.call

    def call(self: Lookers, party: Any, function: Any, *args: Any, **more: Any) -> Any:
        looks.append(function.__name__)
        return real(self, party, function, *args, **more)

    monkeypatch.setattr(Lookers, "call", call)
    with opened(tmp_path) as house:

        async def story() -> None:
            async with asyncio.timeout(60), serving(guarded_leases(house, True), house) as (address, _):
                assert (await answer(address, "POST", "/acquire", {"pid": os.getpid(), "num_gpus": 1}))[0] == 200

        asyncio.run(story())
    assert looks == ["of", "attempt_of"], "both in a thread, before it was asked for"
