"""Why runs wait and when they start is worked out in threads of their own, a few at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest

from rota.api import forecasts
from rota.api.house import House
from rota.api.server import guarded
from rota.app.commands import Submit
from rota.core.run import Run
from tests.api.kit import ROOT, acall, issue
from tests.unit.core.kit import spec


class Slow:
    """Explanations that take until the test says so."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.begun = threading.Event(), 0
        explain = house.service.explain

        def slow(run_id: str) -> Any:
            self.begun += 1
            assert self.go_on.wait(60)
            return explain(run_id)

        monkeypatch.setattr(house.service, "explain", slow)


@pytest.fixture
def held(shared: House) -> str:
    """A run that waits."""
    run: Run = shared.service.do(ROOT, Submit(spec(workdir="/"), held=True))
    return run.id


@pytest.fixture
def slow(shared: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(shared, "forecasts", forecasts.forecasters())  # each test has an event loop of its own
    made = Slow(shared, monkeypatch)
    yield made
    made.go_on.set()


async def ask(house: House, token: str, path: str) -> Any:
    return await acall(guarded(house), path, headers={"x-auth-token": token})


async def wait_for(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("what", ["/explain", "/eta"])
def test_slow_ones_take_no_thread_of_other_calls(shared: House, held: str, slow: Slow, what: str) -> None:
    secrets = [issue(shared.service, shared.gate, name)[0] for name in ("ann", "ben", "cid", "dan")]
    other, _ = issue(shared.service, shared.gate, "eve")

    async def story() -> None:
        asked = [asyncio.create_task(ask(shared, one, f"/runs/{held}{what}")) for one in secrets for _ in range(3)]
        await wait_for(lambda: slow.begun == forecasts.THREADS and shared.forecasts._calls == len(asked))
        assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        async with asyncio.timeout(60):
            assert (await ask(shared, other, "/queue")).status == 200, "in a thread, too"
        slow.go_on.set()
        answers = await asyncio.gather(*asked)
        assert {answer.status for answer in answers} == {200}
        assert answers[0].json["reasons" if what != "/eta" else "why"]

    asyncio.run(story())


def test_one_caller_has_one_of_the_threads(shared: House, held: str, slow: Slow) -> None:
    greedy, _ = issue(shared.service, shared.gate, "mallory")
    modest, _ = issue(shared.service, shared.gate, "ann")

    async def story() -> None:
        asked = [asyncio.create_task(ask(shared, greedy, f"/runs/{held}/explain")) for _ in range(3)]
        await wait_for(lambda: shared.forecasts._calls == 3 and slow.begun)
        asked.append(asyncio.create_task(ask(shared, modest, f"/runs/{held}/explain")))
        await wait_for(lambda: slow.begun == 2)
        slow.go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    asyncio.run(story())


def test_a_person_and_their_agent_have_one_together(shared: House, held: str, slow: Slow) -> None:
    person, _ = issue(shared.service, shared.gate, "mallory")
    agent, _ = issue(shared.service, shared.gate, "bot", "agent", acts_for="mallory")
    other, _ = issue(shared.service, shared.gate, "ann")

    async def story() -> None:
        asked = [asyncio.create_task(ask(shared, one, f"/runs/{held}/explain")) for one in (person, agent)]
        await wait_for(lambda: shared.forecasts._calls == 2 and slow.begun)
        asked.append(asyncio.create_task(ask(shared, other, f"/runs/{held}/explain")))
        await wait_for(lambda: slow.begun == 2)
        assert shared.forecasts._lanes["mallory"].users == 2
        slow.go_on.set()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

    asyncio.run(story())


def test_a_run_is_read_without_waiting_for_what_is_still_worked_out(
    shared: House, held: str, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = issue(shared.service, shared.gate)
    monkeypatch.setattr(forecasts, "PATIENCE_S", 0.05)

    async def story() -> None:
        async with asyncio.timeout(60):
            for _ in range(3):
                answer = await ask(shared, token, f"/runs/{held}")
                assert (answer.status, answer.json["id"], answer.json["eta"]) == (200, held, None)
                assert [each["code"] for each in answer.json["reasons"]] == ["not_known_yet"]
        slow.go_on.set()
        monkeypatch.setattr(forecasts, "PATIENCE_S", 60.0)
        reasons = (await ask(shared, token, f"/runs/{held}")).json["reasons"]
        assert reasons and reasons[0]["code"] != "not_known_yet"

    asyncio.run(story())


def test_beyond_the_bound_they_are_to_ask_again(
    shared: House, held: str, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, _ = issue(shared.service, shared.gate)

    async def story() -> None:
        monkeypatch.setattr(shared.forecasts, "_most_calls", 1)
        first = asyncio.create_task(ask(shared, token, f"/runs/{held}/explain"))
        await wait_for(lambda: slow.begun)
        refused = await ask(shared, token, f"/runs/{held}/explain")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        slow.go_on.set()
        assert (await first).status == 200

    asyncio.run(story())


def test_what_nobody_waits_for_any_more_is_not_worked_out(shared: House, slow: Slow) -> None:
    async def story() -> None:
        who, worked = ROOT, list[str]()
        scope: dict[str, Any] = {"rota.closing": lambda: bool(worked)}

        def work() -> None:
            worked.append("once")

        await forecasts.foretell(shared.forecasts, who, scope, work)
        with pytest.raises(forecasts.Gone):
            await forecasts.foretell(shared.forecasts, who, scope, work)
        assert worked == ["once"]

    asyncio.run(story())
