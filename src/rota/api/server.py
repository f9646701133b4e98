"""The application: all doors behind one guard."""

from __future__ import annotations

from typing import Any

from rota.api import errors, static_files
from rota.api.answers import Json
from rota.api.bare import Shortcut
from rota.api.doors import (
    alerts,
    calibration,
    capacity,
    cluster,
    explain,
    gpu,
    health,
    identity,
    journey,
    leases,
    logs,
    metrics,
    nodes,
    orchestrator,
    pages,
    prometheus,
    queue,
    reservations,
    runs,
    runs_change,
    sessions,
    skills,
    stream,
    sweeps,
    usage,
    wild,
)
from rota.api.guard import Guard
from rota.api.house import House
from rota.api.router import Application

DOORS = (
    health,
    pages,
    identity,
    queue,
    gpu,
    orchestrator,
    runs,
    runs_change,
    explain,
    calibration,
    logs,
    alerts,
    metrics,
    sweeps,
    cluster,
    wild,
    skills,
    sessions,
    journey,
    capacity,
    nodes,
    reservations,
    usage,
    leases,
    stream,
    prometheus,
)
ABOUT = """One fair queue over all the GPUs of a research team.

Send `X-Auth-Token: <token>` (or `Authorization: Bearer <token>`) once the server has tokens. Every call that changes
something takes `dry_run=true`; every call that makes something takes an `Idempotency-Key`."""


def make_app(house: House) -> Application:
    """Without its guard: see guarded()."""
    app = Application(
        title="Rota",
        version=house.version,
        description=ABOUT,
        docs_url=None,  # our own, which needs no CDN
        redoc_url=None,
        openapi_url=None,  # served by pages, made once
        redirect_slashes=False,
        default_response_class=Json,
    )
    app.state.house = house
    app.state.files = static_files.read_all()
    errors.install(app)
    for door in DOORS:
        app.add(door.router.routes)
    return app


def guarded(house: House, app: Any = None) -> Guard:
    return Guard(app or Shortcut(make_app(house), {**queue.HOT, **leases.HOT}), house)


def guarded_leases(house: House, loopback: bool) -> Guard:
    return Guard(leases.lease_app(house), house, lease_port=True, loopback=loopback)
