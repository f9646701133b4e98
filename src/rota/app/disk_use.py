"""What each person's runs take on the disk beside the ledger: metrics, checkpoints. Measured by blocks used.

The server does not write checkpoints, jobs do, so their size can only be looked at; what is over the quota is refused
the next time. Nothing is deleted for a quota: retention alone removes files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Protocol

from rota.app.authz import Principal, Role
from rota.app.budget import amount
from rota.app.errors import Full

EVERY_S = 300.0  # between two measurements


class Files(Protocol):
    """Files that belong to runs."""

    def sizes(self) -> Iterable[tuple[str, int | None]]:
        """Return each run that has files, with the bytes of the blocks they use; None = not measured this time."""


class DiskUse:
    """`most`: bytes a person may use; 0 = no bound. `what` and `frees` are words for the refusal."""

    def __init__(
        self, files: Files, owner_of: Callable[[str], str | None], most: int, *, what: str, frees: str
    ) -> None:
        self._files, self._owner_of = files, owner_of
        self.most, self._what, self._frees = most, what, frees
        self._lock = Lock()
        self._runs: dict[str, tuple[str, int]] = {}  # run -> (its person, bytes)
        self._totals: Counter[str] = Counter()
        self._nobodys: set[str] = set()  # runs with files that the store does not know (any more)

    def of(self, person: str) -> int:
        return self._totals[person]

    def must_fit(self, who: Principal, person: str) -> None:
        """Refuse to add to what is over the quota already."""
        used = self.of(person)
        if self.most and used >= self.most and who.role is not Role.ADMIN:
            raise Full(
                f"{person}'s {self._what} take {amount(used)} on the disk, the limit is {amount(self.most)} a person; "
                f"{self._frees}, or ask an admin"
            )

    def note(self, run_id: str, person: str, size: int) -> None:
        with self._lock:
            self._put(run_id, person, size)

    def measure(self) -> None:
        """Look at all of it. Slow: not for the loop's thread."""
        if not self.most:
            return
        with self._lock:
            before = set(self._runs)  # one that begins to write during the walk may not be seen by it
        seen = set()
        for run_id, size in self._files.sizes():
            seen.add(run_id)
            person = self._person(run_id)
            if person is not None and size is not None:
                self.note(run_id, person, size)
        self._nobodys &= seen
        with self._lock:
            for run_id in (before - seen) & self._runs.keys():
                self._put(run_id, self._runs[run_id][0], 0)

    def _person(self, run_id: str) -> str | None:
        known = self._runs.get(run_id)
        if known is not None or run_id in self._nobodys:
            return None if known is None else known[0]
        person = self._owner_of(run_id)
        if person is None:
            self._nobodys.add(run_id)
        return person

    def _put(self, run_id: str, person: str, size: int) -> None:
        _, before = self._runs.pop(run_id, (person, 0))
        self._totals[person] += size - before
        if size:
            self._runs[run_id] = (person, size)
        if not self._totals[person]:
            del self._totals[person]
