"""Whom to stop so that a more important run can start: only work that said it may be stopped, least important first.

Among victims of one priority the newest goes first, since it loses the least work. Victims that turn out not to be
needed are spared. An attempt that is already stopping is never stopped twice: its GPUs count as coming back.
"""

from __future__ import annotations

from rota.core.board import Board
from rota.core.place import place
from rota.core.plan import Preempt
from rota.core.run import Run
from rota.core.snapshot import Snapshot


def choose(snap: Snapshot, board: Board, run: Run, taken: set[str]) -> tuple[Preempt, ...] | None:
    """The victims; () when what is already stopping suffices; None when not even stopping all of them would do."""
    later = board.copy()
    candidates: list[Run] = []
    for _, run_id in snap.timeline:
        other = snap.runs[run_id]
        assert other.attempt is not None
        if other.attempt.stop is not None or run_id in taken:
            later.give(other.attempt.placement)
        elif other.spec.preemptible and other.spec.holder is None and other.priority < run.priority:
            candidates.append(other)
    if place(later, run.spec.request) is not None:
        return ()
    candidates.sort(key=lambda r: (r.priority, -_since(r), r.seq))
    victims: list[Run] = []
    for victim in candidates:
        assert victim.attempt is not None
        later.give(victim.attempt.placement)
        victims.append(victim)
        if place(later, run.spec.request) is not None:
            return tuple(_preempt(v, run) for v in _spare(later, victims, run))
    return None


def _since(run: Run) -> float:
    assert run.attempt is not None
    return run.attempt.planned_at


def _spare(later: Board, victims: list[Run], run: Run) -> list[Run]:
    """Take back everyone without whom it still fits, the most valuable first."""
    needed = list(victims)
    for victim in reversed(victims[:-1]):
        assert victim.attempt is not None
        later.take(victim.attempt.placement)
        if place(later, run.spec.request) is None:
            later.give(victim.attempt.placement)
        else:
            needed.remove(victim)
    return needed


def _preempt(victim: Run, run: Run) -> Preempt:
    assert victim.attempt is not None
    return Preempt(victim.id, victim.attempt.id, run.id)
