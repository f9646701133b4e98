"""One object for equal environments: runs submitted from one shell carry the same hundred variables.

A waiting run keeps its environment in memory. A hundred variables are about 15 KiB as a dictionary of their own;
shared, they cost a pointer. Objects are found again by their content, the most recent ones only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

REMEMBERED = 64  # of up to 256 KiB each: 16 MiB at most


class SharedEnvs:
    def __init__(self) -> None:
        self._known: OrderedDict[frozenset[tuple[str, str]], Mapping[str, str]] = OrderedDict()
        self._last: Mapping[str, str] | None = None  # a sweep asks for the same object thousands of times
        self._sound: dict[int, Mapping[str, str]] = {}  # by id, of those known: no name or value in it is wrong

    def share(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """Return an equal environment that other runs hold already, or this one."""
        if not env or env is self._last:
            return env
        content = frozenset(env.items())
        known = self._known.setdefault(content, env)
        # equal dictionaries may be ordered differently, and what a run was given is shown in its order
        if known is not env and list(known) != list(env):
            self._sound.pop(id(known), None)
            known = self._known[content] = env
        self._known.move_to_end(content)
        if len(self._known) > REMEMBERED:
            self._sound.pop(id(self._known.popitem(last=False)[1]), None)
        self._last = known
        return known

    def is_sound(self, env: Mapping[str, str]) -> bool:
        """Return whether this very environment was found to be right before: it need not be looked through again."""
        return self._sound.get(id(env)) is env

    def mark_sound(self, env: Mapping[str, str]) -> None:
        if env is self._last:
            self._sound[id(env)] = env
