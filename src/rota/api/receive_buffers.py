"""Bytes that clients have sent and that no request has taken yet: bounded for each party and for all together.

One connection has at most two reads of them, but there are thousands of connections, and a client that reads no answers
keeps its bytes here for as long as it is waited for. Over a bound the connection that has waited longest is hung up on:
one of the party itself where it is over its own bound, else one of the party that has most.
"""

from __future__ import annotations

from typing import Protocol

OF_ONE, OF_ALL = 64 << 20, 128 << 20  # bytes


class Sender(Protocol):
    """A connection."""

    def waiting(self) -> int:
        """Return how many bytes it has now."""

    def cut_off(self) -> None:
        """Drop them, and close it."""


class _Party:
    __slots__ = ("name", "senders", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.size = 0
        self.senders: dict[Sender, int] = {}  # the one that has made no progress for longest comes first


class ReceiveBuffers:
    """Use it on the event loop alone."""

    def __init__(self, of_one: int = OF_ONE, of_all: int = OF_ALL) -> None:
        self._of_one, self._of_all = of_one, of_all
        self.size = 0
        self._parties: dict[str, _Party] = {}

    def note(self, name: str, sender: Sender, size: int) -> None:
        """Note how many bytes a connection of this party has now; connections are cut off where they are too many."""
        party = self._parties.get(name)
        if party is None:
            if not size:
                return
            party = self._parties[name] = _Party(name)
        self._set(party, sender, size)
        while party.size > self._of_one:
            self._shrink(party)
        while self.size > self._of_all:
            self._shrink(max(self._parties.values(), key=_size))

    def _set(self, party: _Party, sender: Sender, size: int) -> None:
        before = party.senders.get(sender, 0)
        if size < before:  # it has made progress
            del party.senders[sender]
        if size:
            party.senders[sender] = size
        party.size += size - before
        self.size += size - before
        if not party.senders:
            self._parties.pop(party.name, None)

    def _shrink(self, party: _Party) -> None:
        sender, noted = next(iter(party.senders.items()))
        size = sender.waiting()
        if size < noted:  # a request has taken a part of its body since
            self._set(party, sender, size)
            return
        self._set(party, sender, 0)
        sender.cut_off()


def _size(party: _Party) -> int:
    return party.size
