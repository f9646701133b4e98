"""Dataclasses to plain JSON values and back.

Fields at their default are left out: rows stay small, and a field added later reads back from old rows as its default.
Where a default has changed, the field says what it `was`: that is what a row means that lacks it, now as then. An
empty row was never set to anything, and follows the defaults.
A reader and a writer are compiled once per class, because a start of the server decodes every live run.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from itertools import starmap
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Convert = Callable[[Any], Any]
_WRITERS: dict[Any, Convert] = {}
_READERS: dict[Any, Convert] = {}
MOST_SHARED = 1000


def encode(value: Any) -> Any:
    return _writer(type(value))(value)


def decode(cls: type[T], data: Any) -> T:
    result: T = _reader(cls)(data)
    return result


def _same(value: Any) -> Any:
    return value


def _is_plain(hint: Any) -> bool:
    return hint in (int, float, str, bool, type(None)) or (isinstance(hint, type) and issubclass(hint, Enum))


def _is_scalar(hint: Any) -> bool:
    return hint in (int, float, str, bool)


def _writer(hint: Any) -> Convert:
    made = _WRITERS.get(hint)
    if made is None:
        made = _WRITERS[hint] = _make_writer(hint)
    return made


def _make_writer(hint: Any) -> Convert:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in args if arg is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"only X | None can be stored, not {hint}")
        write = _writer(inner[0])
        return _same if write is _same else lambda value: None if value is None else write(value)
    if origin is tuple:
        write = _writer(args[0])
        return list if write is _same else lambda value: [write(item) for item in value]
    if origin is not None and issubclass(origin, Mapping):
        write = _writer(args[1])
        return dict if write is _same else lambda value: {key: write(item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _class_writer(hint)
    if _is_plain(hint):
        return _same
    raise TypeError(f"{hint} cannot be stored")


WAS = "was"
_REQUIRED = object()


def _default(field: dataclasses.Field[Any]) -> Any:
    if WAS in field.metadata:
        return _REQUIRED  # always written: what is left out means what it was
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return _REQUIRED


def _class_writer(cls: type) -> Convert:
    hints = get_type_hints(cls)
    plan = [(f.name, _default(f), _writer(hints[f.name])) for f in dataclasses.fields(cls)]

    def write(value: Any) -> dict[str, Any]:
        out = {}
        for name, default, convert in plan:
            item = getattr(value, name)
            if default is _REQUIRED or item != default:
                out[name] = item if convert is _same else convert(item)
        return out

    return write


def _reader(hint: Any) -> Convert:
    made = _READERS.get(hint)
    if made is None:
        made = _READERS[hint] = _make_reader(hint)
    return made


def _make_reader(hint: Any) -> Convert:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        read = _reader(next(arg for arg in args if arg is not type(None)))
        return _same if read is _same else lambda data: None if data is None else read(data)
    if origin is tuple:
        read = _reader(args[0])
        return tuple if read is _same else lambda data: tuple([read(item) for item in data])
    if origin is not None and issubclass(origin, Mapping):
        read = _reader(args[1])
        return _same if read is _same else lambda data: {key: read(item) for key, item in data.items()}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _class_reader(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    return _same


def _class_reader(cls: type) -> Convert:
    hints = get_type_hints(cls)
    readers = {f.name: _reader(hints[f.name]) for f in dataclasses.fields(cls)}
    converting = {name: read for name, read in readers.items() if read is not _same}
    was = {f.name: f.metadata[WAS] for f in dataclasses.fields(cls) if WAS in f.metadata}
    make: Callable[[Mapping[str, Any]], Any] = maker(cls)

    def read(data: Any) -> Any:
        known = {**was, **data} if data else {}
        for name, convert in converting.items():
            if name in known:
                known[name] = convert(known[name])
        return make(known)

    params: Any = vars(cls)["__dataclass_params__"]
    return _shared(read) if params.frozen and all(_is_scalar(hint) for hint in hints.values()) else read


def _shared(read: Convert) -> Convert:
    """Return a reader that gives one object for equal values: it takes less memory, and a dictionary whose keys have it
    finds it by identity. Only for small immutable classes."""
    known: dict[Any, Any] = {}

    def read_shared(data: Any) -> Any:
        # the types as well: 1, 1.0 and True are equal, and are not written alike
        key = (*data.items(), *map(type, data.values()))
        found = known.get(key)
        if found is None:
            if len(known) >= MOST_SHARED:
                known.clear()
            found = known[key] = read(data)
        return found

    return read_shared


def maker(cls: type[T]) -> Callable[[Mapping[str, Any]], T]:
    """Return a constructor of `cls` from its fields by name; where `cls` has a twin, it takes a quarter of the time."""
    twin = _twin(cls)
    if twin is None:
        return lambda known: cls(**known)

    def make(known: Mapping[str, Any]) -> T:
        made: Any = twin(**known)
        made.__class__ = cls
        return made  # type: ignore[no-any-return]

    return make


def bulk_maker(cls: type[T]) -> Callable[[Iterable[Sequence[Any]]], list[T]]:
    """Return a constructor of many `cls`, each from the values of all its fields in their order."""
    twin = _twin(cls)
    if twin is None:
        return lambda many: list(starmap(cls, many))

    def make(many: Iterable[Sequence[Any]]) -> list[T]:
        made: list[Any] = list(starmap(twin, many))
        for one in made:
            one.__class__ = cls
        return made

    return make


def _twin(cls: type) -> type | None:
    """Return a class with the same fields in the same slots that is not frozen, or None where there can be none.

    The constructor of a frozen class sets each field through `object.__setattr__`. It is quicker to construct a twin
    and to declare it to be a `cls`."""
    if cls.__bases__ != (object,) or hasattr(cls, "__post_init__") or "__slots__" not in vars(cls):
        return None
    fields = [
        (f.name, f.type, dataclasses.field(default=f.default, default_factory=f.default_factory, kw_only=f.kw_only))
        for f in dataclasses.fields(cls)
    ]
    return dataclasses.make_dataclass(cls.__name__, fields, slots=True, eq=False, repr=False)
