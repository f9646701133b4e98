"""Who of an attempt is told what, and what to say of those who did not listen.

A polite end (TERM, INT, HUP, QUIT) goes to every process of the attempt, at any depth. Any other signal is a message to
the program, such as "write a checkpoint", and goes to whatever has a handler for it, at any depth: the shell above the
program, its launcher and the helper beside it, which never heard of it, would only die of it. All below the calling
process is the attempt's. Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

import os
import signal

from rota.adapters.backends import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

POLITE = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


def ask(signum: int, leaders: Iterable[int]) -> bool:
    """To end. A message that nothing here has a handler for goes to the group of each leader, as from a terminal.
    False: nothing has."""
    if signum in POLITE:
        below = procs.descendants(os.getpid())
        heard = any(procs.catches(pid, signum) for pid in below)
        for pid in below:
            to_one(pid, signum)
            to_one(pid, signal.SIGCONT)  # a stopped process hears nothing
        return heard
    heard = message(signum)
    if not heard:
        for leader in leaders:  # not reaped yet, so the number of its group is still its own
            try:
                os.killpg(leader, signum)
            except ProcessLookupError:
                to_one(leader, signum)  # has not made its session yet
    return heard


def message(signum: int) -> bool:
    """To whatever has a handler for it. False: nothing has."""
    told = [to_one(pid, signum) for pid in procs.descendants(os.getpid()) if procs.catches(pid, signum)]
    return any(told)


def to_one(pid: int, signum: int) -> bool:
    return procs.send(pid, signum, lambda: _is_ours(pid))


def unheeded(signum: int, waited_s: float) -> str:
    """Of those who are still there when their grace is over."""
    if any(procs.catches(pid, signum) for pid in procs.descendants(os.getpid())):
        return f"it had not ended {waited_s:.3g} s after {name(signum)}, when its grace was over, and was killed"
    return f"it ignored {name(signum)} and was killed after its grace of {waited_s:.3g} s"


def unsaved(signum: int) -> str:
    """Of those who were to save, and did not know how."""
    return f"nothing of it had a handler for {name(signum)}, so it ended without saving"


def name(signum: int) -> str:
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def _is_ours(pid: int) -> bool:
    own = os.getpid()
    for _ in range(10_000):
        above = procs.parent(pid)
        if above is None or above <= 1:
            return False
        if above == own:
            return True
        pid = above
    return False
