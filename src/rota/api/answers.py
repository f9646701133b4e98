"""JSON answers that can always be written: pure ASCII, no NaN, whatever text came in."""

from __future__ import annotations

import json
import math
from typing import Any

from pydantic_core import PydanticSerializationError, to_json
from starlette.responses import JSONResponse, Response

from rota.core.nesting import MAX_KEPT

# A stored document's (see core.nesting), with what is put around it: far fewer than Python has frames for.
MAX_LEVELS = MAX_KEPT + 50


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
