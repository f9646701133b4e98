"""Routes that are made when they are first used.

A FastAPI route analyses its function and makes a validator for each answer that it documents: 88 routes with about ten
answers each are a third of the server's start, and a second time when their routers are included. Here a declaration
only remembers what was declared; the first request makes the route. The API document is made of routes of its own, with
the models of their answers, which no request needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import cached_property
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from fastapi.utils import create_model_field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from rota.api.answers import Json
from rota.api.json_body import JsonRequest

Responses = dict[int | str, dict[str, Any]]
_WORD = str.maketrans({"/": "_", "{": "", "}": "", "-": "_", ".": "_"})


class Route(APIRoute):
    """A route without the models of its answers until `document()`."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, responses: Responses | None = None, **more: Any
    ) -> None:
        given = responses or {}
        self._models = {status: answer["model"] for status, answer in given.items() if "model" in answer}
        bare = {
            status: {name: value for name, value in answer.items() if name != "model"}
            for status, answer in given.items()
        }
        super().__init__(path, endpoint, responses=bare, **more)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle

        async def handle_bounded(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_bounded

    def document(self) -> None:
        """Give FastAPI's document the models of the answers."""
        for status, model in self._models.items():
            name = f"Response_{status}_{self.unique_id}"
            self.response_fields[status] = create_model_field(name=name, type_=model, mode="serialization")


class Declared(BaseRoute):
    """What was declared of a route; the route itself is made by the first request that may be for it."""

    def __init__(self, path: str, scope_type: str, make: Callable[[], BaseRoute]) -> None:
        self._begins, parameter, _ = path.partition("{")
        self._whole = not parameter
        self._type, self.make = scope_type, make

    @cached_property
    def made(self) -> BaseRoute:
        return self.make()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        if not (path == self._begins if self._whole else path.startswith(self._begins)) or scope["type"] != self._type:
            return Match.NONE, {}
        return self.made.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.made.handle(scope, receive, send)


class Router(APIRouter):
    """The routes of one family, complete as they are declared: `Application.add` takes them as they are."""

    def __init__(self, tag: str, prefix: str = "") -> None:
        self._defaults: dict[str, Any] = {
            "prefix": prefix,
            "tags": [tag],
            "route_class": Route,
            "default_response_class": Json,
            "generate_unique_id_function": _operation_id,
        }
        super().__init__(**self._defaults)

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._declare(APIRouter.add_api_route, path, "http", endpoint, options)

    def add_api_websocket_route(
        self, path: str, endpoint: Callable[..., Any], name: str | None = None, **options: Any
    ) -> None:
        self._declare(APIRouter.add_api_websocket_route, path, "websocket", endpoint, {"name": name, **options})

    def _declare(
        self,
        add: Callable[..., None],
        path: str,
        scope_type: str,
        endpoint: Callable[..., Any],
        options: dict[str, Any],
    ) -> None:
        def make() -> BaseRoute:
            alone = APIRouter(**self._defaults)
            add(alone, path, endpoint, **options)
            return alone.routes[0]

        self.routes.append(Declared(self.prefix + path, scope_type, make))


class Application(FastAPI):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.making_reference = asyncio.Lock()

    def add(self, routes: Iterable[BaseRoute]) -> None:
        self.router.routes.extend(routes)

    def openapi(self) -> dict[str, Any]:
        """Describe all routes. A thread may do so while requests are served: it makes routes of its own, whose
        validators nobody else uses, and which are not kept."""
        if self.openapi_schema is None:
            routes = [one.make() if isinstance(one, Declared) else one for one in self.router.routes]
            for route in routes:
                if isinstance(route, Route):
                    route.document()
            self.openapi_schema = get_openapi(
                title=self.title,
                version=self.version,
                openapi_version=self.openapi_version,
                description=self.description,
                routes=routes,
            )
        return self.openapi_schema


def _operation_id(route: APIRoute) -> str:
    method = min(route.methods) if route.methods else "GET"
    return f"{method.lower()}_{route.path_format.strip('/') or 'root'}".translate(_WORD)
