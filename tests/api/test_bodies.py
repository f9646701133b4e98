"""Bodies of requests: each is accounted to one party, bounded in bytes under way, and paid for before it is parsed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi import HTTPException

from rota.api import json_body
from rota.api.bodies import SMALL_BODY, STEP, Bodies, Message, Terms, TooManyBytes
from rota.api.guard import Guard
from rota.api.house import CALLS_AT_ONCE, CALLS_PER_S, House
from rota.api.limits import Buckets
from rota.api.read_slots import AT_A_TIME
from tests.api.kit import Answer, acall, call, echo, issue, serving
from tests.api.test_guard import with_settings
from tests.api.test_read_slots import Rendering, settle

METRICS = "/runs/0123456789ab/metrics"
MIB = 1 << 20
MANY = b"[" + b"1," * 190_000 + b"1]"
LARGE = {"content-length": str(4 * MIB)}
Send = Callable[..., Awaitable[Answer]]


def token(house: House, name: str, role: str = "user", **more: Any) -> dict[str, str]:
    return {"x-auth-token": issue(house.service, house.gate, name, role, **more)[0]}


def fresh(house: House, **changes: Any) -> House:
    """The same house, in which nobody has called yet."""
    return replace(house, **{"bodies": Bodies(), "people": Buckets(CALLS_PER_S, CALLS_AT_ONCE), **changes})


def story(told: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await told()

    asyncio.run(bounded())


class TestDearBodies:
    def test_those_that_come_after_their_heads_are_refused_before_they_are_parsed(self, shared: House) -> None:
        """All heads pass the pace first, and then all bodies come together."""
        house = fresh(shared, people=Buckets(1.0, 4_000.0))
        ann, guard = token(house, "ann"), Guard(echo, house)

        async def told() -> None:
            come = asyncio.Event()
            sent = [
                asyncio.create_task(acall(guard, METRICS, "POST", ann, [MANY], pause=lambda _: come.wait()))
                for _ in range(10)
            ]
            await settle()
            come.set()
            answers = await asyncio.gather(*sent, return_exceptions=True)
            assert sorted(_status(one) for one in answers) == [200] + [429] * 9

        story(told)

    def test_one_of_a_party_is_worked_on_at_a_time(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=300))
        app = Reading()
        guard, root, ben = Guard(app, house), {"x-auth-token": "open sesame"}, token(house, "ben")

        async def told() -> None:
            mine = [asyncio.create_task(acall(guard, METRICS, "POST", root, [MANY])) for _ in range(3)]
            await settle()
            assert app.inside == ["shared"]
            others = asyncio.create_task(acall(guard, METRICS, "POST", ben, [MANY]))
            small = asyncio.create_task(acall(guard, "/runs", "POST", root, [b" " * 2 * SMALL_BODY]))
            await settle()
            assert app.inside == ["shared", "ben", "shared"], "another party does not wait, nor what is cheap to parse"
            app.go_on.set()
            assert {one.status for one in await asyncio.gather(*mine, others, small)} == {200}

        story(told)

    def test_an_agent_pays_where_it_is_paced(self, shared: House) -> None:
        house = fresh(shared, people=Buckets(1.0, 1e9))
        house.agents = Buckets(0.01, 10.0)
        bot, guard = token(house, "payer-bot", "agent", acts_for="ann"), Guard(echo, house)
        assert call(guard, METRICS, "POST", bot, [MANY]).status == 200
        assert call(guard, METRICS, "POST", bot, [MANY]).status == 429

    def test_a_debt_is_short(self) -> None:
        buckets = Buckets(10.0, 20.0)
        for _ in range(100):
            buckets.charge("ann", 1e6, 0.0)
        assert 0 < buckets.wait("ann", 0.0) < 10
        assert buckets.take("ann", 10.0) == 0.0


class Reading:
    """An application that reads the body, and answers when the test says so."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        self.inside.append(scope["rota.who"].name)
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _status(answer: Answer | BaseException) -> int:
    """Of an answer, or of the refusal that an application would make one of."""
    return answer.status if isinstance(answer, Answer) else int(getattr(answer, "status_code"))  # noqa: B009


class TestBytesUnderWay:
    """Connections that have sent all but the last byte."""

    @staticmethod
    def held(guard: Guard, who: dict[str, str], come: asyncio.Event, count: int, got: list[int]) -> list[Any]:
        async def pause(part: int) -> None:
            if part:
                got.append(part)
                await come.wait()

        parts = [b" " * (4 * MIB - 1), b" "]
        return [
            asyncio.create_task(acall(guard, "/runs", "POST", {**who, **LARGE}, parts, pause=pause))
            for _ in range(count)
        ]

    def test_of_one_party_are_bounded_and_others_go_on(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=300))
        ann, ben, guard = token(house, "ann"), token(house, "ben"), Guard(echo, house)

        async def told() -> None:
            come, got = asyncio.Event(), list[int]()
            many = self.held(guard, ann, come, 20, got)
            await settle()
            assert len(got) == 8, "32 MiB; of the others nothing is read"
            other = await acall(guard, "/runs", "POST", {**ben, "content-length": str(MIB)}, [b" " * MIB])
            assert other.status == 200
            assert (await acall(guard, "/runs", "POST", ann, [b"{}"])).status == 200, "nor does a small one wait"
            come.set()
            assert {one.status for one in await asyncio.gather(*many)} == {200}
            assert house.bodies.under_way == 0

        story(told)

    def test_without_a_length_it_is_the_same(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=300))
        ann, guard = token(house, "ann"), Guard(echo, house)

        async def told() -> None:
            come, got = asyncio.Event(), list[int]()

            async def pause(part: int) -> None:
                got.append(part)
                if part == 2:
                    await come.wait()

            parts = [b" " * MIB] * 3
            many = [asyncio.create_task(acall(guard, "/runs", "POST", ann, parts, pause=pause)) for _ in range(20)]
            await settle()
            assert got.count(2) == 8, "of the others no more than one part"
            come.set()
            assert {one.status for one in await asyncio.gather(*many)} == {200}
            assert house.bodies.under_way == 0

        story(told)

    def test_who_waits_too_long_is_told_why(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=3.0))
        ann, guard = token(house, "ann"), Guard(_app(house), house)

        async def told() -> None:
            answers = await asyncio.gather(*self.held(guard, ann, asyncio.Event(), 10, []))
            assert sorted(one.status for one in answers) == [408] * 8 + [429] * 2
            refused = next(one for one in answers if one.status == 429)
            assert "ann has 32 MiB of bodies under way" in refused.json["detail"]
            assert int(refused.headers["retry-after"]) >= 1
            assert house.bodies.under_way == 0

        story(told)

    def test_of_all_together_are_bounded(self) -> None:
        async def told() -> None:
            bodies = Bodies(of_one=40, of_all=100, waiting_of_one=2)
            for name in ("ann", "ben"):
                await bodies.take(name, 40, 10)
            with pytest.raises(TooManyBytes) as all_of_them:
                await bodies.take("carl", 40, 0.01)
            assert all_of_them.value.status == 503
            with pytest.raises(TooManyBytes) as of_one:
                await bodies.take("ann", 1, 0.01)
            assert of_one.value.status == 429
            waiting = [asyncio.create_task(bodies.take(name, 30, 10)) for name in ("ann", "ann")]
            waiting.append(asyncio.create_task(bodies.take("carl", 40, 10)))
            await settle()
            with pytest.raises(TooManyBytes):
                await bodies.take("ann", 30, 10)
            bodies.give("ann", 40)
            await settle()
            assert [one.done() for one in waiting] == [True, False, False], "in order"
            bodies.give("ben", 40)
            await settle()
            assert [one.done() for one in waiting] == [True, False, True], "another's turn comes past a full party"
            waiting[1].cancel()
            bodies.give("ann", 30)
            bodies.give("carl", 40)
            await settle()
            assert bodies.under_way == 0

        story(told)


class TestHeadsAlone:
    """Connections that announce large bodies and send hardly any of them."""

    @staticmethod
    def announced(guard: Guard, who: dict[str, str], count: int, come: asyncio.Event) -> list[Any]:
        async def pause(part: int) -> None:
            if part:
                await come.wait()

        parts = [b" " * 7, b" " * (4 * MIB - 7)]
        return [
            asyncio.create_task(acall(guard, "/runs", "POST", {**who, **LARGE}, parts, pause=pause))
            for _ in range(count)
        ]

    def test_agents_have_no_more_than_their_person(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=300))
        bots = [token(house, f"heads-bot{number}", "agent", acts_for="mallory") for number in range(8)]
        guard = Guard(echo, house)

        async def told() -> None:
            come = asyncio.Event()
            many = [one for bot in bots for one in self.announced(guard, bot, 4, come)]
            for _ in range(5):
                await settle()
            assert house.bodies._bytes == {"mallory": 32 * MIB}
            come.set()
            assert {one.status for one in await asyncio.gather(*many)} == {200}
            assert house.bodies.under_way == 0

        story(told)

    def test_what_is_announced_takes_no_room_from_others(self, shared: House) -> None:
        house = fresh(with_settings(shared, request_seconds=300))
        many_people = [token(house, f"head{number}") for number in range(10)]
        ann, guard = token(house, "ann"), Guard(echo, house)

        async def told() -> None:
            come = asyncio.Event()
            many = [one for who in many_people for one in self.announced(guard, who, 8, come)]
            for _ in range(5):
                await settle()
            assert house.bodies.under_way <= 80 * STEP, "a step of each"
            large = await acall(guard, "/runs", "POST", {**ann, "content-length": str(MIB)}, [b" " * MIB])
            assert large.status == 200
            come.set()
            assert {one.status for one in await asyncio.gather(*many)} == {200}
            assert house.bodies.under_way == 0
            assert not house.bodies._bytes

        story(told)

    def test_who_has_nothing_under_way_finds_room_that_others_do_not(self) -> None:
        async def told() -> None:
            bodies = Bodies(of_one=60, of_all=100, kept=25)
            await bodies.take("ann", 60, 10)
            await bodies.take("ben", 15, 10)
            with pytest.raises(TooManyBytes) as known:
                await bodies.take("ben", 10, 0.01)
            assert known.value.status == 503
            waiting = asyncio.create_task(bodies.take("ben", 10, 10))
            await settle()
            await bodies.take("carl", 25, 10)
            assert not waiting.done()
            bodies.give("ann", 60)
            await waiting
            assert bodies.under_way == 50

        story(told)

    @staticmethod
    async def send(bodies: Bodies, party: str, size: int, answered: asyncio.Event) -> None:
        """Send a body in parts, and wait for its answer."""
        left = size

        async def receive() -> Message:
            nonlocal left
            await asyncio.sleep(0)
            part = min(64 << 10, left)
            left -= part
            return {"type": "http.request", "body": b" " * part, "more_body": left > 0}

        terms = Terms(party, size, 4 * MIB, 50_000, 90.0, lambda members: None)
        async with bodies.incoming(receive, terms) as taken:
            while (await taken())["more_body"]:
                pass
            await answered.wait()

    def test_nor_is_the_only_body_of_a_party_shut_out_in_its_midst(self) -> None:
        async def told() -> None:
            bodies, answered, at_once = Bodies(of_one=2 * MIB, of_all=8 * MIB), asyncio.Event(), asyncio.Event()
            at_once.set()
            others = [
                asyncio.create_task(self.send(bodies, f"other{number // 2}", MIB, answered)) for number in range(6)
            ]
            while bodies.under_way < 6 * MIB:
                await asyncio.sleep(0)
            await self.send(bodies, "ann", 4 * STEP, at_once)
            answered.set()
            await asyncio.gather(*others)
            assert (bodies.under_way, bodies._begun) == (0, {})

        story(told)

    def test_bodies_that_are_half_read_do_not_all_wait_for_each_other(self) -> None:
        async def told() -> None:
            bodies, answered = Bodies(of_one=4 * MIB, of_all=16 * MIB), asyncio.Event()
            answered.set()
            parties = [f"party{number}" for number in range(4)]
            await asyncio.gather(*(self.send(bodies, party, MIB, answered) for party in parties for _ in range(4)))
            assert (bodies.under_way, bodies._begun) == (0, {})

        story(told)


def _app(house: House) -> Any:
    from rota.api.server import make_app

    return make_app(house)


class TestWhatOneMaySend:
    """Known from the role and the route, before a byte of the body is read."""

    @staticmethod
    def answer(house: House, path: str, who: dict[str, str], method: str = "POST") -> Answer:
        async def pause(_: int) -> None:
            raise AssertionError("the body was read")

        async def told() -> Answer:
            headers = {**who, "content-length": str(SMALL_BODY + 1)}
            return await acall(Guard(echo, house), path, method, headers, [b" " * (SMALL_BODY + 1)], pause=pause)

        return asyncio.run(told())

    def test_a_viewer_only_little(self, shared: House) -> None:
        eve, guard = token(shared, "eve", "viewer"), Guard(echo, shared)
        for path in ("/runs", "/queue/submit", METRICS, "/tokens", "/prompt-skills/x/render"):
            refused = self.answer(shared, path, eve)
            assert (refused.status, "eve (viewer)" in refused.json["detail"]) == (403, True), path
            assert call(guard, path, "POST", eve, [b"{}"]).status == 200, "its route says what is wrong with it"

    def test_nobody_but_an_admin_much_where_only_an_admin_may_do_anything(self, shared: House) -> None:
        for who in (token(shared, "ann"), token(shared, "small-bot", "agent", acts_for="ann")):
            for path in ("/tokens", "/orchestrator/policy", "/nodes/n/drain", "/gpu/initialize", "/acquire"):
                assert self.answer(shared, path, who).status in (403, 413), path
        bot = token(shared, "other-bot", "agent", acts_for="ann")
        assert self.answer(shared, "/queue/x/priority", bot, "PATCH").status == 403
        assert self.answer(shared, "/cluster", bot).status == 403
        assert self.answer(shared, "/runs", bot, "GET").status == 413, "a read has no body"


class TestParties:
    """Those who are known by no token are told apart by their account, or by their address."""

    def test_strangers_shut_nobody_out(self, shared: House) -> None:
        house = fresh(shared, people=Buckets(1.0, 20.0))
        main, leases = Guard(echo, house), Guard(echo, house, lease_port=True, loopback=True)
        commas = b"[" + b"1," * 8_000 + b"1]"
        for _ in range(15):
            assert call(main, "/login", "POST", {}, [commas], client="10.0.0.1").status == 200
        assert call(leases, "/status", client="10.0.0.2").status == 200
        assert call(leases, "/acquire", "POST", client="10.0.0.2").status == 200

    def test_each_has_its_own_pace(self, shared: House) -> None:
        house = fresh(shared, people=Buckets(0.001, 5.0))
        leases = Guard(echo, house, lease_port=True, loopback=True)
        statuses = [call(leases, "/status", client="10.0.0.1").status for _ in range(6)]
        assert statuses == [200] * 5 + [429]
        assert call(leases, "/status", client="10.0.0.2").status == 200

    def test_each_has_its_own_line_of_reads(self, shared: House) -> None:
        async def told() -> None:
            app = Rendering()
            leases = Guard(app, fresh(shared), lease_port=True, loopback=True)
            many = [asyncio.create_task(acall(leases, "/jobs", client="10.0.0.1")) for _ in range(3 * AT_A_TIME)]
            await settle()
            assert len(app.inside) == AT_A_TIME
            other = asyncio.create_task(acall(leases, "/jobs", client="10.0.0.2"))
            await settle()
            assert len(app.inside) == AT_A_TIME + 1
            app.go_on.set()
            assert {one.status for one in await asyncio.gather(*many, other)} == {200}

        story(told)

    def test_over_a_real_connection_it_is_the_account(self, shared: House) -> None:
        """By the kernel's word, on the port of leases and on a route that is open to strangers."""

        async def told() -> None:
            parties: list[str] = []

            async def app(scope: Any, receive: Any, send: Any) -> None:
                parties.append(scope["rota.party"])
                await echo(scope, receive, send)

            for port in ({}, {"lease_port": True}):
                async with serving(Guard(app, shared, **port), shared) as (address, _):
                    reader, writer = await asyncio.open_connection(*address)
                    writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                    assert b"200" in await reader.readline()
                    writer.close()
            assert parties == [f"uid {os.getuid()}"] * 2

        story(told)

    def test_on_a_server_without_tokens_everybody_has_a_pace_too(self, house: House) -> None:
        guard = Guard(echo, replace(house, people=Buckets(0.001, 5.0)))
        assert [call(guard, client="10.0.0.1").status for _ in range(6)] == [200] * 5 + [429]
        assert call(guard, client="10.0.0.2").status == 200


def test_a_long_body_is_refused_for_its_depth_without_being_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one field too deep behind very many that are not: to name it would take seconds of the event loop."""
    parsed: list[int] = []
    monkeypatch.setattr("rota.api.json_body.json.loads", lambda body: parsed.append(len(body)))
    fields = ",".join(f'"k{number}":1' for number in range(50_000))
    body = f'{{{fields},"deep":{"[" * 40}{"]" * 40}}}'.encode()
    with pytest.raises(HTTPException) as refusal:
        json_body.must_be_flat(body)
    assert refusal.value.status_code == 422 and "the body is nested deeper" in str(refusal.value.detail)
    assert parsed == []


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_a_body_in_another_encoding_is_refused(encoding: str) -> None:
    """A letter of it may have the byte of a quote, behind which brackets would not be counted."""
    body = ('{"name":"\u2241","deep":' + "[" * 40 + "]" * 40 + "}").encode(encoding)
    with pytest.raises(HTTPException) as refusal:
        json_body.must_be_flat(body)
    assert refusal.value.status_code == 422 and "UTF-8" in str(refusal.value.detail)
