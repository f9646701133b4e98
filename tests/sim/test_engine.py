"""The virtual clock: what happens in which second, what a stop costs, and when a simulation gives up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from rota.core.node import simulated_cluster
from rota.core.place import place
from rota.core.plan import Plan, Preempt, Start
from rota.core.policy import Limits
from rota.core.presets import named
from rota.core.snapshot import Snapshot
from rota.sim.engine import Stuck, simulate
from rota.sim.model import Job, Result, Segment

ONE = simulated_cluster(1, 1)
FCFS = named("fcfs-strict")


def spans(result: Result, job: int) -> list[tuple[int, int]]:
    return [(one.start_s, one.end_s) for one in result.segments if one.job == job]


def test_jobs_one_after_the_other() -> None:
    jobs = [Job("a", 10, 100, 1), Job("b", 20, 50, 1), Job("c", 500, 5, 1)]
    result = simulate(jobs, ONE, FCFS)
    assert result.segments == (
        Segment(0, 1, 10, 110, (("node1", 1),)),
        Segment(1, 1, 110, 160, (("node1", 1),)),
        Segment(2, 1, 500, 505, (("node1", 1),)),
    )
    assert (result.ends, result.stops, result.waits) == ((110, 160, 505), (0, 0, 0), (0, 90, 0))
    assert (result.gpus, result.gpus_of, result.makespan_s) == (1, (("node1", 1),), 505)


def test_within_a_second_ends_come_first_then_submits_in_their_order() -> None:
    """b and c come in the second in which a ends: b, the first of them in the trace, takes its place at once."""
    jobs = [Job("c", 100, 10, 1), Job("a", 0, 100, 1), Job("b", 100, 10, 1)]
    result = simulate(jobs, ONE, FCFS)
    assert [(result.jobs[one.job].id, one.start_s) for one in result.segments] == [("a", 0), ("c", 100), ("b", 110)]


def test_a_job_of_no_length_starts_and_ends() -> None:
    result = simulate([Job("a", 5, 0, 1), Job("b", 5, 0, 1), Job("c", 5, 7, 1)], ONE, FCFS)
    assert result.ends == (5, 5, 12)


def test_a_gang_over_nodes_is_placed_as_counts() -> None:
    (segment,) = simulate([Job("a", 0, 1, 11)], simulated_cluster(2, 8), FCFS).segments
    assert segment.placement == (("node1", 8), ("node2", 3))
    assert segment.gpus == 11


def test_nothing_in_nothing_out() -> None:
    assert simulate([], ONE, FCFS).segments == ()


def test_progress_is_told_up_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    simulate([Job("a", 0, 5, 1), Job("b", 1, 5, 1)], ONE, FCFS, progress=lambda done, all_: told.append((done, all_)))
    assert told == [(0, 2), (0, 2), (1, 2), (2, 2)]


# -- stops ------------------------------------------------------------------------------------------------------------
PREEMPT = replace(named("priority"), preemption=True, min_run_s=0.0)


def test_a_stop_costs_a_restart() -> None:
    """a has done 300 of 1000 when b takes its GPU. From 400 it restarts for a minute, then does the other 700."""
    jobs = [Job("a", 0, 1000, 1, priority=1), Job("b", 300, 100, 1, priority=4)]
    result = simulate(jobs, ONE, PREEMPT, preempt_cost_s=60)
    assert spans(result, 0) == [(0, 300), (400, 1160)]
    assert spans(result, 1) == [(300, 400)]
    assert (result.stops, result.waits) == ((1, 0), (160, 0))
    assert [result.useful_from(one) for one in result.segments] == [0, 300, 460]


def test_a_restart_cut_short_has_done_nothing_and_costs_again() -> None:
    jobs = [
        Job("a", 0, 1000, 1, priority=1),
        Job("b", 300, 100, 1, priority=4),
        Job("c", 430, 50, 1, priority=4),  # a is half a minute into its restart, which it is left alone for
        Job("d", 590, 40, 1, priority=4),  # 80 s after its next start: 60 s of restart and 20 s of work
    ]
    result = simulate(jobs, ONE, PREEMPT, preempt_cost_s=60)
    assert spans(result, 0) == [(0, 300), (400, 460), (510, 590), (630, 630 + 60 + 1000 - 300 - 20)]
    assert result.stops == (3, 0, 0, 0)
    useful = sum(one.end_s - result.useful_from(one) for one in result.segments if one.job == 0)
    assert useful == 1000


def test_stops_may_be_free() -> None:
    jobs = [Job("a", 0, 1000, 1, priority=1), Job("b", 300, 100, 1, priority=4)]
    assert spans(simulate(jobs, ONE, PREEMPT, preempt_cost_s=0), 0) == [(0, 300), (400, 1100)]


def test_who_did_not_say_so_is_not_stopped() -> None:
    jobs = [Job("a", 0, 1000, 1, priority=1, preemptible=False), Job("b", 300, 100, 1, priority=4)]
    result = simulate(jobs, ONE, PREEMPT)
    assert (result.stops, result.ends) == ((0, 0), (1000, 1100))


# -- policies that misbehave, played by a scripted `decide` -----------------------------------------------------------
@dataclass
class LookingPlan:
    """A plan that asks for a further look."""

    starts: tuple[Start, ...] = ()
    preempts: tuple[Preempt, ...] = ()
    look_again_at: float | None = None


def starts_all(snap: Snapshot) -> tuple[Start, ...]:
    for lane in snap.queue.lanes():
        spot = place(snap.board, lane.request)
        if spot is not None:
            return (Start(lane.runs[0][1], spot),)
    return ()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Snapshot], object]], None]:
    return lambda decide: monkeypatch.setattr("rota.sim.engine.decide", decide)


def test_a_policy_may_want_a_look_when_nothing_happens(scripted: Callable[..., None]) -> None:
    seen: list[float] = []

    def patient(snap: Snapshot) -> LookingPlan:
        seen.append(snap.now)
        return LookingPlan(starts_all(snap)) if snap.now >= 30 else LookingPlan(look_again_at=snap.now + 9.5)

    scripted(patient)
    assert simulate([Job("a", 0, 5, 1)], ONE, FCFS).ends == (35,)
    assert seen == [0, 10, 20, 30, 30, 35]  # whole seconds, never earlier than asked for


def test_one_that_only_ever_looks_is_stopped(scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.sim.engine.IDLE_MOMENTS", 50)
    scripted(lambda snap: LookingPlan(look_again_at=snap.now))
    with pytest.raises(Stuck, match="at 51 s: the policy has looked 51 times since a job last came or was done"):
        simulate([Job("a", 0, 5, 1)], ONE, FCFS)


def test_one_that_starts_and_stops_for_ever_is_stopped(scripted: Callable[..., None]) -> None:
    def nervous(snap: Snapshot) -> Plan:
        running = [run for run in snap.runs.values() if run.attempt is not None]
        if running:
            assert running[0].attempt is not None
            return Plan(snap.version, preempts=(Preempt(running[0].id, running[0].attempt.id, ""),))
        return Plan(snap.version, starts_all(snap))

    scripted(nervous)
    with pytest.raises(Stuck, match=r"at 3 s: \d+ passes in one second, and the policy still starts and stops jobs"):
        simulate([Job("a", 3, 5, 1)], ONE, FCFS)


def test_jobs_that_a_limit_keeps_out_for_ever_are_named() -> None:
    policy = replace(named("fcfs-skip"), limits=Limits(gpus=2))
    with pytest.raises(Stuck, match="1 jobs wait and nothing will start them, first b with 4 GPUs: look at the limits"):
        simulate([Job("a", 0, 5, 1), Job("b", 0, 5, 4)], simulated_cluster(1, 8), policy)
