"""A reservation for the first that cannot start, and others in its shadow: the textbook, case by case and at random."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rota.core import decide
from rota.core import events as e
from rota.core.backfill import reserve
from rota.core.expect import expect
from rota.core.plan import Reserve
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.reservation import Reservation
from rota.core.resources import Request, Slice
from tests.unit.core import textbook
from tests.unit.core.kit import Lab, broken, node, spec, two_by_eight, where
from tests.unit.core.textbook import Job

EASY = Policy(ordering=Ordering.FCFS, backfill=Backfill.EASY)
SKIP = Policy(ordering=Ordering.FCFS, backfill=Backfill.SKIP)
NONE = Policy(ordering=Ordering.FCFS, backfill=Backfill.NONE)


def half_full(policy: Policy) -> tuple[Lab, str]:
    """Two nodes of eight; one is taken for 100 s; a run of sixteen stands at the head."""
    lab = Lab(*two_by_eight(), policy=policy)
    lab.submit(8, takes=100)
    lab.step()
    return lab, lab.submit(16, takes=50)


def test_the_head_gets_a_reservation_for_the_moment_it_will_fit():
    lab, head = half_full(EASY)
    reserve = lab.plan().reserve
    assert reserve is not None
    assert (reserve.run_id, reserve.at) == (head, 100)
    assert where(reserve.placement) == {"a": list(range(8)), "b": list(range(8))}


def test_what_is_done_by_then_goes_ahead_what_would_last_longer_waits():
    lab, head = half_full(EASY)
    exact, long, short = lab.submit(4, takes=100), lab.submit(4, takes=101), lab.submit(4, takes=7)
    lab.until(1000)
    assert lab.first_start(exact) == 0, "done exactly then is in time"
    assert lab.first_start(short) == 0
    assert lab.first_start(head) == 100, "not a second later"
    assert lab.first_start(long) == 150


def test_what_keeps_off_the_reserved_gpus_may_last_as_long_as_it_likes():
    lab = Lab(*two_by_eight(), policy=EASY)
    lab.submit(8, takes=100)
    lab.submit(4, takes=1000)
    lab.step()
    head = lab.submit(8, takes=50)  # will get node a at 100
    beside, over = lab.submit(4, takes=1e6), lab.submit(1, takes=1e6)
    lab.until(500)
    assert lab.first_start(beside) == 0
    assert lab.first_start(head) == 100
    assert lab.first_start(over) == 150, "it would have sat on the reserved node"


def test_a_short_run_does_not_use_up_the_room_of_a_long_one():
    """Four free, the head leaves two over. The short run is done by then, so the long one may have the two others."""
    lab = Lab(node("a"), policy=EASY)
    lab.submit(4, takes=100)
    lab.step()
    head = lab.submit(6, takes=50)
    short, long = lab.submit(2, takes=90), lab.submit(2, takes=1000)
    lab.until(2000)
    assert (lab.first_start(short), lab.first_start(long), lab.first_start(head)) == (0, 0, 100)


def test_extra_room_is_given_out_once():
    lab = Lab(node("a"), policy=EASY)
    lab.submit(4, takes=100)
    lab.step()
    head = lab.submit(6, takes=50)
    one, two, three = (lab.submit(1, takes=1000) for _ in range(3))
    lab.until(149)
    assert [lab.first_start(run) for run in (one, two, head, three)] == [0, 0, 100, None]


def test_only_the_head_has_a_reservation():
    lab, head = half_full(EASY)
    second = lab.submit(16, takes=50)
    plan = lab.step()
    assert plan.reserve is not None
    assert plan.reserve.run_id == head
    lab.until(1000)
    assert (lab.first_start(head), lab.first_start(second)) == (100, 150)


def test_a_start_of_the_same_pass_counts_with_its_end():
    lab = Lab(node("a"), policy=EASY)
    first, head, small = lab.submit(6, takes=30), lab.submit(7, takes=50), lab.submit(2, takes=31)
    plan = lab.step()
    assert [start.run_id for start in plan.starts] == [first], "31 s in one of the head's seven would delay it by one"
    assert plan.reserve is not None
    assert plan.reserve.at == 30
    lab.until(1000)
    assert (lab.first_start(head), lab.first_start(small)) == (30, 80)


@pytest.mark.parametrize("priority", [3, 4])
def test_an_agents_run_passes_the_head_by_its_time_limit_not_by_what_ended_before(priority):
    """Earlier runs of the command took a second, with another number in it."""
    lab = Lab(*two_by_eight())
    lab.submit(8, time_limit_s=100.0, takes=100.0, user="cid")
    lab.step()
    head = lab.submit(16, priority=priority, time_limit_s=1800.0, user="ann")
    for _ in range(24):
        lab.state.history.learn("bob", spec(1, argv=("sleep", "0")), 1.0)

    def of_agent(**more: Any) -> str:
        wanted = {"argv": ("sleep", "100000"), "agent_estimate": True, **more}
        expected_s, source, belief = expect(lab.state, "bob", spec(8, **wanted))
        run_id = lab.submit(8, user="bob", expected=expected_s, **wanted)
        lab.tell(
            e.RunEdited(
                at=lab.now,
                run_id=run_id,
                spec=lab.run(run_id).spec,
                expected_s=expected_s,
                expected_from=source,
                belief=belief,
            )
        )
        return run_id

    of_agent(), of_agent(estimate_s=1.0), of_agent(time_limit_s=7 * 86400.0)
    plan = lab.plan()
    assert plan.starts == ()
    assert plan.reserve is not None and (plan.reserve.run_id, plan.reserve.at) == (head, 100.0)
    bounded = of_agent(time_limit_s=60.0)
    assert [start.run_id for start in lab.plan().starts] == [bounded]


def test_the_limit_counts_not_the_estimate():
    """It is expected to take 50 s, but nothing would stop it before its limit: so it could delay the head."""
    lab, head = half_full(EASY)
    risky = lab.submit(4, takes=50, expected=50, time_limit_s=200)
    safe = lab.submit(4, takes=50, expected=50, time_limit_s=100)
    lab.step()
    assert lab.run(risky).attempt is None
    assert lab.run(safe).attempt is not None
    assert lab.run(head).attempt is None


def test_a_run_that_is_late_is_expected_to_be_late_for_as_long_again():
    """What is done by then passes, what would last longer waits for the next look; test_underestimate.py has more."""
    lab = Lab(*two_by_eight(), policy=EASY)
    lab.submit(8, takes=1000, expected=100)
    lab.step()
    lab.now = 300
    head, short, long = lab.submit(16, takes=50), lab.submit(1, takes=200), lab.submit(1, takes=201)
    reserve = lab.step().reserve
    assert reserve is not None
    assert reserve.at == 500
    lab.until(2000)
    assert (lab.first_start(short), lab.first_start(head), lab.first_start(long)) == (300, 1000, 500)


def test_first_fit_down_the_queue_lets_anything_pass_and_wide_runs_wait():
    lab, head = half_full(SKIP)
    long = lab.submit(4, takes=1000)
    lab.until(5000)
    assert (lab.first_start(long), lab.first_start(head)) == (0, 1000)


def test_strictly_in_order_nobody_passes():
    lab, head = half_full(NONE)
    tiny = lab.submit(1, takes=1)
    lab.until(1000)
    assert (lab.first_start(head), lab.first_start(tiny)) == (100, 150)


def test_a_head_that_cannot_fit_on_the_nodes_that_are_up_holds_nobody_up():
    """Its node is drained: no end of any run would let it start, so there is nothing to keep free for it."""
    lab = Lab(node("a"), node("b", drained=True), policy=EASY)
    stuck, next_wide = lab.submit(16), lab.submit(8, takes=10)
    small = lab.submit(1, takes=1000)
    plan = lab.step()
    assert [start.run_id for start in plan.starts] == [next_wide]
    assert plan.reserve is not None
    assert plan.reserve.run_id == small, "the first that can be promised anything"
    lab.until(5000)
    assert lab.first_start(stuck) is None
    lab.now = 5000


def test_a_backlog_that_waits_for_a_drained_node_costs_a_pass_no_walk_over_all_ends(monkeypatch):
    """Nobody of it can have a reservation, whoever ends. The one behind it can, and has one."""
    lab = Lab(*two_by_eight(), policy=EASY, checked=False)
    lab.submit(1, takes=1000)
    lab.step()
    lab.tell(e.NodeDrained(at=lab.now, node_id="b"))
    for number in range(200):
        lab.submit(request=Request(16, nodes=2, memory_gb=1.0 + number / 1000), takes=1, user="mal")
    wide = lab.submit(8, takes=10)
    walks = []

    def walk(*told: Any, **more: Any) -> Reserve | None:
        walks.append(told)
        return reserve(*told, **more)

    monkeypatch.setattr(decide, "reserve", walk)
    plan = lab.plan()
    assert plan.reserve is not None and plan.reserve.run_id == wide
    assert len(walks) == 1


@pytest.mark.parametrize("user", ["mal", "ann"], ids=["another's", "the own"])
@pytest.mark.parametrize("apart", [False, True], ids=["runs alike", "of many limits"])
@pytest.mark.parametrize("what", ["for a drained node", "in a narrow reservation"])
def test_nor_does_a_backlog_keep_anybody_from_a_reservation_where_others_are_made(user: str, apart: bool, what: str):
    """With a calendar it also goes by what a run may use of that. Only who has many kinds of such runs has no
    reservation for their others."""
    lab = Lab(*two_by_eight(), policy=EASY, checked=False)
    lab.submit(1, takes=1000, time_limit_s=1000.0)
    lab.step()
    lab.tell(e.NodeDrained(at=lab.now, node_id="b"))
    start = 7e6 if what == "for a drained node" else lab.now - 1.0
    made = Reservation("res", "mal", "", start, 7e6 + 900, (Slice("a", 1),), lab.now)
    lab.tell(e.ReservationMade(at=lab.now, reservation=made))
    of = {"request": Request(16, nodes=2)} if what == "for a drained node" else {"gpus": 2, "reservation": "res"}
    for number in range(100):
        lab.submit(**of, takes=1, time_limit_s=1.0 + number * apart, user=user)
    wide = lab.submit(8, takes=10, time_limit_s=10.0, user="ann")
    plan = lab.plan()
    own_kinds = user == "ann" and apart and what == "in a narrow reservation"
    assert (plan.reserve is not None and plan.reserve.run_id == wide) is not own_kinds


def test_the_reservation_prefers_gpus_that_are_busy_now_so_that_free_ones_stay_usable():
    lab = Lab(node("a"), policy=EASY)
    lab.submit(3, takes=100)  # GPUs 0-2
    lab.submit(2, takes=200)  # GPUs 3-4
    lab.step()
    lab.submit(4, takes=50)
    reserve = lab.plan().reserve
    assert reserve is not None
    assert reserve.at == 100
    assert where(reserve.placement) == {"a": [0, 1, 2, 7]}


def test_reservations_know_types_memory_and_sick_gpus():
    lab = Lab(node("a", kind="A100", gpu_gb=40.0), broken(node("b"), 0), policy=EASY)
    lab.submit(request=Request(8, gpu_type="a100"), takes=500)
    lab.submit(request=Request(7, gpu_type="h100"), takes=100)
    lab.step()
    lab.submit(request=Request(2, gpu_memory_gb=80))
    reserve = lab.plan().reserve
    assert reserve is not None
    assert reserve.at == 100
    assert where(reserve.placement) == {"b": [1, 2]}


def test_cpus_are_part_of_the_reservation():
    lab = Lab(node("a", cpus=16), policy=EASY)
    lab.submit(request=Request(1, cpus=10), takes=100)
    lab.step()
    head = lab.submit(request=Request(1, cpus=12), takes=50)
    greedy, modest = lab.submit(request=Request(1, cpus=6), takes=200), lab.submit(request=Request(1), takes=200)
    lab.until(1000)
    assert lab.first_start(head) == 100
    assert lab.first_start(modest) == 0, "asks for no CPUs"
    assert lab.first_start(greedy) == 150


def test_depth_bounds_how_far_a_pass_looks_behind_the_reservation():
    lab, _ = half_full(Policy(ordering=Ordering.FCFS, backfill_depth=3))
    for n in range(5):
        lab.submit(request=Request(1, cpus=n + 1), takes=1000)  # too long, each a lane of its own
    short = lab.submit(1, takes=1)
    assert not lab.step().starts
    lab.set(EASY)
    assert [start.run_id for start in lab.step().starts] == [short]


def test_a_long_lane_of_unfit_runs_hides_no_fit_one():
    """Runs of one shape: long ones first, and one in the middle that is short enough."""
    lab, _ = half_full(EASY)
    runs = [lab.submit(4, takes=10 if n == 37 else 500) for n in range(60)]
    assert [start.run_id for start in lab.step().starts] == [runs[37]]


# -- against the textbook ---------------------------------------------------------------------------------------------
def workload(seed: int, largest: int, count: int) -> list[Job]:
    """No two moments coincide: each job carries binary digits of its own, so sums of them all differ, exactly."""
    chance = random.Random(seed)
    return [
        Job(
            arrives=chance.randrange(60) + 2.0 ** -(count + n + 1),
            gpus=chance.choice([1, 1, 1, 2, 2, 3, 4, largest // 2, largest - 1, largest]),
            takes=chance.choice([1, 3, 9, 20, 45]) + chance.randrange(5) + 2.0 ** -(n + 1),
        )
        for n in range(count)
    ]


def lived(jobs: list[Job], nodes: list[int], backfill: Backfill) -> dict[Job, float | None]:
    lab = Lab(
        *(node(f"n{i}", gpus) for i, gpus in enumerate(nodes)),
        policy=Policy(ordering=Ordering.FCFS, backfill=backfill),
        checked=False,
    )
    runs = {}
    for job in sorted(jobs, key=lambda job: job.arrives):
        lab.until(job.arrives)
        runs[job] = lab.submit(job.gpus, takes=job.takes, time_limit_s=job.takes)
        lab.step()
    lab.until(1e9)
    assert lab.all_ended()
    return {job: lab.first_start(run) for job, run in runs.items()}


@pytest.mark.parametrize("backfill", [Backfill.NONE, Backfill.SKIP, Backfill.EASY])  # conservative: tests/sim
@pytest.mark.parametrize("nodes", [[4], [8], [8, 8], [4, 6]], ids=str)
def test_every_job_starts_exactly_when_the_textbook_says(backfill, nodes):
    for seed in range(200):
        jobs = workload(seed, max(nodes), count=18)
        expected = textbook.starts(jobs, nodes, backfill.value)
        assert lived(jobs, nodes, backfill) == expected, f"seed {seed}"


def test_the_textbook_itself_knows_the_three_rules_apart():
    """The checker is only worth something if the workloads make the rules differ."""
    differ = 0
    for seed in range(60):
        jobs = workload(seed, 8, count=18)
        answers = [textbook.starts(jobs, [8, 8], rule) for rule in ("none", "skip", "easy")]
        differ += answers[0] != answers[1] and answers[1] != answers[2] and answers[0] != answers[2]
    assert differ >= 20
