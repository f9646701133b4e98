"""Staying with a run until its end: its place in the queue, its output, and what Ctrl-C means.

While it waits, Ctrl-C takes it out of the queue. While it runs, the first asks it politely to end, the second kills it,
the third leaves it alone. A server that is lost is waited for: the run does not depend on it, nor on us.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rota.cli.connect import say
from rota.cli.exits import REFUSED
from rota.cli.progress import Progress
from rota.cli.render import plain, span, state
from rota.cli.spent import spent
from rota.cli.streams import write
from rota.client.errors import Busy, Refused, RotaError, Unreachable
from rota.client.words import ACTIVE

if TYPE_CHECKING:
    from rota.client.model.cluster import Job
    from rota.client.model.run import Run
    from rota.client.sync import Client

PATIENCE_S = 24 * 3600.0
FIRST_LOOK_S, LAST_LOOK_S = 0.05, 2.0
LOOK_SHARE = 0.1  # of the time it took so far: an end is seen a tenth late at most
TELL_S, TELL_AGAIN_S = 2.0, 10.0  # between two tellings of where it stands: where it moves on, where it does not
T = TypeVar("T")
LAST_PRESS = 2


def stay(client: Client, run_id: str, *, output: bool, quiet: bool = False) -> int:
    """Until the run has ended. Its exit code."""
    with _interrupts(client, run_id):
        if output:
            _until(client, run_id, Progress(quiet), lambda job: not job.waiting)
            for text in client.follow(run_id, patience_s=PATIENCE_S):
                write(text)
        _until(client, run_id, Progress(quiet or output), lambda job: job.ended)
        run = _the_end(client, run_id)
    if not quiet:
        say(summary(run))
    return code_of(run)


def joined(run_id: str) -> str:
    """To somebody who is about to stay with a run of their own."""
    return f"run {run_id}; Ctrl-C cancels it; to only watch: rota logs -f {run_id}"


def summary(run: Run) -> str:
    """How it ended, how long it waited and ran, and what it used."""
    words = [f"{run.id} {run.status}"]
    if run.error and not run.ok:
        words[0] += f": {plain(run.error)}"
    words += spent(run)
    hours = gpu_hours(run)
    if hours:
        words.append(f"{hours:.3f} GPU-hours")
    return ", ".join(words)


def gpu_hours(run: Run) -> float:
    return sum(attempt.gpu_seconds or 0.0 for attempt in run.attempts) / 3600


def code_of(run: Run) -> int:
    """The command's own; where Rota ended it, something that is no success."""
    if run.ok:
        return 0
    return run.exit_code if run.exit_code and 0 < run.exit_code < 256 else REFUSED


def place(run: Mapping[str, Any]) -> str:
    """One line on where a run stands, from what the server says of it."""
    run_id, status = plain(run["id"]), run.get("status", "")
    if status == "queued":
        where = f"position {int(run['position'])}, " if run.get("position") else ""
        first = (run.get("reasons") or [""])[0]
        why = plain(first.get("text", "") if isinstance(first, dict) else first)
        note = f"; note: it {plain(run['note'])}" if run.get("note") else ""
        # no time: a good one is dear, and a rough one would contradict what `rota eta` says a moment later
        known = "when: " if run.get("eta") is not None else "start not known: "
        return f"{run_id} queued: {where}{why}{'; ' if why else ''}{known}rota eta {run_id}{note}"
    if status == "ready":
        return f"{run_id} {state(status)}; let it go with `rota release {run_id}`"
    since = run.get("started_at") or run.get("launched_at")
    return f"{run_id} {state(status)}" + (f" for {span(time.time() - since)}" if status in ACTIVE and since else "")


def _until(client: Client, run_id: str, progress: Progress, reached: Callable[[Job], bool]) -> None:
    """Look until it is so: the cheap view, and the more seldom the longer it takes."""
    begun = time.monotonic()
    told_at, told = -math.inf, None
    while True:
        now = time.monotonic()
        job = _look(client.job, run_id, progress)
        if job is not None:
            if reached(job):
                progress.clear()
                return
            standing = (job.state, job.queue_position)
            if not progress.quiet and now - told_at >= (TELL_AGAIN_S if standing == told else TELL_S):
                # why it waits, and until when, costs the server a forecast
                run = _look(client.run, run_id, progress)
                if run is not None:
                    progress.show(place(run.raw), f"{run.status} {run.position}")
                    told_at, told = now, standing
        time.sleep(min(max(FIRST_LOOK_S, (now - begun) * LOOK_SHARE), LAST_LOOK_S))


def _look(ask: Callable[[str], T], run_id: str, progress: Progress) -> T | None:
    try:
        return ask(run_id)
    except (Unreachable, Busy) as error:
        progress.show(f"{error}; the run is not affected, trying again", "lost")
        return None


def _the_end(client: Client, run_id: str) -> Run:
    while True:
        run = _look(client.run, run_id, Progress(quiet=True))
        if run is not None:
            return run
        time.sleep(LAST_LOOK_S)


@contextmanager
def _interrupts(client: Client, run_id: str) -> Iterator[None]:
    presses: list[int] = []

    def pressed(number: int, frame: object) -> None:
        presses.append(number)
        if len(presses) > LAST_PRESS:
            _tell(f"leaving; {run_id} is left as it is: rota show {run_id}")
            os._exit(128 + number)
        first = len(presses) == 1
        _tell("cancelling; once more to kill it" if first else "killing it; once more to leave it alone")
        try:
            # a client of its own: the other one may be in the middle of a call
            with _another(client) as other:
                other.cancel(run_id, grace_s=None if first else 0.0)
        except Refused as refusal:
            if refusal.status != 400:  # 400: it has just ended
                _tell(f"not cancelled: {refusal}")
        except RotaError as error:
            _tell(f"not cancelled: {error}")

    before = [(number, signal.signal(number, pressed)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _another(client: Client) -> Client:
    from rota.client.address import find_token
    from rota.client.sync import Client as Made

    return Made(client.url, find_token()[0], connect_s=2.0, answer_s=10.0, tries=2)


def _tell(text: str) -> None:
    """Straight to stderr: this may be a signal handler in the middle of another print."""
    with suppress(OSError):
        os.write(2, f"\nrota: {text}\n".encode("utf-8", "replace"))
