"""Everything that happens, as it happens: /events (SSE) and /ws carry the same messages under the same numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, WebSocket
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocketDisconnect

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.house import House
from rota.api.hub import MAX_WATCHERS, Behind, Told, TooMany
from rota.app.authz import Principal, Role

router = APIRouter(tags=["events"])
MOST = 1 << 62
SEND_WITHIN_S = 30.0
TOO_SLOW = 4008  # of a WebSocket; what was not read can be had again with `after`
FULL = 4013
RESTARTING = 1012
REASONS = {TOO_SLOW: "too slow: come back with ?after=", FULL: "too many watchers", RESTARTING: "come back"}
After = Annotated[int | None, Query(ge=0, le=MOST, description="The `seq` of the last event you have.")]


@router.get(
    "/events",
    summary="All events as server-sent events",
    responses={200: {"content": {"text/event-stream": {}}, "description": "`id:` is the event's seq."}, **faults()},
    response_model=None,
)
async def events(
    house: HouseDep,
    who: Caller,
    after: After = None,
    last_event_id: Annotated[str | None, Header(max_length=30)] = None,
) -> Response:
    """Without `after` and `Last-Event-ID`: from now on. With either: first all that came after that event."""
    place = after
    if last_event_id is not None and _is_number(last_event_id):  # a browser that comes back; an odd one begins anew
        place = min(int(last_event_id), MOST)
    if house.hub.watchers >= MAX_WATCHERS:
        return Json({"detail": f"{MAX_WATCHERS} are watching already"}, 503, {"Retry-After": "5"})
    return StreamingResponse(_sse(house, who, place), media_type="text/event-stream")


async def _sse(house: House, who: Principal, after: int | None) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    try:
        async for told in house.hub.watch(after):
            if told is None:
                yield b": still here\n\n"
            elif _for(house, who, told):
                yield b"id: %d\ndata: %b\n\n" % (told.seq, told.text)
    except Behind:
        yield b"event: dropped\ndata: {}\n\n"  # the client comes back with the id it has


@router.websocket("/ws")
async def websocket(socket: WebSocket, after: str = "") -> None:
    house: House = socket.app.state.house
    who: Principal = socket.scope["rota.who"]
    await socket.accept()
    place = min(int(after), MOST) if _is_number(after) else None
    listening = asyncio.create_task(_until_gone(socket))
    telling = asyncio.create_task(_tell(house, who, socket, place))
    done, rest = await asyncio.wait({listening, telling}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    if listening not in done:  # else it has left by itself
        code = telling.result()
        await socket.close(code, REASONS.get(code, ""))


async def _tell(house: House, who: Principal, socket: WebSocket, after: int | None) -> int:
    try:
        async for told in house.hub.watch(after):
            if told is not None and _for(house, who, told):
                async with asyncio.timeout(SEND_WITHIN_S):
                    await socket.send_text(told.text.decode("ascii"))
    except (Behind, TimeoutError):
        return TOO_SLOW
    except TooMany:
        return FULL
    except (WebSocketDisconnect, RuntimeError):  # gone while we wrote to it: the listener hears of it too
        await asyncio.Event().wait()
    return RESTARTING


async def _until_gone(socket: WebSocket) -> int:
    """What a watcher says is not heard; that it leaves is."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
    return 0


def _for(house: House, who: Principal, told: Told) -> bool:
    if not house.settings.private or who.role is Role.ADMIN or told.owner is None:
        return True
    return told.owner == who.owner


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 30
