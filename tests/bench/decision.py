"""Row 6: `decide` on 1,296 nodes x 8 with up to 100,000 waiting runs of mixed sizes."""

from __future__ import annotations

import random
import time

from rota.core import events as e
from rota.core.decide import decide
from rota.core.ids import attempt_id
from rota.core.node import simulated_cluster
from rota.core.policy import Ordering, Policy
from rota.core.reduce import reduce
from rota.core.resources import Request
from rota.core.run import Cause, Exit, RunState, Spec
from rota.core.snapshot import snapshot
from rota.core.state import State
from tests.bench.table import Row, percentile, verdict

NODES, GPUS = 1296, 8
MIXED = [1] * 50 + [2] * 20 + [4] * 12 + [8] * 10 + [16] * 5 + [32] * 2 + [64]


def world(waiting: int, ordering: Ordering, *, sizes: list[int], users: int = 50, seed: int = 1) -> State:
    rnd = random.Random(seed)
    state = State()
    state.nodes = {node.id: node for node in simulated_cluster(NODES, GPUS)}
    state.relay()
    reduce(state, e.PolicySet(at=0.0, policy=Policy(ordering=ordering)))
    for number in range(waiting):
        submit(state, number, rnd, rnd.choice(sizes), f"u{rnd.randrange(users)}")
    return state


def submit(state: State, number: int, rnd: random.Random, gpus: int, user: str) -> None:
    spec = Spec("x", ("true",), "/", Request(gpus=gpus), priority=rnd.choice([1, 2, 2, 2, 3]))
    reduce(
        state,
        e.RunSubmitted(
            at=state.at + 0.01,
            run_id=f"{number:012x}",
            seq=state.next_seq,
            user=user,
            spec=spec,
            held=False,
            waiting_on=(),
            expected_s=rnd.expovariate(1 / 7200) + 60,
            expected_from="estimate",
        ),
    )


def start(state: State, now: float) -> int:
    """One pass and its commit; how many it started."""
    plan = decide(snapshot(state, now))
    for one in plan.starts:
        number = state.runs[one.run_id].attempts_made + 1
        reduce(
            state,
            e.AttemptPlanned(
                at=now,
                run_id=one.run_id,
                attempt_id=attempt_id(one.run_id, number),
                tick=now,
                fence=1,
                placement=one.placement,
            ),
        )
    return len(plan.starts)


def end_one(state: State, run_id: str, now: float) -> None:
    attempt = state.runs[run_id].attempt
    assert attempt is not None
    done = e.AttemptEnded(
        at=now,
        run_id=run_id,
        attempt_id=attempt.id,
        exit=Exit(Cause.EXITED, code=0),
        gpu_s=1.0,
        next=RunState.SUCCEEDED,
    )
    reduce(state, done)
    state.retire(run_id)
    state.touched.clear()


def fill(state: State, running: int, rnd: random.Random) -> None:
    """Bring it to so many running, most of them small."""
    for number in range(running):
        submit(state, (1 << 40) + number, rnd, 1, f"u{rnd.randrange(50)}")
    start(state, state.at)


def event_costs(state: State, count: int, rnd: random.Random) -> tuple[list[float], int]:
    """Time of (take in one event, decide, commit to memory) for submits and ends in turn."""
    costs, started = [], 0
    for number in range(count):
        first = state.timeline.first()
        assert first is not None
        now = max(state.at, first[0])
        begun = time.perf_counter()
        if number % 2:
            submit(state, (1 << 41) + number, rnd, rnd.choice(MIXED), f"u{rnd.randrange(50)}")
        else:
            end_one(state, first[1], now)
        started += start(state, now)
        costs.append(time.perf_counter() - begun)
    return costs, started


def at_scale(scale: float) -> list[Row]:
    rows = []
    for ordering in (Ordering.AUTO, Ordering.PRIORITY, Ordering.FAIR_SHARE):
        rnd = random.Random(2)
        empty = world(int(100_000 * scale), ordering, sizes=MIXED)
        begun = time.perf_counter()
        plan = decide(snapshot(empty, empty.at))
        rate = len(plan.starts) / (time.perf_counter() - begun)
        state = world(0, ordering, sizes=MIXED)
        fill(state, int(10_000 * scale), rnd)
        running = state.active
        for number in range(int(100_000 * scale)):
            submit(state, number, rnd, rnd.choice(MIXED), f"u{rnd.randrange(50)}")
        start(state, state.at)
        costs, started = event_costs(state, 1000, rnd)
        p99 = percentile(costs, 0.99) * 1e3
        shape = f"1,296 x 8, {state.waiting:,} waiting, {running:,} running, {ordering}"
        rows.append(
            Row(
                "6",
                f"one event: {shape}, p99 (p50)",
                f"{p99:.2f} ms ({percentile(costs, 0.5) * 1e3:.2f})",
                f"{started} starts in 1,000 events",
                "-",
                "50 ms",
                "2 ms",
                verdict(p99, 50, 2, more_is_better=False),
            )
        )
        rows.append(
            Row(
                "6",
                f"placements in one pass, mixed gangs, empty cluster, {ordering}",
                f"{rate:,.0f}/s",
                "-",
                "-",
                "10,000/s",
                "50,000/s",
                verdict(rate, 10_000, 50_000, more_is_better=True),
            )
        )
    return rows


def growth(scale: float) -> list[Row]:
    """Cost of an event at 1k, 10k and 100k waiting on a full cluster: no worse than n log n."""
    costs = {}
    for waiting in (1_000, 10_000, 100_000):
        rnd = random.Random(3)
        state = world(0, Ordering.PRIORITY, sizes=MIXED)
        fill(state, 10_000, rnd)
        for number in range(waiting):
            submit(state, number, rnd, rnd.choice(MIXED), f"u{rnd.randrange(50)}")
        start(state, state.at)
        costs[waiting] = percentile(event_costs(state, 300, rnd)[0], 0.5)
    grown = costs[100_000] / costs[1_000]
    return [
        Row(
            "6",
            "growth of one event's p50 from 1k to 10k to 100k waiting",
            ", ".join(f"{cost * 1e3:.2f} ms" for cost in costs.values()),
            "n log n would be 167x",
            f"{grown:.1f}x",
            "<= 167x",
            "-",
            verdict(grown, 167, None, more_is_better=False),
        )
    ]
