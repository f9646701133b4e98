"""What waits for the writer.

The writer takes everything that is there in one turn, and commits it together. A command that makes thousands of runs
takes a turn of seconds, so it has a turn of its own, and between two such turns everything else has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Guarded by its owner's lock."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._large: deque[T] = deque()
        self._large_next = False

    def append(self, item: T, *, large: bool = False) -> None:
        (self._large if large else self._items).append(item)

    def take(self, most: int) -> list[T]:
        """Take the next turn: one large command, or up to `most` others."""
        if self._large and (self._large_next or not self._items):
            self._large_next = False
            return [self._large.popleft()]
        self._large_next = bool(self._large)
        return [self._items.popleft() for _ in range(min(len(self._items), most))]

    def clear(self) -> list[T]:
        """Take all there is."""
        everything = list(self)
        self._items.clear()
        self._large.clear()
        return everything

    def __len__(self) -> int:
        return len(self._items) + len(self._large)

    def __iter__(self) -> Iterator[T]:
        yield from self._items
        yield from self._large
