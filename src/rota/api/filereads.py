"""Work in threads of its own, bounded in number and in time: mostly reads of files, so that a stuck one costs nobody
else's call.

A read can be stuck for long: on a dead network file system, or in a job's directory on FUSE. Its thread is then lost
until the read returns, but that thread serves no other calls, and the caller is told to ask again. The files of one run
get a few of the threads only, so that those of other runs stay readable. So do the streams of one person, whichever
runs they are of.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any, TypeVar

from rota.app.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, str])

THREADS = 16
MAX_OF_ONE_RUN = 4  # threads
MAX_CALLS = 512  # that read or wait for a thread
LIMIT_S = 5.0  # for both together


class FileReads:
    def __init__(
        self,
        name: str,
        *,
        threads: int = THREADS,
        of_one: int = MAX_OF_ONE_RUN,
        of_person: int = THREADS,
        calls: int = MAX_CALLS,
        calls_of_one: int = MAX_CALLS,
        limit_s: float | None = LIMIT_S,
        rest: float = 0.0,
        doing: str = "reading the files of run",
    ) -> None:
        """`of_one`: how many threads one run's files may take, or whatever else its work is kept apart by.
        `of_person`: how many threads one person's calls may take, over all runs, where `read` is told the person. For
        one run these are at most one fewer than `of_one`.
        `calls_of_one`: how many calls for it may read or wait. `rest`: how long its next call waits at least, times
        what the last one took of the processor, so that work in Python leaves time to others."""
        self._name, self._most_threads, self._most_calls, self._limit_s = name, threads, calls, limit_s
        self._of_one, self._of_person, self._calls_of_one = of_one, of_person, calls_of_one
        self._rest, self._doing = rest, doing
        self._work: SimpleQueue[_Call] = SimpleQueue()
        self._started = 0
        self._calls = 0
        self._idle = asyncio.Semaphore(threads)
        self._lanes: dict[str, _Lane] = {}
        self._people: dict[str, _Lane] = {}
        self._shares: dict[tuple[str, str], _Lane] = {}  # of one person in one run
        self._rests: dict[str, float] = {}  # until when; those that are over go with the next

    async def read(self, key: str, work: Callable[[], T], person: str = "") -> T:
        """Return what `work` returns, called in a thread. `person`: whose share of the threads the call counts for;
        "" = no one's. Raises Unavailable when that takes too long, when too many wait already, or when there is no
        thread for it."""
        lane = self._lanes.get(key)
        if self._calls >= self._most_calls or (lane is not None and lane.users >= self._calls_of_one):
            raise Unavailable("too many such calls are waiting just now; ask again")
        self._calls += 1
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.shield(await self._begin(key, work, person))
        except TimeoutError:
            raise Unavailable(f"{self._doing} {key} did not end within {self._limit_s:g} s; ask again") from None
        finally:
            self._calls -= 1

    async def _begin(self, key: str, work: Callable[[], T], person: str) -> asyncio.Future[T]:
        call = _Call(work)
        with ExitStack() as taken:
            # First the person's share of the run: who waits for a stuck run then keeps no thread from the person's
            # other runs, and leaves a thread of the run to others.
            if person:
                await self._enter(taken, self._shares, (person, key), max(1, self._of_one - 1))
                await self._enter(taken, self._people, person, self._of_person)
            await self._enter(taken, self._lanes, key, self._of_one)
            while (left_s := self._rests.get(key, 0.0) - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            await self._idle.acquire()
            taken.callback(self._idle.release)
            self._submit(call)
            until_read = taken.pop_all()
        reading: asyncio.Future[T] = asyncio.wrap_future(call.future)

        def ended(reading: asyncio.Future[T]) -> None:
            self._begin_rest(key, call.took_s)
            until_read.close()
            if not reading.cancelled():
                reading.exception()  # seen, also where nobody waits for it any more

        reading.add_done_callback(ended)
        return reading

    async def _enter(self, taken: ExitStack, lanes: dict[K, _Lane], key: K, threads: int) -> None:
        """Wait for one of the lane's threads. `taken` gives it back."""
        lane = lanes.setdefault(key, _Lane(threads))
        lane.users += 1
        taken.callback(_leave, lanes, key, lane)
        await lane.slots.acquire()
        taken.callback(lane.slots.release)

    def _begin_rest(self, key: str, took_s: float) -> None:
        now = time.monotonic()
        if self._rest * took_s:
            self._rests.pop(key, None)  # so that the oldest is first
            self._rests[key] = now + self._rest * took_s
        while self._rests and next(iter(self._rests.values())) < now:
            del self._rests[next(iter(self._rests))]

    def _submit(self, call: _Call) -> None:
        if self._started < self._most_threads:
            self._start()
        self._work.put(call)

    def _start(self) -> None:
        """Start one more thread. At the machine's limit those that there are go on, and the next call tries again."""
        # daemons: a stuck one must not keep the server from ending, which those of an executor would
        thread = threading.Thread(target=self._run, name=f"{self._name}-{self._started + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("a thread could not be started (%s): %s", self._name, error)
            if not self._started:
                raise Unavailable("no thread can be started for this just now; ask again") from error
        else:
            self._started += 1

    def _run(self) -> None:
        while True:
            self._work.get().do()


class _Call:
    __slots__ = ("future", "took_s", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.took_s = 0.0  # of the processor

    def do(self) -> None:
        """Answer the future, on this thread."""
        begun = time.thread_time()
        found: Any = None
        error: BaseException | None = None
        try:
            found = self.work()
        except BaseException as raised:  # noqa: BLE001 - it is the caller's, and the thread goes on
            error = raised
        self.took_s = time.thread_time() - begun
        if error is None:
            self.future.set_result(found)
        else:
            self.future.set_exception(error)


class _Lane:
    """The threads that one run's files, or one person's calls, may take."""

    def __init__(self, threads: int) -> None:
        self.slots = asyncio.Semaphore(threads)
        self.users = 0  # calls that read or wait


def _leave(lanes: dict[K, _Lane], key: K, lane: _Lane) -> None:
    lane.users -= 1
    if not lane.users:
        del lanes[key]
