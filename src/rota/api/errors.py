"""Refusals as HTTP: the status, and a body in the words clients of this field read."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rota.api.answers import Json
from rota.api.unknown_fields import meant_as
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NoSpace, NotFound, Refused, Unavailable
from rota.app.ports import FileBusy, StoreError
from rota.core.descriptors import SHORTAGE

log = logging.getLogger(__name__)

STATUS: dict[type[Refused], int] = {
    Invalid: 422,
    NotFound: 404,
    Forbidden: 403,
    Conflict: 409,
    Full: 429,
    Unavailable: 503,
    NoSpace: 507,
}
THEIRS = {  # what the house calls a thing, and what those who asked for it do
    "gpus": "gpu_count",
    "estimate_s": "estimated_duration_seconds",
    "time_limit_s": "time_limit_seconds",
    "grace_s": "grace_seconds",
    "warn_s": "warn_seconds",
    "key": "idempotency_key",
}
RETRY_AFTER_S = "1"
LONGEST_INPUT = 200
SHORT = "the server is short of descriptors, threads or memory just now; ask again"
NO_THREAD = "can't start new thread"  # Python's words
NO_SUCH_FIELD = "there is no such field here; is it misspelt?"
PYDANTICS_WORDS = "Extra inputs are not permitted"
UNREADABLE_BODY = "There was an error parsing the body"  # FastAPI's words


class AsAsked(Invalid):
    """A refusal by a door that calls the field as its clients do already."""


def install(app: FastAPI) -> None:
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(StoreError, unreadable)
    app.add_exception_handler(FileBusy, busy)
    app.add_exception_handler(OSError, short)
    app.add_exception_handler(RuntimeError, short)
    app.add_exception_handler(RequestValidationError, misshapen)
    app.add_exception_handler(HTTPException, plain)


async def refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 400)
    if status == 422:
        name = error.field if isinstance(error, AsAsked) else THEIRS.get(error.field or "", error.field)
        message = error.message
        if message.startswith(f"{error.field}: "):
            message = f"{name}: {message.partition(': ')[2]}"
        return Json({"detail": [fault(name, message)]}, 422)
    headers = {"Retry-After": RETRY_AFTER_S} if status in (429, 503) else None
    return Json({"detail": error.message}, status, headers)


def fault(field: str | None, message: str, given: Any = None) -> dict[str, Any]:
    """One entry of a 422, in FastAPI's shape."""
    return {"type": "value_error", "loc": ["body", *([field] if field else [])], "msg": message, "input": given}


async def unreadable(request: Request, error: Exception) -> Response:
    log.warning("the store did not answer: %s", error)
    return Json({"detail": "the store does not answer just now; ask again"}, 503, {"Retry-After": RETRY_AFTER_S})


async def busy(request: Request, error: Exception) -> Response:
    return Json({"detail": str(error)}, 503, {"Retry-After": RETRY_AFTER_S})


async def short(request: Request, error: Exception) -> Response:
    """For want of a descriptor, a thread or memory: it may work in a moment. Every other such error is ours."""
    if not is_shortage(error):
        raise error
    log.warning("a request could not be served just now: %s", error)
    return Json({"detail": SHORT}, 503, {"Retry-After": RETRY_AFTER_S})


def is_shortage(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in SHORTAGE
    return isinstance(error, RuntimeError) and str(error) == NO_THREAD


async def misshapen(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    _drop_cause(error)
    faults = [
        {
            "type": item["type"],
            "loc": [_part(p) for p in item["loc"]],
            "msg": _message(item),
            "input": shown(item.get("input")),
        }
        for item in error.errors()[:20]
    ]
    return Json({"detail": faults}, 422)


def _message(item: Mapping[str, Any]) -> str:
    if item["msg"] == PYDANTICS_WORDS:
        return NO_SUCH_FIELD
    sent = item.get("input")
    if item["type"] == "missing" and isinstance(sent, Mapping):
        return f"{item['msg']}{meant_as(str(item['loc'][-1]), map(str, sent))}"
    return str(item["msg"])


async def plain(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    _drop_cause(error)
    if error.status_code == 400 and error.detail == UNREADABLE_BODY:  # not UTF-8, too deep, or a number too long
        return Json({"detail": [fault(None, "the body cannot be read as JSON in UTF-8")]}, 422)
    headers = dict(error.headers) if error.headers else None
    return Json({"detail": error.detail}, error.status_code, headers)


def _drop_cause(error: Exception) -> None:
    """Break a reference cycle. FastAPI keeps the error for a body that is unreadable, or that ends too soon, in a local
    variable, and the traceback of its cause refers to that frame. The body itself, up to 4 MiB, would stay in memory
    until the garbage collector runs, which it does rarely."""
    error.__cause__ = error.__context__ = None


def _part(part: Any) -> Any:
    return part if isinstance(part, int) else str(part)[:LONGEST_INPUT]


def shown(value: Any) -> Any:
    """What was sent, as far as it can be sent back: short and finite; of what has parts, only how many."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else str(value)[:LONGEST_INPUT]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value[:LONGEST_INPUT]
    if isinstance(value, bytes):
        return value[:LONGEST_INPUT].decode("utf-8", "replace")
    return (
        f"({type(value).__name__} of {len(value)})" if isinstance(value, dict | list | tuple) else type(value).__name__
    )
