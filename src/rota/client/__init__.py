"""A Rota server from Python: `from rota import Client`. The standard library alone, nothing loaded before its use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rota.client.errors import (
    BadAnswer,
    Busy,
    Conflict,
    Forbidden,
    NotFound,
    Refused,
    RotaError,
    Unauthorised,
    Unreachable,
)

if TYPE_CHECKING:
    from rota.client.aio import AsyncClient
    from rota.client.sync import Client

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "Busy",
    "Client",
    "Conflict",
    "Forbidden",
    "NotFound",
    "Refused",
    "RotaError",
    "Unauthorised",
    "Unreachable",
]


def __getattr__(name: str) -> Any:
    if name == "Client":
        from rota.client.sync import Client

        return Client
    if name == "AsyncClient":
        from rota.client.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
