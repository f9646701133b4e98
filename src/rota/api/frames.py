"""What a watcher of a WebSocket may send: next to nothing.

It answers pings and says goodbye; nobody hears anything else. Frames are parsed in Python on the event loop, and the
smallest has six bytes, so one read could hold the loop for seconds. So a connection has an allowance of bytes, and is
closed with 1008 beyond it, before anything is parsed. Within it frames are parsed in small pieces, in turns of the
party.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from rota.api.turns import Turns

AT_ONCE = 4 << 10  # bytes that a connection may send at once, and the longest message
A_SECOND = 256  # bytes that it may send besides, for as long as it likes
PIECE = 256  # bytes that are parsed in one turn: some forty frames
TAKE_WITHIN_S = 5.0
TOO_MUCH = 1008
TOO_MUCH_REASON = f"a watcher may send {A_SECOND} bytes a second, {AT_ONCE} at once"


class BoundedFrames(WebSocketsSansIOProtocol):
    turns: Turns
    party = ""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._allowed, self._counted_at = float(AT_ONCE), self.loop.time()
        self._unparsed = b""
        self._parsing: asyncio.Task[None] | None = None
        self._hanging_up: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._unparsed = b""
        if self._parsing is not None:
            self._parsing.cancel()
        if self._hanging_up is not None:
            self._hanging_up.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.handshake_initiated:  # the head, whose length is bounded
            super().data_received(data)
            return
        if self.transport.is_closing() or not self._pay(len(data)):
            return
        if self._parsing is None and len(data) <= PIECE and self.turns.take(self._of()):
            super().data_received(data)
            return
        self._unparsed += data
        if self._parsing is None:
            self._parsing = self.loop.create_task(self._parse())

    def _pay(self, count: int) -> bool:
        now = self.loop.time()
        self._allowed = min(AT_ONCE, self._allowed + (now - self._counted_at) * A_SECOND) - count
        self._counted_at = now
        if self._allowed < 0:
            self._refuse()
        return self._allowed >= 0

    async def _parse(self) -> None:
        while self._unparsed and not self.transport.is_closing():
            await self.turns.turn(self._of())
            piece, self._unparsed = self._unparsed[:PIECE], self._unparsed[PIECE:]
            if piece and not self.transport.is_closing():
                super().data_received(piece)
        self._parsing = None

    def _of(self) -> str:
        """The party: by the token once that was looked at, until then by the connection."""
        party: str = self.scope.get("rota.party", self.party) if hasattr(self, "scope") else self.party  # type: ignore[assignment]
        return party

    def _refuse(self) -> None:
        self._unparsed = b""
        if self.conn.state is not State.OPEN or self.close_sent:
            self.hang_up()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": TOO_MUCH, "reason": TOO_MUCH_REASON})
        self.conn.fail(TOO_MUCH, TOO_MUCH_REASON)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.transport.close()
        self._hanging_up = self.loop.call_later(TAKE_WITHIN_S, self.hang_up)

    def hang_up(self) -> None:
        self.transport.abort()
