"""Bounds on how fast somebody may call: token buckets, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict

REMEMBERED = 10_000


class Buckets:
    """`rate` calls a second each, `burst` at once. The least recently seen are forgotten first: they are full again
    anyway, unless somebody calls under thousands of names."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # name -> (tokens, at)

    def take(self, name: str, now: float) -> float:
        """0.0 = go ahead; otherwise the seconds until the next call is let through."""
        left, at = self._left.pop(name, (self._burst, now))
        left = min(self._burst, left + max(0.0, now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._left[name] = (left - 1 if left >= 1 else left, now)
        if len(self._left) > REMEMBERED:
            self._left.popitem(last=False)
        return wait

    def charge(self, name: str, cost: float, now: float) -> None:
        """Count a call that turned out to be as dear as `cost` calls; further ones wait until that is made good."""
        left, at = self._left.pop(name, (self._burst, now))
        self._left[name] = (min(self._burst, left + max(0.0, now - at) * self._rate) - cost, now)

    def empty(self, name: str, now: float) -> bool:
        """Would a call be refused? Takes nothing."""
        left, at = self._left.get(name, (self._burst, now))
        return left + max(0.0, now - at) * self._rate < 1
