"""Several policies over the same jobs, as they are and shaken, spread over processes.

The jobs go to each process once; what comes back is measures, and the schedule of the jobs as they are. Shaken jobs are
declared anew: a person declares what a job takes, not what another one took.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, MutableSequence, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from typing import Any

from rota.core.node import Node
from rota.core.policy import Policy
from rota.sim.declare import declare
from rota.sim.engine import simulate
from rota.sim.fairturn import fair_turns
from rota.sim.measure import Measures, measure
from rota.sim.model import Job, Result, in_order
from rota.sim.shake import shake

SMALL = 4000  # jobs to simulate in all: below, starting processes takes longer than the work
LOOK_S = 0.2

Share = Callable[[float], None]  # how much of the work is done, 0 to 1


@dataclass(frozen=True, slots=True)
class Question:
    jobs: tuple[Job, ...]  # as they are
    nodes: tuple[Node, ...]
    policies: tuple[tuple[str, Policy], ...]
    declared: str = "none"  # of jobs without a limit: see declare
    preempt_cost_s: int = 60
    shakes: int = 0
    seed: int = 1

    def shaken(self, number: int) -> list[Job]:
        """0 is as they are."""
        jobs = shake(self.jobs, self.seed + number) if number else in_order(self.jobs)
        return declare(jobs, self.declared, self.seed + number)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one policy makes of the jobs."""

    name: str
    result: Result  # of the jobs as they are
    measured: Measures
    shaken: tuple[Measures, ...] = ()

    @property
    def runs(self) -> tuple[Measures, ...]:
        """What a mean is taken over."""
        return self.shaken or (self.measured,)


def answer(question: Question, processes: int, progress: Share | None = None) -> list[Answer]:
    """One a policy, in their order. Raises what `simulate` raises."""
    rounds, policies = question.shakes + 1, len(question.policies)
    slots = rounds * (policies + 1)
    work = slots * len(question.jobs)
    processes = min(processes, rounds * policies)
    if processes <= 1 or work <= SMALL:
        found = _alone(question, [0] * slots, progress)
    else:
        found = _together(question, processes, slots, progress)
    return [
        Answer(name, *found[0, number], tuple(found[turn, number][1] for turn in range(1, rounds)))
        for number, (name, _) in enumerate(question.policies)
    ]


Found = dict[tuple[int, int], tuple[Any, Measures]]  # (shake, policy) -> the schedule if it is kept, and the measures


class _Desk:
    """One process's part of the work. `counts` says of each simulation how many of its jobs are done."""

    def __init__(self, question: Question, counts: MutableSequence[int]) -> None:
        self.question, self.counts = question, counts
        self.look: Callable[[], None] = lambda: None
        self._kept: tuple[int, list[Job]] = (-1, [])

    def jobs(self, turn: int) -> list[Job]:
        if self._kept[0] != turn:
            self._kept = (turn, self.question.shaken(turn))
        return self._kept[1]

    def turns(self, turn: int) -> list[float]:
        slot = self.slot(turn, len(self.question.policies))
        gpus = sum(node.usable.bit_count() for node in self.question.nodes)
        return fair_turns(self.jobs(turn), gpus, self.question.nodes, progress=lambda done, _: self.tell(slot, done))

    def play(self, turn: int, number: int, turns: list[float]) -> tuple[Result | None, Measures]:
        slot = self.slot(turn, number)
        result = simulate(
            self.jobs(turn),
            self.question.nodes,
            self.question.policies[number][1],
            preempt_cost_s=self.question.preempt_cost_s,
            progress=lambda done, _: self.tell(slot, done),
        )
        return None if turn else result, measure(result, turns=turns)

    def slot(self, turn: int, number: int) -> int:
        return turn * (len(self.question.policies) + 1) + number

    def tell(self, slot: int, done: int) -> None:
        self.counts[slot] = done
        self.look()


def _alone(question: Question, counts: list[int], progress: Share | None) -> Found:
    desk = _Desk(question, counts)
    if progress is not None:
        work = max(1, len(counts) * len(question.jobs))
        desk.look = lambda: progress(sum(counts) / work)
    found: Found = {}
    for turn in range(question.shakes + 1):
        turns = desk.turns(turn)
        for number in range(len(question.policies)):
            found[turn, number] = desk.play(turn, number, turns)
    return found


# -- several processes ------------------------------------------------------------------------------------------------
_desk: _Desk | None = None  # of a worker


def _begin(question: Question, counts: MutableSequence[int]) -> None:
    """In a worker: a Ctrl-C is for the one who asked, and a worker does not outlive it."""
    global _desk  # noqa: PLW0603 - a worker has one, for its whole life
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _desk = _Desk(question, counts)


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _turns(turn: int) -> list[float]:
    assert _desk is not None
    return _desk.turns(turn)


def _play(turn: int, number: int, turns: list[float]) -> tuple[Result | None, Measures]:
    assert _desk is not None
    return _desk.play(turn, number, turns)


def _together(question: Question, processes: int, slots: int, progress: Share | None) -> Found:
    context = get_context("spawn")  # a fork would take the caller's threads' locks along
    counts = context.Array("q", slots, lock=False)
    others = set(active_children())
    with ProcessPoolExecutor(processes, context, _begin, (question, counts)) as pool:
        try:
            return _gather(question, pool, counts, progress)
        except BaseException:  # whatever it was, nobody waits for the rest: the minutes it would take are not worth it
            for worker in set(active_children()) - others:
                worker.terminate()
            raise


def _gather(question: Question, pool: ProcessPoolExecutor, counts: Sequence[int], progress: Share | None) -> Found:
    """Fair turns of a shake first; once they are there, every policy on it."""
    work = max(1, len(counts) * len(question.jobs))
    found: Found = {}
    open_: dict[Future[Any], tuple[int, int | None]] = {
        pool.submit(_turns, turn): (turn, None) for turn in range(question.shakes + 1)
    }
    while open_:
        done, _ = wait(open_, LOOK_S, FIRST_COMPLETED)
        if progress is not None:
            progress(sum(counts) / work)
        for one in done:
            turn, number = open_.pop(one)
            if number is not None:
                found[turn, number] = one.result()
                continue
            for policy in range(len(question.policies)):
                open_[pool.submit(_play, turn, policy, one.result())] = (turn, policy)
    return found
