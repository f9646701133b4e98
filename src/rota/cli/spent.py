"""Where a run's time went: waiting, at work, standing still for others."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rota.cli.render import span

if TYPE_CHECKING:
    from rota.client.model.run import Attempt, Run


def spent(run: Run) -> list[str]:
    """waited 3 min, ran 1 h 12. What it stood still for others is told apart (`suspended_seconds`)."""
    words = []
    waited_s, ran_s = waited(run), ran(run)
    if waited_s is not None:
        words.append(f"waited {span(waited_s)}")
    if ran_s is not None:
        words.append(f"ran {span(ran_s)}")
    return words


def waited(run: Run) -> float | None:
    """Until its last start, or until now where it waits again, without what it did in earlier attempts: work is no
    wait, whether it was kept or lost."""
    tries = _tries(run)
    if not tries:
        begin = run.started_at or run.launched_at
        return None if begin is None or run.created_at is None else max(0.0, begin - run.created_at)
    total, since = 0.0, run.created_at
    for begin, one in tries:
        if since is not None:
            total += max(0.0, begin - since)
        # from the end of one that made way for others it is suspended, and not waiting
        since = None if _made_way(one) else one.ended
    return total + (max(0.0, time.time() - since) if run.waiting and since is not None else 0.0)


def ran(run: Run) -> float | None:
    """In all attempts that have ended; None = none has."""
    ended = [(begin, one.ended) for begin, one in _tries(run) if one.ended is not None]
    return sum(max(0.0, end - begin) for begin, end in ended) if ended else None


def _tries(run: Run) -> list[tuple[float, Attempt]]:
    """Those that really began, with when."""
    return [(one.started, one) for one in run.attempts if one.started is not None]


def _made_way(one: Attempt) -> bool:
    return (one.reason or "").startswith("preempted")
