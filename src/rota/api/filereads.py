"""Work in threads of its own, bounded in number and in time: mostly reads of files, so that a stuck one costs nobody
else's call.

A read can be stuck for long: on a dead network file system, or in a job's directory on FUSE. Its thread is then lost
until the read returns, but that thread serves no other calls, and the caller is told to ask again. The files of one run
get a few of the threads only, so that those of other runs stay readable, and so do all files of one account, which can
hold the lock of each of its directories. Streams of one person get a few as well, whichever runs they are of. Where
several accounts hold theirs, further threads take the place of those that do not return.
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
from rota.core.run import Run

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, str])

THREADS = 16
MAX_OF_ONE_RUN = 4  # threads
MAX_OF_ONE_ACCOUNT = 4  # threads. A read takes about a millisecond, so these serve some thousand reads a second
MAX_REPLACED = 64  # threads that do not return, of 16 accounts and more, beside those of which others make use
REPLACED_AFTER_S = 1.0
MAX_CALLS = 512  # that read or wait for a thread
LIMIT_S = 5.0  # for both together


def account_of(run: Run) -> str:
    """Return the account that a run's files are read for. Where all runs have the server's own account, the person
    stands for it, so that one person's stuck files cost the others nothing."""
    return run.spec.account or run.user


class FileReads:
    def __init__(
        self,
        name: str,
        *,
        threads: int = THREADS,
        of_one: int = MAX_OF_ONE_RUN,
        of_person: int = THREADS,
        of_account: int = THREADS,
        replaced: int = 0,
        calls: int = MAX_CALLS,
        calls_of_one: int = MAX_CALLS,
        limit_s: float | None = LIMIT_S,
        rest: float = 0.0,
        doing: str = "reading the files of run",
    ) -> None:
        """`of_one`: how many threads one run's files may take, or whatever else its work is kept apart by.
        `of_person`: how many threads one person's calls may take, over all runs, where `read` is told the person. For
        one run these are at most one fewer than `of_one`.
        `of_account`: how many threads the files of one account may take, where `read` is told the account.
        `replaced`: how many threads that have not returned after REPLACED_AFTER_S get another one in their place.
        `calls_of_one`: how many calls for it may read or wait. `rest`: how long its next call waits at least, times
        what the last one took of the processor, so that work in Python leaves time to others."""
        self._name, self._most_threads, self._most_calls, self._limit_s = name, threads, calls, limit_s
        self._of_one, self._of_person, self._calls_of_one = of_one, of_person, calls_of_one
        self._rest, self._doing = rest, doing
        self._work: SimpleQueue[_Call | None] = SimpleQueue()  # None = one thread ends
        self._started = 0
        self._calls = 0
        self._idle = asyncio.Semaphore(threads)
        self._most_replaced, self._replaced = replaced, 0
        self._of_account = of_account
        self._lanes: dict[str, _Lane] = {}
        self._people: dict[str, _Lane] = {}
        self._accounts: dict[str, _Lane] = {}
        self._shares: dict[tuple[str, str], _Lane] = {}  # of one person in one run
        self._rests: dict[str, float] = {}  # until when; those that are over go with the next

    async def read(self, key: str, work: Callable[[], T], person: str = "", account: str = "") -> T:
        """Return what `work` returns, called in a thread. `person`: whose share of the threads the call counts for.
        `account`: whose files are read. "" = no one's. Raises Unavailable when that takes too long, when too many wait
        already, when there is no thread for it, or when all threads of the account are stuck."""
        lane = self._lanes.get(key)
        if self._calls >= self._most_calls or (lane is not None and lane.users >= self._calls_of_one):
            raise Unavailable("too many such calls are waiting just now; ask again")
        if self._limit_s is not None and (stuck := self._accounts.get(account)) and stuck.is_stuck(self._limit_s):
            raise Unavailable(f"{self._doing} {key} has to wait for earlier calls that are stuck; ask again")
        self._calls += 1
        try:
            async with asyncio.timeout(self._limit_s):
                return await asyncio.shield(await self._begin(key, work, person, account))
        except TimeoutError:
            raise Unavailable(f"{self._doing} {key} did not end within {self._limit_s:g} s; ask again") from None
        finally:
            self._calls -= 1

    async def _begin(self, key: str, work: Callable[[], T], person: str, account: str) -> asyncio.Future[T]:
        call = _Call(work)
        with ExitStack() as taken:
            # First the person's share of the run: who waits for a stuck run then keeps no thread from the person's
            # other runs, and leaves a thread of the run to others.
            if person:
                await self._enter(taken, self._shares, (person, key), max(1, self._of_one - 1))
                await self._enter(taken, self._people, person, self._of_person)
            await self._enter(taken, self._lanes, key, self._of_one)
            of_account = await self._enter(taken, self._accounts, account, self._of_account) if account else None
            while (left_s := self._rests.get(key, 0.0) - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            await self._idle.acquire()
            taken.callback(self._give_back, call)
            self._submit(call)
            if of_account is not None:
                of_account.begun[call] = time.monotonic()
                taken.callback(of_account.begun.pop, call)
            until_read = taken.pop_all()
        reading: asyncio.Future[T] = asyncio.wrap_future(call.future)
        if self._most_replaced:
            call.timer = asyncio.get_running_loop().call_later(REPLACED_AFTER_S, self._replace, call)

        def ended(reading: asyncio.Future[T]) -> None:
            self._begin_rest(key, call.took_s)
            until_read.close()
            if not reading.cancelled():
                reading.exception()  # seen, also where nobody waits for it any more

        reading.add_done_callback(ended)
        return reading

    def _replace(self, call: _Call) -> None:
        """Let another thread work in place of the call's, or look again where too many others were replaced."""
        if self._replaced >= self._most_replaced:
            call.timer = asyncio.get_running_loop().call_later(REPLACED_AFTER_S, self._replace, call)
            return
        self._replaced += 1
        call.is_replaced = True
        self._idle.release()

    def _give_back(self, call: _Call) -> None:
        """The call's thread is back, or the call got none."""
        if call.timer is not None:
            call.timer.cancel()
        if not call.is_replaced:
            self._idle.release()
            return
        self._replaced -= 1
        if self._started > self._most_threads + self._replaced:
            self._started -= 1
            self._work.put(None)

    async def _enter(self, taken: ExitStack, lanes: dict[K, _Lane], key: K, threads: int) -> _Lane:
        """Wait for one of the lane's threads. `taken` gives it back."""
        lane = lanes.setdefault(key, _Lane(threads))
        lane.users += 1
        taken.callback(_leave, lanes, key, lane)
        await lane.slots.acquire()
        taken.callback(lane.slots.release)
        return lane

    def _begin_rest(self, key: str, took_s: float) -> None:
        now = time.monotonic()
        if self._rest * took_s:
            self._rests.pop(key, None)  # so that the oldest is first
            self._rests[key] = now + self._rest * took_s
        while self._rests and next(iter(self._rests.values())) < now:
            del self._rests[next(iter(self._rests))]

    def _submit(self, call: _Call) -> None:
        if self._started < self._most_threads + self._replaced:
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
        while (call := self._work.get()) is not None:
            call.do()
            del call  # it has the error, whose traceback has what the caller held: the next one may be long in coming


class _Call:
    __slots__ = ("future", "is_replaced", "timer", "took_s", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.took_s = 0.0  # of the processor
        self.timer: asyncio.TimerHandle | None = None  # until another thread works in its place
        self.is_replaced = False

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
            return
        self.future.set_exception(error)
        del error, self  # the traceback has this frame: a cycle


class _Lane:
    """The threads that one run's files, one account's or one person's calls may take."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.slots = asyncio.Semaphore(threads)
        self.users = 0  # calls that read or wait
        self.begun: dict[_Call, float] = {}  # of an account: since when each call reads, the latest last

    def is_stuck(self, limit_s: float) -> bool:
        """Tell whether each of the threads reads for longer than this."""
        return len(self.begun) == self.threads and next(reversed(self.begun.values())) < time.monotonic() - limit_s


def _leave(lanes: dict[K, _Lane], key: K, lane: _Lane) -> None:
    lane.users -= 1
    if not lane.users:
        del lanes[key]
