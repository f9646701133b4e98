"""Why is mine waiting: the right reasons, the right runs in the way, and hints that hold when taken."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core.decide import decide
from rota.core.explain import Explanation, explain, obstacle
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.presets import named
from rota.core.rank import position
from rota.core.reason import SHOWN, describe
from rota.core.reduce import reduce
from rota.core.reservation import Reservation
from rota.core.resources import Request, Slice
from rota.core.run import Cause, Dependency, Exit, Run, Spec, When
from rota.core.snapshot import snapshot
from rota.core.state import State
from rota.core.times import seconds
from tests.unit.core.kit import HIGH, LOW, Lab, broken, node, two_by_eight

EASY = named("easy")


def asked(lab: Lab, run: str) -> Explanation:
    return explain(lab.state, lab.now, run)


def codes(lab: Lab, run: str) -> list[str]:
    return [reason.code for reason in asked(lab, run).reasons]


def full(*nodes, gpus: int = 8, policy: Policy | None = None, takes: float = 100.0) -> tuple[Lab, list[str]]:
    """Every node taken by one run of bob's."""
    lab = Lab(*nodes, policy=policy)
    holders = [lab.submit(gpus, user="bob", takes=takes + n) for n in range(len(nodes))]
    lab.step()
    return lab, holders


def started_if(lab: Lab, run: str, **spec) -> bool:
    """Had it been submitted like this, would the next pass start it? The whole history is lived again to find out."""
    state = State()
    for event in lab.log:
        reduce(state, otherwise(event, spec) if isinstance(event, e.RunSubmitted) and event.run_id == run else event)
    return any(start.run_id == run for start in decide(snapshot(state, lab.now)).starts)


def otherwise(event: e.RunSubmitted, changes: dict) -> e.RunSubmitted:
    spec: Spec = replace(event.spec, **changes)
    return replace(event, spec=spec, expected_s=min(event.expected_s, spec.time_limit_s or 1e99))


# -- one reason each --------------------------------------------------------------------------------------------------
def test_held():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.tell(e.RunHeld(at=0, run_id=run, why="check the data first"))
    (reason,) = asked(lab, run).reasons
    assert reason.code == "held"
    assert "check the data first" in reason.text
    assert asked(lab, run).position is None


def test_dependency_names_what_it_waits_for():
    lab = Lab(node("a"))
    first, second = lab.submit(), lab.submit(held=True)
    run = lab.submit(after=[Dependency(first), Dependency(second, When.ENDED)])
    lab.step()
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.runs) == ("dependency", (first, second))
    assert f"{second} to end" in reason.text


def test_backoff_says_until_when():
    lab = Lab(node("a"))
    run = lab.submit(max_retries=4)
    lab.step()
    lab.end(run, Exit(Cause.LOST))
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.until) == ("backoff", lab.run(run).not_before)
    assert "1 of 4" in reason.text
    lab.now = lab.run(run).not_before
    assert asked(lab, run).hint == "starts in the pass that is under way"


def test_backoff_after_a_shortage_names_it():
    lab = Lab(node("a"))
    run = lab.submit(max_retries=0)
    lab.step()
    lab.end(run, Exit(Cause.LOST, message="could not be started: no terminal left", shortage=True))
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.until) == ("backoff", lab.run(run).not_before)
    assert "no terminal left" in reason.text and "0 of 0" not in reason.text


def test_paused():
    lab = Lab(node("a"))
    run = lab.submit(2)
    lab.tell(e.SchedulingPaused(at=0, why="moving racks"))
    answer = asked(lab, run)
    assert [reason.code for reason in answer.reasons] == ["paused"]
    assert "moving racks" in answer.reasons[0].text
    assert answer.hint == "", "no smaller run would start either"


def test_max_concurrent_names_those_that_are_active():
    lab, holders = full(*two_by_eight(), gpus=1, policy=Policy(max_concurrent=2))
    run = lab.submit()
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.runs) == ("max_concurrent", tuple(holders))


def test_the_limit_of_runs_names_ones_own():
    lab, _ = full(node("a"), gpus=1, policy=Policy(limits=Limits(running=2)))
    mine = [lab.submit(takes=5 + n) for n in range(2)]
    lab.step()
    run = lab.submit()
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.runs) == ("user_runs", tuple(mine))
    assert "the limit is 2" in reason.text


def test_the_limit_of_gpus_names_ones_own():
    lab, _ = full(node("a"), gpus=1, policy=Policy(limits=Limits(gpus=3)))
    mine = lab.submit(2)
    lab.step()
    run = lab.submit(2)
    answer = asked(lab, run)
    assert [(reason.code, reason.runs) for reason in answer.reasons] == [("user_gpus", (mine,))]
    assert answer.hint == "with 1 GPU there would be room now"
    assert started_if(lab, run, request=Request(1))


def test_a_limit_that_the_pass_under_way_will_reach_is_already_a_reason():
    lab = Lab(node("a"), policy=Policy(limits=Limits(running=1)))
    first, second = lab.submit(), lab.submit()
    assert asked(lab, first).hint == "starts in the pass that is under way"
    (reason,) = asked(lab, second).reasons
    assert (reason.code, reason.runs) == ("user_runs", (first,))


def test_impossible():
    lab = Lab(node("a"))
    run = lab.submit(request=Request(1, gpu_type="TPU"))
    assert codes(lab, run) == ["impossible"]
    assert "TPU" in asked(lab, run).reasons[0].text


@pytest.mark.parametrize(
    ("nodes", "named"),
    [
        ((node("a"), node("b", drained=True)), "b"),
        ((node("a"), node("b", alive=False)), "b"),
        ((node("a"), broken(node("b"), 3)), "unfit"),
    ],
)
def test_nodes_out_of_service(nodes, named):
    lab = Lab(*nodes)
    run = lab.submit(16)
    (reason,) = asked(lab, run).reasons
    assert reason.code == "nodes"
    assert named in reason.text


def test_resources_name_those_who_hold_what_it_will_get_and_until_when():
    lab, (on_a, on_b) = full(*two_by_eight())
    run = lab.submit(8)
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.runs, reason.until) == ("resources", (on_a,), 100)
    wide = lab.submit(16, user="cid")
    (reason, order) = asked(lab, wide).reasons
    assert (reason.code, reason.runs, reason.until) == ("resources", (on_a, on_b), 101)
    assert (order.code, order.runs) == ("order", (run,))


def test_what_is_about_to_start_is_named_as_being_in_the_way():
    """Asked before the pass: the node still looks empty, but not for this one."""
    lab = Lab(node("a"))
    first, second = lab.submit(8), lab.submit(8)
    (reason,) = asked(lab, second).reasons
    assert (reason.code, reason.runs, reason.until) == ("resources", (first,), 100)
    assert asked(lab, second).hint == "", "nor would seven GPUs be free"
    lab.step()
    assert asked(lab, second).reasons == (reason,), "and after the pass the answer is the same"


def test_reservation_names_the_one_it_would_delay():
    lab, (holder,) = full(node("a"), gpus=4)
    head = lab.submit(8)
    run = lab.submit(2, takes=500)
    answer = asked(lab, run)
    assert [reason.code for reason in answer.reasons] == ["reservation", "order"]
    assert answer.reasons[0].runs == (head,)
    assert answer.reasons[0].until == 100
    assert answer.hint == "with a time limit of 100 s it would fit before the reservation and start now"
    assert started_if(lab, run, time_limit_s=100.0)
    assert not started_if(lab, run, time_limit_s=101.0), "the smallest change, not a guess"
    assert holder not in answer.reasons[0].runs
    assert "reservation" not in codes(lab, head), "nobody delays itself"


def test_what_people_reserved_is_named_and_what_would_fit_before_it():
    lab = Lab(node("a"), policy=EASY)
    kept = Reservation("r1", "bob", "demo", 3600.0, 9000.0, (Slice("a", 0xFF),), 0.0)
    lab.tell(e.ReservationMade(at=0.0, reservation=kept))
    run = lab.submit(2, takes=7200)
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.until) == ("reserved", 9000)
    assert "r1" in reason.text
    assert asked(lab, run).hint == "with a time limit of 59 min it would fit before the reservation and start now"
    assert started_if(lab, run, time_limit_s=3540.0)


def test_who_makes_way_is_named_while_it_does():
    lab = Lab(node("a"), policy=Policy(ordering=Ordering.PRIORITY, preemption=True))
    victim = lab.submit(8, preemptible=True, priority=LOW, takes=1e5, grace_s=30.0)
    lab.step()
    lab.now = 100.0
    run = lab.submit(8, priority=HIGH)
    lab.step()
    reasons = {reason.code: reason for reason in asked(lab, run).reasons}
    assert (reasons["stopping"].runs, reasons["stopping"].until) == ((victim,), 130)


def test_who_has_only_just_started_is_not_stopped_and_that_is_said():
    lab = Lab(node("a"), policy=Policy(min_run_s=60.0))
    young = lab.submit(8, preemptible=True, saves=True, takes=1e6)
    lab.step()
    lab.now = 10.0
    run = lab.submit(8, user="bob", takes=5)
    reasons = {reason.code: reason for reason in asked(lab, run).reasons}
    assert (reasons["protected"].runs, reasons["protected"].until) == ((young,), 60)
    lab.now = 61.0
    assert [victim.run_id for victim in lab.plan().preempts] == [young], "and then it is"


def test_who_runs_on_a_drained_node_could_not_make_way():
    """Its GPUs would be nobody's."""
    lab = Lab(node("a"), node("b"), policy=Policy(min_run_s=60.0))
    young = [lab.submit(8, preemptible=True, saves=True, takes=1e6) for _ in range(2)]
    lab.step()
    lab.now = 10.0
    run = lab.submit(1, user="bob", takes=5)
    on_b = next(one for one in young if "b" in (lab.held_gpus(one) or ()))
    (on_a,) = set(young) - {on_b}
    lab.tell(e.NodeDrained(at=lab.now, node_id="b", why="test"))
    reasons = {reason.code: reason for reason in asked(lab, run).reasons}
    assert (reasons["protected"].runs, reasons["protected"].until) == ((on_a,), 60)
    lab.tell(e.NodeDrained(at=lab.now, node_id="a", why="test"))
    assert "protected" not in codes(lab, run)


def test_a_filler_says_what_it_waits_for():
    lab, _ = full(node("a"))
    run = lab.submit(1, preemptible=True, filler=True, grace_s=0.0, time_limit_s=600.0)
    assert "filler" in codes(lab, run)


def test_why_no_start_can_be_told_is_a_reason_that_time_does_not_take_away():
    lab, _ = full(node("a"), node("b", drained=True))
    wide, held = lab.submit(16), lab.submit(held=True)
    assert "out of service: b" in obstacle(asked(lab, wide))
    assert obstacle(asked(lab, held)).startswith("held")
    lab.tell(e.SchedulingPaused(at=0, why="moving racks"))
    assert "moving racks" in obstacle(asked(lab, wide))
    assert obstacle(Explanation("x", ())) == ""


def test_order_alone_under_the_strict_rule():
    lab, _ = full(node("a"), gpus=4, policy=Policy(backfill=Backfill.NONE))
    head, run = lab.submit(8), lab.submit(1)
    (reason,) = asked(lab, run).reasons
    assert (reason.code, reason.runs) == ("order", (head,))
    assert asked(lab, run).hint == ""


def test_who_runs_or_has_ended_waits_for_nothing():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.step()
    assert asked(lab, run) == Explanation(run, ())
    lab.end(run)
    assert asked(lab, run) == Explanation(run, ())


# -- several at once --------------------------------------------------------------------------------------------------
def test_all_reasons_are_given_at_once():
    lab, _ = full(*two_by_eight(), policy=Policy(user_limits={"ann": Limits(gpus=8)}, max_concurrent=2))
    mine = lab.submit(8, takes=1)
    other = lab.submit(16, user="cid")
    run = lab.submit(9)
    lab.tell(e.SchedulingPaused(at=0))
    assert codes(lab, run) == ["paused", "max_concurrent", "user_gpus", "resources", "order"]
    assert asked(lab, run).reasons[-1].runs == (mine, other)
    assert asked(lab, run).hint == ""
    first = lab.submit(held=True)
    held = lab.submit(1, held=True, after=[first])
    assert codes(lab, held) == ["held", "dependency", "paused", "max_concurrent"]


def test_no_more_runs_are_named_than_anyone_would_read():
    lab, _ = full(node("a"))
    for n in range(3 * SHOWN):
        lab.submit(user=f"u{n}")
    last = lab.submit()
    order = asked(lab, last).reasons[-1]
    assert order.code == "order"
    assert len(order.runs) == SHOWN
    assert f"{3 * SHOWN} waiting before it" in order.text


# -- hints ------------------------------------------------------------------------------------------------------------
def test_fewer_gpus_are_hinted_at_when_they_would_really_start():
    lab, _ = full(node("a"), gpus=5)
    run = lab.submit(6)
    assert asked(lab, run).hint == "with 3 GPUs there would be room now"
    assert started_if(lab, run, request=Request(3))
    assert not started_if(lab, run, request=Request(4))


def test_no_hint_that_would_only_delay_the_reservation():
    lab, _ = full(node("a"), gpus=4)
    head, run = lab.submit(8), lab.submit(6, takes=1e6)
    assert asked(lab, head).hint == "with 4 GPUs there would be room now"
    assert asked(lab, run).hint == "", "four are free, but not for a million seconds"


def taken(run: Run, hint: str) -> dict:
    """The changes of the spec that a hint speaks of."""
    request = run.spec.request
    if found := re.fullmatch(r"with a time limit of (.+) it would .*", hint):
        return {"time_limit_s": seconds(found[1].replace(" ", ""))}
    if found := re.fullmatch(r"with (\d+) GPUs? there .*", hint):
        return {"request": replace(request, gpus=int(found[1]))}
    known: dict[str, dict] = {
        "split over nodes there would be room now": {"request": replace(request, span=True)},
        "with any type of GPU there would be room now": {"request": replace(request, gpu_type="")},
        "as preemptible it would start now": {"preemptible": True},
        "starts in the pass that is under way": {},
    }
    return known[hint]


def test_hints_hold_in_all_sorts_of_situations():
    """Whatever the hint, living the history again with the hint taken starts the run."""
    tried: Counter[str] = Counter()
    for seed in range(150):
        lab = muddle(random.Random(seed))
        for run in list(lab.state.runs.values()):
            hint = asked(lab, run.id).hint
            if hint:
                assert started_if(lab, run.id, **taken(run, hint)), (seed, run.id, hint)
                tried[re.sub("[0-9]+ ?(s|min|h)?", "#", hint)] += 1
    assert tried.total() > 100, "the situations must be such that hints are given"
    assert len(tried) >= 4, tried


def muddle(chance: random.Random) -> Lab:
    """A busy little cluster, some of it running, some waiting."""
    policy = Policy(
        ordering=chance.choice(list(Ordering)),
        backfill=chance.choice(list(Backfill)),
        limits=chance.choice([Limits(), Limits(), Limits(gpus=6), Limits(running=2)]),
        preemption=chance.random() < 0.2,
    )
    lab = Lab(node("a"), node("b", gpus=4, kind="A100"), policy=policy, checked=False)
    for n in range(12):
        lab.submit(
            user=chance.choice(["ann", "bob", "cid"]),
            takes=chance.choice([5, 50, 500]) + n / 16,
            priority=chance.choice([1, 2, 3]),
            preemptible=chance.random() < 0.3,
            request=Request(chance.choice([1, 2, 3, 4, 6, 8, 10]), gpu_type=chance.choice(["", "", "A100", "H100"])),
        )
        if chance.random() < 0.6:
            lab.until(lab.now + chance.choice([0, 1, 20]))
    return lab


# -- place in the queue ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("seed", range(5))
def test_the_position_is_the_order_in_which_they_start(ordering, seed):
    """On a single GPU, with one run a user: the first in the queue is the first to go, and so on to the last."""
    chance = random.Random(seed)
    lab = Lab(node("a", gpus=1), policy=Policy(ordering=ordering, aging_s=100, half_life_s=1e12))
    for n in range(8):
        lab.submit(user=f"u{n}", takes=chance.randrange(1, 50))
    lab.until(1000)
    lab.submit(user="blocker", takes=400)
    lab.step()
    waiting = []
    for n in range(8):
        lab.now += chance.randrange(1, 30)
        waiting.append(lab.submit(user=f"u{n}", takes=chance.randrange(1, 99), priority=chance.choice([LOW, 2, HIGH])))
    assert sorted(asked(lab, run).position or 0 for run in waiting) == list(range(1, 9))
    while waiting:
        (running,) = lab.active()
        lab.now = lab.ends_at(running)
        lab.end(running.id)
        places = {position(lab.snap(), run): run for run in waiting}
        lab.step()
        assert lab.first_start(places[1]) == lab.now, "whoever was next"
        waiting.remove(places[1])


def test_a_request_in_words():
    assert describe(Request(1)) == "1 GPU"
    assert describe(Request(0, cpus=4)) == "0 GPUs, 4 CPUs"
    whole = Request(8, nodes=2, gpu_type="H100", gpu_memory_gb=80, cpus=16, memory_gb=64.5)
    assert describe(whole) == "8 GPUs of type H100 with 80 GB on 2 nodes, 16 CPUs, 64.5 GB of memory"


def test_one_that_was_stopped_is_counted_behind_the_run_that_it_was_stopped_for():
    lab = Lab(*two_by_eight(), policy=Policy(ordering=Ordering.FCFS, preemption=True))
    quick = lab.submit(8, user="vic", takes=1e5, preemptible=True, priority=1, grace_s=5.0)
    lab.submit(8, user="vic", takes=1e5, preemptible=True, priority=1, grace_s=200.0)
    lab.step()
    lab.now = 100.0
    wide = lab.submit(16, user="ann", takes=50.0, priority=4)
    lab.step()
    lab.until(110.0)
    told = explain(lab.state, lab.now, quick)
    assert told.position == 2, "though it came first"
    assert [reason.runs for reason in told.reasons if reason.code == "order"] == [(wide,)]
