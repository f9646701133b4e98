"""How long a run will take: its sweep, its person's way of declaring, and which limit to suggest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core.expect import expect
from rota.core.policy import HOUR_S
from rota.core.predict import ENOUGH_OF_ALL, HABITS_REMEMBERED, History, distribution, expectation
from rota.core.run import Cause, Exit
from rota.core.suggest import suggest
from tests.unit.core.kit import Lab, node, spec

DAY = 24 * HOUR_S


def learned(history: History, *durations: float, user: str = "ann", **of) -> History:
    for ran_s in durations:
        history.learn(user, spec(**of), ran_s)
    return history


def test_a_sweep_tells_of_its_own_whatever_they_are_called():
    history = learned(History(), 300, 310, 320, argv=("train", "--opt=adam"), group="s1")
    other = spec(2, argv=("train", "--opt=sgd"), group="s1")
    assert history.predict("ann", other) == 320
    assert history.predict("ann", spec(2, argv=("train", "--opt=sgd"), group="s2")) is None


def test_the_closest_circle_speaks_and_says_so():
    history = learned(History(), 10, 20, 30, argv=("train", "1"))
    told = history.quantiles("ann", spec(argv=("train", "2")))
    assert told is not None
    assert (told.points, told.count, told.source) == ((10, 20, 30), 3, "3 runs of this command")
    wider = history.quantiles("ann", spec(4, argv=("train", "2")))
    assert wider is not None and "other numbers of GPUs" in wider.source
    assert history.quantiles("ann", spec(4, argv=("eval",))) is None


def test_who_declares_three_days_for_an_hour_is_not_believed():
    history = learned(History(), *[HOUR_S] * 10, argv=(), time_limit_s=3 * DAY)
    new = spec(argv=("other",), time_limit_s=3 * DAY)
    assert expectation(history, "ann", new, 4 * HOUR_S) == (HOUR_S, "declared habit")
    assert expectation(history, "bob", new, 4 * HOUR_S) == (3 * DAY, "limit"), "another person's habit is not held"
    shorter = spec(argv=("other",), time_limit_s=4 * HOUR_S)
    assert expectation(history, "ann", shorter, 4 * HOUR_S) == (4 * HOUR_S, "limit"), "nor against another class"
    assert expectation(history, "ann", new, 4 * HOUR_S, corrects=False) == (3 * DAY, "limit")


def test_a_habit_is_of_the_same_width_where_enough_is_known():
    history = learned(History(), *[60] * 5, gpus=1, argv=(), time_limit_s=DAY)
    learned(history, *[6000] * 5, gpus=8, argv=(), time_limit_s=DAY)
    assert history.habit("ann", DAY, 1) == (60, 60, 5)
    assert history.habit("ann", DAY, 8) == (6000, 6000, 5)
    assert history.habit("ann", DAY, 4) == (60, 6000, 10), "else of any width"
    assert history.habit("ann", HOUR_S, 1) is None


def test_only_the_newest_of_a_habit_count():
    history = learned(History(), *[60] * 100, *[600] * HABITS_REMEMBERED, argv=(), time_limit_s=DAY)
    assert history.habit("ann", DAY, 1) == (600, 600, HABITS_REMEMBERED)


def test_what_everybody_declares_counts_for_somebody_new_only_in_a_forecast():
    history = learned(History(), *[100] * ENOUGH_OF_ALL, argv=(), time_limit_s=DAY)
    new = spec(argv=("x",), time_limit_s=DAY)
    told = history.quantiles("bob", new)
    assert told is not None and told.source.endswith("everybody's runs with such a time limit")
    assert expectation(history, "bob", new, 1.0) == (DAY, "limit")


def test_a_limit_bounds_what_is_foretold():
    history = learned(History(), 100, 200, 300)
    told = history.quantiles("ann", spec(time_limit_s=150.0))
    assert told is not None and told.quantile(0.99) == 150


def test_all_of_the_work_is_learned_also_what_was_done_before_it_made_way():
    lab = Lab(node("a"))
    for _ in range(3):
        run = lab.submit(1, preemptible=True, saves=True)
        lab.step()
        lab.now += 100
        lab.stop(run, Cause.PREEMPTED)
        lab.end(run, Exit(Cause.PREEMPTED))
        lab.step()
        lab.end(run, Exit(Cause.EXITED, code=0, started_tick=0.0, ended_tick=40.0))
    assert lab.state.history.predict("ann", spec()) == 140


def test_an_estimate_is_believed_until_the_command_has_shown_itself():
    lab = Lab(node("a"))
    run = lab.run(lab.submit(estimate_s=50.0, expected=50.0))
    assert distribution(lab.state.history, run).source == "an estimate"
    learned(lab.state.history, *[400] * 3, argv=("something", "else"))
    assert distribution(lab.state.history, run).source == "an estimate", "what else ann runs says less"
    learned(lab.state.history, *[300] * 3)
    assert distribution(lab.state.history, run).count == 3


def test_what_is_learned_on_a_copy_stays_there():
    history = learned(History(), 10, 20, 30)
    twin = history.copy()
    assert twin.predict("ann", spec()) == 30
    learned(twin, *[1000] * 24)
    assert (twin.predict("ann", spec()), history.predict("ann", spec())) == (1000, 30)


# -- suggestions ------------------------------------------------------------------------------------------------------
def test_a_limit_is_suggested_from_five_runs_on():
    history = learned(History(), *[HOUR_S] * 4)
    assert suggest(history, "ann", spec()) is None
    learned(history, *[HOUR_S] * 20)
    said = suggest(history, "ann", spec())
    assert said is not None
    assert said.runs == 24
    assert said.limit_s == pytest.approx(HOUR_S, rel=0.2)
    assert said.text == "95 % of your runs like this end by 70 min (24 seen)"


def test_nothing_is_suggested_to_who_gave_a_limit_near_enough():
    history = learned(History(), *[HOUR_S] * 24)
    assert suggest(history, "ann", spec(time_limit_s=4 * HOUR_S)) is None
    assert suggest(history, "ann", spec(time_limit_s=DAY)) is not None
    assert suggest(history, "ann", spec(argv=("other",))) is None, "other commands say nothing about this one"


def test_no_number_of_runs_brings_a_quantile_past_the_last_of_them():
    from rota.core.distribution import Distribution

    for count in range(1, 200):
        known = Distribution(tuple(float(n + 1) for n in range(count)), "runs")
        for q in (0.05, 0.5, 0.9, 0.95, count / (count + 1)):
            assert known.quantile(q) >= 1.0


def test_estimates_that_are_outlived_count_for_as_much_more() -> None:
    history = History()
    for _ in range(4):
        history.learn_estimate("mal", 1.0, 40.0)
    said = spec(argv=("other",), estimate_s=1.0)
    assert expectation(history, "mal", said, 4 * HOUR_S) == (1.0, "estimate"), "too few to tell"
    history.learn_estimate("mal", 1.0, 40.0)
    assert expectation(history, "mal", said, 4 * HOUR_S) == (40.0, "declared habit")
    assert expectation(history, "ann", said, 4 * HOUR_S) == (1.0, "estimate"), "another person's habit is not held"
    longer = spec(argv=("other",), estimate_s=HOUR_S)
    assert expectation(history, "mal", longer, 4 * HOUR_S) == (HOUR_S, "estimate"), "nor against another length"
    bounded = spec(argv=("other",), estimate_s=1.0, time_limit_s=60.0)
    assert expectation(history, "mal", bounded, 4 * HOUR_S) == (1.0, "estimate"), "a limit binds it"


@pytest.mark.parametrize("exit", [Exit(Cause.EXITED, code=1), Exit(Cause.CANCELLED)])
def test_a_run_that_outlived_its_estimate_is_learned_however_it_ended(exit: Exit) -> None:
    lab = Lab(node("a"))
    for takes in (40.0, 0.5) * 5:
        run = lab.submit(takes=takes, expected=1.0, estimate_s=1.0, max_retries=0)
        lab.step()
        ended = replace(exit, started_tick=lab.now, ended_tick=lab.now + takes)
        lab.now += takes
        lab.end(run, ended)
    assert lab.state.history.overrun("ann", 1.0) == 40.0, "that one failed before its time says nothing"


def test_a_run_of_an_agent_without_a_limit_counts_no_shorter_than_one_of_which_nothing_is_known() -> None:
    state = Lab(node("n1", 1)).state
    default_s = state.policy.default_expected_s
    silent = spec(argv=("other",), agent_estimate=True)
    said = replace(silent, estimate_s=1.0)
    learned(state.history, *[1.0] * 24, argv=("other",))
    for _ in range(24):
        state.history.learn_estimate("ann", 1.0, 1.0)
    for each in (silent, said):
        assert expect(state, "ann", each) == (default_s, "default", ()), "whatever has ended before"
        persons = expect(state, "ann", replace(each, agent_estimate=False))
        assert persons[0] == 1.0 and persons[2], "a person's is believed"
    assert expect(state, "ann", replace(said, estimate_s=DAY))[:2] == (DAY, "estimate")
    bounded = replace(said, time_limit_s=60.0)
    assert expect(state, "ann", bounded) == (1.0, "estimate", ()), "it is bound, and stands where the limit puts it"
    learned(state.history, *[DAY] * 24, argv=("long",))
    for each in (silent, said):
        assert expect(state, "ann", replace(each, argv=("long",))) == (DAY, "history", ()), "a longer past counts"
    state.policy = replace(state.policy, corrects=False)
    assert expect(state, "ann", silent) == (default_s, "default", ())


def test_what_is_believed_of_a_run_counts_a_long_grace_as_a_part_of_its_limit() -> None:
    state = Lab(node("n1", 1)).state
    learned(state.history, *[5.0] * 8, argv=("other",))
    usual = spec(argv=("other",), time_limit_s=1.0)
    long_grace = replace(usual, grace_s=300.0)
    assert expect(state, "ann", long_grace)[2] == expect(state, "ann", replace(usual, time_limit_s=291.0))[2]
    assert expect(state, "ann", replace(usual, grace_s=0.0)) == expect(state, "ann", usual)
    assert expect(state, "ann", long_grace)[:2] == (1.0, "limit"), "an expected end is by the limit"
    no_limit = replace(usual, time_limit_s=None)
    assert expect(state, "ann", replace(no_limit, grace_s=300.0)) == expect(state, "ann", no_limit)
