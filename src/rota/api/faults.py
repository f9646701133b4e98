"""The refusals a route may answer with, for the API document."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class Fault(BaseModel):
    detail: str


class Field(BaseModel):
    type: str
    loc: list[str | int]
    msg: str
    input: Any = None


class Faults(BaseModel):
    detail: list[Field]


_WORDS = {
    400: "The request makes no sense in this state.",
    401: "No token, or one that is not valid.",
    403: "Known, but not allowed.",
    404: "There is no such thing, or it is hidden from you.",
    409: "Right in itself, but not in the state things are in.",
    413: "The body is too large.",
    421: "This server does not go by that name.",
    422: "A field is wrong; `loc` names it.",
    429: "Too many calls, or a bound was reached; wait as Retry-After says.",
    503: "The server cannot take it just now; send it again.",
    507: "The disk is below its floor: only ends are taken in until there is room again.",
}
ALWAYS = (401, 403, 413, 421, 422, 429, 503, 507)  # by the guard, or for any input


def faults(*more: int) -> dict[int | str, dict[str, Any]]:
    """For `responses=`: what any route may answer, and what this one may besides."""
    return {
        status: {"description": _WORDS[status], "model": Faults if status == 422 else Fault}
        for status in sorted({*ALWAYS, *more})
    }
