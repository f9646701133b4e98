"""Work in threads of its own, bounded in number and in time: mostly reads of files, so that a stuck one costs nobody
else's call.

A read can be stuck for long: on a dead network file system, or in a job's directory on FUSE. Its thread is then lost
until the read returns, but that thread serves no other calls, and the caller is told to ask again. The files of one run
get a few of the threads only, so that those of other runs stay readable.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from rota.app.errors import Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

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
        calls: int = MAX_CALLS,
        calls_of_one: int = MAX_CALLS,
        limit_s: float | None = LIMIT_S,
        doing: str = "reading the files of run",
    ) -> None:
        """`of_one`: how many threads one run's files may take, or whatever else its work is kept apart by.
        `calls_of_one`: how many calls for it may read or wait."""
        self._name, self._most_threads, self._most_calls, self._limit_s = name, threads, calls, limit_s
        self._of_one, self._calls_of_one, self._doing = of_one, calls_of_one, doing
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._started = 0
        self._calls = 0
        self._idle = asyncio.Semaphore(threads)
        self._lanes: dict[str, _Lane] = {}

    async def read(self, key: str, work: Callable[[], T]) -> T:
        """Return what `work` returns, called in a thread. Raises Unavailable when that takes too long, when too many
        wait already, or when there is no thread for it."""
        lane = self._lanes.get(key)
        if self._calls >= self._most_calls or (lane is not None and lane.users >= self._calls_of_one):
            raise Unavailable("too many such calls are waiting just now; ask again")
        self._calls += 1
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.shield(await self._begin(key, work))
        except TimeoutError:
            raise Unavailable(f"{self._doing} {key} did not end within {self._limit_s:g} s; ask again") from None
        finally:
            self._calls -= 1

    async def _begin(self, key: str, work: Callable[[], T]) -> asyncio.Future[T]:
        lane = self._lanes.setdefault(key, _Lane(self._of_one))
        lane.users += 1
        future: Future[T] = Future()
        try:
            await lane.slots.acquire()
            try:
                await self._idle.acquire()
                try:
                    self._submit(future, work)
                except BaseException:
                    self._idle.release()
                    raise
            except BaseException:
                lane.slots.release()
                raise
        except BaseException:
            self._leave(key, lane)
            raise
        reading = asyncio.wrap_future(future)

        def ended(reading: asyncio.Future[T]) -> None:
            self._idle.release()
            lane.slots.release()
            self._leave(key, lane)
            if not reading.cancelled():
                reading.exception()  # seen, also where nobody waits for it any more

        reading.add_done_callback(ended)
        return reading

    def _leave(self, key: str, lane: _Lane) -> None:
        lane.users -= 1
        if not lane.users:
            del self._lanes[key]

    def _submit(self, future: Future[Any], work: Callable[[], Any]) -> None:
        if self._started < self._most_threads:
            self._start()
        self._work.put((future, work))

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
            future, work = self._work.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is the caller's, and the thread goes on
                future.set_exception(error)
            del future, work


class _Lane:
    """The threads that one run's files may take."""

    def __init__(self, threads: int) -> None:
        self.slots = asyncio.Semaphore(threads)
        self.users = 0  # calls that read or wait
