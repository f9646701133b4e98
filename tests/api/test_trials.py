"""Dry runs and sweeps are worked on in threads of their own, one of a caller at a time, and hold up nobody."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rota.api import trials
from rota.api.house import House
from rota.api.server import guarded
from rota.app import commands as c
from rota.app.service import HANDLERS
from tests.api.kit import acall, issue

RUN = {"name": "n", "command": "true", "auto_start": False}
SWEEP = {"name": "s", "base_command": "true", "parameters": {"a": [1, 2]}}


class Slow:
    """Submits that take until the test says so, where they are not worked on by the writer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.begun = threading.Event(), list[str]()
        for kind in (c.Submit, c.SubmitMany):
            monkeypatch.setitem(HANDLERS, kind, self._slow(HANDLERS[kind]))

    def _slow(self, handler: Any) -> Any:
        def slow(desk: Any, who: Any, command: Any) -> Any:
            thread = threading.current_thread().name
            if thread != "rota-loop" or who.name == "mallory":
                self.begun.append(thread)
                assert self.go_on.wait(60)
            return handler(desk, who, command)

        return slow


@pytest.fixture
def slow(shared: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    # each test has an event loop of its own
    monkeypatch.setattr(shared, "trials", trials.trial_threads())
    monkeypatch.setattr(shared, "sweeps", trials.sweep_threads())
    made = Slow(monkeypatch)
    yield made
    made.go_on.set()


async def post(house: House, token: str, path: str, body: Any) -> Any:
    path, _, query = path.partition("?")
    headers = {"x-auth-token": token, "content-type": "application/json"}
    return await acall(guarded(house), path, "POST", headers, [json.dumps(body).encode()], query=query)


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("path", "body"), [("/runs", RUN), ("/sweeps", SWEEP)])
def test_a_caller_s_many_have_one_thread_and_others_go_on(shared: House, slow: Slow, path: str, body: Any) -> None:
    greedy, _ = issue(shared.service, shared.gate, "mallory", "admin")
    other, _ = issue(shared.service, shared.gate, "ann", "admin")
    version = shared.service.view().version

    async def story() -> None:
        tried = [asyncio.create_task(post(shared, greedy, f"{path}?dry_run=true", body)) for _ in range(8)]
        threads = shared.trials if path == "/runs" else shared.sweeps
        await wait_for(lambda: threads._calls == 8 and slow.begun)
        async with asyncio.timeout(60):
            made = await post(shared, other, "/runs", RUN)
            assert (made.status, shared.service.view().version) == (200, version + 1), "the writer is free"
            assert await asyncio.to_thread(lambda: True), "and so are the threads of other calls"
        assert len(slow.begun) == 1
        slow.go_on.set()
        answers = await asyncio.gather(*tried)
        assert {answer.status for answer in answers} == {200}
        assert all(answer.json["dry_run"] for answer in answers)
        assert shared.service.view().version == version + 1, "nothing was done"

    asyncio.run(story())


@pytest.mark.parametrize(("path", "body"), [("/runs", RUN), ("/sweeps", SWEEP)])
def test_beyond_the_bound_a_caller_is_to_ask_again(
    shared: House, slow: Slow, path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy, _ = issue(shared.service, shared.gate, "mallory", "admin")
    other, _ = issue(shared.service, shared.gate, "ann", "admin")

    async def story() -> None:
        for threads in (shared.trials, shared.sweeps):
            monkeypatch.setattr(threads, "_calls_of_one", 1)
        first = asyncio.create_task(post(shared, greedy, f"{path}?dry_run=true", body))
        await wait_for(lambda: slow.begun)
        refused = await post(shared, greedy, f"{path}?dry_run=true", body)
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert "too many such calls are waiting just now; ask again" in refused.json["detail"]
        theirs = asyncio.create_task(post(shared, other, f"{path}?dry_run=true", body))
        await wait_for(lambda: len(slow.begun) == 2)
        slow.go_on.set()
        assert [(await one).status for one in (first, theirs)] == [200, 200]

    asyncio.run(story())
