"""Is a value what its type hints say? For what comes from people's own Python, where nothing else has checked it."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

Check = Callable[[Any], str]  # "" = fits, else "field: what is wrong"
_CHECKS: dict[Any, Check] = {}
# exactly these types fit these hints: no further look, since every submit comes by here
_PLAIN: Mapping[Any, tuple[type, ...]] = {str: (str,), int: (int,), bool: (bool,), float: (int, float)}


def misfit(value: Any, hint: Any) -> str:
    """'' when it fits, else which field is wrong and what would be right."""
    check = _CHECKS.get(hint)
    if check is None:
        check = _CHECKS[hint] = _make(hint)
    return check(value)


def _make(hint: Any) -> Check:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = next(arg for arg in args if arg is not type(None))
        return lambda value: "" if value is None else misfit(value, inner)
    if origin is tuple:
        return lambda value: _each("a tuple", value, args[0]) if type(value) is tuple else _wrong("a tuple", value)
    if origin is not None and issubclass(origin, Mapping):
        return lambda value: (
            _each("a mapping", [*value.keys(), *value.values()], args[1])
            if isinstance(value, Mapping)
            else _wrong("a mapping", value)
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _make_class(hint)
    if hint is float:
        return lambda value: "" if type(value) in (int, float) else _wrong("a number", value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: "" if isinstance(value, hint) else _wrong(f"a {hint.__name__}", value)
    return lambda value: "" if type(value) is hint else _wrong(f"of type {hint.__name__}", value)


def _make_class(cls: type) -> Check:
    hints = get_type_hints(cls)
    # a field that still holds its default needs no look: most fields of most values do, and every submit comes by here
    fields = [(f.name, hints[f.name], f.default, _PLAIN.get(hints[f.name], ())) for f in dataclasses.fields(cls)]

    def check(value: Any) -> str:
        if not isinstance(value, cls):
            return _wrong(f"a {cls.__name__}", value)
        for name, hint, default, plain in fields:
            found = getattr(value, name)
            if found is default or type(found) in plain:
                continue
            problem = misfit(found, hint)
            if problem:
                return f"{name}: {problem}"
        return ""

    return check


def _each(what: str, values: Any, hint: Any) -> str:
    if set(map(type, values)) <= {*_PLAIN.get(hint, ())}:
        return ""
    for value in values:
        problem = misfit(value, hint)
        if problem:
            return f"{what} with something in it that {problem}"
    return ""


def _wrong(right: str, value: Any) -> str:
    return f"is not {right} but {type(value).__name__} ({str(value)[:50]!r})"
