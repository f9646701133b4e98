"""Whose database is it? A shared one belongs to the data directory that holds its attempts and logs.

A server that opened the database from another directory would find none of the attempts there: it would call running
work lost and start it a second time. So both carry the same random name, and a stranger is refused while anything is
active. Looked at once, when a server opens.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from pathlib import Path

from sqlalchemy import Connection, func, select

from rota.adapters.store import rows
from rota.adapters.store import schema as s
from rota.adapters.store.store import SqlStore
from rota.app.ports import StoreUnusable
from rota.core.run import ACTIVE

FILE = "house-id"
KEY = "house"  # of the settings row


def bind_house(store: SqlStore, data_dir: Path) -> None:
    """After opening both, before anything is done with them. Raises StoreUnusable."""
    mine = _house_id(data_dir)
    here = f"{socket.gethostname()}:{data_dir}"
    with store.transaction() as connection:
        row = connection.execute(select(s.settings).where(s.settings.c.key == KEY)).one_or_none()
        bound = {} if row is None else rows.loads(row.body)
        if bound.get("id") == mine and bound.get("place") == here:
            return
        active = _active(connection)
        if bound and bound.get("id") != mine and active:
            raise StoreUnusable(
                f"this database belongs to the data directory {bound.get('place')}, not to {here}, and {active} runs "
                "are active there; use that directory, or end those runs with its server first"
            )
        body = rows.dumps({"id": mine, "place": here})
        connection.exec_driver_sql(store.upsert_setting, (KEY, body, rows.checksum(KEY, body)))


def _active(connection: Connection) -> int:
    states = sorted(map(str, ACTIVE))
    active = select(func.count()).select_from(s.runs).where(s.runs.c.live == 1, s.runs.c.state.in_(states))
    return int(connection.execute(active).scalar_one())


def _house_id(data_dir: Path) -> str:
    """Made once, under the directory's lock; complete or not there."""
    path = data_dir / FILE
    try:
        known = path.read_text("ascii").strip()
    except FileNotFoundError:
        known = secrets.token_hex(16)
        new = data_dir / f"{FILE}.new"
        with new.open("w", encoding="ascii") as file:
            file.write(f"{known}\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        return known
    except (OSError, UnicodeDecodeError) as error:
        raise StoreUnusable(f"cannot read {path}: {error}") from error
    if not re.fullmatch(r"[0-9a-f]{32}", known):
        raise StoreUnusable(
            f"{path} does not hold the name of a house; restore it, or remove it while no run is active"
        )
    return known
