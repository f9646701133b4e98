"""What happened to a run, without the id of the run or reservation that it was preempted for.

Under `privacy=private` that is another person's, mostly. The id is hidden without looking the run up: the answer must
not depend on whether a run of that id exists.
"""

from __future__ import annotations

import re
from dataclasses import replace

from rota.core import events as e
from rota.core.run import Run

HIDDEN = "hidden"  # in place of the id or name of what the caller may not see
PREEMPTED_FOR = re.compile(r"\bpreempted for [0-9a-f]{12}\b")


def unnamed(text: str) -> str:
    return PREEMPTED_FOR.sub("preempted for another run", text)


def as_seen(run: Run, only_own: bool) -> Run:
    """Return the run as a caller may read it, who sees all runs or only the own; mostly that is the very same value."""
    return replace(run, why=unnamed(run.why)) if only_own and "preempted for " in run.why else run


def event_unnamed(event: e.Event) -> e.Event:
    """Return the event as the owner of its run may read it; mostly that is the very same value."""
    if isinstance(event, e.StopRequested) and event.for_run:
        return replace(event, for_run=HIDDEN, why=unnamed(event.why))
    if isinstance(event, e.AttemptEnded) and "preempted for " in event.why:
        return replace(event, why=unnamed(event.why))
    return event
