"""/metrics, for Prometheus."""

from __future__ import annotations

from starlette.responses import Response

from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.router import Router

router = Router("metrics")
TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/metrics",
    summary="For Prometheus",
    responses={200: {"content": {"text/plain": {}}, "description": "Names are in base units."}, **faults()},
    response_model=None,
)
def metrics(house: HouseDep, who: Caller) -> Response:
    from rota.api.render.prometheus import scraped  # its library is loaded by the first scrape

    return Response(scraped(house), media_type=TYPE)
