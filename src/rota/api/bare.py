"""Routes that are called thousands of times a second.

They are declared and documented like every other, but served by a function of the bare request, and `Shortcut` finds
them before any routing: FastAPI's matching and its solving of dependencies cost more than all the rest of a submit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp as App
from starlette.types import Receive, Scope, Send

from rota.api import errors
from rota.api.json_body import must_be_flat
from rota.api.router import Route
from rota.app.errors import Refused
from rota.app.ports import StoreError

M = TypeVar("M", bound=BaseModel)
Serve = Callable[[Request], Awaitable[Response]]
LONGEST_KEY = 500
_switch = TypeAdapter(bool)


def served_by(serve: Serve) -> type[Route]:
    """For `router.add_api_route(..., route_class_override=...)`: the endpoint is then only its documentation."""

    class Bare(Route):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            async def handle(request: Request) -> Response:
                return await serve(request)

            return handle

    return Bare


class Shortcut:
    """Around the application: exact paths straight to their function, everything else as ever."""

    def __init__(self, app: App, served: Mapping[tuple[str, str], Serve]) -> None:
        self._app = app
        self._served = served  # (method, path) -> function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        serve = self._served.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        if serve is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        request = Request(scope, receive, send)
        response = await _answered(serve, request)
        await response(scope, receive, send)


async def _answered(serve: Serve, request: Request) -> Response:
    """With the refusals as errors.install() gives them to every other route."""
    try:
        return await serve(request)
    except Refused as error:
        return await errors.refused(request, error)
    except RequestValidationError as error:
        return await errors.misshapen(request, error)
    except HTTPException as error:
        return await errors.plain(request, error)
    except StoreError as error:
        return await errors.unreadable(request, error)
    except OSError as error:
        return await errors.short(request, error)


async def _whole(request: Request) -> bytes:
    """Nearly always one message: Starlette's own way builds a stream for it."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    body: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        return body
    parts = [body]  # joined once: a body may come in a hundred thousand parts
    while message.get("more_body", False):
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        parts.append(message.get("body", b""))
    return b"".join(parts)


async def body_of(request: Request, model: type[M]) -> M:
    """The body, parsed once, straight from its bytes."""
    try:
        body = await _whole(request)
        must_be_flat(body)
        return model.model_validate_json(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in faults]) from error
    except ClientDisconnect:  # or the guard's word for a body without end
        raise HTTPException(413, "the body is too large, or did not come in time") from None


def dry_run_of(request: Request) -> bool:
    return switch_of(request, "dry_run")


def switch_of(request: Request, name: str) -> bool:
    """Return a yes or no of the query; no, where it is not there."""
    if not request.scope["query_string"]:
        return False
    given = request.query_params.get(name, "false")
    try:
        return _switch.validate_python(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        raise RequestValidationError([{**fault, "loc": ("query", name)}]) from error


def key_of(request: Request) -> str:
    for name, value in request.scope["headers"]:
        if name == b"idempotency-key":
            if len(value) > LONGEST_KEY:
                fault = {"type": "string_too_long", "loc": ("header", "Idempotency-Key"), "input": None}
                raise RequestValidationError([{**fault, "msg": f"use at most {LONGEST_KEY} characters"}])
            text: str = value.decode("latin-1")
            return text
    return ""
