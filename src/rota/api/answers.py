"""JSON answers that can always be written: pure ASCII, no NaN, whatever text came in."""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse


class Json(JSONResponse):  # by its kind the API document knows that the body is no plain text
    def render(self, content: Any) -> bytes:
        return dumps(content)


def dumps(content: Any) -> bytes:
    # ASCII with escapes: a name from the system may hold halves of surrogate pairs, which no UTF-8 can carry
    return _encode(content).encode("ascii")


def _make_encode() -> Callable[[Any], str]:
    """JSONEncoder.encode, but for building the C encoder anew at each call, which is half of it for small answers."""
    encoder = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    write = make(None, encoder.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(write(value, 0))


_encode = _make_encode()
