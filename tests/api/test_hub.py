"""Who watches gets every event once and in order, however it comes, goes and lags."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.api import hub as module
from rota.api.house import House
from rota.api.hub import Behind, Hub, Told, TooMany
from rota.app.authz import Principal, Role
from rota.app.commands import Pause, Resume
from rota.app.errors import NotFound
from rota.app.ports import StoredEvent
from rota.core import events as e
from rota.core.reservation import Reservation
from rota.core.resources import Request
from rota.core.run import Cause, Exit, RunState, Spec
from tests.api.kit import ROOT

MAL, ANN = Principal("mallory", Role.VIEWER), Principal("ann", Role.USER)


async def one_by_one(
    hub: Hub, after: int | None, pause_s: float = 0.001, who: Principal = ROOT
) -> AsyncGenerator[Told | None, None]:
    """None = nothing to tell for a while."""
    async with aclosing(hub.watch(after, who, pause_s)) as stream:
        async for some in stream:
            for told in some or (None,):
                yield told


def watching(hub: Hub, after: int | None, pause_s: float = 0.001, who: Principal = ROOT) -> Any:
    return aclosing(one_by_one(hub, after, pause_s, who))


class Ledger:
    """The writer in a test's hand: what is committed can be read; what is told has been heard."""

    def __init__(self) -> None:
        self.stored: list[e.Event] = []
        self.told = 0
        self.users: dict[str, str] = {}
        self._ears: list[Callable[[int, Sequence[e.Event]], None]] = []

    def commit(self, *events: e.Event) -> None:
        self.stored += events

    def tell(self) -> None:
        news, first = self.stored[self.told :], self.told + 1
        self.told = len(self.stored)
        if news:
            for ear in self._ears:
                ear(first, news)

    # -- what the hub asks ------------------------------------------------------------------------------------------
    def subscribe(self, ear: Callable[[int, Sequence[e.Event]], None]) -> None:
        self._ears.append(ear)

    def view(self) -> Any:
        return SimpleNamespace(version=len(self.stored), runs={}, reservations=())

    def events(self, after: int, limit: int) -> list[StoredEvent]:
        found = enumerate(self.stored[after : after + limit], after + 1)
        return [StoredEvent(seq, event) for seq, event in found]

    def run(self, run_id: str) -> Any:
        if run_id not in self.users:
            raise NotFound("no such run")
        return SimpleNamespace(user=self.users[run_id])


def switch(at: float = 0.0) -> e.Event:
    return e.SchedulingResumed(at=at, by="rota")


def submitted(run_id: str, user: str) -> e.Event:
    spec = Spec(name="x", argv=("true",), workdir="/", request=Request(), env={"SECRET": "canary"})
    return e.RunSubmitted(
        at=0.0, by=user, run_id=run_id, seq=1, user=user, spec=spec, held=False, waiting_on=(), expected_s=1.0,
        expected_from="default",
    )  # fmt: skip


def secret() -> e.Event:
    return e.RecordPut(at=0.0, by="root", kind="token", id="t", parent="", body='{"hash":"canary"}')


@contextmanager
def small_ring(ring: int = 4, page: int = 3) -> Any:
    with patch.multiple(module, RING=ring, FROM_STORE=page, TOGETHER_BYTES=1):  # each event comes alone
        yield


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Watcher:
    """Reads when told to, and comes back where it was when it was dropped."""

    def __init__(self, hub: Hub, after: int) -> None:
        self._hub, self._last = hub, after
        self.got: list[int] = []
        self.dropped = 0
        self._stream: AsyncIterator[Told | None] | None = None

    async def read(self) -> bool:
        """Whether there was anything."""
        if self._stream is None:
            self._stream = one_by_one(self._hub, self._last)
        try:
            told = await anext(self._stream)
        except Behind:
            self._stream = None
            self.dropped += 1
            return True
        if told is None:
            return False
        self.got.append(told.seq)
        self._last = told.seq
        return True

    async def finish(self) -> None:
        for _ in range(10_000):
            if not await self.read():
                break
        if self._stream is not None:
            await self._stream.aclose()  # type: ignore[attr-defined]


Op = tuple[str, int]
ops = st.lists(
    st.tuples(st.sampled_from(["commit", "commit", "secret", "tell", "come", "read", "read"]), st.integers(0, 12)),
    max_size=60,
)


@given(ops)
def test_any_order_of_batches_and_readers_gives_each_the_whole_sequence(orders: list[Op]) -> None:
    async def story() -> None:
        ledger = Ledger()
        ledger.commit(switch(), switch())
        ledger.tell()
        hub = Hub(ledger)  # type: ignore[arg-type]
        await hub.open()
        watchers: list[tuple[int, Watcher]] = []
        for order, number in orders:
            if order == "commit":
                ledger.commit(*(switch() for _ in range(number)))
            elif order == "secret":
                ledger.commit(secret())
            elif order == "tell":
                ledger.tell()
                await settle()
            elif order == "come":
                after = min(number, hub.last)
                watchers.append((after, Watcher(hub, after)))
            elif watchers:
                await watchers[number % len(watchers)][1].read()
        ledger.tell()
        await settle()
        everything = [seq for seq, event in enumerate(ledger.stored, 1) if not isinstance(event, e.RecordPut)]
        for after, watcher in watchers:
            await watcher.finish()
            assert watcher.got == [seq for seq in everything if seq > after]
        assert hub.watchers == 0
        assert len(hub._ring) <= 2 * module.RING

    with small_ring():
        asyncio.run(story())


def run(story: Callable[[Ledger, Hub], Any], before: int = 0) -> None:
    async def inside() -> None:
        ledger = Ledger()
        ledger.commit(*(switch() for _ in range(before)))
        ledger.tell()
        hub = Hub(ledger)  # type: ignore[arg-type]
        await hub.open()
        await story(ledger, hub)

    asyncio.run(inside())


def test_the_store_may_be_ahead_of_the_ring() -> None:
    """An event can be read from the store before it was told: it must not come a second time."""

    async def story(ledger: Ledger, hub: Hub) -> None:
        watcher = Watcher(hub, 0)
        ledger.commit(switch(), switch())  # on disk, and not yet told
        for _ in range(6):
            await watcher.read()
        ledger.tell()
        await settle()
        await watcher.finish()
        assert watcher.got == [1, 2, 3, 4, 5]

    run(story, before=3)


def test_who_does_not_read_is_dropped_and_comes_back_without_a_gap() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        watcher = Watcher(hub, 0)
        ledger.commit(switch())
        ledger.tell()
        await settle()
        assert await watcher.read()
        for _ in range(40):
            ledger.commit(switch())
            ledger.tell()
            await settle()
        await watcher.finish()
        assert watcher.dropped == 1
        assert watcher.got == list(range(1, 42))

    with small_ring():
        run(story)


def test_from_now_on_and_from_a_number_that_is_not_there_yet() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        async with watching(hub, None) as now, watching(hub, 10**9) as odd:
            assert await anext(now) is None
            assert await anext(odd) is None
            ledger.commit(switch())
            ledger.tell()
            await settle()
            for stream in (now, odd):
                told = await anext(stream)
                assert told is not None
                assert told.seq == 6

    run(story, before=5)


def test_there_is_room_for_so_many_and_no_more() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        with patch.object(module, "MAX_WATCHERS", 1):
            async with watching(hub, None) as first:
                await anext(first)
                with pytest.raises(TooMany):
                    await anext(hub.watch(None, ROOT))
        assert hub.watchers == 0

    run(story)


def test_one_caller_has_so_many_watchers_and_others_have_theirs() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        with patch.object(module, "MAX_OF_ONE", 1):
            async with watching(hub, None, who=MAL) as first, watching(hub, None, who=ANN) as other:
                await anext(first)
                with pytest.raises(TooMany, match="mallory has 1 watchers of events already; close some"):
                    await anext(hub.watch(None, MAL))
                await anext(other)
            async with watching(hub, None, who=MAL) as again, watching(hub, None) as one, watching(hub, None) as two:
                for stream in (again, one, two):  # an admin has no bound
                    await anext(stream)
        assert not hub._of_party

    run(story)


def test_agents_watch_as_part_of_their_person() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        bot = Principal("bot", Role.AGENT, "mallory")
        with patch.object(module, "MAX_OF_ONE", 1):
            async with watching(hub, None, who=MAL) as first:
                await anext(first)
                with pytest.raises(TooMany, match="mallory has 1 watchers of events already"):
                    await anext(hub.watch(None, bot))
        assert not hub._of_party

    run(story)


def test_many_watchers_are_told_a_few_at_a_time_and_nobody_misses_anything() -> None:
    count, events = 200, 5

    async def story(ledger: Ledger, hub: Hub) -> None:
        got: list[list[int]] = [[] for _ in range(count + 1)]
        order: list[int] = []

        async def follow(number: int, who: Principal) -> None:
            async with watching(hub, None, 60.0, who) as stream:
                async for told in stream:
                    order.append(number)
                    got[number].append(told.seq)
                    if len(got[number]) == events:
                        return

        parties = [MAL] * count + [ANN]
        tasks = [asyncio.create_task(follow(number, who)) for number, who in enumerate(parties)]
        while hub.watchers < count + 1:
            await asyncio.sleep(0)
        await settle()
        ledger.commit(switch())
        ledger.tell()
        most = before = 0
        while len(order) <= count:
            await asyncio.sleep(0)  # others have their turn here
            most, before = max(most, len(order) - before), len(order)
        assert most <= 32, "the event loop belongs to others, too"
        assert order.index(count) < 32, "a hundred watchers of one party do not delay another's only one"
        for _ in range(events - 1):
            ledger.commit(switch())
            ledger.tell()
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        assert got == [[1, 2, 3, 4, 5]] * (count + 1)

    with patch.object(module, "MAX_OF_ONE", count):
        run(story)


def test_what_is_sent_to_watchers_at_one_place_is_written_once() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        written: list[int] = []

        def write(events: Any) -> bytes:
            written.append(len(list(events)))
            return b"text"

        ledger.commit(switch(), switch())
        ledger.tell()
        await settle()
        streams = [hub.watch(0, who) for who in (MAL, ANN, ROOT)]
        for stream in streams:
            assert (await anext(stream)).once(write) == b"text"
            await stream.aclose()
        assert written == [2]

    run(story)


def test_who_waits_is_let_go_at_the_end() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        async def follow() -> list[int]:
            async with watching(hub, None, 60.0) as stream:
                return [told.seq async for told in stream]

        tasks = [asyncio.create_task(follow()) for _ in range(40)]
        while hub.watchers < len(tasks):
            await asyncio.sleep(0)
        await settle()
        ledger.commit(switch())
        ledger.tell()
        await settle()
        hub.close()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*tasks) == [[1]] * 40, "with all that there is"

    run(story)


def test_one_caller_s_watchers_read_from_the_store_one_at_a_time_and_others_beside_them() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        go_on, begun, events = threading.Event(), list[str](), ledger.events

        def slow(after: int, limit: int) -> list[StoredEvent]:
            begun.append(threading.current_thread().name)
            assert go_on.wait(60)
            return events(after, limit)

        ledger.events = slow  # type: ignore[method-assign]
        streams = [hub.watch(0, who) for who in (MAL, MAL, MAL, ANN)]
        reading = [asyncio.ensure_future(anext(stream)) for stream in streams]
        try:
            async with asyncio.timeout(60):
                while len(begun) < 2:
                    await asyncio.sleep(0.001)
                assert await asyncio.to_thread(lambda: "free"), "threads of other calls"
            await settle()
            assert len(begun) == 2, "one of each caller"
            assert all(name.startswith("rota-replay") for name in begun)
        finally:
            go_on.set()
        found = await asyncio.gather(*reading)
        assert [[told.seq for told in some] for some in found] == [[1, 2, 3, 4, 5]] * 4, "many at once"
        for stream in streams:
            await stream.aclose()

    run(story, before=5)


def test_what_comes_at_once_is_bounded_in_bytes() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        with patch.object(module, "TOGETHER_BYTES", 1000), patch.object(module, "PAGE_BYTES", 3000):
            for after in (0, 100):  # from the store, and from the ring
                ledger.commit(*(e.SchedulingPaused(at=0.0, by="ann", why="x" * 300) for _ in range(100)))
                ledger.tell()
                await settle()
                reader = hub if after else Hub(ledger)  # type: ignore[arg-type]
                if not after:
                    await reader.open()
                got = list[int]()
                async with aclosing(reader.watch(after, ROOT, 0.001)) as stream:
                    async for some in stream:
                        if not some:
                            break
                        assert sum(len(told.text) for told in some[:-1]) < 1000
                        got += [told.seq for told in some]
                assert got == list(range(after + 1, after + 101))

    run(story)


def test_whose_they_are() -> None:
    """What `privacy=private` filters by; it is the same from the ring and from the store."""

    async def story(ledger: Ledger, hub: Hub) -> None:
        ledger.users = {"a" * 12: "ann", "b" * 12: "ben"}
        exit = Exit(cause=Cause.EXITED, code=1)
        ended: dict[str, Any] = {
            "at": 0.0,
            "by": "rota",
            "run_id": "a" * 12,
            "attempt_id": "a" * 12 + ".1",
            "exit": exit,
            "gpu_s": 0.0,
        }
        ledger.commit(
            submitted("a" * 12, "ann"),
            submitted("b" * 12, "ben"),
            e.AttemptEnded(**ended, next=RunState.QUEUED),
            e.AttemptEnded(**ended, next=RunState.HELD),
            e.AttemptEnded(**ended, next=RunState.FAILED),
            switch(),
            e.RecordPut(at=0.0, by="ben", kind="alert", id="1", parent="b" * 12, body="{}"),
            e.ReservationMade(at=0.0, by="root", reservation=Reservation("r1", "ann", "", 1.0, 2.0, (), 0.0)),
            e.ReservationEnded(at=0.0, by="ann", reservation_id="r1", why=""),
        )
        ledger.tell()
        await settle()
        owners = ["ann", "ben", "ann", "ann", "ann", None, "ben", "ann", "ann"]
        assert [told.owner for told in hub._ring] == owners
        again = Hub(ledger)  # type: ignore[arg-type]
        await again.open()
        async with watching(again, 0) as stream:
            found = [await anext(stream) for _ in range(9)]
        assert [told.owner for told in found if told is not None] == owners
        assert [told.text for told in found if told is not None] == [told.text for told in hub._ring]

    run(story)


def test_no_environment_and_no_hash_is_told() -> None:
    async def story(ledger: Ledger, hub: Hub) -> None:
        ledger.commit(submitted("a" * 12, "ann"), secret())
        ledger.tell()
        await settle()
        assert [json.loads(told.text)["type"] for told in hub._ring] == ["RunSubmitted"]
        assert b"canary" not in hub._ring[0].text

    run(story)


def test_with_a_real_house_behind_it(house: House) -> None:
    async def story() -> None:
        await house.hub.open()
        first = house.hub.last
        async with watching(house.hub, None, 15.0) as stream:
            waiting = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            await asyncio.wrap_future(house.service.send(ROOT, Pause("a look")))
            told = await asyncio.wait_for(waiting, 30)
            assert told is not None
            assert json.loads(told.text)["data"] == {"why": "a look"}
            await asyncio.wrap_future(house.service.send(ROOT, Resume()))
            again = await asyncio.wait_for(anext(stream), 30)
            assert again is not None
            assert (told.seq, again.seq) == (first + 1, first + 2)

    asyncio.run(story())
