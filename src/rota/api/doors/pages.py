"""What a browser opens: the dashboard, the reference, the API document."""

from __future__ import annotations

from pathlib import Path

from fastapi import Request
from starlette.responses import FileResponse, Response

from rota.api.answers import Json, dumps
from rota.api.depends import HouseDep, KnownBy
from rota.api.doors.health import Health, health_of
from rota.api.faults import faults
from rota.api.render.reference import page
from rota.api.router import Router

router = Router("health")
STATIC = Path(__file__).parents[1] / "static"


@router.get(
    "/",
    summary="The dashboard in a browser, what this server is to everybody else",
    responses={200: {"model": Health, "content": {"text/html": {}}}, **faults()},
    response_model=None,
)
async def root(request: Request, house: HouseDep, by: KnownBy) -> Response:
    if "text/html" in request.headers.get("accept", ""):
        return FileResponse(STATIC / "index.html", media_type="text/html", headers={"Vary": "Accept"})
    return Json(health_of(house, by), headers={"Vary": "Accept"})


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    if not hasattr(request.app.state, "openapi_bytes"):
        request.app.state.openapi_bytes = dumps(request.app.openapi())
    return Response(request.app.state.openapi_bytes, media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    if not hasattr(request.app.state, "docs_page"):
        request.app.state.docs_page = page(request.app.openapi())
    return Response(request.app.state.docs_page, media_type="text/html")
