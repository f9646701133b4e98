"""How many bytes the specs of each person's live runs take, and of how many shapes they are: what budgets are measured
against. A shape (a request for GPUs, CPUs and memory) costs every pass of the scheduler its time, whoever's it is.

An environment that several runs of one person share is counted once, because it is kept once, in memory and in the
store. "The same" means the same object: `submit` gives equal environments one object, and so does the reader of rows.
The key of an environment is its id, which stays valid for as long as a live run holds the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii

from rota.core.resources import Request
from rota.core.run import Run, Spec

# What a row takes besides the texts of its spec; a run is never free, however short its command.
ROW_BYTES = 64
# What a word of a command line, and each half of a pair, takes in memory besides its text: a string has a head of 50
# bytes, and a place in its tuple or dict. Ten thousand words of three letters take 600 KB, not 30.
WORD_BYTES = 60


class Weights:
    __slots__ = ("_envs", "_shapes", "by_user", "shapes_by_user")

    def __init__(self) -> None:
        self.by_user: dict[str, int] = {}
        self._envs: dict[tuple[str, int], int] = {}  # (user, id of the environment) -> live runs that hold it
        self.shapes_by_user: dict[str, int] = {}
        self._shapes: dict[tuple[str, Request], int] = {}  # -> live runs of it

    def of(self, user: str) -> int:
        return self.by_user.get(user, 0)

    def has_shape(self, user: str, request: Request) -> bool:
        return (user, request) in self._shapes

    def added_by(self, user: str, spec: Spec) -> int:
        """Return the bytes that this spec would add."""
        shared = not spec.env or (user, id(spec.env)) in self._envs
        return own_bytes(spec) if shared else own_bytes(spec) + pairs_bytes(spec.env)

    def add(self, user: str, spec: Spec) -> None:
        size = self.added_by(user, spec)
        if spec.env:
            key = (user, id(spec.env))
            self._envs[key] = self._envs.get(key, 0) + 1
        self.by_user[user] = self.by_user.get(user, 0) + size
        self._add_shape(user, spec.request, 1)

    def add_all(self, runs: Iterable[Run]) -> None:
        """Add many at once, in less time than one by one."""
        sizes, envs = self.by_user, self._envs
        shapes: dict[tuple[str, int], tuple[Request, int]] = {}  # by identity first: a hash of a request takes long
        for run in runs:
            user, spec = run.user, run.spec
            size = own_bytes(spec)
            if spec.env:
                key = (user, id(spec.env))
                held = envs.get(key, 0)
                envs[key] = held + 1
                if not held:
                    size += pairs_bytes(spec.env)
            sizes[user] = sizes.get(user, 0) + size
            request = spec.request
            _, count = shapes.get((user, id(request)), (request, 0))
            shapes[user, id(request)] = (request, count + 1)
        for (user, _), (request, count) in shapes.items():
            self._add_shape(user, request, count)

    def drop(self, user: str, spec: Spec) -> None:
        size = own_bytes(spec)
        if spec.env:
            key = (user, id(spec.env))
            self._envs[key] -= 1
            if not self._envs[key]:
                del self._envs[key]
                size += pairs_bytes(spec.env)
        self.by_user[user] -= size
        if not self.by_user[user]:
            del self.by_user[user]
        shape = (user, spec.request)
        self._shapes[shape] -= 1
        if not self._shapes[shape]:
            del self._shapes[shape]
            self.shapes_by_user[user] -= 1
            if not self.shapes_by_user[user]:
                del self.shapes_by_user[user]

    def _add_shape(self, user: str, request: Request, runs: int) -> None:
        held = self._shapes.get((user, request), 0)
        self._shapes[user, request] = held + runs
        if not held:
            self.shapes_by_user[user] = self.shapes_by_user.get(user, 0) + 1

    def copy(self) -> Weights:
        twin = Weights()
        twin.by_user, twin._envs = dict(self.by_user), dict(self._envs)
        twin.shapes_by_user, twin._shapes = dict(self.shapes_by_user), dict(self._shapes)
        return twin


def own_bytes(spec: Spec) -> int:
    """The bytes of a spec without its environment, about as it lies in memory."""
    size = ROW_BYTES + WORD_BYTES * len(spec.argv) + text_bytes("".join((spec.name, spec.workdir, *spec.argv)))
    if spec.replaced is not None:
        size += text_bytes(spec.replaced.command + spec.replaced.workdir)
    return size + pairs_bytes(spec.labels) if spec.labels else size


def pairs_bytes(pairs: Mapping[str, str]) -> int:
    return 2 * WORD_BYTES * len(pairs) + text_bytes("".join((*pairs, *pairs.values())))


def text_bytes(text: str) -> int:
    """The length of a text in ASCII JSON, where a character outside ASCII or without a picture takes six bytes."""
    return len(text) if text.isascii() and text.isprintable() else len(encode_basestring_ascii(text))
