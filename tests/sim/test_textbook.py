"""With declared times that are true, the simple policies start every job exactly when a textbook's scheduler does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from rota.core.node import simulated_cluster
from rota.sim.engine import simulate
from rota.sim.model import Job
from rota.sim.policyfile import read_policy
from tests.sim.textbook import Book, Task, conservative, easy, fcfs_skip, fcfs_strict

CASES = 50
SIZES = [1, 1, 1, 2, 3, 4, 5, 6, 8, 9, 12, 16, 20]

Case = tuple[list[Task], int, int]
Textbook = Callable[[list[Task], int, int], dict[int, int]]


def cases(textbook: Textbook) -> Iterator[tuple[Case, dict[int, int]]]:
    """Crowded little clusters. A case in which two things happen in one second is left out: there the textbook does
    not say what comes first."""
    found, seed = 0, 0
    while found < CASES:
        seed += 1
        rnd = random.Random(seed)
        nodes, size = rnd.choice([1, 2, 2, 3, 5]), rnd.choice([2, 4, 8])
        most, crowd, pace = nodes * size, rnd.randint(3, 50), rnd.choice([100, 400])
        tasks = [
            Task(rnd.randrange(crowd * pace), rnd.randrange(1, 3600), min(most, rnd.choice(SIZES)))
            for _ in range(crowd)
        ]
        tasks.sort(key=lambda task: task.submit)
        starts = textbook(tasks, nodes, size)
        moments = [task.submit for task in tasks] + [starts[n] + task.duration for n, task in enumerate(tasks)]
        if len(set(moments)) == len(moments):
            found += 1
            yield (tasks, nodes, size), starts


def by_the_book(policy: Callable[[Book], None]) -> Textbook:
    return lambda tasks, nodes, size: Book(tasks, nodes, size).run(policy)


@pytest.mark.parametrize(
    ("name", "textbook"),
    [
        ("fcfs-strict", by_the_book(fcfs_strict)),
        ("fcfs-skip", by_the_book(fcfs_skip)),
        ("easy", by_the_book(easy)),
        ("conservative", conservative),
    ],
)
def test_every_job_starts_when_the_textbook_says(name: str, textbook: Textbook) -> None:
    _, policy = read_policy(name)
    for (tasks, nodes, size), starts in cases(textbook):
        jobs = [
            Job(str(n), task.submit, task.duration, task.gpus, user="ann", limit_s=task.duration)
            for n, task in enumerate(tasks)
        ]
        result = simulate(jobs, simulated_cluster(nodes, size), policy)
        found = {segment.job: segment.start_s for segment in result.segments}
        assert found == starts, f"{nodes} x {size}: {tasks}"


def test_the_textbook_itself_on_a_case_worked_by_hand() -> None:
    """One node of 4. The second job needs all of it: strictly in order it starts at 100, when the first ends."""
    tasks = [Task(0, 100, 2), Task(1, 50, 4), Task(2, 90, 2), Task(3, 200, 2), Task(4, 5, 1)]
    starts = {policy: Book(tasks, 1, 4).run(policy) for policy in (fcfs_strict, fcfs_skip, easy)}
    assert starts[fcfs_strict] == {0: 0, 1: 100, 2: 150, 3: 150, 4: 240}
    assert starts[fcfs_skip] == {0: 0, 1: 292, 2: 2, 3: 92, 4: 100}  # the wide one comes last
    assert starts[easy] == {0: 0, 1: 100, 2: 2, 3: 150, 4: 92}  # who will be done by 100 may pass
    assert conservative(tasks, 1, 4) == {0: 0, 1: 100, 2: 2, 3: 150, 4: 92}


def test_easy_keeps_only_the_first_promise_and_conservative_all_of_them() -> None:
    """One node of 4. The last job needs the one GPU that the second leaves, and for longer than the third can wait."""
    tasks = [Task(0, 30, 2), Task(1, 41, 3), Task(2, 32, 4), Task(3, 73, 1)]
    assert Book(tasks, 1, 4).run(easy) == {0: 0, 1: 30, 2: 76, 3: 3}
    assert conservative(tasks, 1, 4) == {0: 0, 1: 30, 2: 71, 3: 103}
