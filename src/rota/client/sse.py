"""Server-sent events out of bytes, without any I/O."""

from __future__ import annotations

from rota.client.errors import BadAnswer

MAX_EVENT = 16 * 1024 * 1024
PER_LINE = 64  # bytes that a line takes in memory besides its text; there may be millions of empty ones


class Event:
    """One event: its name, its data and the id to resume after."""

    __slots__ = ("data", "id", "name")

    def __init__(self, name: str, data: str, id: str) -> None:
        self.name = name
        self.data = data
        self.id = id


class Events:
    """Feed bytes, get whole events. An event that is cut off by the end of the stream is dropped, as it must be."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._data: list[str] = []
        self._size = 0
        self._name = ""
        self._id = ""

    def feed(self, data: bytes) -> list[Event]:
        self._raw += data
        found: list[Event] = []
        if b"\n" not in data:  # a long line in many pieces is not searched again and again
            return self._bounded(found)
        *lines, rest = bytes(self._raw).split(b"\n")
        self._raw = bytearray(rest)
        for line in lines:
            event = self._line(line.removesuffix(b"\r").decode("utf-8", "replace"))
            if event is not None:
                found.append(event)
        return self._bounded(found)

    def _bounded(self, found: list[Event]) -> list[Event]:
        if len(self._raw) + self._size > MAX_EVENT:
            raise BadAnswer(f"an event is larger than {MAX_EVENT} bytes")
        return found

    def _line(self, line: str) -> Event | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._size += len(value) + PER_LINE
        elif field == "event":
            self._name = value
        elif field == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._size, self._name = [], 0, ""
        return Event(name or "message", "\n".join(data), self._id) if data else None
