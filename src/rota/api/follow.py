"""A run's log as it grows: what is there, then what comes, until the run has ended and all of it was sent.

Nothing is buffered here: each piece is read when the one before has been taken, so a slow reader costs no memory but
what is on its way to it.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rota.api.answers import dumps
from rota.api.bell import MAX_WATCHERS, Bell
from rota.api.filereads import MAX_OF_ONE_RUN, MAX_REPLACED, FileReads
from rota.api.render.words import RUN_WORDS
from rota.app.authz import Principal
from rota.app.errors import Refused, Unavailable
from rota.app.ports import FileBusy, LogChunk
from rota.core.run import ENDED, Run

AT_FIRST = 102_400
PIECE = 65_536
POLL_S = 0.25  # of a log that somebody watches; its writer tells nobody
BEAT_S = 15.0
STUCK_S = 1.0  # how soon a follower whose read is stuck hears that the server stops
STILL_HERE = b": still here\n\n"
# Threads that one person's followers, and those of one account's logs, may read in. More than for one run,
# so that a run whose log is stuck leaves some to the others; and more than half of all threads stay for other people
# and accounts.
OF_ONE_PERSON = MAX_OF_ONE_RUN + 2
PLACE = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})")


@dataclass(frozen=True, slots=True)
class Place:
    """How far somebody has read: in which attempt's log, up to which byte."""

    attempt: int
    offset: int

    @classmethod
    def read(cls, text: str | None) -> Place | None:
        match = PLACE.fullmatch(text or "")
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, slots=True)
class Source:
    """What is followed. `read(attempt, offset, limit)`; `parts(run)` is the number of the newest attempt's log."""

    run: Callable[[], Run]
    read: Callable[[int, int, int], LogChunk]
    parts: Callable[[Run], int]
    # Made from events: reading it takes the processor and no file, and the bell rings for whatever is new in it.
    worded: bool = False
    account: str = ""  # whose files are read


def followers() -> FileReads:
    """Threads for reading what is followed, apart from those of single reads. A follower has one read under way at most
    and waits for it as long as it takes."""
    return FileReads(
        "rota-follow",
        of_person=OF_ONE_PERSON,
        of_account=OF_ONE_PERSON,
        replaced=MAX_REPLACED,
        calls=MAX_WATCHERS,
        limit_s=None,
    )


def renderers() -> FileReads:
    """Threads for putting what was read into messages, and events into words. One person's followers take turns, with a
    rest after each piece as long as the piece took: a long log that many of them read from its beginning leaves time to
    others."""
    return FileReads(
        "rota-render", threads=2, of_one=1, calls=MAX_WATCHERS, calls_of_one=MAX_WATCHERS, limit_s=None, rest=1.0
    )


async def follow(
    run_id: str,
    source: Source,
    bell: Bell,
    files: FileReads,
    since: Place | None = None,
    *,
    who: Principal,
    rendering: FileReads,
    party: str = "",
) -> AsyncGenerator[bytes, None]:
    """`party`: with whose followers this one takes turns; unless given, the person that the caller is or acts for."""
    party = party or who.owner
    try:
        bell.must_have_room(who)
    except Refused:  # others came between the answer's head and now; whoever follows comes back
        return
    with bell.watch(run_id, who) as rung:
        reader = _Reader(source, since)
        kind, beat = "initial", time.monotonic()
        while not bell.closed:  # without a word of an end: whoever follows comes back to the next server
            rung.clear()
            look = (
                rendering.read(party, reader.look)
                if source.worded
                else files.read(run_id, reader.look, party, source.account)
            )
            looking = asyncio.ensure_future(look)
            try:
                async for sign in _waiting(looking, bell):
                    yield sign
            finally:
                given_up = looking.cancel()
            if given_up:
                return
            run: Run | None
            try:
                run, text = looking.result()
            except (FileBusy, Unavailable):  # the log cannot be opened just now: as if there were nothing new
                run, text = None, ""
            if text or (kind == "initial" and run is not None):
                message = {"type": kind, "content": text, **reader.where}
                yield await rendering.read(party, partial(_event, message, reader.id))
                kind, beat = "delta", time.monotonic()
                continue
            if run is not None and reader.more(run):
                continue
            if run is not None and run.state in ENDED:
                rest = reader.rest()
                if rest:
                    yield _event({"type": "delta", "content": rest, **reader.where}, reader.id)
                yield _event({"type": "done", "status": RUN_WORDS[run.state]}, reader.id)
                return
            if time.monotonic() - beat >= BEAT_S:
                yield STILL_HERE
                beat = time.monotonic()
            await _wait(rung, BEAT_S if source.worded else POLL_S)


async def _waiting(looking: asyncio.Future[Any], bell: Bell) -> AsyncGenerator[bytes, None]:
    """Wait for a read, however long it is stuck, with a sign of life now and then; not longer than the server lives."""
    beat = time.monotonic()
    while not (await asyncio.wait({looking}, timeout=STUCK_S))[0] and not bell.closed:
        if time.monotonic() - beat >= BEAT_S:
            yield STILL_HERE
            beat = time.monotonic()


async def _wait(rung: asyncio.Event, at_most_s: float) -> None:
    try:
        async with asyncio.timeout(at_most_s):
            await rung.wait()
    except TimeoutError:
        pass


def _event(message: dict[str, Any], place: str) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (place.encode(), dumps(message))


class _Reader:
    """Reads on from where it is, from one attempt's log to the next one's."""

    def __init__(self, source: Source, since: Place | None) -> None:
        self._source = source
        self._at_end = since is None  # begin near the end of the newest log
        self._attempt, self._offset = (0, 0) if since is None else (since.attempt, since.offset)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def where(self) -> dict[str, int]:
        return {"attempt": self._attempt, "offset": self._read_up_to}

    @property
    def id(self) -> str:
        return f"{self._attempt}.{self._read_up_to}"

    @property
    def _read_up_to(self) -> int:
        """Half a character that was read is not sent yet."""
        return self._offset - len(self._decoder.getstate()[0])

    def look(self) -> tuple[Run, str]:
        run = self._source.run()
        return run, self.next(run)

    def next(self, run: Run) -> str:
        """The next piece; "" = there is nothing new in this attempt's log."""
        newest = self._source.parts(run)
        if newest == 0:
            self._at_end = False
            return ""
        at_end = self._at_end
        self._attempt = newest if at_end else max(1, min(self._attempt, newest))
        offset, limit = (-AT_FIRST, AT_FIRST) if at_end else (self._offset, PIECE)
        chunk = self._source.read(self._attempt, offset, limit)
        self._at_end = False  # only now: a log that could not be opened is asked for again
        if chunk.content:
            self._offset = chunk.offset + len(chunk.content)
        return self._decoder.decode(_whole_start(chunk) if at_end else chunk.content)

    def more(self, run: Run) -> bool:
        """This attempt's log is at its end, and a later attempt has one: go on there."""
        if self._attempt >= self._source.parts(run):
            return False
        self._attempt += 1
        self._offset = 0
        self._decoder.reset()
        return True

    def rest(self) -> str:
        return self._decoder.decode(b"", final=True)


def _whole_start(chunk: LogChunk) -> bytes:
    """The end of a log, from its first whole character on."""
    if chunk.offset == 0:
        return chunk.content
    cut = next((n for n, byte in enumerate(chunk.content[:4]) if byte & 0xC0 != 0x80), 0)
    return chunk.content[cut:]
