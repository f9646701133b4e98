"""Time from outside: the system's clocks, and one that tests and simulations set by hand."""

from __future__ import annotations

import time
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SystemClock:
    """`now` is read from the wall once and carried on by CLOCK_BOOTTIME: jumps of the wall change nothing here."""

    def __init__(self) -> None:
        self._wall = time.time()
        self._born = self.tick()
        self._boot_id = BOOT_ID.read_text().strip()

    def now(self) -> float:
        return self._wall + (self.tick() - self._born)

    def tick(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def awake(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)

    def boot_id(self) -> str:
        return self._boot_id


class ManualClock:
    """Moves only when told to; both clocks move together unless `jump_wall` says otherwise.

    Ticks begin where no machine's uptime is, so that an end measured by a real supervisor never looks like a moment of
    this clock. (They began at 1,000 s once, and figures were wrong on machines that had been up for that long.)
    """

    def __init__(self, now: float = 1_000_000.0, tick: float = 1e9, boot_id: str = "manual") -> None:
        self._now = now
        self._tick = tick
        self._boot_id = boot_id

    def now(self) -> float:
        return self._now

    def tick(self) -> float:
        return self._tick

    def awake(self) -> float:
        return self._tick

    def boot_id(self) -> str:
        return self._boot_id

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError("clocks do not go back")
        self._now += seconds
        self._tick += seconds

    def set(self, now: float) -> None:
        """Go on to this moment; a moment that is past already leaves the clock where it is."""
        self.advance(max(0.0, now - self._now))

    def jump_wall(self, seconds: float) -> None:
        """What `now` of a new process would see after somebody set the wall clock: durations do not notice."""
        self._now += seconds

    def reboot(self, boot_id: str, tick: float = 1.0) -> None:
        self._boot_id, self._tick = boot_id, tick
