"""Names for new runs."""

from __future__ import annotations

from collections.abc import Callable

PER_SECOND = 1 << 16
_LAST = (1 << 48) - 1


class NewIds:
    """12 hex digits that grow from run to run: the time, in 65,536ths of a second, or the next after the last one.

    Growing, since the store keeps indexes of them. By chance, every new run would land on another page of each, and a
    commit would write the more of them the longer the history is."""

    def __init__(self, now: Callable[[], float], newest: str | None) -> None:
        """`newest` is the last one given by the servers before: a clock that was set back must not give it again."""
        self._now = now
        self._given = int(newest, 16) if newest else 0

    def __call__(self) -> str:
        self._given = max(self._given + 1, int(self._now() * PER_SECOND)) & _LAST
        return f"{self._given:012x}"
