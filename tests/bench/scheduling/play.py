"""The simulations, spread over processes. One task is one policy on one shake of one trace."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from typing import Any

from rota.sim.engine import simulate
from rota.sim.fairturn import fair_turns, fluid_turns
from rota.sim.measure import measure
from rota.sim.model import Result
from tests.bench.scheduling import synthetic
from tests.bench.scheduling.variants import SHOWN, Variant, of_place
from tests.bench.scheduling.workload import LARGE, TEAMS, Place, jobs

LARGE_AFTER = 5.5  # shakes
POINTS = 400  # that are kept of a distribution of waits

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    place: Place
    variant: Variant
    number: int  # of the shake; 0 = the jobs as they are
    seed: int


def tasks(some: Sequence[Place], shakes: int, unseen: int, seed: int) -> list[Task]:
    """Shake by shake, so that whatever is done by some moment is comparable; the large trace after the first few."""
    found = []
    for place in some:
        for variant in of_place(place.name, made_up=place.made_up, once=place.once):
            last = unseen if place.made_up else shakes
            numbers = range(min(variant.large, last + 1)) if place.once else range(1, last + 1)
            found += [Task(place, variant, number, seed) for number in numbers if number <= variant.most]
    return sorted(found, key=lambda task: task.number or LARGE_AFTER)


def expected() -> dict[str, dict[str, int]]:
    """Of each trace who plays on it, and how many shakes at most."""
    some = [Place(name, nodes, name) for name, nodes in TEAMS] + [Place(*LARGE, LARGE[0], once=True)]
    some += [Place(kind.name, kind.nodes) for kind in synthetic.KINDS]
    return {
        one.name: {variant.name: variant.most for variant in of_place(one.name, made_up=one.made_up, once=one.once)}
        for one in some
    }


def play_all(some: Sequence[Task], processes: int, kept: Callable[[Task, Outcome], None]) -> None:
    told = Told(len(some))
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, _quiet) as pool:
        open_ = {pool.submit(play, task): task for task in some}
        try:
            for done in as_completed(open_):
                task = open_[done]
                kept(task, done.result())
                told.tell(task)
        except BaseException:  # whatever it was, nobody waits for the rest
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    told.end()


def play(task: Task) -> Outcome:
    place, variant = task.place, task.variant
    told = variant.told(jobs(place, variant.declared, task.number, task.seed), task.number)
    begun = time.process_time()
    result = simulate(told, place.cluster(), variant.policy(), preempt_cost_s=variant.cost_s)
    took_s = time.process_time() - begun
    strict, fluid = turns(place, task.number, task.seed)
    found: Outcome = asdict(measure(result, turns=strict))
    for field in ("user_mean_wait_s", "starved_job"):
        del found[field]
    found["fluid"] = max(wait / turn for wait, turn in zip(result.waits, fluid, strict=True))
    found["stoppable"] = _stoppable(result)
    found["took_s"] = took_s
    if task.number <= 1 and variant.name in SHOWN:
        ranked = sorted(result.waits)
        found["waits"] = [ranked[round(step * (len(ranked) - 1) / POINTS)] for step in range(POINTS + 1)]
    return found


@lru_cache(maxsize=4)
def turns(place: Place, number: int, seed: int) -> tuple[list[float], list[float]]:
    """Both readings of a fair turn: behind the schedule of strict arrival, and behind a server without any gaps. What
    was declared changes neither."""
    some, nodes = jobs(place, "class", number, seed), place.cluster()
    gpus = sum(len(node.gpus) for node in nodes)
    return fair_turns(some, gpus, nodes), fluid_turns(some, gpus)


def _stoppable(result: Result) -> float:
    """Of the work, as GPU time."""
    work = [(job.gpus * job.duration_s, job.preemptible) for job in result.jobs]
    return sum(gpu_s for gpu_s, may in work if may) / max(1, sum(gpu_s for gpu_s, _ in work))


def _quiet() -> None:
    """In a worker: a Ctrl-C is for the one who asked, and a worker does not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Told:
    """How far it is, on stderr: in place where that is a terminal, else a line now and then."""

    EVERY_S = 20.0

    def __init__(self, count: int) -> None:
        self.count, self.done = count, 0
        self.begun = self.said = time.monotonic()
        self.live = sys.stderr.isatty()

    def tell(self, task: Task) -> None:
        self.done += 1
        now = time.monotonic()
        if not self.live and now - self.said < self.EVERY_S:
            return
        self.said = now
        passed = (now - self.begun) / 60
        text = f"{self.done}/{self.count} simulations, {passed:.1f} min: {task.place.name}, {task.variant.name}"
        print(f"\r\033[K{text}" if self.live else text, end="" if self.live else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print(file=sys.stderr)
