"""What a person who waits for GPUs is told: where they stand, and when the server goes or comes back."""

from __future__ import annotations

import os
import time

from rota.cli.lease.door import Door
from rota.cli.progress import Progress
from rota.cli.render import in_time
from rota.client.errors import RotaError
from rota.client.wire import quote

SHORT_S = 2.0  # for a look that only informs
LOOK_EVERY_S = (1.0, 2.0, 5.0)  # seldom enough that a hundred waiters are no load


class Waiting:
    """The `Screen` of an acquire. On a terminal one line that is kept up to date; elsewhere it is said once."""

    def __init__(self, program: str, gpus: int) -> None:
        self._progress = Progress(program=program)
        self._what = f"{gpus} GPU{'' if gpus == 1 else 's'}"
        self._looks = 0
        self._next_look = 0.0

    def waiting(self, door: Door) -> None:
        now = time.monotonic()
        if now < self._next_look or (self._looks and not self._progress.live):
            return
        self._next_look = now + LOOK_EVERY_S[min(self._looks, len(LOOK_EVERY_S) - 1)]
        self._looks += 1
        self._progress.show(f"waiting for {self._what}{_standing(door)} (Ctrl-C leaves the queue)")

    def lost(self, why: str) -> None:
        self._progress.say(f"{why}; still waiting, and trying again")

    def back(self) -> None:
        self._progress.say("the server is back; waiting again")

    def clear(self) -> None:
        self._progress.clear()


def _standing(door: Door) -> str:
    """ ", place 2 of 5 in the queue, expected to start in 4 min (14:05:00)"; "" where the server does not tell."""
    try:
        status, jobs = door.call("GET", "/jobs", timeout_s=SHORT_S)
        queued = [job for job in jobs if job.get("status") == "queued"] if status == 200 else []
        place = next((i for i, job in enumerate(queued, 1) if job.get("pid") == os.getpid()), 0)
        if not place:
            return ""
        text = f", place {place} of {len(queued)} in the queue"
        status, value = door.call("GET", f"/runs/{quote(str(queued[place - 1]['id']))}/eta", timeout_s=SHORT_S)
        eta = (value.get("p50") or value.get("eta")) if status == 200 else None  # as `rota eta` tells it
        return text + (f", expected to start {in_time(eta)}" if isinstance(eta, (int, float)) else "")
    except (RotaError, AttributeError, KeyError, TypeError, ValueError):
        return ""  # this line is a courtesy: whatever it cannot read it leaves out
