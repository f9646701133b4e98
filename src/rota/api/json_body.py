"""The JSON of a request, bounded in depth before it is parsed. How many members it may have: `bodies`."""

from __future__ import annotations

import json
from typing import Any

from fastapi import HTTPException
from starlette.requests import Request

from rota.api.errors import fault
from rota.core.nesting import MAX_ASKED, is_deeper

LONGEST_NAME = 100
# Of a longer body the field is not named: it would have to be parsed for that, and each field written again.
NAMED_BYTES = 16 * 1024


class JsonRequest(Request):
    """A request whose body is refused where it is nested too deep, as every parser of this server has its own idea of
    how deep that is."""

    async def json(self) -> Any:
        must_be_flat(await self.body())
        return await super().json()


def must_be_flat(body: bytes) -> None:
    """Raises an HTTPException (422) that names the field. A NUL is in no JSON in UTF-8: in other encodings, which the
    parser would take as well, brackets cannot be told from letters."""
    if b"\0" in body:
        raise HTTPException(422, [fault(None, "the body cannot be read as JSON in UTF-8")])
    if not is_deeper(body, MAX_ASKED):
        return
    name = _deep_field(body)
    where = f"{name}: " if name is not None else "the body "
    why = f"{where}is nested deeper than {MAX_ASKED} levels of lists and objects; use fewer, or send it as text"
    raise HTTPException(422, [fault(name, why)])


def _deep_field(body: bytes) -> str | None:
    """Return the first field that is too deep; None = the body is no object, is long, or is too deep to be parsed."""
    if len(body) > NAMED_BYTES:
        return None
    try:
        fields = json.loads(body)
        if not isinstance(fields, dict):
            return None
        deep = (name for name, value in fields.items() if is_deeper(json.dumps(value).encode(), MAX_ASKED - 1))
        return next(deep, "")[:LONGEST_NAME] or None
    except (ValueError, RecursionError):
        return None
