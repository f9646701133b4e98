"""Many calls of one party at a time: others do not wait for all of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rota.api import read_slots
from rota.api.guard import DEAR_QUERY, Guard
from rota.api.house import House
from rota.api.limits import Buckets
from rota.api.read_slots import ReadSlots
from rota.api.turns import AT_A_TIME, Turns
from tests.api.kit import acall, issue, serving
from tests.api.test_bodies import Reading, story, token
from tests.api.test_read_slots import settle

WHOAMI = "/whoami"


class Noting:
    """An application that answers at once, and keeps the order in which it was called."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.order.append(scope["rota.party"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def test_another_party_does_not_wait_for_all_calls_of_one(shared: House) -> None:
    """Each call is answered without waiting for anything: only their number is what others wait for."""
    greedy, modest = token(shared, "mallory"), token(shared, "ann")

    async def told() -> None:
        app = Noting()
        guard = Guard(app, shared)
        many = [asyncio.create_task(acall(guard, "/login", "POST", greedy)) for _ in range(20 * AT_A_TIME)]
        other = asyncio.create_task(acall(guard, WHOAMI, headers=modest))
        assert {one.status for one in await asyncio.gather(*many, other)} == {200}
        assert app.order.index("ann") <= 2 * AT_A_TIME
        assert len(app.order) == len(many) + 1
        await settle()
        assert not shared.turns._lines and not shared.turns._begun, "nothing is remembered of those who were served"

    story(told)


def test_refusals_take_turns_too(shared: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not known is refused in turn with the others of that address."""
    modest, order = token(shared, "ann"), list[str]()

    async def told() -> None:
        guard = Guard(Noting(), shared)

        async def ask(name: str, **more: Any) -> int:
            status = (await acall(guard, WHOAMI, **more)).status
            order.append(name)
            return status

        many = [asyncio.create_task(ask("stranger", client="10.0.0.7")) for _ in range(20 * AT_A_TIME)]
        other = asyncio.create_task(ask("ann", headers=modest))
        assert set(await asyncio.gather(*many)) == {401}
        assert await other == 200
        assert order.index("ann") <= 2 * AT_A_TIME

    story(told)


def test_over_real_connections_too(shared: House) -> None:
    greedy, modest = (issue(shared.service, shared.gate, name)[0] for name in ("mallory", "ann"))

    async def told() -> None:
        app = Noting()
        async with serving(Guard(app, shared), shared) as (address, _):
            links = [await asyncio.open_connection(*address) for _ in range(10 * AT_A_TIME + 1)]
            for (_, writer), secret in zip(links, [greedy] * 10 * AT_A_TIME + [modest], strict=True):
                head = (
                    f"POST {WHOAMI} HTTP/1.1\r\nhost: 127.0.0.1\r\nx-auth-token: {secret}\r\ncontent-length: 0\r\n\r\n"
                )
                writer.write(head.encode())
            for reader, writer in links:
                assert b"200" in await reader.readline()
                writer.close()
        assert len(app.order) == len(links)

    story(told)


def test_parties_have_their_turns_in_order_and_so_have_the_calls_of_each() -> None:
    async def told() -> None:
        turns, order = Turns(), list[str]()

        async def call(party: str, number: int) -> None:
            await turns.turn(party)
            order.append(f"{party}{number}")

        calls = [asyncio.create_task(call("a", number)) for number in range(3 * AT_A_TIME)]
        calls += [asyncio.create_task(call(party, number)) for number in range(AT_A_TIME + 2) for party in "bc"]
        await asyncio.gather(*calls)
        for party in "abc":
            own = [int(one[1:]) for one in order if one.startswith(party)]
            assert own == sorted(own), "first come, first served within a party"
        assert max(order.index(f"{party}{AT_A_TIME + 1}") for party in "bc") < order.index(f"a{3 * AT_A_TIME - 1}")

    story(told)


def test_who_goes_while_waiting_takes_no_turn() -> None:
    async def told() -> None:
        turns = Turns()
        for _ in range(AT_A_TIME):
            await turns.turn("a")
        waiting = [asyncio.create_task(turns.turn("a")) for _ in range(5)]
        await asyncio.sleep(0)
        for one in waiting[:-1]:
            one.cancel()
        await waiting[-1]
        await settle()
        assert not turns._lines and not turns._begun

    story(told)


class TestChanges:
    """Changes wait for threads and for the writer, which all share."""

    def test_one_party_has_some_dozens_at_a_time_and_others_do_not_wait(self, shared: House) -> None:
        house = replace(shared, changes=ReadSlots("changes", read_slots.CHANGES_AT_A_TIME))
        greedy, modest = token(house, "mallory"), token(house, "ann")

        async def told() -> None:
            app = Reading()
            guard = Guard(app, house)
            many = [
                asyncio.create_task(acall(guard, "/runs", "POST", greedy, [b"{}"]))
                for _ in range(2 * read_slots.CHANGES_AT_A_TIME)
            ]
            for _ in range(10):
                await settle()
            assert app.inside == ["mallory"] * read_slots.CHANGES_AT_A_TIME
            for query in ("dry_run=false", "dry_run=true&dry_run=0", "x=dry_run=true"):
                many.append(asyncio.create_task(acall(guard, "/runs", "POST", greedy, [b"{}"], query=query)))
            free = [("/acquire", ""), ("/runs", "dry_run=true"), ("/sweeps", "")]
            others = [asyncio.create_task(acall(guard, path, "POST", greedy, [b"{}"], query=q)) for path, q in free]
            others.append(asyncio.create_task(acall(guard, "/runs", "POST", modest, [b"{}"])))
            for _ in range(10):
                await settle()
            assert len(app.inside) == read_slots.CHANGES_AT_A_TIME + len(others), "nor what waits in a line of its own"
            app.go_on.set()
            assert {one.status for one in await asyncio.gather(*many, *others)} == {200}
            assert house.changes._lines == {}

        story(told)

    def test_a_change_that_may_have_been_made_is_not_sent_to_the_next_server(self, shared: House) -> None:
        """The server stops while it waits. What waits for its turn has not begun, and may be asked again."""
        house = replace(shared, changes=ReadSlots("changes", 1))
        ann = token(house, "ann")

        async def told() -> None:
            guard = Guard(Reading(), house)

            async def change() -> int:
                return (await acall(guard, "/runs", "POST", ann, [b""], whole=0)).status

            begun, waiting = asyncio.create_task(change()), asyncio.create_task(change())
            await settle()
            waiting.cancel()
            assert await waiting == 503
            begun.cancel()
            with pytest.raises(asyncio.CancelledError):
                await begun

        story(told)

    def test_a_body_that_is_on_its_way_takes_no_place(self, shared: House) -> None:
        house = replace(shared, changes=ReadSlots("changes", 1))
        ann, app = token(house, "ann"), Reading()
        app.go_on.set()
        guard = Guard(app, house)

        async def told() -> None:
            come = asyncio.Event()
            late = asyncio.create_task(acall(guard, "/runs", "POST", ann, [b"{}"], pause=lambda _: come.wait()))
            await settle()
            assert (await acall(guard, "/runs", "POST", ann, [b"{}"])).status == 200
            come.set()
            assert (await late).status == 200

        story(told)


class TestFiles:
    """What is read of jobs' directories, by threads that all share."""

    @pytest.mark.parametrize("what", ["logs", "artifacts"])
    def test_one_party_has_a_few_reads_at_a_time(self, shared: House, what: str) -> None:
        greedy, modest = token(shared, "mallory"), token(shared, "ann")
        path, most = f"/runs/0123456789ab/{what}", read_slots.FILES_AT_A_TIME

        async def told() -> None:
            app = Reading()
            guard = Guard(app, shared)
            many = [asyncio.create_task(acall(guard, path, headers=greedy)) for _ in range(5 * most)]
            for _ in range(10):
                await settle()
            assert app.inside == ["mallory"] * most
            others = [asyncio.create_task(acall(guard, path, headers=modest))]
            others.append(asyncio.create_task(acall(guard, "/runs", headers=greedy)))
            for _ in range(10):
                await settle()
            assert len(app.inside) == most + 2, "neither another party waits, nor what reads no files"
            app.go_on.set()
            assert {one.status for one in await asyncio.gather(*many, *others)} == {200}

        story(told)


class TestPace:
    def test_who_is_a_little_too_fast_waits_instead_of_being_refused(self, shared: House) -> None:
        house = replace(shared, people=Buckets(50.0, 5.0))
        ann, guard = token(house, "ann"), Guard(Noting(), house)

        async def told() -> None:
            begun = asyncio.get_running_loop().time()
            answers = await asyncio.gather(*(acall(guard, WHOAMI, headers=ann) for _ in range(30)))
            assert {one.status for one in answers} == {200}
            assert asyncio.get_running_loop().time() - begun >= 0.45, "25 of them at 50 a second"

        story(told)

    def test_who_would_wait_longer_is_refused(self, shared: House) -> None:
        house = replace(shared, people=Buckets(10.0, 5.0))
        ann, guard = token(house, "ann"), Guard(Noting(), house)

        async def told() -> None:
            answers = await asyncio.gather(*(acall(guard, WHOAMI, headers=ann) for _ in range(100)))
            statuses = [one.status for one in answers]
            assert statuses.count(200) + statuses.count(429) == 100
            assert statuses.count(429) > 50

        story(told)


def test_a_dear_query_waits_for_its_turn_before_it_is_looked_at(shared: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of a query cost most of what a refusal costs: 300 callers without a token sent them together."""
    looked_at: list[int] = []
    examine = Guard._examine

    def counting(self: Guard, *args: Any) -> Any:
        looked_at.append(1)
        return examine(self, *args)

    monkeypatch.setattr(Guard, "_examine", counting)
    query = "&".join(f"%21{number}" for number in range(90)) + "=" + "x" * DEAR_QUERY

    async def told() -> None:
        guard = Guard(Noting(), shared)
        many = [asyncio.create_task(acall(guard, WHOAMI, query=query)) for _ in range(20 * AT_A_TIME)]
        most = before = 0
        while not all(one.done() for one in many):
            await asyncio.sleep(0)
            most, before = max(most, len(looked_at) - before), len(looked_at)
        assert {one.result().status for one in many} == {401}
        assert most <= 2 * AT_A_TIME

    story(told)
