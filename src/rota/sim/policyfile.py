"""read_policy: a policy by its name, or a TOML file with `base = "easy"` and whatever it sets differently, in the words
of `rota policy`. What has no word there has the name of its field."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from rota.core.conform import misfit
from rota.core.knobs import FIELDS
from rota.core.policy import Limits, Policy, problems
from rota.core.presets import NAMES, named

MAX_BYTES = 1 << 20


class BadPolicy(ValueError):
    """The message names the file, the key, what is wrong and what would be right."""


def read_policy(text: str) -> tuple[str, Policy]:
    """(what to call it, the policy). A file is called by its name without the ending."""
    if text in NAMES:
        return text, named(text)
    path = Path(text)
    if path.suffix.lower() != ".toml":
        raise BadPolicy(f"{text}: no such policy; use one of {', '.join(NAMES)}, or a FILE.toml")
    table = _table(path)
    base = table.pop("base", "auto")
    if base not in NAMES:
        raise BadPolicy(f"{path}: base: {base!r} is no policy; use one of {', '.join(NAMES)}")
    hints = get_type_hints(Policy)
    changes: dict[str, Any] = {}
    keys: dict[str, str] = {}  # as they are written, by the name of the field
    for key, value in table.items():
        name = FIELDS.get(key, key)
        if name not in hints:
            raise BadPolicy(f"{path}: {key}: unknown key; use base, {', '.join(_words(hints))}")
        if name in keys:
            raise BadPolicy(f"{path}: {key}: is the same as {keys[name]}; write one of the two")
        keys[name] = key
        changes[name] = _read(path, key, value, hints[name])
    policy = dataclasses.replace(named(base), **changes)
    for problem in problems(policy):
        name, _, wrong = problem.partition(": ")
        raise BadPolicy(f"{path}: {keys.get(name, name)}: {wrong}")
    return path.stem, policy


def _words(names: Iterable[str]) -> list[str]:
    return [*FIELDS, *(name for name in names if name not in FIELDS.values())]


def _table(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise BadPolicy(f"{path}: is larger than {MAX_BYTES} bytes: that is no policy")
        return tomllib.loads(text.decode())
    except OSError as error:
        raise BadPolicy(f"{path}: cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPolicy(f"{path}: is not TOML: {error}") from None


def _read(path: Path, key: str, value: Any, hint: Any) -> Any:
    if key == "limits":
        return _limits(path, key, value)
    if key == "user_limits":
        if not isinstance(value, Mapping):
            raise BadPolicy(f"{path}: {key}: is not a table; write [user_limits.ann]")
        return {user: _limits(path, f"{key}.{user}", one) for user, one in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        words = [str(one.value) for one in hint]
        if value not in words:
            raise BadPolicy(f"{path}: {key}: {value!r} is wrong, use one of {', '.join(words)}")
        return hint(value)
    wrong = misfit(value, hint)
    if wrong:
        raise BadPolicy(f"{path}: {key}: {wrong}")
    return float(value) if hint is float else value


def _limits(path: Path, key: str, value: Any) -> Limits:
    known = [field.name for field in dataclasses.fields(Limits)]
    if not isinstance(value, Mapping):
        raise BadPolicy(f"{path}: {key}: is not a table; write [{key}] with {', '.join(known)}")
    for name, number in value.items():
        if name not in known:
            raise BadPolicy(f"{path}: {key}.{name}: unknown key; use {', '.join(known)}")
        if type(number) is not int:
            raise BadPolicy(f"{path}: {key}.{name}: {number!r} is not a whole number")
    return Limits(**value)
