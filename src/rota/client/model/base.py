"""From a JSON object to a frozen value. What a newer server adds is kept in `raw`, what an older one lacks defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

M = TypeVar("M")

_KINDS: dict[str, Any] = {"str": str, "bool": bool, "int": int, "float": (int, float), "Any": object}


class Wire:
    """What every value has besides its fields."""

    __slots__ = ()
    raw: Mapping[str, Any]

    @property
    def extra(self) -> dict[str, Any]:
        """What the server said beyond the fields this client knows."""
        known: Any = getattr(type(self), "__dataclass_fields__", {})
        return {name: value for name, value in self.raw.items() if name not in known}


def build(kind: type[M], data: Any, **given: Any) -> M:
    """A value from the fields it knows. `given` are fields that were decoded already."""
    table(data)
    make: Any = kind
    fields: Any = getattr(kind, "__dataclass_fields__", {})
    values = dict(given)
    for name, field in fields.items():
        if name in data and name not in values and name != "raw" and fits(field.type, data[name], name):
            values[name] = data[name]
    made: M = make(raw=data, **values)
    return made


def fits(wanted: str, value: Any, name: str) -> bool:
    """False: leave it at its default (null where none is foreseen, or a field that is decoded by hand)."""
    plain = wanted.removesuffix(" | None")
    if plain not in _KINDS:
        return False
    if value is None:
        return plain != wanted
    if not isinstance(value, _KINDS[plain]) or (isinstance(value, bool) and plain in ("int", "float")):
        raise TypeError(f"{name} should be {wanted}, not {type(value).__name__}")
    return True


def table(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, not {type(data).__name__}")
    return data


def rows(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(f"expected a list, not {type(data).__name__}")
    return data


def words(data: Any) -> tuple[str, ...]:
    """A list of texts; numbers as they are written."""
    return tuple(str(item) for item in rows(data)) if data else ()
