"""Reads of files that may be stuck: threads of their own, a bound on how many wait, and an answer in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rota.api import filereads
from rota.api.filereads import MAX_OF_ONE_RUN, FileReads
from rota.api.follow import followers
from rota.app.errors import NotFound, Unavailable

SOON_S = 0.2  # the limit for a read that is meant to be stuck
LATE_S = 60.0
START = threading.Thread.start


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """What a stuck read waits for; set at the end, whatever happened."""
    event = threading.Event()
    yield event
    event.set()


def test_an_answer_or_an_error_comes_back_from_a_thread_of_its_own() -> None:
    async def read() -> None:
        files = FileReads("rota-files")
        assert (await files.read("a", lambda: threading.current_thread().name)).startswith("rota-files")

        def missing() -> None:
            raise NotFound("Run not found")

        with pytest.raises(NotFound):
            await files.read("a", missing)
        assert await asyncio.gather(*(files.read("a", partial(int, n)) for n in range(100))) == list(range(100))
        assert not files._lanes and not files._calls, "nothing is kept of what is over"

    asyncio.run(read())


def test_a_stuck_read_is_given_up_and_costs_other_runs_nothing(stuck: threading.Event) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=MAX_OF_ONE_RUN + 1, limit_s=SOON_S)
        lost = [files.read("dead", lambda: stuck.wait(LATE_S)) for _ in range(MAX_OF_ONE_RUN * 3)]
        for each in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(each, Unavailable) and "within" in each.message
        files._limit_s = LATE_S
        assert await files.read("alive", lambda: "there") == "there"
        # when the disk is back its threads are, too
        stuck.set()
        assert await files.read("dead", lambda: "back") == "back"

    asyncio.run(read())


def test_when_too_many_wait_the_next_is_refused_at_once(stuck: threading.Event) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=1, calls=3, limit_s=LATE_S)
        waiting = [asyncio.ensure_future(files.read("dead", lambda: stuck.wait(LATE_S))) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="too many"):
            await files.read("alive", lambda: "there")
        stuck.set()
        assert await asyncio.gather(*waiting) == [True] * 3
        assert await files.read("alive", lambda: "there") == "there"

    asyncio.run(read())


def test_a_caller_who_leaves_keeps_no_thread(stuck: threading.Event) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=1, limit_s=LATE_S)
        first = asyncio.ensure_future(files.read("a", lambda: stuck.wait(LATE_S)))
        second = asyncio.ensure_future(files.read("b", lambda: "never read"))
        while files._calls < 2:
            await asyncio.sleep(0)
        for each in (first, second):
            each.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        assert set(files._lanes) == {"a"}, "the stuck thread counts until it is back"
        stuck.set()
        assert await files.read("c", lambda: "next") == "next"

    asyncio.run(read())


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The machine has no more threads for these reads, until this is called."""

    def fail(thread: threading.Thread) -> None:
        if thread.name.startswith("rota-files"):
            raise RuntimeError("can't start new thread")
        START(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    return lambda: monkeypatch.setattr(threading.Thread, "start", START)


def test_without_any_thread_the_caller_is_told_to_ask_again_and_nothing_is_lost(shortage: Callable[[], None]) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=2, limit_s=LATE_S)
        for _ in range(MAX_OF_ONE_RUN * 3):
            with pytest.raises(Unavailable, match="ask again"):
                await files.read("a", lambda: "never read")
        assert not files._lanes and not files._calls
        shortage()
        assert await asyncio.gather(*(files.read("a", partial(int, n)) for n in range(100))) == list(range(100))

    asyncio.run(read())


def test_with_few_threads_reads_wait_for_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch, shortage: Callable[[], None], stuck: threading.Event
) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=3, limit_s=LATE_S)
        with monkeypatch.context() as enough:
            enough.setattr(threading.Thread, "start", START)
            assert await files.read("a", lambda: "first") == "first"
        first = asyncio.ensure_future(files.read("a", lambda: stuck.wait(LATE_S)))
        more = [asyncio.ensure_future(files.read(f"run {n}", partial(int, n))) for n in range(5)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in more)
        stuck.set()
        assert await asyncio.gather(first, *more) == [True, *range(5)]

    asyncio.run(read())


def test_work_is_followed_by_a_rest_of_its_own_key() -> None:
    """So that one who has much to work out leaves half of the processor to others."""

    async def read() -> None:
        threads = FileReads("rota-files", of_one=1, limit_s=None, rest=1.0)

        def work() -> float:
            begun = time.thread_time()
            while time.thread_time() - begun < 0.05:
                pass
            return time.monotonic()

        first = await threads.read("busy", work)
        await threads.read("other", lambda: None)
        assert await threads.read("busy", time.monotonic) - first > 0.045
        await threads.read("other", lambda: None)
        assert len(threads._rests) <= 2, "a rest that is over is forgotten"

    asyncio.run(read())


def test_who_gives_up_during_a_rest_does_not_end_it() -> None:
    async def read() -> None:
        threads = FileReads("rota-files", of_one=1, limit_s=None, rest=20.0)

        def work() -> float:
            begun = time.thread_time()
            while time.thread_time() - begun < 0.02:
                pass
            return time.monotonic()

        first = await threads.read("busy", work)
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(threads.read("busy", time.monotonic), 0.01)
        assert await threads.read("busy", time.monotonic) - first > 0.3

    asyncio.run(read())


def test_one_persons_calls_leave_threads_to_others_whatever_they_read(stuck: threading.Event) -> None:
    async def read() -> None:
        files = FileReads("rota-files", threads=3, of_one=2, of_person=2, limit_s=None)
        begun: list[str] = []

        def hang(run_id: str) -> bool:
            begun.append(run_id)
            return stuck.wait(LATE_S)

        slow = [
            asyncio.ensure_future(files.read(f"run {n}", partial(hang, f"run {n}"), person="ann")) for n in range(50)
        ]
        await asyncio.wait_for(files.read("run 0", lambda: "there", person="bob"), LATE_S)
        await asyncio.wait_for(files.read("run 49", lambda: "there"), LATE_S)
        async with asyncio.timeout(LATE_S):
            while len(begun) < 2:  # a thread has its call before it says so
                await asyncio.sleep(0.01)
        assert sorted(begun) == ["run 0", "run 1"]
        # a client that hangs up gives nothing back while its thread is stuck
        for each in slow[:2]:
            each.cancel()
        await asyncio.gather(*slow[:2], return_exceptions=True)
        await asyncio.wait_for(files.read("run 49", lambda: "there", person="bob"), LATE_S)
        assert len(begun) == 2
        stuck.set()
        assert await asyncio.gather(*slow[2:]) == [True] * 48
        async with asyncio.timeout(LATE_S):
            while files._people:  # the threads of the two that hung up may end last
                await asyncio.sleep(0.01)
        assert not (files._lanes or files._people or files._shares or files._calls), "nothing is kept of what is over"

    asyncio.run(read())


def test_one_persons_many_followers_of_a_stuck_run_leave_it_and_other_runs_readable(stuck: threading.Event) -> None:
    async def read() -> None:
        files = followers()
        slow = [asyncio.ensure_future(files.read("run", lambda: stuck.wait(LATE_S), "ann")) for _ in range(50)]
        await asyncio.sleep(0)
        others = asyncio.gather(files.read("run", lambda: "there", "bob"), files.read("other", lambda: "there", "ann"))
        done, _ = await asyncio.wait({others}, timeout=LATE_S / 2)
        stuck.set()
        assert done, "both were read while the first run was stuck"
        assert list(await others) == ["there", "there"]
        assert await asyncio.gather(*slow) == [True] * 50
        assert not (files._lanes or files._people or files._shares or files._calls), "nothing is kept of what is over"

    asyncio.run(read())


def file_reads(monkeypatch: pytest.MonkeyPatch, **more: Any) -> FileReads:
    monkeypatch.setattr(filereads, "REPLACED_AFTER_S", 0.05)
    return FileReads("rota-files", of_one=3, of_account=4, **more)


async def ends(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LATE_S):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_account_that_holds_its_directories_keeps_no_thread_from_others(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> None:
        files = file_reads(monkeypatch, limit_s=LATE_S)
        begun: list[int] = []

        def hang(run: int) -> bool:
            begun.append(run)
            return stuck.wait(LATE_S)

        callers = [f"caller {n}" for n in range(4)]
        slow = [
            asyncio.ensure_future(files.read(f"run {n}", partial(hang, n), caller, "mallory"))
            for n in range(5)
            for caller in callers
        ]
        others = (files.read(f"ann's {n}", lambda: "there", callers[0], "ann") for n in range(50))
        assert await asyncio.wait_for(asyncio.gather(*others), LATE_S / 2) == ["there"] * 50
        await ends(lambda: len(begun) == 4)
        assert len(set(begun)) > 1, "one run leaves a thread to the account's others"
        # clients that hang up give nothing back while the threads are stuck
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)
        again = asyncio.ensure_future(files.read("run 9", lambda: "back", account="mallory"))
        await asyncio.wait_for(files.read("ann's", lambda: "there", account="ann"), LATE_S)
        assert not again.done() and len(begun) == 4
        stuck.set()
        assert await again == "back"
        await ends(lambda: not files._accounts)
        assert not (files._lanes or files._people or files._shares or files._calls), "nothing is kept of what is over"

    asyncio.run(read())


def test_several_accounts_together_keep_no_thread_from_others(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that do not return are replaced, a bounded number of them, and there are as many as before later."""

    def threads() -> int:
        return sum(each.name.startswith("rota-files") for each in threading.enumerate())

    async def read() -> None:
        files, before = file_reads(monkeypatch, threads=8, replaced=12, limit_s=LATE_S), threads()
        begun: list[int] = []

        def hang(account: int) -> bool:
            begun.append(account)
            return stuck.wait(LATE_S)

        def attack(*accounts: int) -> list[asyncio.Future[bool]]:
            return [
                asyncio.ensure_future(
                    files.read(f"{account}-{run}", partial(hang, account), account=f"account {account}")
                )
                for account in accounts
                for run in range(5)
            ]

        slow = attack(1, 2, 3)
        await ends(lambda: files._replaced == 12)
        assert sorted(begun) == [1] * 4 + [2] * 4 + [3] * 4
        there = [files.read(f"run {n}", lambda: "there", account="ann") for n in range(20)]
        assert await asyncio.wait_for(asyncio.gather(*there), LATE_S / 2) == ["there"] * 20
        # the bound: two accounts more have all threads that there are
        slow += attack(4, 5)
        await ends(lambda: len(begun) == 20)
        waits = asyncio.ensure_future(files.read("run", lambda: "there", account="ann"))
        assert not (await asyncio.wait({waits}, timeout=0.2))[0]
        assert (files._replaced, threads() - before) == (12, 20)
        stuck.set()
        assert await asyncio.wait_for(waits, LATE_S) == "there"
        assert await asyncio.gather(*slow) == [True] * 25
        await ends(lambda: threads() - before <= 8)
        assert (files._replaced, files._started) == (0, 8)
        assert await asyncio.gather(*(files.read(f"{n}", partial(int, n)) for n in range(50))) == list(range(50))

    asyncio.run(read())


def test_who_reads_files_of_an_account_that_is_stuck_is_told_so_at_once(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Someone who reads many people's artifacts would wait for the whole limit at each of that account."""

    async def read() -> None:
        files = file_reads(monkeypatch, replaced=8, limit_s=SOON_S)
        lost = (files.read(f"run {n}", lambda: stuck.wait(LATE_S), account="mallory") for n in range(4))
        for each in await asyncio.gather(*lost, return_exceptions=True):
            assert isinstance(each, Unavailable) and "within" in each.message
        files._limit_s = SOON_S / 2
        with pytest.raises(Unavailable, match="earlier"):
            await files.read("run 9", lambda: "never read", account="mallory")
        assert await files.read("run", lambda: "there", account="ann") == "there"
        stuck.set()
        await ends(lambda: not files._accounts)
        assert await files.read("run 9", lambda: "there", account="mallory") == "there"

    asyncio.run(read())
