"""Requests that a client sends before its earlier ones are answered, and bodies that it sends in tiny pieces.

HTTP allows it, and hardly a client does it. Parsed as they come, each costs two kilobytes and a place in memory before
anybody has looked at who sends them. So while a request of a connection is not answered, at most one read of what
follows is kept, and nothing more is read; it is parsed in pieces, the next one when all requests of the last are
answered. One piece may have MOST_PIPELINED requests.

Each chunk of a body costs a call of Python here, also one of a single byte: a read of 256 KiB may hold 43,000. So a
body comes in FREE_CHUNKS, and beyond them in such of LEAST_CHUNK bytes on average; and where a piece held many, others
have their turn before the next.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

from rota.api.heads import BoundedHeads

PIECE = 16 << 10  # bytes
MOST_PIPELINED = 100
FREE_CHUNKS, LEAST_CHUNK = 1000, 64
MANY_CHUNKS = 64  # in one piece
TOO_SMALL = f"A body may come in {FREE_CHUNKS} pieces, and in more where they have {LEAST_CHUNK} bytes on average."
TOO_MANY = f"At most {MOST_PIPELINED} requests may wait on one connection; wait for their answers."


class _Flow(FlowControl):
    """Reading rests while something is kept, even where a request asks for its body or for the client's end."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class BoundedPipeline(BoundedHeads):
    flow: _Flow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._kept = b""  # what came while a request was worked on
        self._at_work: Any = None  # the cycle that was started last; `cycle` is the one that was parsed last
        self._chunks = self._size = 0  # of the body that is on its way
        self._goes_on = False  # the next piece is parsed in the next pass of the event loop

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept = b""
        self.pipeline.clear()
        if self._at_work is not None and self._at_work is not self.cycle:  # that one is told in any case
            self._at_work.disconnected = not self._at_work.response_complete
            self._at_work.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._kept or self._is_busy():
            self._kept += data
            if len(self._kept) > PIECE:  # little is kept while reading goes on: else nobody learns that the client goes
                self._hold()
        elif len(data) <= PIECE:
            self.parse(data)
        else:
            self._kept = data
            self._parse_kept()

    def parse(self, data: bytes) -> None:
        super().data_received(data)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self.refuse(400, TOO_MANY)
        self._chunks = self._size = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._size += len(body)
        if self._chunks > FREE_CHUNKS + self._size // LEAST_CHUNK:
            self.refuse(400, TOO_SMALL)
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._kept and not self.pipeline:
            self.loop.call_soon(self._parse_kept)  # others have their turn between two pieces

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._at_work = cycle
        super()._start_asgi_task(cycle, app)

    def _is_busy(self) -> bool:
        """Return whether a request is whole and not answered. One whose body is on its way needs what comes."""
        cycle: Any = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete and not cycle.more_body)

    def _hold(self) -> None:
        self.flow.pause_reading()
        self.flow.held = True

    def _parse_later(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            self.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        self._parse_kept()

    def _parse_kept(self) -> None:
        data, at = self._kept, 0
        chunks = self._chunks
        while at < len(data) and not self._is_busy():
            if self._chunks - chunks > MANY_CHUNKS:
                self._parse_later()
                break
            self.parse(data[at : at + PIECE])
            at += PIECE
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                at = len(data)  # nobody reads the rest: a WebSocket begins with the next read
        self._kept = data[at:]
        if len(self._kept) > PIECE:
            self._hold()
            return
        self.flow.held = False
        cycle: Any = self.cycle
        if not self.transport.is_closing() and (cycle is None or len(cycle.body) <= HIGH_WATER_LIMIT):
            self.flow.resume_reading()
