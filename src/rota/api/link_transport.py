"""The transport of a `passrights.Link`: it reads by recv() of the Link, which transports of uvloop do not call."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Any

from rota.api.passrights import READ, Link

HIGH_WATER = 64 << 10  # bytes, as asyncio has it
AT_ONCE = 64  # buffers that one call sends


class LinkTransport(asyncio.Transport):
    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link, protocol: Any) -> None:
        super().__init__({"socket": link})
        self._loop, self._link, self._protocol = loop, link, protocol
        self._unsent: deque[memoryview] = deque()
        self._size = 0  # bytes of it
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._is_reading = self._is_writing = self._is_behind = self._is_closing = self._has_ended = False
        self._is_at_end = False  # nothing more comes from the other end
        protocol.connection_made(self)
        self.resume_reading()

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    # -- reading ----------------------------------------------------------------------------------------------------
    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._link)

    def resume_reading(self) -> None:
        if not self._is_reading and not self._is_closing and not self._is_at_end:
            self._is_reading = True
            self._loop.add_reader(self._link, self._read)

    def _read(self) -> None:
        try:
            data = self._link.recv(READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:  # also that descriptors were passed
            self._end(error)
            return
        try:
            if data:
                self._protocol.data_received(data)
                return
            self.pause_reading()
            self._is_at_end = True
            if not self._protocol.eof_received():
                self.close()
        except BaseException:  # is told by the event loop
            self.abort()
            raise

    # -- writing ----------------------------------------------------------------------------------------------------
    def get_write_buffer_size(self) -> int:
        return self._size

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else HIGH_WATER if low is None else 4 * low
        self._low = low if low is not None else self._high // 4
        self._tell()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._has_ended:
            return
        for data in list_of_data:
            if data:
                kept = data if isinstance(data, bytes) else bytes(data)  # a caller may change the others
                self._unsent.append(memoryview(kept))
                self._size += len(kept)
        if not self._is_writing:
            self._send()
        self._tell()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._sent(self._link.sendmsg(islice(self._unsent, AT_ONCE)))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._end(error)
            return
        if self._is_writing != bool(self._unsent):
            self._is_writing = not self._is_writing
            if self._is_writing:
                self._loop.add_writer(self._link, self._go_on)
            else:
                self._loop.remove_writer(self._link)

    def _sent(self, size: int) -> None:
        self._size -= size
        while size:
            first = self._unsent.popleft()
            if size < len(first):
                self._unsent.appendleft(first[size:])
            size -= min(size, len(first))

    def _go_on(self) -> None:
        self._send()
        self._tell()
        if self._is_closing and not self._unsent:
            self._end(None)

    def _tell(self) -> None:
        """Tell the protocol when it has to wait with its writes, and when it has not any more."""
        if self._has_ended:
            return
        if not self._is_behind and self._size > self._high:
            self._is_behind = True
            self._protocol.pause_writing()
        elif self._is_behind and self._size <= self._low:
            self._is_behind = False
            self._protocol.resume_writing()

    # -- the end ----------------------------------------------------------------------------------------------------
    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close once all is sent."""
        if self._is_closing:
            return
        self.pause_reading()
        self._is_closing = True
        if not self._unsent:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        if self._has_ended:
            return
        self.pause_reading()
        self._is_closing = self._has_ended = True
        self._unsent.clear()
        self._size = 0
        if self._is_writing:
            self._loop.remove_writer(self._link)
        self._loop.call_soon(self._lose, error)  # the protocol may be within a call of its own

    def _lose(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._link.close()
            self._protocol = None  # it refers to this transport
