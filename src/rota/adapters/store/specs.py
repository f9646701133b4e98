"""Specs from their texts, thousands in one go.

What differs from run to run is mostly the name and the command, which stand first in the text of a spec. What follows
is alike for all cells of a sweep and for all that a person submits from one directory: equal texts are decoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any

from rota.adapters.store.envs import EnvReader
from rota.adapters.store.rows import UNREADABLE, Damaged, loads
from rota.core import codec
from rota.core.run import Spec

# The name and the command hold no object, so that this cannot be a part of either: a quote in a text is escaped.
_REST = ',"workdir":'
_FIELDS = [field.name for field in fields(Spec)]
if _FIELDS[:3] != ["name", "argv", "workdir"]:  # the codec writes fields in their order
    raise TypeError("specs.py expects the texts of specs to begin otherwise")
_rest_of = attrgetter(*_FIELDS[2:])
_make_specs = codec.bulk_maker(Spec)
# Texts that a reader remembers; where there are more, hardly two are alike.
MOST_KEPT = 10_000


class SpecReader:
    def __init__(self, envs: EnvReader) -> None:
        self._envs = envs
        # the rest of a text and what the row says of the environment -> the values of the fields after name and command
        self._rests: dict[tuple[str, str], tuple[Any, ...]] = {}

    def read_many(self, run_ids: Sequence[str], texts: Sequence[str], envs: Sequence[str]) -> list[Spec]:
        """`envs`: what the rows say of the environments."""
        parts = [text.partition(_REST) for text in texts]
        firsts = loads_many([f"{first}}}" for first, _, _ in parts], run_ids, "spec")
        keys = list(zip([rest for _, _, rest in parts], envs, strict=True))
        self._read_rests(keys, run_ids)
        rests, values = self._rests, []
        for first, key, run_id in zip(firsts, keys, run_ids, strict=True):
            try:
                values.append((first["name"], tuple(first["argv"]), *rests[key]))
            except UNREADABLE as error:
                raise _unreadable(run_id, error) from error
        return _make_specs(values)

    def _read_rests(self, keys: Sequence[tuple[str, str]], run_ids: Sequence[str]) -> None:
        if len(self._rests) > MOST_KEPT:
            self._rests.clear()
        unknown = {key: run_id for key, run_id in zip(keys, run_ids, strict=True) if key not in self._rests}
        self._envs.fetch({env for _, env in unknown})
        texts = [f'{{"name":"","argv":[]{_REST}{rest}' for rest, _ in unknown]
        for (key, run_id), body in zip(unknown.items(), loads_many(texts, [*unknown.values()], "spec"), strict=True):
            try:
                if key[1] != "{}":
                    body["env"] = self._envs.of(key[1])
                self._rests[key] = _rest_of(codec.decode(Spec, body))
            except UNREADABLE as error:
                raise _unreadable(run_id, error) from error


def _unreadable(run_id: str, error: Exception) -> Damaged:
    return Damaged("runs", run_id, f"its spec cannot be read: {error!r}")


def loads_many(texts: Sequence[str], run_ids: Sequence[str], what: str) -> list[Any]:
    """Decode JSON texts of runs, joined: so the decoder is called once and knows its keys."""
    try:
        together: list[Any] = loads(f"[{','.join(texts)}]")
        if len(together) == len(texts):
            return together
    except ValueError:
        pass
    for text, run_id in zip(texts, run_ids, strict=True):  # which of them?
        try:
            loads(text)
        except ValueError as error:
            raise Damaged("runs", run_id, f"its {what} cannot be read: {error!r}") from error
    raise Damaged("runs", "; ".join(run_ids[:3]), f"their {what} cannot be read together")
