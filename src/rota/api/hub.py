"""Every durable event that may be told, to everybody who watches, in order and without gaps.

What makes or revokes a token is not told. The newest events are kept once, in a ring that all watchers share;
a watcher is no more than a place in it, so a thousand of them cost little here; what is on its way to each, its
connection bounds. Watchers are told in turns (`fanout`), and those that are at the same place share what they are sent.
Who comes back after a while reads what it missed from the store first, as far back as that goes. Who
cannot keep up is dropped, and can come back at the place it had reached.

Reading from the store is work: events are decoded and rendered. It is done in threads of its own, page by page, for one
watcher of a caller at a time, with a rest after each page as long as the page took.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial

from rota.api.answers import dumps
from rota.api.fanout import FanOut
from rota.api.filereads import FileReads
from rota.api.render.events import as_message, is_secret
from rota.api.render.unnamed import event_unnamed
from rota.app.authz import Principal, Role
from rota.app.errors import NotFound
from rota.app.service import Service
from rota.core import events as e
from rota.core.run import ENDED

RING = 10_000
FROM_STORE = 200  # events of a page
PAGE_BYTES = 1 << 20  # what a page keeps in memory until its watcher has read it, about
TOGETHER_BYTES = 64 << 10  # what is sent at once, about
MOST_TOGETHER = 256  # events
MAX_WATCHERS = 20_000
MAX_OF_ONE = 100  # watchers of one person who is no admin, with those of the person's agents
MAX_BATCHES = 16  # that are kept for the next watcher at the same place
REPLAY_THREADS = 2
Pieces = Iterable[tuple[int, bytes]]  # the number of each event, and its JSON


class Told:
    """One event; its JSON is made when the first watcher reads it, and once. `own` is for those who see only their own
    runs: without the id of a run that theirs was preempted for."""

    __slots__ = ("_event", "_own", "_text", "owner", "seq")

    def __init__(self, seq: int, event: e.Event, owner: str | None) -> None:
        self.seq = seq
        self.owner = owner  # whose run it is about; None = it is about no run
        self._event: e.Event | None = event
        self._text = self._own = b""

    @property
    def text(self) -> bytes:
        self._write()
        return self._text

    @property
    def own(self) -> bytes:
        self._write()
        return self._own

    def _write(self) -> None:
        event = self._event
        if event is not None:
            own = event_unnamed(event)
            self._text = dumps(as_message(self.seq, event))
            self._own = self._text if own is event else dumps(as_message(self.seq, own))
            self._event = None


class Batch(list[Told]):
    """Events that are told at once. What all watchers are sent of them is made once."""

    def __init__(self, events: Iterable[Told]) -> None:
        super().__init__(events)
        self._made: dict[Callable[[Pieces], bytes], bytes] = {}

    def once(self, make: Callable[[Pieces], bytes]) -> bytes:
        if make not in self._made:
            self._made[make] = make((told.seq, told.text) for told in self)
        return self._made[make]


class Behind(Exception):
    """The watcher fell out of the ring: it does not read fast enough. It can come back after the last it got."""


class TooMany(Exception):
    """There are MAX_WATCHERS already, or MAX_OF_ONE of this party."""


class Hub:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._ring: list[Told] = []
        self._base = 0  # how many were taken out of the ring's front
        self._floor = 0  # every event after this one is in the ring
        self._owners: dict[str, str] = {}  # of live runs and reservations
        self._batches: dict[int, Batch] = {}  # where it begins -> up to the newest event, or as much as is told at once
        self._fanout = FanOut()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.last = 0  # seq of the newest event
        self.watchers = 0
        self._of_party: Counter[str] = Counter()
        self._replays = FileReads(
            "rota-replay",
            threads=REPLAY_THREADS,
            of_one=1,
            calls=MAX_WATCHERS,
            calls_of_one=MAX_WATCHERS,
            limit_s=None,
            rest=1.0,
        )

    async def open(self) -> None:
        """Before the first request."""
        self._loop = asyncio.get_running_loop()
        self._service.subscribe(self._hear)
        view = self._service.view()
        self.last = max(self.last, view.version)
        self._floor = self._ring[0].seq - 1 if self._ring else self.last
        kept = {one.id: one.user for one in view.reservations}
        self._owners = {run.id: run.user for run in view.runs.values()} | kept | self._owners

    def close(self) -> None:
        """Watchers come to their end, and back to the next server."""
        self._closed = True
        self._fanout.close()

    def _hear(self, first: int, events: Sequence[e.Event]) -> None:
        """On the writer's thread: hand over and return at once."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, first, tuple(events))

    def _take(self, first: int, events: Sequence[e.Event]) -> None:
        self.last = max(self.last, first + len(events) - 1)
        for seq, event in enumerate(events, first):
            if not is_secret(event):
                self._ring.append(Told(seq, event, self._owner(event)))
        if len(self._ring) > 2 * RING:
            oldest = len(self._ring) - RING
            self._floor = self._ring[oldest - 1].seq
            del self._ring[:oldest]
            self._base += oldest
        self._batches.clear()
        self._fanout.tell()

    def _owner(self, event: e.Event) -> str | None:
        if isinstance(event, e.RunSubmitted):
            self._owners[event.run_id] = event.user
            return event.user
        if isinstance(event, e.ReservationMade):
            self._owners[event.reservation.id] = event.reservation.user
        elif isinstance(event, e.ReservationEnded):
            return self._owners.pop(event.reservation_id, "")
        if not isinstance(event, e.RunEvent):
            return _writer(event)
        if isinstance(event, e.RunEnded) or (isinstance(event, e.AttemptEnded) and event.next in ENDED):
            return self._owners.pop(event.run_id, "")
        return self._owners.get(event.run_id, "")

    def refusal(self, who: Principal, party: str = "") -> str:
        """Return why one more watcher of this caller would be too many; "" = it is welcome. `party`: with whom it
        counts; unless given, the person it is or acts for."""
        party = party or who.owner
        if self.watchers >= MAX_WATCHERS:
            return f"{MAX_WATCHERS} are watching already"
        if who.role is not Role.ADMIN and self._of_party[party] >= MAX_OF_ONE:
            return f"{party} has {MAX_OF_ONE} watchers of events already; close some before opening more"
        return ""

    async def watch(
        self, after: int | None, who: Principal, pause_s: float = 15.0, party: str = ""
    ) -> AsyncGenerator[Batch, None]:
        """Yield everything after `after` (None = from now on), then whatever happens, some events at a time. None at
        all = nothing to tell, for a while or in what came: an occasion to look whether the watcher is still welcome."""
        party = party or who.owner
        why = self.refusal(who, party)
        if why:
            raise TooMany(why)
        self.watchers += 1
        self._of_party[party] += 1
        try:
            place = self.last if after is None else min(after, self.last)
            while place < (floor := self._floor):
                page, place = await self._replays.read(party, partial(self._missed, place, floor))
                for some in _together(page):
                    await self._fanout.turn(party)
                    yield some
            index = self._base + bisect_right(self._ring, place, key=lambda told: told.seq)
            async for news in self._follow(index, party, pause_s):
                yield news
        finally:
            self.watchers -= 1
            self._of_party[party] -= 1
            if not self._of_party[party]:
                del self._of_party[party]

    async def _follow(self, index: int, party: str, pause_s: float) -> AsyncIterator[Batch]:
        while True:
            if index < self._base + len(self._ring):
                await self._fanout.turn(party)
            elif self._closed:
                return
            elif not await self._fanout.news(party, pause_s) or index == self._base + len(self._ring):
                # nothing came for a while, or what came is not told, such as a token's end: the watcher may be of
                # those it is about
                if not self._closed:
                    yield Batch(())
                continue
            if index < self._base:
                raise Behind
            some = self._batch(index)
            index += len(some)
            yield some

    def _batch(self, index: int) -> Batch:
        some = self._batches.get(index)
        if some is None:
            first = index - self._base
            some = next(_together(self._ring[first : first + MOST_TOGETHER]))
            if len(self._batches) >= MAX_BATCHES:
                self._batches.clear()
            self._batches[index] = some
        return some

    def _missed(self, after: int, floor: int) -> tuple[list[Told], int]:
        """Read a page from the store, up to where the ring takes over: what is newer may be on its way into the ring.
        Return it rendered, with the number up to which there is nothing more."""
        found, place, size = list[Told](), floor, 0
        owners: dict[str, str] = {}
        stored = self._service.events(after, FROM_STORE)
        for one in stored:
            if one.seq > floor:
                return found, floor
            if size >= PAGE_BYTES:
                break
            place = one.seq
            if not is_secret(one.event):
                found.append(Told(one.seq, one.event, self._owner_then(one.event, owners)))
                size += len(found[-1].text)
        return found, place

    def _owner_then(self, event: e.Event, owners: dict[str, str]) -> str | None:
        if not isinstance(event, e.RunEvent):
            return _writer(event)
        if event.run_id not in owners:
            try:
                owners[event.run_id] = self._service.run(event.run_id).user
            except NotFound:  # dropped by retention since
                owners[event.run_id] = ""
        return owners[event.run_id]


def _together(events: Iterable[Told]) -> Iterator[Batch]:
    """Split events into what is sent at once: each write to a watcher costs more than an event in it."""
    some, size = list[Told](), 0
    for told in events:
        some.append(told)
        size += len(told.text)
        if size >= TOGETHER_BYTES:
            yield Batch(some)
            some, size = [], 0
    if some:
        yield Batch(some)


def _writer(event: e.Event) -> str | None:
    """Sweeps and documents are somebody's, too: whose, the event does not say, but who wrote it."""
    if isinstance(event, e.ReservationMade):
        return event.reservation.user
    return event.by if isinstance(event, e.RecordPut | e.GroupCapped | e.ReservationEnded) else None
