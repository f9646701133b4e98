"""Listening: what was heard is neither lost nor heard twice, however often the line breaks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from rota.client import AsyncClient, Client, NotFound, Unreachable
from tests.client.stub import DROP, Asked, closed_port, ok, stream, stub


def collect(url: str, how: str, method: str, *args: Any, count: int, **named: Any) -> list[Any]:
    """The first `count` things a stream has to say, by either client."""
    if how == "sync":
        with Client(url, backoff_s=0.01) as client:
            found = []
            heard = getattr(client, method)(*args, **named)
            for item in heard:
                found.append(item)
                if len(found) == count:
                    break
            heard.close()
            return found

    async def run() -> list[Any]:
        found = []
        async with AsyncClient(url, backoff_s=0.01) as client:
            heard = getattr(client, method)(*args, **named)
            async for item in heard:
                found.append(item)
                if len(found) == count:
                    break
            await heard.aclose()
        return found

    return asyncio.run(run())


both = pytest.mark.parametrize("how", ["sync", "async"])


def told(*numbers: int) -> bytes:
    return stream(*((str(n), {"seq": n}) for n in numbers))


@both
def test_events_go_on_where_they_broke_off(how):
    """Each connection brings a few events and breaks, once in the middle of one."""

    def reply(asked: Asked) -> bytes | None:
        after = int(asked.headers.get("last-event-id", 0))
        if asked.number == 3:
            return DROP
        if asked.number == 4:
            return ok({"detail": "starting"}, "503 Busy")
        return told(*range(after + 1, after + 4)) + b'id: 99\ndata: {"seq": 99}\n'  # cut off: does not count

    with stub(reply) as server:
        found = collect(server.url, how, "events", 10, count=9)
    assert [event["seq"] for event in found] == list(range(11, 20))
    assert [asked.headers["last-event-id"] for asked in server.asked] == ["10", "13", "16", "16", "16"]
    assert server.asked[0].headers["accept"] == "text/event-stream"


@both
def test_from_now_on_means_from_then_on_also_if_the_line_breaks_at_once(how):
    """The server says first where "now" is; what happens while the line is down is not lost."""
    hello = b'retry: 1000\n\nid: 40\nevent: hello\ndata: {"seq":40}\n\n'

    def reply(asked: Asked) -> bytes:
        if asked.number == 1:
            return stream() + hello
        after = int(asked.headers["last-event-id"])
        return told(*range(after + 1, after + 3))

    with stub(reply) as server:
        found = collect(server.url, how, "events", count=3)
    assert [event["seq"] for event in found] == [41, 42, 43], "and the greeting is no event"
    assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "40", "42"]


@both
def test_a_log_is_followed_to_its_end_over_broken_lines(how):
    log = [("1.5", "hello"), ("1.6", "\n"), ("2.6", "wörld"), ("2.7", "\n")]  # attempt.byte

    def reply(asked: Asked) -> bytes:
        after = asked.headers["last-event-id"]
        rest = [(at, {"type": "delta", "content": text}) for at, text in log if at > after]
        if len(rest) > 2:
            return stream(*rest[:2])
        return stream(*rest, ("2.7", {"type": "done", "status": "finished"}))

    with stub(reply) as server:
        assert "".join(collect(server.url, how, "follow", "0123456789ab", count=99)) == "hello\nwörld\n"
    assert [asked.headers["last-event-id"] for asked in server.asked] == ["1.0", "1.6"]


@both
def test_a_refusal_ends_the_listening(how):
    with stub(lambda asked: ok({"detail": "Run not found"}, "404 No")) as server, pytest.raises(NotFound):
        collect(server.url, how, "follow", "0123456789ab", count=1)
    assert len(server.asked) == 1


@both
def test_patience_has_an_end(how):
    url = f"http://127.0.0.1:{closed_port()}"
    with pytest.raises(Unreachable):
        collect(url, how, "events", 1, count=1, patience_s=0.2)


def test_waiting_outlives_a_server_that_restarts():
    states = iter(["queued", DROP, DROP, "running", "completed"])

    def reply(asked: Asked) -> bytes | None:
        if asked.target.startswith("/runs/"):
            return ok({"id": "0123456789ab", "status": "finished", "exit_code": 0})
        state = next(states)
        return DROP if state is None else ok({"id": "0123456789ab", "state": state})

    with stub(reply) as server, Client(server.url, tries=1) as client:
        run = client.wait("0123456789ab")
    assert (run.status, run.ok, run.exit_code) == ("finished", True, 0)


def test_waiting_has_a_limit_of_its_own():
    with (
        stub(lambda asked: ok({"id": "0123456789ab", "state": "running"})) as server,
        Client(server.url) as client,
        pytest.raises(TimeoutError, match="it goes on"),
    ):
        client.wait("0123456789ab", timeout_s=0.1)


def test_leaving_early_closes_the_line():
    left = threading.Event()

    def reply(asked: Asked) -> Any:
        yield told(1)
        try:
            for _ in range(1000):
                yield b": still here\n\n"
                if left.wait(0.01):
                    return
        finally:
            left.set()

    with stub(reply) as server, Client(server.url) as client:
        heard = client.events(0)
        assert next(iter(heard))["seq"] == 1
        heard.close()  # type: ignore[attr-defined]
        assert left.wait(60), "the server noticed"
