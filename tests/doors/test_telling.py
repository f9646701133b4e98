"""The story of a run, told on from where the listener is: each event is read and worded once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rota.api import follow as following
from rota.api import telling as module
from rota.api.bell import Bell
from rota.api.follow import Source, follow, followers, renderers
from rota.api.render.story import story
from rota.api.telling import Telling
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Submit
from rota.app.ports import LogChunk, StoredEvent
from rota.core import events as e
from tests.app.house import ROOT, House

LATE_S = 60.0


class Book:
    """Events, and how often they were asked for."""

    def __init__(self, count: int) -> None:
        self.events = [StoredEvent(n * 3, e.RunHeld(at=float(n), run_id="r", why=f"w{n}")) for n in range(1, count + 1)]
        self.asked: list[int] = []

    def after(self, after: int, limit: int) -> Sequence[StoredEvent]:
        self.asked.append(after)
        return [one for one in self.events if one.seq > after][:limit]

    def add(self) -> None:
        seq = self.events[-1].seq + 3
        self.events.append(StoredEvent(seq, e.RunReleased(at=float(seq), run_id="r")))


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAGE", 10)


def test_the_whole_and_every_part_of_it() -> None:
    book = Book(35)
    text = story(book.events)
    for offset in (0, 7, 500, len(text) - 1, len(text), len(text) + 9, -1, -100, -len(text), -len(text) - 50):
        chunk = Telling(book.after).read(offset, 64)
        begin = min(max(0, len(text) + offset) if offset < 0 else offset, len(text))
        assert (chunk.offset, chunk.content, chunk.size) == (begin, text[begin : begin + 64], len(text)), offset


def test_who_listens_on_reads_only_what_is_new() -> None:
    book = Book(35)
    telling = Telling(book.after)
    first = telling.read(-200, 200)
    assert first.content == story(book.events)[-200:]
    offset, seen = first.offset + len(first.content), book.events[-1].seq
    book.asked.clear()
    assert telling.read(offset, 100).content == b""
    book.add()
    new = telling.read(offset, 1000)
    assert new.content == story(book.events[-1:])
    assert min(book.asked) == seen, "nothing from before is read again"
    assert len(telling._text) == len(new.content), "nor kept"
    assert telling.read(0, 50).content == story(book.events)[:50], "who goes back gets it all the same"


def test_a_story_without_end_is_told_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    book = Book(300)
    telling, read = Telling(book.after), b""
    while chunk := telling.read(len(read), 100).content:
        read += chunk
        assert len(telling._text) < 3000
    assert read == story(book.events)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "house").open()
    yield made
    made.finish()


def test_a_follower_looks_when_the_bell_rings(house: House) -> None:
    """Not four times a second, and on threads of its own."""
    asyncio.run(_followed(house))


async def _followed(house: House) -> None:
    run_id = house.do(Submit(house.spec("true", gpus=0), held=True)).id
    bell, looks, threads = Bell(house.rota), list[int](), set[str]()
    telling = Telling(lambda after, limit: house.rota.events(after, limit, run_id))

    def read(attempt: int, offset: int, limit: int) -> Any:
        looks.append(offset)
        threads.add(threading.current_thread().name)
        return telling.read(offset, limit)

    source = Source(lambda: house.rota.run(run_id), read, lambda run: 1, worded=True)
    news = follow(run_id, source, bell, followers(), who=ROOT, rendering=renderers())
    assert b"initial" in await asyncio.wait_for(anext(news), 30)
    waiting = asyncio.ensure_future(anext(news))
    await asyncio.sleep(following.POLL_S * 4)
    assert len(looks) <= 2, "once at first, once to see that there is no more"
    await asyncio.to_thread(house.do, Cancel(run_id))
    assert b"cancelled" in await asyncio.wait_for(waiting, 30)
    assert b"done" in await asyncio.wait_for(anext(news), 30)
    assert all(name.startswith("rota-render") for name in threads), "which one person has one of at a time"


def test_one_persons_followers_leave_logs_and_stories_of_others_alone(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and though all of their reads are stuck."""
    monkeypatch.setattr(following, "BEAT_S", 10 * LATE_S)  # no sign of life in place of what was read
    asyncio.run(_followed_by_two(house))


async def _followed_by_two(house: House) -> None:
    runs = [house.do(Submit(house.spec("true", gpus=0), held=True)).id for _ in range(20)]
    bell, files, rendering, stuck = Bell(house.rota), followers(), renderers(), threading.Event()
    ann, bob = Principal("ann", Role.USER), Principal("bob", Role.USER)

    def follow_of(who: Principal, run_id: str, wait: bool, worded: bool) -> AsyncGenerator[bytes, None]:
        def read(attempt: int, offset: int, limit: int) -> LogChunk:
            if wait:
                stuck.wait(LATE_S)
            return LogChunk(b"", 0, 0)

        source = Source(lambda: house.rota.run(run_id), read, lambda run: 1, worded)
        return follow(run_id, source, bell, files, who=who, rendering=rendering)

    theirs = [follow_of(ann, run, True, worded) for worded in (True, False) for run in runs * 2]
    waiting = [asyncio.ensure_future(anext(one)) for one in theirs]
    try:
        for worded in (True, False):
            mine = follow_of(bob, runs[0], False, worded)
            assert b"initial" in await asyncio.wait_for(anext(mine), LATE_S)
            await mine.aclose()
        assert not any(one.done() for one in waiting)
    finally:
        stuck.set()
        assert all(b"initial" in piece for piece in await asyncio.wait_for(asyncio.gather(*waiting), LATE_S))
        for one in theirs:
            await one.aclose()
