"""What comes on an open connection: parsed in turns of its party, a piece a turn, and no more of it kept than a read.

Parsing is done on the event loop, before anybody has looked at who sends, and one account may have thousands of
connections. So what comes is parsed in pieces of PIECE bytes, each in a turn of the account or address at the other end
(`turns`); where nobody waits, at once. A piece of a body whose length the head has told costs next to nothing, whatever
its size, and has up to BODY_PIECE bytes. While a connection waits for its turn nothing more of it is read.

Also while a request is not answered at most one read of what follows is kept, and parsed when all requests of the last
piece are answered: HTTP allows it, and hardly a client does it. One piece may have MOST_PIPELINED requests. What all
connections keep together has a bound, too (`receive_buffers`).

Each chunk of a body costs a call of Python, also one of a single byte. So a body comes in FREE_CHUNKS, and beyond them
in such of LEAST_CHUNK bytes on average.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl

from rota.api.heads import BoundedHeads
from rota.api.receive_buffers import ReceiveBuffers
from rota.api.turns import Turns

PIECE = 1 << 10  # bytes
BODY_PIECE = 64 << 10
READ_ON = 16 << 10  # bytes that are kept behind a request while reading goes on: else nobody learns that a client goes
MOST_PIPELINED = 8
FREE_CHUNKS, LEAST_CHUNK = 1000, 64
TOO_SMALL = f"A body may come in {FREE_CHUNKS} pieces, and in more where they have {LEAST_CHUNK} bytes on average."
TOO_MANY = f"At most {MOST_PIPELINED} requests may wait on one connection; wait for their answers."


class _Flow(FlowControl):
    """Reading rests while something is kept, even where a request asks for its body or for the client's end."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class BoundedPipeline(BoundedHeads):
    turns: Turns
    buffers: ReceiveBuffers
    flow: _Flow
    _peer: str  # the party

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = _Flow(transport)
        self._kept = bytearray()  # what came while it was not its turn, or a request was worked on
        self._turn: asyncio.Future[None] | None = None  # that is waited for
        self._at_work: Any = None  # the cycle that was started last; `cycle` is the one that was parsed last
        self._chunks = self._size = 0  # of the body that is on its way
        self._left = 0  # bytes of it that are to come, where its length is known
        self._upgrading = False  # a WebSocket waits for the answers to the requests before it
        self._parting: str | None = None  # why what came behind those requests is refused, after their answers

    def connection_lost(self, exc: Exception | None) -> None:
        self._kept.clear()
        if self._turn is not None:
            self._turn.cancel()
        self.pipeline.clear()
        if self._at_work is not None and self._at_work is not self.cycle:  # that one is told in any case
            self._at_work.disconnected = not self._at_work.response_complete
            self._at_work.message_event.set()
        super().connection_lost(exc)
        self.buffers.note(self._peer, self, 0)

    def data_received(self, data: bytes) -> None:
        if not self._kept and len(data) <= PIECE and not self._is_busy() and self.turns.take(self._peer):
            self.parse(data)
            self.buffers.note(self._peer, self, self.waiting())
            return
        self._kept += data
        self._parse_kept()

    def waiting(self) -> int:
        """Return how many bytes came that no request has taken yet."""
        cycle: Any = self.cycle
        working = self._at_work
        size = len(self._kept) + (len(working.body) if working is not None else 0)
        return size + (len(cycle.body) if cycle is not None and cycle is not working else 0)

    def cut_off(self) -> None:
        self._kept.clear()
        self.hang_up()

    def hang_up(self) -> None:
        self.transport.abort()

    def parse(self, data: bytes) -> None:
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Answer the requests before it first: a client takes the first answer for that to its first request."""
        working = self._at_work
        if working is None or working.response_complete or working.more_body:  # in that case its own body is refused
            super().send_400_response(msg)
            return
        self._parting = msg
        self._kept.clear()
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # the last one, which never gets whole

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MOST_PIPELINED:
            self.refuse(400, TOO_MANY)
        self._chunks = self._size = 0
        self._left = self._length
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._chunks += 1
        self._size += len(body)
        self._left -= len(body)
        if self._chunks > FREE_CHUNKS + self._size // LEAST_CHUNK:
            self.refuse(400, TOO_SMALL)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._left = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._drop_request(self._at_work)
        self.buffers.note(self._peer, self, self.waiting())
        super().on_response_complete()
        if self._upgrading and self._at_work.response_complete:  # else the next request has been started
            self.loop.call_soon(self._upgrade_now)
        elif self._parting is not None and self._at_work.response_complete and not self.transport.is_closing():
            self.send_400_response(self._parting)
        elif self._kept and not self.pipeline:
            self.loop.call_soon(self._parse_kept)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to a WebSocket once all requests before it are answered: else its answer would come
        among theirs."""
        self._upgrading = self._is_busy()
        if not self._upgrading:
            self.upgrade()

    def upgrade(self) -> None:
        super().handle_websocket_upgrade()

    def _upgrade_now(self) -> None:
        if self.transport.is_closing():
            return
        self._kept.clear()  # a WebSocket begins with the next read
        self.buffers.note(self._peer, self, 0)
        self.flow.held = False
        self.flow.resume_reading()
        self._upgrading = False
        self.upgrade()

    def _drop_request(self, answered: Any) -> None:
        """Drop the head of an answered request, and what nobody read of its body: the connection may stay open and
        idle for long. The call itself has a reference to its scope for as long as it is worked on."""
        if self.scope is answered.scope:  # else the head of the next request has begun
            self.url, self.headers, self.scope = b"", [], None  # type: ignore[assignment]
        answered.scope, answered.body = None, bytearray()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._at_work = cycle
        super()._start_asgi_task(cycle, app)

    def _is_busy(self) -> bool:
        """Return whether a request is whole and not answered, or a WebSocket or a refusal waits for that. A request
        whose body is on its way needs what comes."""
        cycle: Any = self.cycle
        return (
            self._upgrading
            or self._parting is not None
            or bool(self.pipeline)
            or (cycle is not None and not cycle.response_complete and not cycle.more_body)
        )

    def _parse_kept(self) -> None:
        """Parse what is kept, for as long as there are turns; then wait for the next one."""
        while self._kept and self._turn is None and not self._is_busy():
            if self.turns.take(self._peer):
                self._parse_piece()
            else:
                self._turn = self.turns.line_up(self._peer)
                self._turn.add_done_callback(self._has_turn)
        self.buffers.note(self._peer, self, self.waiting())
        if self._turn is not None or len(self._kept) > READ_ON:
            self.flow.pause_reading()
            self.flow.held = True
            return
        self.flow.held = False
        cycle: Any = self.cycle
        # the rest of a body that was answered already is read and dropped, or the client would never be done with it
        is_room = cycle is None or cycle.response_complete or len(cycle.body) <= HIGH_WATER_LIMIT
        if not self.transport.is_closing() and is_room:
            self.flow.resume_reading()

    def _has_turn(self, turn: asyncio.Future[None]) -> None:
        self._turn = None
        if turn.cancelled() or self.transport.is_closing():
            self._kept.clear()
            return
        if self._kept and not self._is_busy():
            self._parse_piece()
        self._parse_kept()

    def _parse_piece(self) -> None:
        size = max(PIECE, min(self._left, BODY_PIECE))
        piece = bytes(self._kept[:size])
        del self._kept[:size]
        if self._kept and self._chunks:
            self._chunks -= 1  # the piece may end within one, which then counts twice
        self.parse(piece)
        if self.transport.is_closing() or self.transport.get_protocol() is not self:
            self._kept.clear()  # nobody reads the rest: a WebSocket begins with the next read
