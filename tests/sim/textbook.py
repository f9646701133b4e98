"""Four schedulers as a textbook tells them, in as few lines as possible and out of nothing of Rota's.

A cluster is a list of free GPUs per node. Consolidated best fit: a job goes to the node with the fewest free GPUs that
holds it, the lowest number first; one that is larger than a node takes wholly free nodes, lowest number first, and the
rest of it by best fit on another. What a user declares is the truth, and no two moments coincide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Spot = dict[int, int]  # node -> GPUs
Free = list[int]  # per node


@dataclass(frozen=True)
class Task:
    submit: int
    duration: int
    gpus: int


@dataclass(frozen=True)
class Placed:
    end: int
    spot: Spot


def fit(free: Free, gpus: int, size: int) -> Spot | None:
    """Where so many GPUs go on nodes of `size`."""
    whole, rest = divmod(gpus, size) if gpus > size else (0, gpus)
    spot = dict.fromkeys([node for node, count in enumerate(free) if count == size][:whole], size)
    if len(spot) < whole:
        return None
    if rest:
        good = [(count, node) for node, count in enumerate(free) if count >= rest and node not in spot]
        if not good:
            return None
        spot[min(good)[1]] = rest
    return spot


def take(free: Free, spot: Spot, sign: int = -1) -> Free:
    return [count + sign * spot.get(node, 0) for node, count in enumerate(free)]


class Book:
    """The clock, what runs and what waits; a policy is a function that starts what may start now."""

    def __init__(self, tasks: list[Task], nodes: int, size: int) -> None:
        self.tasks, self.nodes, self.size = tasks, nodes, size
        self.now = 0
        self.free: Free = [size] * nodes
        self.running: list[Placed] = []
        self.queue: list[int] = []
        self.starts: dict[int, int] = {}
        self.spots: dict[int, Spot] = {}

    def run(self, policy: Callable[[Book], None]) -> dict[int, int]:
        """Each task's start."""
        coming = sorted(range(len(self.tasks)), key=lambda n: self.tasks[n].submit)
        while coming or self.running:
            moments = [one.end for one in self.running] + [self.tasks[n].submit for n in coming[:1]]
            self.now = min(moments)
            for one in [one for one in self.running if one.end == self.now]:
                self.running.remove(one)
                self.free = take(self.free, one.spot, +1)
            if coming and self.tasks[coming[0]].submit == self.now:
                self.queue.append(coming.pop(0))
            policy(self)
        return self.starts

    def start(self, number: int, spot: Spot) -> None:
        self.queue.remove(number)
        self.free = take(self.free, spot)
        assert min(self.free) >= 0
        self.running.append(Placed(self.now + self.tasks[number].duration, spot))
        self.starts[number], self.spots[number] = self.now, spot

    def spot(self, number: int) -> Spot | None:
        return fit(self.free, self.tasks[number].gpus, self.size)


def fcfs_strict(book: Book) -> None:
    """In order; who does not fit lets nobody pass."""
    while book.queue:
        spot = book.spot(book.queue[0])
        if spot is None:
            return
        book.start(book.queue[0], spot)


def fcfs_skip(book: Book) -> None:
    """In order; whoever fits starts."""
    for number in list(book.queue):
        spot = book.spot(number)
        if spot is not None:
            book.start(number, spot)


def easy(book: Book) -> None:
    """In order; the first that does not fit is promised the earliest moment at which it will. Others pass if they will
    be done by then, or use only what it will not need then."""
    fcfs_strict(book)
    if not book.queue:
        return
    head, *others = book.queue
    shadow, later, spare = book.now, book.free, book.free
    for one in sorted(book.running, key=lambda one: one.end):
        shadow, later = one.end, take(later, one.spot, +1)
        promised = fit(later, book.tasks[head].gpus, book.size)
        if promised is not None:
            spare = take(later, promised)  # of the moment `shadow`
            break
    for number in others:
        task = book.tasks[number]
        if book.now + task.duration <= shadow:
            spot = book.spot(number)
        else:
            spot = fit([min(both) for both in zip(book.free, spare, strict=True)], task.gpus, book.size)
            spare = spare if spot is None else take(spare, spot)
        if spot is not None:
            book.start(number, spot)


def conservative(tasks: list[Task], nodes: int, size: int) -> dict[int, int]:
    """Each task is promised, when it comes, the earliest stretch of its length that no promise before it needs."""
    promises: list[tuple[int, Placed]] = []  # start, end and place
    starts = {}
    for number in sorted(range(len(tasks)), key=lambda n: tasks[n].submit):
        task = tasks[number]
        for start in sorted({task.submit} | {one.end for _, one in promises if one.end > task.submit}):
            end = start + task.duration
            moments = {start} | {begin for begin, _ in promises if start < begin < end}
            lowest = [size] * nodes  # what each node has free all the time from start to end
            for moment in moments:
                free = [size] * nodes
                for begin, one in promises:
                    if begin <= moment < one.end:
                        free = take(free, one.spot)
                lowest = [min(both) for both in zip(lowest, free, strict=True)]
            spot = fit(lowest, task.gpus, size)
            if spot is not None:
                promises.append((start, Placed(end, spot)))
                starts[number] = start
                break
    return starts
