"""Used GPU-seconds fade; expected durations come from what ended before, wider and wider circles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.policy import DAY_S, HOUR_S, Limits, Ordering, Policy, problems
from rota.core.predict import CIRCLES, HABITS_REMEMBERED, REMEMBERED, History, expectation, fingerprint, hash_text
from rota.core.quota import Over, over
from rota.core.run import Cause, Exit
from rota.core.usage import Load, Usage
from tests.unit.core.kit import Lab, node, spec

WEEK = 7 * DAY_S


# -- usage ----------------------------------------------------------------------------------------------------------
def test_usage_halves_every_half_life():
    used = Usage(1000.0, at=50.0)
    assert used.decayed(50.0, WEEK) == 1000
    assert used.decayed(50.0 + WEEK, WEEK) == pytest.approx(500)
    assert used.decayed(50.0 + 3 * WEEK, WEEK) == pytest.approx(125)
    assert used.decayed(50.0 + 1e12, 60.0) == pytest.approx(0, abs=1e-200), "no overflow however long"


def test_a_clock_that_went_back_gives_nothing_and_takes_nothing():
    assert Usage(1000.0, at=50.0).decayed(10.0, WEEK) == 1000
    assert Usage(1000.0, at=50.0).charged(10.0, 10.0, WEEK) == Usage(1010.0, 50.0)


def test_a_charge_lands_on_what_is_left():
    assert Usage(1000.0, 0.0).charged(100.0, WEEK, WEEK).gpu_s == pytest.approx(600)
    assert Usage(10.0, 0.0).charged(-100.0, 0.0, WEEK).gpu_s == 0, "never below zero"


def test_a_start_is_charged_with_what_it_is_expected_to_use_and_the_end_trues_it_up():
    lab = Lab(node("a"), policy=Policy(ordering=Ordering.FAIR_SHARE, half_life_s=1e15))
    run = lab.submit(4, takes=10.0, expected=3600.0)
    lab.step()
    assert lab.state.usage["ann"].gpu_s == pytest.approx(4 * 3600)
    lab.until(10.0)
    assert lab.run(run).past[0].gpu_s == 40
    assert lab.state.usage["ann"].gpu_s == pytest.approx(40)


# -- limits ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("limits", "load", "gpus", "answer"),
    [
        (Limits(), Load(running=10**6, gpus=10**6), 8, Over.NOTHING),  # 0 = no limit
        (Limits(running=2), Load(running=1), 1, Over.NOTHING),
        (Limits(running=2), Load(running=2), 1, Over.RUNS),
        (Limits(running=2), Load(running=2), 0, Over.RUNS),
        (Limits(gpus=8), Load(gpus=4), 4, Over.NOTHING),
        (Limits(gpus=8), Load(gpus=4), 5, Over.GPUS),
        (Limits(gpus=8), Load(gpus=9), 0, Over.NOTHING),  # needs none, so it is not over
        (Limits(running=1, gpus=1), Load(running=1, gpus=1), 1, Over.RUNS),
    ],
)
def test_limits_are_met_but_never_exceeded(limits, load, gpus, answer):
    assert over(limits, load, gpus) is answer


def test_a_persons_own_limits_stand_in_for_the_common_ones():
    policy = Policy(limits=Limits(gpus=4), user_limits={"ann": Limits(running=1)})
    assert policy.limits_of("ann") == Limits(running=1)
    assert policy.limits_of("bob") == Limits(gpus=4)


def test_a_policy_that_makes_no_sense_says_every_field_that_does_not():
    assert problems(Policy()) == []
    bad = Policy(
        aging_s=0, half_life_s=float("nan"), max_queue=0, limits=Limits(gpus=-1), user_limits={"x": Limits(-1)}
    )
    found = problems(bad)
    assert [text.split(":")[0] for text in found] == [
        "max_queue",
        "aging_s",
        "half_life_s",
        "limits.gpus",
        "user_limits[x].running",
    ]


# -- predictions ----------------------------------------------------------------------------------------------------
def learned(*durations: float, user: str = "ann", **of) -> History:
    history = History()
    for ran_s in durations:
        history.learn(user, spec(**of), ran_s)
    return history


def test_nothing_is_believed_from_fewer_than_three_ends():
    assert History().predict("ann", spec()) is None
    assert learned(10, 20).predict("ann", spec()) is None
    assert learned(10, 20, 30).predict("ann", spec()) == 30


def test_runs_without_gpus_say_nothing_of_what_others_declared():
    """They cost nobody anything: forty of `true` under a limit of 12 h are sent in seconds."""
    history = learned(*[1.0] * 40, user="bot", gpus=0, argv=("true",), time_limit_s=43_200.0)
    for user in ("bot", "ann"):
        asked = spec(argv=("train.py",), time_limit_s=43_200.0)
        assert history.alike(user, asked, 32) == []
        assert history.quantiles(user, asked) is None
        assert history.declared(user, 43_200.0, 1) is None
    assert history.predict("bot", spec(0, argv=("true",), time_limit_s=43_200.0)) == 1.0, "their own command's past is"
    assert history.habit("bot", 43_200.0, 0) == (1.0, 1.0, HABITS_REMEMBERED), "and what was declared for such runs"


def test_the_answer_is_the_upper_quartile_and_never_under_a_second():
    assert learned(*range(1, 9)).predict("ann", spec()) == 7
    assert learned(100, 100, 100, 100, 100, 0.1).predict("ann", spec()) == 100, "one crash at once moves nothing"
    assert learned(0.0, 0.0, 0.1).predict("ann", spec()) == 1.0


def test_only_the_newest_count():
    assert learned(*[1000] * 50, *[10] * REMEMBERED).predict("ann", spec()) == 10


def test_numbers_in_the_command_do_not_make_it_another_command():
    one, two = (
        spec(argv=("train.py", "--lr", "0.1", "--seed", "7")),
        spec(argv=("train.py", "--lr", "3e-4", "--seed", "8")),
    )
    assert fingerprint(one) == fingerprint(two)
    assert fingerprint(one) != fingerprint(spec(argv=("eval.py", "--lr", "0.1", "--seed", "7")))


def test_the_circles_widen_from_the_same_command_and_size_to_the_users_runs_of_that_size():
    history = learned(100, 100, 100, gpus=4, argv=("train", "1"))
    assert history.predict("ann", spec(4, argv=("train", "2"))) == 100, "same command, same size"
    assert history.predict("ann", spec(1, argv=("train", "2"))) == 100, "same command, another size"
    assert history.predict("ann", spec(4, argv=("other",))) == 100, "another command of the same size"
    assert history.predict("ann", spec(1, argv=("other",))) is None, "nothing in common"
    assert history.predict("bob", spec(4, argv=("train", "1"))) is None, "another person"
    for _ in range(3):
        history.learn("ann", spec(4, argv=("other",)), 5)
    assert history.predict("ann", spec(4, argv=("other",))) == 5, "the closest circle wins"
    assert history.predict("ann", spec(4, argv=("train", "3"))) == 100


def test_memory_is_bounded_and_of_whoever_has_most_the_longest_unused_is_forgotten():
    history = learned(1, 2, 3, argv=("first",))
    for _ in range(3):
        history.learn("ann", spec(argv=("last",)), 7)
        history.learn("bob", spec(argv=("train",), time_limit_s=60.0), 9)
    for n in range(CIRCLES):
        history.learn("mal", spec(0, argv=(f"{n:b}".translate({48: "a", 49: "b"}),), group="g"), 1)
    assert len(history._known) == CIRCLES
    assert history.predict("bob", spec(argv=("train",))) == 9, "another person's is not forgotten for it"
    assert [history.predict("ann", spec(argv=(name,))) for name in ("first", "last")] == [3, 7]
    for n in range(CIRCLES):
        history.learn("ann", spec(0, argv=(f"{n:b}".translate({48: "c", 49: "d"}),)), 1)
    assert len(history._known) == CIRCLES
    assert history.like("ann", spec(argv=("first",))) is None
    assert history.like("bob", spec(argv=("train",))) is not None


@pytest.mark.parametrize(
    ("estimate", "limit", "known", "expected"),
    [
        (None, None, False, (4 * HOUR_S, "default")),
        (None, 60.0, False, (60.0, "limit")),
        (None, 1e6, False, (1e6, "limit")),  # a limit is a better guess than none
        (50.0, None, True, (50.0, "estimate")),
        (50.0, 60.0, True, (50.0, "estimate")),
        (90.0, 60.0, True, (60.0, "limit")),  # nobody outlives the limit
        (None, None, True, (30.0, "history")),
        (None, 60.0, True, (30.0, "history")),
        (None, 20.0, True, (20.0, "limit")),
    ],
)
def test_who_is_believed(estimate, limit, known, expected):
    history = learned(10, 20, 30) if known else History()
    asked = spec(estimate_s=estimate, time_limit_s=limit)
    assert expectation(history, "ann", asked, 4 * HOUR_S) == expected


def test_what_else_somebody_runs_says_less_than_a_limit():
    """Three runs of `hello` must not make everybody believe that a night of training takes a second."""
    history = learned(1, 1, 1)
    other, bounded = spec(argv=("other",)), spec(argv=("other",), time_limit_s=8 * HOUR_S)
    assert expectation(history, "ann", other, 4 * HOUR_S) == (1.0, "history")
    assert expectation(history, "ann", bounded, 4 * HOUR_S) == (8 * HOUR_S, "limit")


def test_the_state_learns_from_good_ends_only_and_from_time_run_not_time_held():
    lab = Lab(node("a"))
    for exit in (
        Exit(Cause.EXITED, code=1, started_tick=0.0, ended_tick=1.0),
        Exit(Cause.EXITED, code=0),  # its ticks are not known
        Exit(Cause.EXITED, code=0, started_tick=100.0, ended_tick=142.0),
        Exit(Cause.EXITED, code=0, started_tick=5.0, ended_tick=46.0),
        Exit(Cause.EXITED, code=0, started_tick=50.0, ended_tick=40.0),  # a clock that lies
    ):
        run = lab.submit()
        lab.step()
        lab.end(run, exit)
    assert lab.state.history.predict("ann", spec()) == 42


def test_the_hash_is_the_same_in_every_process():
    assert hash_text("") == 0xCBF29CE484222325
    assert hash_text("a") == 0xAF63DC4C8601EC8C
    assert hash_text("\udcff") == hash_text("\udcff"), "odd bytes of an argument do no harm"


def test_specs_that_differ_only_in_size_are_told_apart():
    assert spec(1) != replace(spec(1), request=spec(2).request)
