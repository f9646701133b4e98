"""Bodies of requests on their way in: bounded in time, bytes and members, for each party and for all together.

A body that is larger than SMALL_BODY has its bytes set aside before it is read, and keeps them until its request is
answered: of its party's all that it may become, so that bodies of one party do not wait for each other half read, and
of all parties' together a STEP at a time, as it comes: what is only announced takes no room from others. A part of all
is kept for the oldest body of each party, so that nobody is shut out by others, and half-read bodies do not all wait
for each other. Where there is no room, reading waits: the client's own kernel then holds what it has to send. What a
body costs to parse is paid for before it is parsed, and one with many members is worked on alone of its party.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from starlette.exceptions import HTTPException

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

# A body of this size is parsed within milliseconds whatever is in it. More is not taken from a caller who is not known.
SMALL_BODY = 16 << 10
OF_ONE, OF_ALL = 32 << 20, 256 << 20  # bytes under way
STEP = 256 << 10
# Requests that wait for room. Of each the server has read what came with its head, up to 256 KiB.
WAITING_OF_ONE, WAITING = 64, 512
DEAR_MEMBERS = 20_000  # more of them are parsed alone: 5 ms and more of the event loop
_CLOSE = {"Connection": "close"}  # what is still to come is not waited for


class TooManyBytes(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Terms:
    """On which one body is taken in."""

    party: str
    length: int  # as the head says; 0 = it does not
    most_bytes: int
    most_members: int
    within_s: float  # for all of it: a byte now and then does not buy time
    pay: Callable[[int], None]  # for so many members; raises where the party cannot

    @property
    def patience_s(self) -> float:
        """How long it waits for room, or for another body of its party."""
        return self.within_s / 3


class _Wanted(NamedTuple):
    party: str
    whole: int  # bytes that the body may become; 0 = the party has them already
    come: int  # and those of them that are there
    body: object | None  # which one it is


class Bodies:
    """Use it on the event loop alone."""

    def __init__(
        self,
        of_one: int = OF_ONE,
        of_all: int = OF_ALL,
        kept: int | None = None,
        waiting_of_one: int = WAITING_OF_ONE,
        waiting: int = WAITING,
    ) -> None:
        """`kept`: a quarter of all unless it is given."""
        self._of_one, self._of_all = of_one, of_all
        self._for_others = of_all - (of_all // 4 if kept is None else kept)
        self._most_waiting_of_one, self._most_waiting = waiting_of_one, waiting
        self.under_way = 0  # bytes
        self._bytes: Counter[str] = Counter()  # by party
        self._begun: dict[str, dict[object, None]] = {}  # bodies under way, by party, the oldest first
        self._waiting: OrderedDict[asyncio.Future[None], _Wanted] = OrderedDict()
        self._parsed: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # those in use, by party

    @asynccontextmanager
    async def incoming(self, receive: Receive, terms: Terms) -> AsyncIterator[Receive]:
        """Take in the body of one request; the bytes it has are free again at the end."""
        body = _Incoming(self, receive, terms)
        try:
            yield body.receive
        finally:
            body.close()

    async def take(
        self, party: str, count: int, within_s: float, come: int | None = None, body: object | None = None
    ) -> None:
        """Set bytes aside, in order of arrival; raises TooManyBytes where there is no room within that time. `count` is
        for the party, `come` (unless given, as many) for all. `body`: for which one, until `end`."""
        wanted = _Wanted(party, count, count if come is None else come, body)
        if count and sum(one.party == party for one in self._waiting.values()) >= self._most_waiting_of_one:
            raise self._refusal(party, of_one=True)
        if count and len(self._waiting) >= self._most_waiting:
            raise self._refusal(party, of_one=False)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = wanted
        self._hand_out()
        try:
            async with asyncio.timeout(within_s):
                await turn
        except BaseException as error:
            if self._waiting.pop(turn, None) is None:  # its turn has just come
                self.give(party, count, wanted.come)
            if not isinstance(error, TimeoutError):
                raise
            raise self._refusal(party, of_one=self._bytes[party] + count > self._of_one) from None

    def give(self, party: str, count: int, come: int | None = None) -> None:
        self.under_way -= count if come is None else come
        self._bytes[party] -= count
        if not self._bytes[party]:
            del self._bytes[party]
        self._hand_out()

    def end(self, party: str, body: object) -> None:
        """Let the next body of a party be its oldest."""
        begun = self._begun.get(party, {})
        begun.pop(body, None)
        if not begun:
            self._begun.pop(party, None)

    def alone(self, party: str) -> asyncio.Lock:
        """For what one party does one at a time."""
        return self._parsed.setdefault(party, asyncio.Lock())

    def _hand_out(self) -> None:
        full: set[str] = set()  # parties whose next body does not fit: those after it wait for it
        crowded = False  # bodies beside a party's oldest wait for others
        for turn, (party, count, come, body) in list(self._waiting.items()):
            if count and (party in full or self._bytes[party] + count > self._of_one):
                full.add(party)
                continue
            oldest = next(iter(self._begun.get(party, ())), None)
            is_further = party in self._bytes and (body is None or body is not oldest)
            if is_further and (crowded or self.under_way + come > self._for_others):
                crowded = True
                continue
            if self.under_way + come > self._of_all:
                return
            del self._waiting[turn]
            self.under_way += come
            self._bytes[party] += count
            if body is not None:
                self._begun.setdefault(party, {})[body] = None
            if not turn.done():
                turn.set_result(None)

    def _refusal(self, party: str, *, of_one: bool) -> TooManyBytes:
        if of_one:
            had = f"{party} has {self._of_one >> 20} MiB of bodies under way, as many as one may"
            return TooManyBytes(429, f"{had}; wait for their answers before sending more")
        return TooManyBytes(503, f"of {self._of_all >> 20} MiB for bodies under way no room is left now; ask again")


class _Incoming:
    """One body."""

    __slots__ = (
        "_bodies",
        "_come",
        "_commas",
        "_deadline",
        "_lock",
        "_members",
        "_opened",
        "_receive",
        "_size",
        "_taken",
        "_terms",
        "_whole",
    )

    def __init__(self, bodies: Bodies, receive: Receive, terms: Terms) -> None:
        self._bodies, self._receive, self._terms = bodies, receive, terms
        self._size = self._members = self._commas = self._opened = 0
        self._taken = 0  # bytes that its party has set aside for it
        self._come = 0  # and all together
        self._whole = False
        self._deadline: float | None = None
        self._lock: asyncio.Lock | None = None

    def close(self) -> None:
        self._bodies.end(self._terms.party, self)
        if self._taken:
            self._bodies.give(self._terms.party, self._taken, self._come)
            self._taken = self._come = 0
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def receive(self) -> Message:
        if self._whole:  # waiting for the client to go, which may take as long as the answer
            return await self._receive()
        if self._deadline is None:
            if self._terms.length > SMALL_BODY:
                await self._take(self._terms.length, min(self._terms.length, STEP))
            self._deadline = asyncio.get_running_loop().time() + self._terms.within_s
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {self._terms.within_s:g} s", _CLOSE) from None
        self._whole = not message.get("more_body", False)
        if message["type"] == "http.request":
            await self._add(message.get("body", b""))
        return message

    async def _add(self, part: bytes) -> None:
        most_bytes, most_members = self._terms.most_bytes, self._terms.most_members
        self._size += len(part)
        if self._size > most_bytes:
            raise HTTPException(413, f"the body is larger than {most_bytes} bytes", _CLOSE)
        # A list in a list is a member without a comma. The two are counted apart, since rows of numbers and a diff of
        # such rows have many of both; a text that holds such letters counts for more than it is.
        self._commas += part.count(b",")
        self._opened += part.count(b"[") + part.count(b"{")
        self._members = max(self._commas, self._opened)
        if self._members > most_members:
            raise HTTPException(413, f"the body has more than {most_members:,} members; send less at once", _CLOSE)
        if self._size <= SMALL_BODY:
            return
        if not self._taken:
            await self._take(self._size if self._whole else most_bytes, self._size)
        elif self._size > self._come:
            await self._take(0, min(max(STEP, self._size - self._come), self._taken - self._come))
        if self._whole:
            await self._pay()

    async def _take(self, count: int, come: int) -> None:
        try:
            await self._bodies.take(self._terms.party, count, self._terms.patience_s, come, self)
        except TooManyBytes as error:
            raise HTTPException(error.status, str(error), {"Retry-After": "1"}) from None
        self._taken += count
        self._come += come

    async def _pay(self) -> None:
        """Before anybody parses it."""
        spare, unused = self._taken - self._size, self._come - self._size
        if spare or unused:
            self._taken = self._come = self._size
            self._bodies.give(self._terms.party, spare, unused)
        if self._members > DEAR_MEMBERS:
            lock = self._bodies.alone(self._terms.party)
            try:
                async with asyncio.timeout(self._terms.patience_s):
                    await lock.acquire()
            except TimeoutError:
                why = f"another large body of {self._terms.party} is worked on; send one after the other"
                raise HTTPException(429, why, {"Retry-After": "1"}) from None
            self._lock = lock
        self._terms.pay(self._members)
