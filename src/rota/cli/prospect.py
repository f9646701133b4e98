"""When a run will start, in the same words wherever it is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rota.cli.render import about, moment, plain, span

if TYPE_CHECKING:
    from rota.client.model.run import Alternative, Eta

SAME_S = 60.0  # a bound that is no later than the guess by more than that is no news


def probably(found: Eta) -> str:
    """probably in 12 min (14:05), 9 of 10 times before 14:31; "" where there is no forecast."""
    if found.p50 is None:
        return ""
    late = "" if found.p90 is None else f", 9 of 10 times before {moment(found.p90)}"
    return f"probably {about(found.p50)}{late}"


def bound(found: Eta) -> str:
    """What is true without a guess; "" where nothing is: somebody in the way has no time limit."""
    if found.latest is None or found.latest < max(found.p50 or 0.0, found.p90 or 0.0) + SAME_S:
        return ""
    return f"at the latest {about(found.latest)}, if everybody uses all of their time and nobody comes who goes first"


def sooner(found: Eta, one: Alternative) -> str:
    """with 4 GPUs: 12 min sooner. Never by more than the wait that is told beside it: the two are reckoned apart."""
    expected = found.p50 if found.p50 is not None else found.eta
    if one.now or one.sooner_seconds is None or expected is None:
        return f"{plain(one.change)}: {about(one.start)}"
    wait_s = max(0.0, expected - time.time())
    if one.sooner_seconds >= wait_s:
        return f"{plain(one.change)}: up to {span(wait_s)} sooner"
    return f"{plain(one.change)}: {span(one.sooner_seconds)} sooner"
