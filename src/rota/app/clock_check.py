"""Is the last record in the future? One start with a clock that is far ahead moves the server's time for good."""

from __future__ import annotations

from rota.core.times import about

AHEAD_S = 600.0  # from there on it is said; less is a clock that was set right


def clock_warning(last_at: float, now: float) -> str:
    """Return by how much the last record is after the machine's clock, and what follows; "" = it is not."""
    ahead_s = last_at - now
    if ahead_s < AHEAD_S:
        return ""
    return (
        f"the server's time is {about(ahead_s)} ahead of the machine's clock: an earlier start had a clock that was "
        f"far ahead, or the machine's is behind now. The server goes on from the last moment on record, so runs are "
        f"dated ahead, and no reservation can begin before that moment; limits and graces are right. It passes when "
        f"the machine's clock has caught up, or with a copy of the data directory from before"
    )
