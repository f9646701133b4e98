"""Bring a database to the newest revision."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection


def migrate(connection: Connection, revision: str = "head") -> None:
    """Inside the caller's transaction. Alembic is imported only here, since most starts have no work for it."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    # Alembic's settings are a ConfigParser's, to which % is special
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
