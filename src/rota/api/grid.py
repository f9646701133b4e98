"""A sweep's grid: every combination of its parameters, one after another, as many as are wanted and no more."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from itertools import islice, product
from typing import Any

from rota.app.errors import Invalid

KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/@+-]{0,199}")  # nothing that means something to a shell
MOST_KEYS = 100
Scalar = str | int | float | bool | None


def cells(parameters: Mapping[str, Any], most: int) -> list[dict[str, Scalar]]:
    """In the order of the keys, the last one changing fastest. The product itself is never built."""
    _must_be_few(parameters)
    choices = [_choices(key, value) for key, value in parameters.items()]
    return [dict(zip(parameters, values, strict=True)) for values in islice(product(*choices), most)]


def weigh(parameters: Mapping[str, Any], most: int) -> tuple[int, int]:
    """Return how many cells there will be, and the bytes of all their options, in the command line and in a label each.
    No cell is built for it."""
    _must_be_few(parameters)
    lengths = [
        [2 * (len(key) + len(str(one)) + 4) for one in _choices(key, value)] for key, value in parameters.items()
    ]
    count = min(most, math.prod(map(len, lengths)))
    return count, sum(map(sum, islice(product(*lengths), most)))


def size(parameters: Mapping[str, Any]) -> int:
    """How many combinations there are in all."""
    return math.prod(len(value) if isinstance(value, list) else 1 for value in parameters.values())


def command_for(base: str, cell: Mapping[str, Scalar]) -> str:
    """Values are quoted, so that none of them can be more than a value."""
    return base + "".join(f" --{key}={shlex.quote(str(value))}" for key, value in cell.items())


def _must_be_few(parameters: Mapping[str, Any]) -> None:
    if len(parameters) > MOST_KEYS:
        raise Invalid(f"parameters: {len(parameters)} are too many, use at most {MOST_KEYS}", "parameters")


def _choices(key: str, value: Any) -> list[Scalar]:
    if not KEY.fullmatch(key):
        raise Invalid(f"parameters: {key[:100]!r} can not be the name of an option", "parameters")
    found = value if isinstance(value, list) else [value]
    if not found:
        raise Invalid(f"parameters: {key}: is an empty list; give at least one value", "parameters")
    for one in found:
        if not (one is None or isinstance(one, str | int | float)):
            raise Invalid(f"parameters: {key}: holds a {type(one).__name__}; use numbers and texts", "parameters")
        if isinstance(one, float) and not math.isfinite(one):
            raise Invalid(f"parameters: {key}: {one} is not a finite number", "parameters")
    return found
