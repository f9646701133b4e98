"""Settings of a server. A flag wins over ROTA_DATA_DIR, the one variable that is read so far."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


def default_data_dir(env: Mapping[str, str] | None = None) -> Path:
    env = os.environ if env is None else env
    if env.get("ROTA_DATA_DIR"):
        return Path(env["ROTA_DATA_DIR"])
    base = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/var/lib") / ".local" / "share"
    return Path(base) / "rota"


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path
    database_url: str = ""  # "" = SQLite in the data directory
    simulated: tuple[int, int] | None = None  # nodes x GPUs; None = real GPUs, or 2 x 8 simulated where there are none
    probe_every_s: float = 10.0
    tidy_every_s: float = 6 * 3600.0
