"""What a caller gave, looked at before it is sent: a wrong kind of thing is named here, not found out deep inside.

The server judges values. Here stands only what could not even be sent, or would be sent as something else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any


def text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    inside = getattr(value, "id", None)
    hint = f"; give its id: {inside}" if isinstance(inside, str) else ""
    raise TypeError(f"{name} must be a str, not {_kind(value)}{hint}")


def path(name: str, value: object) -> str:
    if isinstance(value, str | os.PathLike) and isinstance(found := os.fspath(value), str):
        return found
    raise TypeError(f"{name} must be a str or a path, not {_kind(value)}")


def words(name: str, value: object) -> list[str]:
    """Of a command. A path is a word as well."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
        raise TypeError(f"{name} must be a list of words, not {_kind(value)}")
    return [path(f"{name}[{place}]", word) for place, word in enumerate(value)]


def command(value: object) -> tuple[str, list[str]]:
    """A line for the shell, or the words of a command; the other one is empty."""
    if isinstance(value, str):
        return value, []
    if not isinstance(value, Sequence) or isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"command must be a str, for the shell, or a list of words, not {_kind(value)}")
    return "", words("command", value)


def variables(value: object) -> dict[str, str]:
    """Of an environment. A number is written out, since it can mean but one thing."""
    found = {}
    for name, held in mapping("env", value).items():
        found[text("a name in env", name)] = (
            str(held) if isinstance(held, int | float) else path(f"env[{name!r}]", held)
        )
    return found


def mapping(name: str, value: object) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {_kind(value)}")
    return value


def number(name: str, value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    hint = "; give its timestamp()" if hasattr(value, "timestamp") else ""
    raise TypeError(f"{name} must be a number of seconds, not {_kind(value)}{hint}")


def gpus(value: int | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Asked for in short, or in the server's own word."""
    if value is None:
        return {}
    if more.get("gpu_count") is not None:
        raise TypeError("gpus and gpu_count mean the same; give one of them")
    return {"gpu_count": value}


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
