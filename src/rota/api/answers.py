"""JSON answers that can always be written: pure ASCII, no NaN, whatever text came in."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import chain
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import JSONResponse, Response

from rota.api.patient import Patient
from rota.core.nesting import MAX_KEPT

# A stored document's (see core.nesting), with what is put around it: far fewer than Python has frames for.
MAX_LEVELS = MAX_KEPT + 50
PIECE = 256 << 10  # bytes of a long answer that are made and sent at a time
WHOLE = 8 << 20  # a list of 10,000 jobs has 6 MB; what is longer is made while it is read


class Json(JSONResponse):  # by its kind the API document knows that the body is no plain text
    def render(self, content: Any) -> bytes:
        return dumps(content)


class Ready(Response):
    """JSON that is bytes already. Starlette would look at it from all sides first."""

    def __init__(self, body: bytes) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]


def listed(parts: Iterable[bytes]) -> Response:
    """Return the answer that these parts of one JSON text make up. A long one is made piece by piece as its client
    reads it: made at once it would take its whole size in memory for as long as a slow client reads."""
    pieces, begun, size = _pieces(parts), deque[bytes](), 0
    for piece in pieces:
        begun.append(piece)
        size += len(piece)
        if size > WHOLE:
            return Patient(_in_threads(chain(_emptied(begun), pieces)), "application/json")
    return Ready(b"".join(begun))


def array_of(texts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of a JSON list of these texts."""
    between = b"["
    for text in texts:
        yield between
        yield text
        between = b","
    yield b"[]" if between == b"[" else b"]"


def _pieces(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Join parts to pieces that are worth a write each."""
    kept: list[bytes] = []
    size = 0
    for part in parts:
        kept.append(part)
        size += len(part)
        if size >= PIECE:
            yield b"".join(kept)
            kept, size = [], 0
    if kept:
        yield b"".join(kept)


async def _in_threads(pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Make each piece in a thread: it takes time that the event loop does not have. The threads are not starlette's:
    a wait for one of those that is cancelled leaves a reference cycle."""
    loop = asyncio.get_running_loop()
    while (piece := await loop.run_in_executor(None, next, pieces, None)) is not None:
        yield piece


def _emptied(pieces: deque[bytes]) -> Iterator[bytes]:
    """Yield the pieces, and keep none that was sent."""
    while pieces:
        yield pieces.popleft()


def dumps(content: Any) -> bytes:
    try:
        return to_json(content, ensure_ascii=True, inf_nan_mode="null")
    except PydanticSerializationError:
        # a name from the system may hold halves of surrogate pairs, which only escapes can carry
        return json.dumps(_finite(content, MAX_LEVELS), separators=(",", ":"), allow_nan=False).encode("ascii")


def _finite(content: Any, levels: int) -> Any:
    """Return the same, without what JSON cannot hold, and with null for what is nested deeper than `levels`."""
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {name: _finite(value, levels - 1) for name, value in content.items()} if levels else None
    if isinstance(content, list | tuple):
        return [_finite(value, levels - 1) for value in content] if levels else None
    return content
