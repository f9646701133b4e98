"""Environments of runs, each text stored once: a row or an event refers to it by the hash of its content.

A hundred variables are 6 KiB, and all cells of a sweep, and all runs submitted from one shell, have the same. Short
texts stay where they are used. A reference is "=" and the hash; an environment in place is JSON and begins with "{".

`seq` says how long a text is needed by the log: it is at most SLACK events before the last event that refers to the
text. It is moved only when it lags behind by that much, since moving it rewrites the text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sqlalchemy import Connection, delete, exists, func, literal_column, select

from rota.adapters.store import schema as s
from rota.adapters.store.rows import Damaged, checksum, dumps, loads

SHORT = 200  # characters; a longer environment is stored apart
SLACK = 10_000  # events
AT_ONCE = 500  # in one question: databases bound how many parameters it has
REMEMBERED = 64  # texts of environments written lately, of up to 1.5 MiB each
KEPT = 2_000  # environments that one reading keeps at hand
MARK = "="


class EnvTexts:
    """The texts of the environments written lately: runs that share one object share the work of encoding it."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Mapping[str, str], str, str]] = OrderedDict()

    def of(self, env: Mapping[str, str]) -> tuple[str, str]:
        """Return what a row says, and the text that must be in the table for it; "" = none."""
        if not env:
            return "{}", ""
        known = self._known.get(id(env))
        if known is None or known[0] is not env:  # the object is held here, so that its id stays its own
            known = self._known[id(env)] = (env, *_encoded(env))
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return known[1], known[2]


def _encoded(env: Mapping[str, str]) -> tuple[str, str]:
    text = dumps(dict(env))
    if len(text) <= SHORT:
        return text, ""
    return MARK + blake2b(text.encode("ascii"), digest_size=20).hexdigest(), text


def env_row(seq: int, reference: str, text: str) -> tuple[Any, ...]:
    """In the order of the table's columns."""
    return (reference, seq, text, checksum(reference, text))


class EnvReader:
    """Environments by what rows say, equal ones as one object. For one read transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, Mapping[str, str]] = {}

    def fetch(self, said: Iterable[str]) -> None:
        """Read many at once that will be asked for."""
        if len(self._known) > KEPT:  # hardly two are alike
            self._known.clear()
        wanted = [text for text in dict.fromkeys(said) if text.startswith(MARK) and text not in self._known]
        for at in range(0, len(wanted), AT_ONCE):
            query = select(s.envs.c.id, s.envs.c.body, s.envs.c.sum).where(s.envs.c.id.in_(wanted[at : at + AT_ONCE]))
            for reference, text, sum_ in self._connection.execute(query):
                if sum_ != checksum(reference, text):
                    raise Damaged("envs", reference, "is not what was written")
                self._known[reference] = loads(text)

    def of(self, said: str) -> Mapping[str, str]:
        env = self._known.get(said)
        if env is None:
            if said.startswith(MARK):
                self.fetch((said,))
                if said not in self._known:
                    raise Damaged("envs", said, "is missing")
            else:
                self._known[said] = loads(said)
            env = self._known[said]
        return env


class EnvSizes:
    """How many characters environments take, without reading them; one that several rows have is counted once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seen: set[str] = set()

    def of(self, said: Sequence[str]) -> list[int]:
        """Return what each of these adds, by what rows say. They are AT_ONCE at most."""
        wanted = {text for text in said if text.startswith(MARK) and text not in self._seen}
        sizes: dict[str, int] = {}
        if wanted:
            query = select(s.envs.c.id, func.length(s.envs.c.body)).where(s.envs.c.id.in_(wanted))
            sizes.update((reference, size) for reference, size in self._connection.execute(query))
            self._seen |= wanted
        return [sizes.pop(text, 0) if text.startswith(MARK) else len(text) for text in said]


def drop_unused(connection: Connection, oldest_event: int, most: int) -> int:
    """Remove texts that no run has and no event of the log refers to. Returns how many went."""
    used = exists(select(s.runs.c.seq).where(s.runs.c.env == s.envs.c.id, REFERS))
    unused = select(s.envs.c.id).where(s.envs.c.seq + SLACK < oldest_event, ~used).limit(most)
    return connection.execute(delete(s.envs).where(s.envs.c.id.in_(unused))).rowcount


REFERS = literal_column("substr(runs.env, 1, 1)") == literal_column("'='")
