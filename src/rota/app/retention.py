"""Old things go: events and ended runs out of the store, logs, metrics and checkpoints off the disk.

Bounded disks are a promise too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from threading import Thread

from rota.app.desk import Desk
from rota.app.loop import Loop
from rota.app.ports import Checkpoints, Samples, StoreError
from rota.app.records import PASSING

log = logging.getLogger(__name__)

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Retention:
    events_days: float = 90.0
    runs_days: float = 400.0
    logs_days: float = 30.0


class Tidying:
    def __init__(
        self, loop: Loop, keep: Retention, samples: Samples | None = None, checkpoints: Checkpoints | None = None
    ) -> None:
        self._loop, self._keep, self._samples, self._checkpoints = loop, keep, samples, checkpoints
        self._purge: Thread | None = None

    def round(self) -> int:
        """Compact the store between two turns of the loop, and what lies beside it. Returns the rows that went."""
        gone = _compact(self._loop, self._keep)
        if self._purge is not None and self._purge.is_alive():
            log.warning("old files are still being removed since the last round; no other removal is begun")
            return gone
        # files are dated by the wall clock, which may be another than the house's time
        self._purge = Thread(
            target=_purge,
            args=(self._loop, self._keep, self._samples, self._checkpoints),
            name="rota-purge",
            daemon=True,
        )
        self._purge.start()
        return gone


def _compact(loop: Loop, keep: Retention) -> int:
    now = loop.now()

    def compact(desk: Desk) -> int | None:
        if desk.events:
            return None  # others of this turn were before us, and the store does not have their events yet
        desk.kinds.clear()  # records may go
        return desk.store.compact(desk.state, now - keep.events_days * DAY_S, now - keep.runs_days * DAY_S, PASSING)

    gone = 0
    while (went := loop.call(compact).result()) != 0:  # the store takes a bounded bite at a time
        gone += went or 0
    return gone


def _purge(loop: Loop, keep: Retention, samples: Samples | None, checkpoints: Checkpoints | None) -> None:
    now = loop.clock.now()
    try:
        count = loop.backend.purge(now - keep.logs_days * DAY_S)
        log.info("removed the logs of %d old attempts", count)
        for name, files in (("metrics", samples), ("checkpoints", checkpoints)):
            if files is not None:
                count = files.purge(now - keep.runs_days * DAY_S, lambda run_id: loop.store.run(run_id) is None)
                log.info("removed the %s of %d runs that are gone", name, count)
    except (OSError, StoreError) as error:  # a full or failing disk: the next round tries again
        log.warning("old files could not be removed: %s", error)
