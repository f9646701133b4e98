"""Who is next: each ordering, what waiting is worth, and how a share is kept fair; and how the limits cut in."""

from __future__ import annotations

import pytest

from rota.app.problems import MAX_SECONDS
from rota.core import events as e
from rota.core.belief import bucket
from rota.core.order import key, standing
from rota.core.policies import auto, sjf
from rota.core.policy import DAY_S, Backfill, Limits, Ordering, Policy
from rota.core.queue import Queue
from rota.core.rank import position
from rota.core.resources import Request
from rota.core.run import RunState
from rota.core.usage import FAIRNESS, LEAST_FACTOR, MOST
from tests.unit.core.kit import CRITICAL, HIGH, LOW, NORMAL, Lab, node, two_by_eight


def one_gpu(ordering: Ordering = Ordering.PRIORITY, **policy) -> Lab:
    """A single GPU: the order of the starts is the order of the queue."""
    return Lab(node("a", gpus=1), policy=Policy(ordering=ordering, **policy))


def order_of_starts(lab: Lab) -> list[str]:
    lab.until(lab.now + 1e9)
    assert lab.all_ended()
    return [run for run, _ in sorted(lab.started.items(), key=lambda item: item[1])]


def test_first_come_first_served_looks_at_nothing_but_arrival():
    lab = one_gpu(Ordering.FCFS)
    runs = [
        lab.submit(priority=LOW, takes=900),
        lab.submit(priority=CRITICAL, takes=1),
        lab.submit(priority=NORMAL, takes=50, user="bob"),
    ]
    assert order_of_starts(lab) == runs


def test_the_more_important_goes_first_and_among_equals_the_earlier():
    lab = one_gpu()
    low, normal, high, critical = (lab.submit(priority=p) for p in (LOW, NORMAL, HIGH, CRITICAL))
    normal2, high2 = lab.submit(priority=NORMAL), lab.submit(priority=HIGH)
    assert order_of_starts(lab) == [critical, high, high2, normal, normal2, low]


@pytest.mark.parametrize(("waited", "overtakes"), [(0.5 * DAY_S, False), (DAY_S - 1, False), (DAY_S + 1, True)])
def test_waiting_a_day_is_worth_one_step_of_priority(waited, overtakes):
    lab = one_gpu(aging_s=DAY_S)
    blocker = lab.submit(takes=10 * DAY_S)
    lab.step()
    old_low = lab.submit(priority=LOW)
    lab.now += waited
    new_normal = lab.submit(priority=NORMAL)
    first, second = (old_low, new_normal) if overtakes else (new_normal, old_low)
    assert order_of_starts(lab) == [blocker, first, second]


def test_aging_never_reorders_two_that_wait():
    """The key does not move with time: the one ahead stays ahead however long both wait."""
    lab = one_gpu(aging_s=60)
    lab.submit(takes=1e6)
    lab.step()
    low, high = lab.submit(priority=LOW), lab.submit(priority=HIGH)
    policy = lab.state.policy
    before = key(policy, lab.run(low)), key(policy, lab.run(high))
    lab.now = 1e5
    assert (key(policy, lab.run(low)), key(policy, lab.run(high))) == before
    assert before[1] < before[0]


def test_a_new_priority_counts_at_once_and_keeps_the_place_among_equals():
    lab = one_gpu()
    first, second, third = (lab.submit() for _ in range(3))
    lab.tell(e.RunReprioritised(at=lab.now, run_id=third, priority=HIGH))
    assert order_of_starts(lab) == [third, first, second]


def test_shortest_job_first_goes_by_what_is_expected_and_waiting_counts_for_something():
    lab = one_gpu(Ordering.SJF, sjf_aging=0.1)
    long, short, middle = lab.submit(takes=1000), lab.submit(takes=10), lab.submit(takes=100)
    assert order_of_starts(lab) == [short, middle, long]

    lab = one_gpu(Ordering.SJF, sjf_aging=0.1)
    blocker = lab.submit(takes=50_000)
    lab.step()
    long = lab.submit(takes=1000)
    lab.now = 9_000
    newer = lab.submit(takes=150)  # 850 s shorter, but 900 s worth of waiting behind
    lab.now = 9_001
    much_shorter = lab.submit(takes=10)
    assert order_of_starts(lab) == [blocker, much_shorter, long, newer]


def test_who_used_less_goes_first_under_fair_share_and_old_use_fades():
    lab = Lab(node("a", gpus=1), policy=Policy(ordering=Ordering.FAIR_SHARE, half_life_s=1000))
    lab.submit(user="ann", takes=1000)
    lab.until(1000)
    assert lab.all_ended()
    a, b = lab.submit(user="ann", takes=10), lab.submit(user="bob", takes=10)
    lab.until(1200)
    assert lab.first_start(b) == 1000
    assert lab.first_start(a) == 1010
    lab.now = 20_000  # ann's thousand seconds are dust by now
    lab.submit(user="bob", takes=500)
    lab.until(20_500)
    a, b = lab.submit(user="ann", takes=10), lab.submit(user="bob", takes=10)
    lab.until(21_000)
    assert lab.first_start(a) == 20_500
    assert lab.first_start(b) == 20_510


def test_a_burst_of_one_user_does_not_win_every_gpu():
    """A hundred runs at once, before any has used a second: each start is charged, so the others come in between."""
    lab = Lab(node("a"), policy=Policy(ordering=Ordering.FAIR_SHARE))
    burst = [lab.submit(user="ann", takes=3600) for _ in range(100)]
    few = [lab.submit(user="bob", takes=3600) for _ in range(4)]
    started = [start.run_id for start in lab.step().starts]
    assert len(started) == 8
    assert set(few) < set(started)
    assert started[0] == burst[0], "equal usage: the earlier goes first"
    assert [run in few for run in started] == [False, True] * 4, "turn by turn"


def test_an_agents_burst_is_charged_by_its_limit_whatever_it_says():
    lab = Lab(node("a"), policy=Policy(ordering=Ordering.FAIR_SHARE))
    for _ in range(20):
        lab.submit(user="ann", takes=3600, expected=1.0, time_limit_s=3600.0, agent_estimate=True)
    few = [lab.submit(user="bob", takes=3600, time_limit_s=3600.0) for _ in range(4)]
    started = [start.run_id for start in lab.step().starts]
    assert [run in few for run in started] == [False, True] * 4, "turn by turn"
    assert lab.state.usage["ann"].gpu_s == lab.state.usage["bob"].gpu_s == 4 * 3600
    lab.until(3600.0)
    assert lab.state.usage["ann"].gpu_s == pytest.approx(12 * 3600, rel=0.01), "four have ended, eight are new"


def test_a_wide_or_long_start_weighs_more_than_a_small_one():
    lab = Lab(node("a"), policy=Policy(ordering=Ordering.FAIR_SHARE))
    wide = lab.submit(4, user="ann", takes=3600)
    lab.submit(1, user="ann", takes=3600)
    small = [lab.submit(1, user="bob", takes=3600) for _ in range(6)]
    assert [start.run_id for start in lab.step().starts] == [wide, *small[:4]], "4 GPUs of ann are 4 runs of bob"


def test_within_one_user_fair_share_goes_by_priority():
    lab = Lab(node("a", gpus=1), policy=Policy(ordering=Ordering.FAIR_SHARE))
    normal, high = lab.submit(takes=10), lab.submit(takes=10, priority=HIGH)
    assert order_of_starts(lab) == [high, normal]


def test_a_change_of_policy_sorts_the_queue_anew():
    lab = one_gpu(Ordering.FCFS)
    lab.submit(takes=1000)
    lab.step()
    long, short = lab.submit(takes=500), lab.submit(takes=5)
    lab.set(Policy(ordering=Ordering.SJF))
    lab.until(1e6)
    assert (lab.first_start(short), lab.first_start(long)) == (1000, 1005)


# -- limits -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backfill", list(Backfill))
def test_a_user_never_runs_more_than_the_limit_and_the_next_person_is_not_held_up(backfill):
    lab = Lab(node("a"), policy=Policy(limits=Limits(running=2), backfill=backfill))
    ann = [lab.submit(user="ann") for _ in range(4)]
    bob = lab.submit(user="bob")
    assert [start.run_id for start in lab.step().starts] == [ann[0], ann[1], bob]
    lab.until(1000)
    assert lab.first_start(ann[2]) == 100
    assert lab.all_ended()


@pytest.mark.parametrize("backfill", list(Backfill))
def test_a_limit_of_gpus_lets_smaller_runs_through(backfill):
    lab = Lab(*two_by_eight(), policy=Policy(limits=Limits(gpus=4), backfill=backfill))
    three, two, one = lab.submit(3), lab.submit(2), lab.submit(1)
    none = lab.submit(0)
    assert {start.run_id for start in lab.step().starts} == {three, one, none}
    lab.until(100)
    assert lab.first_start(two) == 100


def test_own_limits_apply_to_one_person_alone():
    lab = Lab(node("a"), policy=Policy(user_limits={"ann": Limits(running=1)}))
    for user in ("ann", "ann", "bob", "bob", "bob"):
        lab.submit(user=user)
    lab.step()
    assert {user: load.running for user, load in lab.state.load.items()} == {"ann": 1, "bob": 3}


def test_no_more_runs_at_once_than_max_concurrent():
    lab = Lab(*two_by_eight(), policy=Policy(max_concurrent=3))
    runs = [lab.submit(takes=100 + n) for n in range(5)]
    assert len(lab.step().starts) == 3
    assert not lab.step().starts
    lab.until(1000)
    assert [lab.first_start(run) for run in runs] == [0, 0, 0, 100, 101]


@pytest.mark.parametrize("limits", [Limits(running=1), Limits(gpus=4)])
def test_a_limited_users_run_never_holds_the_reservation(limits):
    """Ann may not start anything, so nothing is kept free for her: bob's long run goes ahead on the same GPUs."""
    lab = Lab(node("a"), policy=Policy(user_limits={"ann": limits}))
    lab.submit(4, user="ann", takes=1000)
    lab.step()
    anns_wide = lab.submit(8, user="ann", takes=1000)
    bobs_long = lab.submit(4, user="bob", takes=1e6)
    plan = lab.step()
    assert [start.run_id for start in plan.starts] == [bobs_long]
    assert plan.reserve is None
    assert lab.run(anns_wide).attempt is None


def test_a_limit_reached_in_the_middle_of_a_pass_is_seen_by_its_rest():
    lab = Lab(*two_by_eight(), policy=Policy(limits=Limits(running=2, gpus=6)))
    lab.submit(4)
    lab.submit(request=Request(4, cpus=1))  # another shape, so another lane
    lab.submit(request=Request(2, cpus=2))
    lab.submit(request=Request(1, cpus=3))
    plan = lab.step()
    assert [lab.run(start.run_id).spec.request.gpus for start in plan.starts] == [4, 2]


def test_a_queue_forgets_the_shapes_that_nobody_waits_with_any_more():
    queue = Queue()
    queue.add("stays", ("ann", Request(8), "", ()), (0.0, 0))
    for n in range(1, 1001):  # each of a shape of its own, and never all gone at once
        queue.add(f"{n}", ("ann", Request(1, memory_gb=float(n)), "", ()), (float(n), n))
        queue.add(f"b{n}", ("ben", Request(1, memory_gb=float(n)), "", ()), (float(n), n))
        queue.remove(f"{n}")
        if n > 1:
            queue.remove(f"b{n - 1}")
    for one in (queue, queue.copy()):
        assert {lane.shape for lane in one.lanes()} == set(one._lanes_of) == set(one._shapes.values())
        assert len(one._shapes) == 2
        one.add("again", ("ann", Request(8), "", ()), (1.0, 1))
        assert len({lane.shape for lane in one.lanes()}) == 2


def test_a_queue_filled_at_once_is_as_one_filled_run_by_run() -> None:
    """Equal requests may be different objects, and runs come in any order."""
    runs = [
        (f"{n:03}", ("ann" if n % 3 else "bob", Request(gpus=1 + n % 2), "", (n % 2,)), (float(-n % 7), n))
        for n in range(60)
    ]
    one_by_one, at_once = Queue(), Queue()
    for run_id, place, sorts_by in runs:
        one_by_one.add(run_id, place, sorts_by)
    at_once.fill(runs)
    assert len(at_once) == len(one_by_one) == 60
    for run_id, _, sorts_by in runs:
        assert at_once.key_of(run_id) == sorts_by
        assert at_once.lane_of(run_id).runs == one_by_one.lane_of(run_id).runs

    def kinds(queue: Queue) -> list[tuple[object, ...]]:
        return [(kind.request, kind.band, kind.oldest, len(kind.lanes)) for kind in queue.kinds()]

    assert kinds(at_once) == kinds(one_by_one)
    for run_id, _, _ in runs:
        at_once.remove(run_id)
    assert not list(at_once.lanes()) and not list(at_once.kinds())


@pytest.mark.parametrize("other", [LOW, NORMAL, HIGH])
@pytest.mark.parametrize("waited", [0.0, DAY_S, 300 * DAY_S])
def test_under_auto_a_critical_run_goes_before_everything_of_lower_priority(other, waited):
    """However short the other is, however long it has waited, and whatever their people have used."""
    lab = one_gpu(Ordering.AUTO, patience=1e-3)
    blocker = lab.submit(takes=waited + 10.0, user="ann", priority=CRITICAL)
    lab.step()
    short = lab.submit(takes=1.0, estimate_s=1.0, time_limit_s=1.0, priority=other, user="bob")
    lab.now += waited
    critical = lab.submit(takes=30 * DAY_S, time_limit_s=31 * DAY_S, priority=CRITICAL, user="ann")
    assert position(lab.snap(), critical) == 1
    assert order_of_starts(lab) == [blocker, critical, short]


def test_under_auto_the_weight_of_critical_covers_the_range_of_all_standings():
    policy = Policy(ordering=Ordering.AUTO, patience=1e-3)
    longest, shortest = bucket(MAX_SECONDS), bucket(1.0)
    worst = auto.of_lane(policy, (longest, longest, CRITICAL), 0.0, 0.0, MOST**FAIRNESS)
    best = auto.of_lane(policy, (shortest, auto.coarse(1.0), HIGH), 0.0, MAX_SECONDS, LEAST_FACTOR)
    assert 0.0 < worst < best


# -- a grace beyond the usual one counts as a part of the time limit --------------------------------------------------
def waiting_order(ordering: Ordering, *specs: dict) -> list[int]:
    """Return the indices of `specs` in the order in which their runs wait behind a critical run."""
    lab = one_gpu(ordering)
    lab.submit(takes=DAY_S, user="cid", priority=CRITICAL)
    lab.step()
    runs = [lab.submit(**{"user": f"user{n}", **each}) for n, each in enumerate(specs)]
    places = {run_id: position(lab.snap(), run_id) for run_id in runs}
    return [runs.index(run_id) for run_id in sorted(runs, key=places.__getitem__)]


@pytest.mark.parametrize(
    "said",
    [
        {"time_limit_s": 301.0},
        {"time_limit_s": 1.0, "grace_s": 300.0},
        {"time_limit_s": 1.0, "grace_s": DAY_S},  # the policy caps it
        {"time_limit_s": 1.0, "grace_s": 600.0, "checkpoint_signal": 10},
    ],
)
def test_under_auto_a_long_grace_does_not_pass_a_higher_priority(said):
    high = {"time_limit_s": 600.0, "priority": HIGH}
    honest_minute = {"time_limit_s": 60.0}
    assert waiting_order(Ordering.AUTO, said, high, honest_minute) == [1, 2, 0]


@pytest.mark.parametrize("ordering", [Ordering.SJF, Ordering.SRTF, Ordering.AUTO])
@pytest.mark.parametrize(("grace_s", "is_first"), [(0.0, True), (10.0, True), (60.0, True), (300.0, False)])
def test_orderings_by_length_count_limit_and_grace(ordering, grace_s, is_first):
    long_grace = {"time_limit_s": 1.0, "grace_s": grace_s}
    assert waiting_order(ordering, {"time_limit_s": 120.0}, long_grace) == ([1, 0] if is_first else [0, 1])


@pytest.mark.parametrize("said", [{"grace_s": 0.0}, {"grace_s": 10.0}, {"grace_s": 600.0, "time_limit_s": None}])
def test_a_usual_grace_or_one_without_a_limit_does_not_move_a_run(said):
    lab = one_gpu(Ordering.AUTO)
    like = {"time_limit_s": 90.0, "expected": 90.0} | {key: None for key in said if key == "time_limit_s"}
    plain, other = (lab.run(lab.submit(**each)) for each in (like, like | said))
    for now in (0.0, 50.0, 5000.0):
        for ordering in (Ordering.AUTO, Ordering.SRTF):
            policy = Policy(ordering=ordering)
            assert standing(policy, other, now, 1.0) == standing(policy, plain, now, 1.0)
    assert auto.band(Policy(), other) == auto.band(Policy(), plain)
    assert sjf.key(Policy(), other)[0] == sjf.key(Policy(), plain)[0]


def test_a_lower_cap_on_the_grace_sorts_the_queue_anew():
    lab = one_gpu(Ordering.AUTO)
    lab.submit(takes=DAY_S, user="cid", priority=CRITICAL)
    lab.step()
    minute = lab.submit(user="ann", time_limit_s=60.0)
    long_grace = lab.submit(user="bob", time_limit_s=1.0, grace_s=300.0)
    assert position(lab.snap(), minute) < position(lab.snap(), long_grace)
    lab.set(Policy(ordering=Ordering.AUTO, max_grace_s=10.0))
    assert position(lab.snap(), long_grace) < position(lab.snap(), minute)


@pytest.mark.parametrize("said", [{"time_limit_s": 51.0}, {"time_limit_s": 1.0, "grace_s": 60.0}])
def test_runs_that_use_a_long_grace_do_not_pass_the_head_again_and_again(said):
    """Two runs of 8 GPUs always wait, and every one ignores the polite signal and takes 61 s."""
    lab = Lab(*two_by_eight(), policy=Policy(ordering=Ordering.AUTO))

    def take_turns(until: float) -> None:
        while lab.now < until and lab.first_start(head) is None:
            while len([run for run in lab.state.runs.values() if run.state is RunState.QUEUED]) < 3:
                lab.submit(8, user="ann", takes=61.0, **said)
            lab.follow(lab.now + 1.0)

    lab.submit(8, user="ann", takes=61.0, **said)
    lab.follow(30.0)
    lab.submit(8, user="ann", takes=61.0, **said)
    lab.follow(31.0)
    head = lab.submit(16, user="bob", priority=HIGH, time_limit_s=3600.0)
    take_turns(until=1000.0)
    assert lab.first_start(head) == 91.0, "as soon as the two that ran when it came have ended"
