"""Many reads of one caller: worked on a few at a time, while everybody else is served."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rota.api import read_slots
from rota.api.bodies import SMALL_BODY
from rota.api.guard import Guard
from rota.api.house import House
from rota.api.read_slots import AT_A_TIME, CHANGES_AT_A_TIME, DRY_RUNS_AT_A_TIME, SWEEPS_AT_A_TIME
from rota.api.server import guarded
from tests.api.kit import acall, issue, serving

RUNS, FOLLOWED, HEALTH = "/runs", "/runs/0123456789ab/logs/stream", "/healthz"


class Rendering:
    """An application whose answers take until the test says so."""

    def __init__(self) -> None:
        self.inside: list[tuple[str, str]] = []
        self.begun = self.most = 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        mine = (scope["rota.who"].name, scope["path"])
        self.inside.append(mine)
        self.begun += 1
        self.most = max(self.most, self.inside.count(mine))
        await self.go_on.wait()
        self.inside.remove(mine)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def ask(guard: Guard, token: str, path: str, method: str = "GET") -> int:
    return (await acall(guard, path, method, {"x-auth-token": token})).status


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("method", ["GET", "HEAD"])  # the lease port answers both, and one costs as much as the other
def test_one_caller_has_a_few_at_a_time_and_others_do_not_wait(shared: House, method: str) -> None:
    greedy, _ = issue(shared.service, shared.gate, "mallory", "viewer")
    modest, _ = issue(shared.service, shared.gate, "ann", "user")

    async def story() -> None:
        app = Rendering()
        guard = Guard(app, shared)
        many = [asyncio.create_task(ask(guard, greedy, RUNS, method)) for _ in range(5 * AT_A_TIME)]
        await settle()
        assert app.inside == [("mallory", RUNS)] * AT_A_TIME
        others = [asyncio.create_task(ask(guard, modest, RUNS))]
        others += [asyncio.create_task(ask(guard, greedy, path)) for path in (FOLLOWED, HEALTH, "/events")]
        others += [asyncio.create_task(ask(guard, greedy, RUNS, "POST"))]
        await settle()
        assert len(app.inside) == AT_A_TIME + len(others), "neither another caller nor what is no read waits"
        app.go_on.set()
        assert set(await asyncio.gather(*many, *others)) == {200}
        assert app.most == AT_A_TIME + 1, "the change among them"
        assert shared.reads._lines == {}, "nothing is remembered of those who have gone"

    asyncio.run(story())


@pytest.mark.parametrize("path", ["/prompt-skills", "/prompt-skills/x", "/prompt-skills/stream"])
def test_strangers_wait_in_lines_of_their_own(shared: House, path: str) -> None:
    """What is read without a token is rendered by the same threads as everybody's reads."""
    token, _ = issue(shared.service, shared.gate, "ann", "user")

    async def story() -> None:
        app = Rendering()
        guard = Guard(app, shared)

        def reads(path: str, client: str) -> list[asyncio.Task[Any]]:
            return [asyncio.create_task(acall(guard, path, client=client)) for _ in range(5 * AT_A_TIME)]

        many = reads(path, "10.0.0.1")
        await settle()
        assert app.inside == [("anonymous", path)] * AT_A_TIME
        known = asyncio.create_task(ask(guard, token, RUNS))
        others = [*reads(path, "10.0.0.2"), *reads(HEALTH, "10.0.0.1"), *reads("/static/x.js", "10.0.0.1")]
        await settle()
        assert app.inside.count(("ann", RUNS)) == 1
        assert app.inside.count(("anonymous", path)) == 2 * AT_A_TIME, "each source has its own line"
        for free in (HEALTH, "/static/x.js"):
            assert app.inside.count(("anonymous", free)) == 5 * AT_A_TIME, "what takes no thread does not wait"
        app.go_on.set()
        assert await known == 200
        assert {answer.status for answer in await asyncio.gather(*many, *others)} == {200}

    asyncio.run(story())


def test_an_answer_that_is_not_read_keeps_its_place(shared: House) -> None:
    """Else one caller with many connections has as many answers of megabytes in the server's memory."""
    greedy, _ = issue(shared.service, shared.gate, "mallory", "viewer")

    async def story() -> None:
        app, is_read = Rendering(), asyncio.Event()
        app.go_on.set()

        async def unread(scope: Any, receive: Any, send: Any) -> None:
            await guard({**scope, "rota.drained": is_read.wait}, receive, send)

        guard = Guard(app, shared)
        many = [asyncio.create_task(ask(unread, greedy, RUNS)) for _ in range(5 * AT_A_TIME)]  # type: ignore[arg-type]
        await settle()
        assert app.begun == AT_A_TIME
        is_read.set()
        assert set(await asyncio.gather(*many)) == {200}
        assert app.begun == 5 * AT_A_TIME

    asyncio.run(story())


@pytest.mark.parametrize(
    ("path", "query", "at_a_time"),
    [
        (RUNS, "", CHANGES_AT_A_TIME),
        ("/sweeps", "", SWEEPS_AT_A_TIME),
        (RUNS, "dry_run=true", DRY_RUNS_AT_A_TIME),
        ("/sweeps", "dry_run=true", SWEEPS_AT_A_TIME),
        ("/sweeps/0123456789ab/start", "", SWEEPS_AT_A_TIME),
        ("/sweeps/0123456789ab/stop", "", CHANGES_AT_A_TIME),
    ],
)
@pytest.mark.parametrize("size", [1, SMALL_BODY + 1])
def test_so_does_one_to_a_body(shared: House, path: str, query: str, at_a_time: int, size: int) -> None:
    greedy, _ = issue(shared.service, shared.gate, "mallory", "user")

    async def story() -> None:
        app, is_read = Rendering(), asyncio.Event()
        app.go_on.set()

        async def reading(scope: Any, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body", False):
                pass
            await app(scope, receive, send)

        async def unread(scope: Any, receive: Any, send: Any) -> None:
            await guard({**scope, "rota.drained": is_read.wait}, receive, send)

        guard = Guard(reading, shared)
        body = [b"x" * size]
        many = [
            asyncio.create_task(
                acall(unread, path, "POST", {"x-auth-token": greedy}, body=body, query=query)  # type: ignore[arg-type]
            )
            for _ in range(2 * at_a_time)
        ]
        await settle()
        assert app.begun == at_a_time
        is_read.set()
        assert {answer.status for answer in await asyncio.gather(*many)} == {200}
        assert app.begun == 2 * at_a_time

    asyncio.run(story())


def test_a_line_has_an_end(shared: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_slots, "MOST_WAITING", 3)
    token, _ = issue(shared.service, shared.gate, "mallory", "viewer")

    async def story() -> None:
        app = Rendering()
        guard = Guard(app, shared)
        many = [asyncio.create_task(ask(guard, token, RUNS)) for _ in range(AT_A_TIME + 3)]
        await settle()
        assert await ask(guard, token, RUNS) == 429
        many[0].cancel()
        await settle()
        many.append(asyncio.create_task(ask(guard, token, RUNS)))
        app.go_on.set()
        assert await asyncio.gather(*many[1:]) == [200] * (AT_A_TIME + 3)

    asyncio.run(story())


def test_behind_the_end_of_the_line_a_body_that_comes_after_its_head_is_told_the_same(
    shared: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over ssh or a proxy, where they come apart: who is told to wait sends it again, who is told that it cannot be
    read does not."""
    monkeypatch.setattr(read_slots, "MOST_WAITING", 0)
    token, _ = issue(shared.service, shared.gate, "ann", "user")
    body = [b'{"name": "a",', b'"command": "true"}']

    async def story() -> None:
        guard = guarded(shared)
        async with AsyncExitStack() as all_slots:
            for _ in range(CHANGES_AT_A_TIME):
                await all_slots.enter_async_context(shared.changes.slot("ann"))
            refused = await acall(guard, RUNS, "POST", {"x-auth-token": token}, body)
            assert (refused.status, refused.headers["retry-after"]) == (429, "1"), refused.body
            assert "changes waiting" in refused.json["detail"]

    asyncio.run(story())


@pytest.mark.parametrize("call", [f"GET {RUNS}", f"POST {RUNS}?dry_run=true"])
def test_what_changes_nothing_is_not_worked_on_once_its_client_has_gone(shared: House, call: str) -> None:
    """Real connections: their calls wait in line when they are closed."""
    token, _ = issue(shared.service, shared.gate, "mallory", "user")
    line, at_a_time = (shared.reads, AT_A_TIME) if "GET" in call else (shared.dry_runs, DRY_RUNS_AT_A_TIME)

    async def story() -> None:
        app = Rendering()
        async with serving(Guard(app, shared)) as (address, connections):

            async def opened() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                reader, writer = await asyncio.open_connection(*address)
                head = f"{call} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-auth-token: {token}\r\n\r\n"
                writer.write(head.encode())
                return reader, writer

            async def wait_until(reads: int) -> None:
                while getattr(line._lines.get("mallory"), "reads", 0) != reads:
                    await asyncio.sleep(0.005)

            first = [await opened() for _ in range(at_a_time)]
            await wait_until(at_a_time)
            late = [await opened() for _ in range(20)]
            await wait_until(at_a_time + 20)
            for _, writer in late[:-1]:
                writer.transport.abort()
            while len(connections) != at_a_time + 1:
                await asyncio.sleep(0.005)
            app.go_on.set()
            for reader, writer in (*first, late[-1]):
                assert b"200" in await reader.readline()
                writer.close()
            await wait_until(0)
            assert app.begun == at_a_time + 1, "and the one that stayed"

    asyncio.run(asyncio.wait_for(story(), 60))


def test_nor_does_one_keep_its_connection_that_has_sent_much_behind_its_read(shared: House) -> None:
    """Nothing more of it is read while its read waits, so that nothing is heard of its end."""
    token, _ = issue(shared.service, shared.gate, "mallory", "viewer")

    async def story() -> None:
        app = Rendering()
        async with serving(Guard(app, shared)) as (address, connections):
            head = f"GET {RUNS} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-auth-token: {token}\r\n\r\n".encode()
            opened = []
            for count in range(1, AT_A_TIME + 20):
                _, writer = await asyncio.open_connection(*address)
                writer.write(head + (b"GET / HTTP/1.1\r\nx: " + b"y" * 20_000 if count > AT_A_TIME else b""))
                opened.append(writer)
                while getattr(shared.reads._lines.get("mallory"), "reads", 0) != count:
                    await asyncio.sleep(0.005)
            while [one.flow.held for one in connections].count(True) != len(opened) - AT_A_TIME:
                await asyncio.sleep(0.005)
            for writer in opened[AT_A_TIME:]:
                writer.transport.abort()
            app.go_on.set()
            while len(connections) != AT_A_TIME:
                await asyncio.sleep(0.005)
            assert app.begun == AT_A_TIME
            for writer in opened:
                writer.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_client_that_goes_is_no_mistake_of_ours(shared: House, caplog: pytest.LogCaptureFixture) -> None:
    """The turn of a read comes while its connection is being closed."""
    token, _ = issue(shared.service, shared.gate, "mallory", "viewer")

    async def story() -> None:
        app = Rendering()
        async with serving(Guard(app, shared)) as (address, connections):
            writers = []
            for count in range(1, AT_A_TIME + 2):
                _, writer = await asyncio.open_connection(*address)
                writer.write(f"GET {RUNS} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-auth-token: {token}\r\n\r\n".encode())
                writers.append(writer)
                while getattr(shared.reads._lines.get("mallory"), "reads", 0) != count:
                    await asyncio.sleep(0.005)
            port = writers[-1].get_extra_info("sockname")[1]
            last = next(one for one in connections if one.client[1] == port)
            shared.reads._lines["mallory"].slots.release()
            last.transport.close()
            while last in connections:
                await asyncio.sleep(0.005)
            app.go_on.set()
            while shared.reads._lines:
                await asyncio.sleep(0.005)
            assert app.begun == AT_A_TIME
            for writer in writers:
                writer.close()

    with caplog.at_level("INFO"):
        asyncio.run(asyncio.wait_for(story(), 60))
    assert [one.getMessage() for one in caplog.records if "ASGI" in one.getMessage()] == []
