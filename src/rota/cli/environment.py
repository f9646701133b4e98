"""What of the caller's surroundings goes along with a run: variables, directory, umask."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from rota.client.environment import SECRETS, exported

__all__ = ["SECRETS", "directory", "exported", "mask", "unset"]


def directory(chdir: str | None = None) -> str:
    """Where the run is to start. FileNotFoundError where this directory is no more."""
    return os.path.abspath(chdir) if chdir else os.getcwd()


def unset(text: str, env: Mapping[str, str], pairs: Sequence[str] = ()) -> list[str]:
    """The names that --export and -e take from the caller's variables, where there is no such variable."""
    items = re.sub(r"'[^']*'?|\"[^\"]*\"?", "=", text).split(",")  # what is quoted is part of a value
    names = [item for item in (*items, *pairs) if item and "=" not in item]
    return [name for name in dict.fromkeys(names) if name not in env and name.upper() not in ("ALL", "NONE", "NIL")]


def mask() -> int:
    """This process's umask, which can only be read by setting it."""
    held = os.umask(0o077)
    os.umask(held)
    return held
