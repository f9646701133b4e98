"""The story of one run as a log that grows. Each event is put into words once, however long somebody listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rota.api.render.story import story
from rota.app.ports import LogChunk, StoredEvent

PAGE = 1000  # events in one question
MOST_BYTES = 4 << 20  # kept at a time


class Telling:
    def __init__(self, events: Callable[[int, int], Sequence[StoredEvent]]) -> None:
        """`events(after, limit)` of the run."""
        self._events = events
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._seq = 0  # of the last event that was told
        self._start, self._text = 0, b""  # of the story from here on; what lies before was read and is forgotten

    def read(self, offset: int, limit: int) -> LogChunk:
        """A negative offset counts from the end."""
        if 0 <= offset < self._start:
            self._begin_anew()
        while len(self._text) < MOST_BYTES or offset < 0:
            page = self._events(self._seq, PAGE)
            if not page:
                break
            self._seq = page[-1].seq
            self._text += story(page)
            self._forget(offset)
            if len(page) < PAGE:
                break
        size = self._start + len(self._text)
        begin = min(max(size + offset if offset < 0 else offset, self._start), size)
        self._forget(begin)
        return LogChunk(self._text[:limit], begin, size)

    def _forget(self, offset: int) -> None:
        """What comes before the offset, and whatever is too much."""
        size = len(self._text)
        cut = size + max(offset, -MOST_BYTES) if offset < 0 else offset - self._start
        cut = min(max(cut, 0), size)
        self._start, self._text = self._start + cut, self._text[cut:]
