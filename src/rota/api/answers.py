"""JSON answers that can always be written: pure ASCII, no NaN, whatever text came in."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import JSONResponse


class Json(JSONResponse):  # by its kind the API document knows that the body is no plain text
    def render(self, content: Any) -> bytes:
        return dumps(content)


def dumps(content: Any) -> bytes:
    # ASCII with escapes: a name from the system may hold halves of surrogate pairs, which no UTF-8 can carry
    return _encode(content).encode("ascii")


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False).encode
