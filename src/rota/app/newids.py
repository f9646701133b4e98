"""Names for new runs."""

from __future__ import annotations

from threading import Lock

PER_SECOND = 1 << 16
AHEAD_S = 3600.0  # an id further in the future was not given by a clock
_LAST = (1 << 48) - 1


class NewIds:
    """12 hex digits that grow from run to run: the house's time in 65,536ths of a second, or the next after the last.

    Growing, since the store keeps indexes of them. By chance, every new run would land on another page of each, and a
    commit would write the more of them the longer the history is. And by the time rather than by counting on from the
    store: after an old copy of the store was put back, nothing that was forgotten with it may be taken for a new run's.
    """

    def __init__(self) -> None:
        self._lock = Lock()  # dry runs name runs, too, in threads of their own
        self._given = 0

    def go_on_from(self, newest: str, now: float) -> None:
        """After the newest id in the store. Many runs at once get a little ahead of the time."""
        number = int(newest, 16)
        if number <= (now + AHEAD_S) * PER_SECOND:
            self._given = max(self._given, number)

    def __call__(self, now: float) -> str:
        with self._lock:
            given = self._given = max(self._given + 1, int(now * PER_SECOND))
        return f"{given & _LAST:012x}"
