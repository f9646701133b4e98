"""Which server goes with a data directory, for commands that can also do without one."""

from __future__ import annotations

import os
from pathlib import Path

from rota.cli.connect import connect
from rota.client.address import DEFAULT_URL, SYSTEM, find_url
from rota.client.errors import RotaError


def server_of(server: str, data_dir: Path) -> str:
    """The URL to ask; "" = no server runs on this directory, so it may be opened. A server that was named is asked,
    else the one on this directory's socket; the default address only by somebody who has named no directory and has
    none of their own: a stranger's server must not answer for it."""
    url, where = find_url()
    if server or where.isupper():
        return server or url
    root = data_dir.expanduser()
    socket = f"unix://{root.absolute()}/rota.sock"
    if (root / "rota.sock").is_socket() and _answers(socket):
        return socket
    if (root / "rota.db").exists() or _named(data_dir):
        return ""
    likely = url if where == SYSTEM else DEFAULT_URL
    return likely if _answers(likely) else ""


def _named(data_dir: Path) -> bool:
    from rota.config import default_data_dir

    return data_dir != default_data_dir({name: value for name, value in os.environ.items() if name != "ROTA_DATA_DIR"})


def _answers(url: str) -> bool:
    try:
        with connect(url, tries=1, connect_s=0.5, answer_s=2.0) as client:
            client.health()
    except RotaError:
        return False
    return True
