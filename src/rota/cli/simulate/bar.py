"""How far a simulation is: a bar that rewrites itself on a terminal; nothing elsewhere."""

from __future__ import annotations

import time

from rota.cli.progress import Progress
from rota.cli.render import span

WIDE = 24
EVERY_S = 0.1
TELLING = 0.02  # below this share the time left is a guess nobody needs


class Bar:
    def __init__(self) -> None:
        self._line = Progress()
        self._line.quiet = not self._line.live
        self._began = 0.0
        self._next = 0.0

    def say(self, text: str) -> None:
        self._line.show(text)

    def share(self, done: float) -> None:
        now = time.monotonic()
        self._began = self._began or now
        if now < self._next or self._line.quiet:
            return
        self._next = now + EVERY_S
        full = round(WIDE * min(1.0, done))
        left = f", {span((now - self._began) * (1 - done) / done)} left" if TELLING <= done < 1 else ""
        self._line.show(f"simulating [{'#' * full}{'.' * (WIDE - full)}] {100 * done:.0f} %{left}")

    def clear(self) -> None:
        self._line.clear()
