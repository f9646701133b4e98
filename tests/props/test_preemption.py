"""Stopping one for another: what every stop must answer for, and what it must not lead to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rota.core.grace import PROMPT_S
from rota.core.policy import Ordering, Policy
from rota.core.presets import named
from rota.core.run import ENDED, KEPT_ATTEMPTS
from tests.props.stage import KINDS, Stage, comers
from tests.unit.core.kit import node

POLICIES = ["auto", "srtf", "las"]
policies = st.builds(
    lambda name, margin, min_run_s, cost: replace(named(name), margin=margin, min_run_s=min_run_s, restart_cost_s=cost),
    st.sampled_from(POLICIES),
    st.sampled_from([1.5, 3.0]),
    st.sampled_from([60.0, 900.0]),
    st.sampled_from([60.0, 0.0]),
)


def played(policy: Policy, coming, *, judged: bool = True) -> Stage:
    """On two nodes of four, until everything is done."""
    stage = Stage(node("a", 4), node("b", 4), policy=policy, judged=judged, checked=False)
    attained: dict[str, float] = {}
    for comer in coming:
        stage.until(stage.now + comer.later)
        comer.submit(stage)
        for run in stage.state.runs.values():
            assert run.attained_s >= attained.get(run.id, 0.0), "work that was kept is never lost again"
            attained[run.id] = run.attained_s
    stage.until(1e9)
    event(f"stops: {min(5, len(stage.stops))}")
    return stage


@settings(max_examples=60)
@given(policies, comers())
def test_every_stop_answers_for_itself_and_every_moment_comes_to_rest(policy, coming):
    """The rules for each stop are judged before every pass, see preempting.py; that it comes to rest, after."""
    stage = played(policy, coming)
    assert stage.all_ended(), [run.id for run in stage.state.runs.values() if run.state not in ENDED]


@settings(max_examples=50)
@given(policies, comers(kind=st.sampled_from([0, 0, 1])))
def test_work_that_was_kept_is_what_was_done_and_no_more(policy, coming):
    stage = played(policy, coming, judged=False)
    for run in [run for run in stage.state.runs.values() if run.attempts_made <= KEPT_ATTEMPTS]:
        assert run.attained_s == pytest.approx(stage.kept(run))
        ran_s = sum(past.ended_at - past.planned_at for past in run.past)
        assert run.attained_s <= ran_s
        if run.spec.saves:
            restarts = policy.restart_cost_s * (len(run.past) - 1)
            assert ran_s <= stage.true_s[run.id] + restarts + 1.0, "a stop costs its restart and nothing else"


@settings(max_examples=40)
@given(policies, comers(), st.sampled_from([1.0, 10.0, 60.0]))
def test_with_graces_every_moment_comes_to_rest_and_everybody_ends(policy, coming, grace_s):
    stage = Stage(node("a", 4), node("b", 4), policy=policy, judged=False, checked=False, grace_s=grace_s)
    for comer in coming:
        stage.until(stage.now + comer.later)
        comer.submit(stage)
    stage.until(1e9)
    assert stage.all_ended(), [run.id for run in stage.state.runs.values() if run.state not in ENDED]


SAVING = st.sampled_from([0, 0, 1])
AUTO = policies.filter(lambda policy: policy.ordering is Ordering.AUTO)


@settings(max_examples=50)
@given(st.one_of(st.tuples(AUTO, comers(kind=SAVING)), st.tuples(policies, comers(kind=SAVING, priority=st.just(2)))))
def test_whoever_it_was_stopped_for_starts_before_it(told):
    """Among priorities under auto alone: las and srtf order by other things than those for which they stop somebody."""
    policy, coming = told
    stage = played(policy, coming, judged=False)
    for stop in stage.stops:
        again = min(stage.started[stop.run_id][stop.starts :], default=None)
        gained = min((at for at in stage.started[stop.for_run] if at >= stop.at), default=None)
        assert gained is not None, "nobody goes for one who never starts"
        assert again is None or gained <= again


Told = tuple[float, int, float, float, int, int]
THIRD: list[Told] = [  # a critical run has the reservation, and of the two only the victim may pass it
    (0.0, 1, 4000.0, 4000.0, 4, 0),
    (0.0, 3, 30000.0, 30000.0, 3, 0),
    (600.0, 8, 5.0, 5.0, 2, 0),
    (0.0, 2, 900.0, 900.0, 2, 0),
    *[(after, 1, 5.0, 5.0, 2, 0) for after in (600.0, 0.0)],
    (0.0, 1, 4000.0, 16000.0, 3, 1),
    *[(0.0, 1, 5.0, 5.0, 2, 0)] * 3,
    (0.0, 8, 900.0, 900.0, 4, 0),
]
TWO: list[Told] = [  # two are stopped at once, and who was stopped first wants the room that the other leaves
    (0.0, 4, 100.0, 100.0, 2, 0),
    (0.0, 3, 100.0, 100.0, 2, 0),
    (0.0, 1, 100.0, 400.0, 2, 0),
    (0.0, 2, 5.0, 5.0, 2, 0),
    (0.0, 2, 100.0, 100.0, 2, 0),
]


@pytest.mark.parametrize("grace_s", [0.0, 5.0, 60.0])
@pytest.mark.parametrize(("told", "min_run_s"), [(THIRD, 900.0), (THIRD, 60.0), (TWO, 60.0)])
def test_nor_is_it_back_before_that_one_where_a_third_is_about(told: list[Told], min_run_s: float, grace_s: float):
    policy = replace(named("auto"), min_run_s=min_run_s)
    stage = Stage(node("a", 4), node("b", 4), policy=policy, judged=False, grace_s=grace_s)
    for later, gpus, takes, declared, priority, kind in told:
        stage.until(stage.now + later)
        # the order counts a long grace as a part of a time limit; without a limit the lengths are as told
        limit_s = declared if grace_s <= PROMPT_S else None
        said = {"time_limit_s": limit_s, "grace_s": grace_s, "priority": priority, **KINDS[kind]}
        stage.submit(gpus, takes=takes, expected=declared, **said)
    stage.until(1e9)
    assert stage.stops
    for stop in stage.stops:
        again = min(stage.started[stop.run_id][stop.starts :], default=None)
        assert again is not None
        assert min(at for at in stage.started[stop.for_run] if at >= stop.at) <= again
