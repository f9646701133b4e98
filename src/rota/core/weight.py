"""How many bytes the specs of each person's live runs take: what a byte budget is measured against.

An environment that several runs of one person share is counted once, because it is kept once, in memory and in the
store. "The same" means the same object: `submit` gives equal environments one object, and so does the reader of rows.
The key of an environment is its id, which stays valid for as long as a live run holds the object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json.encoder import encode_basestring_ascii

from rota.core.run import Run, Spec

# What a row takes besides the texts of its spec; a run is never free, however short its command.
ROW_BYTES = 64


class Weights:
    __slots__ = ("_envs", "by_user")

    def __init__(self) -> None:
        self.by_user: dict[str, int] = {}
        self._envs: dict[tuple[str, int], int] = {}  # (user, id of the environment) -> live runs that hold it

    def of(self, user: str) -> int:
        return self.by_user.get(user, 0)

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

    def add_all(self, runs: Iterable[Run]) -> None:
        """Add many at once, in less time than one by one."""
        sizes, envs = self.by_user, self._envs
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

    def copy(self) -> Weights:
        twin = Weights()
        twin.by_user, twin._envs = dict(self.by_user), dict(self._envs)
        return twin


def own_bytes(spec: Spec) -> int:
    """The bytes of a spec without its environment, about as the store writes them."""
    size = ROW_BYTES + text_bytes("".join((spec.name, spec.workdir, *spec.argv)))
    return size + pairs_bytes(spec.labels) if spec.labels else size


def pairs_bytes(pairs: Mapping[str, str]) -> int:
    return text_bytes("".join((*pairs, *pairs.values())))


def text_bytes(text: str) -> int:
    """The length of a text in ASCII JSON, where a character outside ASCII or without a picture takes six bytes."""
    return len(text) if text.isascii() and text.isprintable() else len(encode_basestring_ascii(text))
