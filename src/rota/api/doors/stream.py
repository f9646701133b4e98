"""Everything that happens, as it happens: /events (SSE) and /ws carry the same messages under the same numbers.

Whoever watches from now on is first told the number from which that is: if the line breaks before anything happens, it
knows where to go on all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated

from fastapi import Header, Query, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect
from websockets.frames import Frame, Opcode

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.house import House
from rota.api.hub import MAX_WATCHERS, Batch, Behind, Pieces, TooMany
from rota.api.patient import SEND_WITHIN_S, Patient
from rota.api.router import Router
from rota.app.authz import Principal
from rota.app.errors import Unavailable
from rota.app.ports import StoreError

router = Router("events")
MOST = 1 << 62
CLOSE_WITHIN_S = 5.0
TOO_SLOW = 4008  # of a WebSocket; what was not read can be had again with `after`
FULL = 4013
UNKNOWN = 4401  # the token was revoked, or has expired
RESTARTING = 1012
REASONS = {
    TOO_SLOW: "too slow: come back with ?after=",
    FULL: "too many watchers",
    UNKNOWN: "the token is no longer valid",
    RESTARTING: "come back",
}
After = Annotated[int | None, Query(ge=0, le=MOST, description="The `seq` of the last event you have.")]


@router.get(
    "/events",
    summary="All events as server-sent events",
    responses={200: {"content": {"text/event-stream": {}}, "description": "`id:` is the event's seq."}, **faults()},
    response_model=None,
)
async def events(
    request: Request,
    house: HouseDep,
    who: Caller,
    after: After = None,
    last_event_id: Annotated[str | None, Header(max_length=30)] = None,
) -> Response:
    """Without `after` and `Last-Event-ID`: from now on, and first an event `hello` with the `seq` from which that is.
    With either: first all that came after that event."""
    place = after
    if last_event_id is not None and _is_number(last_event_id):  # a browser that comes back; an odd one begins anew
        place = min(int(last_event_id), MOST)
    party: str = request.scope["rota.owner"]
    why = house.hub.refusal(who, party)
    if why:
        full = house.hub.watchers >= MAX_WATCHERS
        return Json({"detail": why}, 503 if full else 429, {"Retry-After": "5"})
    return Patient(_sse(house, who, party, place))


async def _sse(house: House, who: Principal, party: str, after: int | None) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    if after is None:
        after = house.hub.last
        yield b'id: %d\nevent: hello\ndata: {"seq":%d}\n\n' % (after, after)
    try:
        async with aclosing(house.hub.watch(after, who, party=party)) as news:
            async for some in news:
                piece = _seen(house, who, some, _as_sse) if some else b": still here\n\n"
                if piece:
                    yield piece
    except (Behind, TooMany, Unavailable, StoreError):
        yield b"event: dropped\ndata: {}\n\n"  # the client comes back with the id it has


def _seen(house: House, who: Principal, some: Batch, write: Callable[[Pieces], bytes]) -> bytes:
    """Write what this watcher may see; what all may see is written once for all."""
    if not house.only_own(who):
        return some.once(write)
    return write((told.seq, told.own) for told in some if house.may_see_of(who, told.owner))


def _as_sse(events: Pieces) -> bytes:
    return b"".join([b"id: %d\ndata: %b\n\n" % piece for piece in events])


def _as_frames(events: Pieces) -> bytes:
    """A message of a WebSocket for each."""
    return b"".join([Frame(Opcode.TEXT, text).serialize(mask=False) for _, text in events])


@router.websocket("/ws")
async def websocket(socket: WebSocket, after: str = "") -> None:
    """Without `after`: from now on, and first a message of type `Hello` with the `seq` from which that is."""
    house: House = socket.app.state.house
    await socket.accept()
    place = min(int(after), MOST) if _is_number(after) else None
    listening = asyncio.create_task(_until_gone(socket))
    telling = asyncio.create_task(_tell(house, socket, place))
    done, rest = await asyncio.wait({listening, telling}, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    if listening not in done:  # else it has left by itself
        await _close(socket, telling.result())


async def _close(socket: WebSocket, code: int) -> None:
    """To say goodbye takes a peer that reads."""
    try:
        async with asyncio.timeout(CLOSE_WITHIN_S):
            await socket.close(code, REASONS[code])
    except TimeoutError:
        socket.scope["rota.hang_up"]()
    except (WebSocketDisconnect, RuntimeError):  # it left at the same moment
        pass


async def _tell(house: House, socket: WebSocket, after: int | None) -> int:
    """Until there is a reason to close, whose code is returned."""
    who: Principal = socket.scope["rota.who"]
    holds: Callable[[], bool] = socket.scope["rota.holds"]
    try:
        if after is None:
            after = house.hub.last
            await _send(socket, {"text": f'{{"seq":{after},"type":"Hello"}}'})
        async with aclosing(house.hub.watch(after, who, party=socket.scope["rota.owner"])) as news:
            async for some in news:
                if not holds():
                    return UNKNOWN
                frames = _seen(house, who, some, _as_frames)
                if frames:
                    await _send(socket, {"rota.frames": frames})
    except (Behind, TimeoutError):
        return TOO_SLOW
    except (Unavailable, StoreError):
        return RESTARTING
    except TooMany:
        return FULL
    except (WebSocketDisconnect, RuntimeError):  # gone while we wrote to it: the listener hears of it too
        await asyncio.Event().wait()
    return RESTARTING


async def _send(socket: WebSocket, message: dict[str, str] | dict[str, bytes]) -> None:
    """`rota.frames`: messages as they go over the line (see serve.py)."""
    async with asyncio.timeout(SEND_WITHIN_S):
        await socket.send({"type": "websocket.send", **message})


async def _until_gone(socket: WebSocket) -> int:
    """What a watcher says is not heard; that it leaves is."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
    return 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 30
