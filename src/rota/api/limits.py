"""Bounds on how fast somebody may call: token buckets, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 10_000
LONGEST_DEBT_S = 5.0


class Buckets:
    """`rate` calls a second each, `burst` at once. The least recently seen are forgotten first: they are full again
    anyway, unless somebody calls under thousands of names."""

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> (tokens, at)

    def take(self, name: str, now: float) -> float:
        """0.0 = go ahead; otherwise the seconds until the next call is let through."""
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self.rate)
        wait = 0.0 if left >= 1 else (1 - left) / self.rate
        self._keep(name, left - 1 if left >= 1 else left, now)
        return wait

    def charge(self, name: str, cost: float, now: float) -> None:
        """Count a call that turned out to be as dear as `cost` calls; further ones wait until that is made good, but
        never for long."""
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self.rate)
        self._keep(name, max(left - cost, min(left, -LONGEST_DEBT_S * self.rate)), now)

    def wait(self, name: str, now: float) -> float:
        """The seconds until a call would be let through; 0.0 = at once. Takes nothing."""
        left, at = self._left.get(name, (self._burst, now))
        return max(0.0, (1 - left) / self.rate - max(0.0, now - at))

    def empty(self, name: str, now: float) -> bool:
        """Would a call be refused? Takes nothing."""
        return self.wait(name, now) > 0

    def _keep(self, name: str, left: float, now: float) -> None:
        self._left[name] = (left, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
