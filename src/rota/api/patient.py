"""Server-sent events, and long lists, to somebody who may stop reading, or stop being welcome: then the stream ends.

A client that takes nothing at all for a while is hung up on: what it has not read would else stay in memory for as long
as it keeps the line open. One whose token was revoked, or has expired, is told nothing more. Both may come back with
the id of the last event they have, and are asked who they are as at first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

SEND_WITHIN_S = 30.0
PARTING_S = 1.0


class Patient(StreamingResponse):
    """`content` says something every few seconds, be it that there is nothing to say: only then is the caller looked
    at again."""

    media_type = "text/event-stream"

    def __init__(self, content: AsyncGenerator[bytes, None], media_type: str | None = None) -> None:
        super().__init__(content, media_type=media_type)
        self._content = content
        self._holds: Callable[[], bool]
        self._hang_up: Callable[[], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._holds = scope["rota.holds"]
        self._hang_up = scope.get("rota.hang_up", _nothing)
        # By hand: the task group that starlette takes leaves reference cycles, with the connection and the request.
        telling = asyncio.create_task(self.stream_response(send))
        listening = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({telling, listening}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            telling.cancel()
            listening.cancel()
            ended = await asyncio.gather(telling, listening, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error

    async def stream_response(self, send: Send) -> None:
        async def soon(message: Message) -> None:
            async with asyncio.timeout(SEND_WITHIN_S):
                await send(message)

        try:
            async with aclosing(self._content):
                await soon({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                async for piece in self._content:
                    if not self._holds():
                        break
                    await soon({"type": "http.response.body", "body": piece, "more_body": True})
            await soon({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            self._hang_up()
            await asyncio.sleep(PARTING_S)  # cut short as soon as the listener hears that nobody is there


def _nothing() -> None:
    """Under a server that cannot hang up the stream ends, and what was written is left to the network."""
