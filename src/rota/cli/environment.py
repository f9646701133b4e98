"""What of the caller's surroundings goes along with a run: variables, directory, umask."""

from __future__ import annotations

import os

from rota.client.environment import SECRETS, exported

__all__ = ["SECRETS", "directory", "exported", "mask"]


def directory(chdir: str | None = None) -> str:
    """Where the run is to start. FileNotFoundError where this directory is no more."""
    return os.path.abspath(chdir) if chdir else os.getcwd()


def mask() -> int:
    """This process's umask, which can only be read by setting it."""
    held = os.umask(0o077)
    os.umask(held)
    return held
