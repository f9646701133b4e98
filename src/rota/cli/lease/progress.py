"""The line that tells a waiting person where they stand: rewritten in place on a terminal, said once in a pipe."""

from __future__ import annotations

import os
import sys
import time

from rota.cli.lease.door import Door
from rota.client.errors import RotaError
from rota.client.wire import quote

SHORT_S = 2.0  # for a look that only informs
LOOK_EVERY_S = (1.0, 2.0, 5.0)  # seldom enough that a hundred waiters are no load


class Progress:
    def __init__(self, program: str, gpus: int) -> None:
        self._program = program
        self._what = f"{gpus} GPU{'' if gpus == 1 else 's'}"
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = 0  # columns of the line that stands there
        self._looks = 0
        self._next_look = 0.0
        self._said = False

    def waiting(self, door: Door) -> None:
        now = time.monotonic()
        if now < self._next_look or (self._said and not self._live):
            return
        self._next_look = now + LOOK_EVERY_S[min(self._looks, len(LOOK_EVERY_S) - 1)]
        self._looks += 1
        self._said = True
        text = f"{self._program}: waiting for {self._what}{_standing(door)} (Ctrl-C leaves the queue)"
        if self._live:
            text = text[: max(20, _columns() - 1)]
            sys.stderr.write(f"\r{text:{self._shown}}")
            sys.stderr.flush()
            self._shown = len(text)
        else:
            self._line(text)

    def lost(self, why: str) -> None:
        self._line(f"{self._program}: {why}; still waiting, and trying again")

    def back(self) -> None:
        self._line(f"{self._program}: the server is back; waiting again")

    def clear(self) -> None:
        if self._shown:
            sys.stderr.write("\r" + " " * self._shown + "\r")
            sys.stderr.flush()
            self._shown = 0

    def _line(self, text: str) -> None:
        self.clear()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _standing(door: Door) -> str:
    """ ", place 2 of 5 in the queue, expected to start in 4 min"; "" where the server does not tell."""
    try:
        status, jobs = door.call("GET", "/jobs", timeout_s=SHORT_S)
        queued = [job for job in jobs if job.get("status") == "queued"] if status == 200 else []
        place = next((i for i, job in enumerate(queued, 1) if job.get("pid") == os.getpid()), 0)
        if not place:
            return ""
        text = f", place {place} of {len(queued)} in the queue"
        status, value = door.call("GET", f"/runs/{quote(str(queued[place - 1]['id']))}/eta", timeout_s=SHORT_S)
        eta = value.get("eta") if status == 200 else None
        return text + (f", expected to start in {_span(eta - time.time())}" if isinstance(eta, (int, float)) else "")
    except (RotaError, AttributeError, KeyError, TypeError, ValueError):
        return ""  # this line is a courtesy: whatever it cannot read it leaves out


def _span(seconds: float) -> str:
    if seconds < 1:
        return "a moment"
    for limit, unit, size in ((90, "s", 1), (5400, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def _columns() -> int:
    try:
        return os.get_terminal_size(2).columns or 80  # 0: a terminal that was never told
    except OSError:
        return 80
