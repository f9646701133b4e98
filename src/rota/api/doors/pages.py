"""What a browser opens: the dashboard, the reference, the API document."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rota.api.answers import Json, dumps
from rota.api.depends import HouseDep, KnownBy
from rota.api.doors.health import Health, health_of
from rota.api.faults import faults
from rota.api.render.reference import page
from rota.api.router import Application, Router
from rota.api.static_files import StaticFile

router = Router("health")


@router.get(
    "/",
    summary="The dashboard in a browser, what this server is to everybody else",
    responses={200: {"model": Health, "content": {"text/html": {}}}, **faults()},
    response_model=None,
)
async def root(request: Request, house: HouseDep, by: KnownBy) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return _file(request, "index.html", {"Vary": "Accept"})
    return Json(health_of(house, by), headers={"Vary": "Accept"})


@router.api_route("/static/{name}", methods=["GET", "HEAD"], include_in_schema=False)
async def static(request: Request, name: str) -> Response:
    return _file(request, name)


def _file(request: Request, name: str, headers: dict[str, str] | None = None) -> Response:
    files: dict[str, StaticFile] = request.app.state.files
    if name not in files:
        raise HTTPException(404)
    return files[name].answer(request, headers)


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return Response((await _reference(request.app)).document, media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    return Response((await _reference(request.app)).page, media_type="text/html")


@dataclass(frozen=True, slots=True)
class Reference:
    """The API document in both its forms."""

    document: bytes
    page: bytes


async def _reference(app: Application) -> Reference:
    """Return the one that was made, or make it: in a thread, since it takes a second or more of computing."""
    async with app.making_reference:
        if not hasattr(app.state, "reference"):
            app.state.reference = await asyncio.to_thread(_make_reference, app)
    made: Reference = app.state.reference
    return made


def _make_reference(app: Application) -> Reference:
    document = app.openapi()
    return Reference(dumps(document), page(document).encode())
