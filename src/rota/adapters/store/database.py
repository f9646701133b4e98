"""What the store needs from a database engine, beyond SQL: how to connect, and what its errors mean."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from rota.app.ports import StoreBusy, StoreError


class Lost(StoreBusy):
    """The connection is gone; whether a commit under way was made is not known yet."""


class Database(Protocol):
    @property
    def readers(self) -> Engine:
        """Connections that only read, for any thread."""

    def connect_writer(self) -> Connection:
        """The one connection that writes. Raises StoreBusy when another server holds the database."""

    def reconnect_writer(self) -> Connection:
        """After Lost. Raises Fenced when another server has taken the database meanwhile."""

    def translate(self, error: SQLAlchemyError) -> StoreError: ...

    def close(self) -> None: ...
