"""When will it start: what is foretold is what happens, as long as runs take what they are expected to take."""

from __future__ import annotations

import random

import pytest

from rota.core import events as e
from rota.core.forecast import FOREVER_S, at_most, forecast
from rota.core.policy import Backfill, Limits, Ordering, Policy
from rota.core.resources import Request
from rota.core.run import Cause, Dependency, Exit, When
from tests.unit.core.kit import Lab, node, spec, two_by_eight


def waiting(lab: Lab) -> list[str]:
    return [run.id for run in lab.state.runs.values() if run.attempt is None and run.ended_at is None]


def unended(lab: Lab) -> list[str]:
    return [run.id for run in lab.state.runs.values() if run.ended_at is None]


@pytest.mark.parametrize("ordering", list(Ordering))
@pytest.mark.parametrize("backfill", list(Backfill))
def test_the_forecast_is_what_happens(ordering, backfill):
    for seed in range(40):
        chance = random.Random(seed)
        limits = chance.choice([Limits(), Limits(running=3), Limits(gpus=17)])
        policy = Policy(ordering, backfill, limits=limits, max_concurrent=chance.choice([0, 5]), half_life_s=500)
        lab = Lab(*two_by_eight(), policy=policy, checked=False)
        for n in range(25):
            lab.submit(
                request=Request(chance.choice([0, 1, 2, 4, 8, 16]), cpus=chance.choice([0, 0, 20, 40])),
                user=chance.choice(["ann", "bob", "cid"]),
                takes=chance.randrange(1, 300) + 2.0**-n,
                priority=chance.randrange(1, 5),
                after=chance.sample(unended(lab), 1) if unended(lab) and chance.random() < 0.2 else [],
            )
            if chance.random() < 0.3:
                lab.until(lab.now + chance.randrange(1, 40))
        wanted = waiting(lab)
        foretold = forecast(lab.state, lab.now, wanted)
        assert set(foretold) == set(wanted)
        lab.until(1e9)
        assert lab.all_ended()
        assert foretold == {run: lab.first_start(run) for run in wanted}, f"seed {seed}"


def test_looking_ahead_changes_nothing():
    lab = Lab(node("a"))
    for _ in range(12):
        lab.submit(3)
    lab.step()
    version, runs, free = lab.state.version, dict(lab.state.runs), list(lab.state.board.free)
    forecast(lab.state, 0, waiting(lab))
    assert (lab.state.version, lab.state.runs, lab.state.board.free) == (version, runs, free)
    assert not lab.state.history._known


def test_nothing_is_foretold_for_what_nothing_will_start():
    lab = Lab(node("a"), node("b", drained=True))
    held, fine = lab.submit(held=True), lab.submit()
    behind_held = lab.submit(after=[held])
    on_failure = lab.submit(after=[Dependency(fine, When.FAILED)])
    too_wide = lab.submit(16)
    told = forecast(lab.state, 0, [held, fine, behind_held, on_failure, too_wide])
    assert told == {fine: 0}


def test_who_runs_already_has_no_start_to_foretell():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.step()
    assert forecast(lab.state, 0, [run]) == {}


def test_a_run_that_backs_off_is_foretold_for_the_end_of_its_back_off():
    lab = Lab(node("a"))
    run = lab.submit()
    lab.step()
    lab.end(run, Exit(Cause.LOST))
    assert forecast(lab.state, 0, [run]) == {run: lab.run(run).not_before}


def test_while_paused_the_forecast_is_as_if_it_were_resumed_now():
    lab = Lab(node("a"))
    lab.tell(e.SchedulingPaused(at=0))
    run = lab.submit()
    assert forecast(lab.state, 5, [run]) == {run: 5}
    assert lab.state.paused


def test_who_has_outlived_what_was_believed_goes_on_as_long_as_others_did_that_came_so_far():
    lab = Lab(node("a"))
    lab.submit(8, takes=1e6, expected=100)
    lab.step()
    run = lab.submit(8)

    def after(now: float) -> float:
        return forecast(lab.state, now, [run])[run] - now

    assert after(50) == 50
    assert 20 < after(120) < 200
    assert after(4000) == pytest.approx(4000 * (2**0.5 - 1)), "not a minute later for ever"
    for ran_s in (300, 310, 320, 330):
        lab.state.history.learn("ann", spec(8), ran_s)
    assert after(250) == pytest.approx(65, abs=10), "the same command took five minutes and more"
    assert after(312) < 20


def test_looking_ahead_has_an_end():
    lab = Lab(node("a", gpus=1))
    runs = [lab.submit() for _ in range(50)]
    told = forecast(lab.state, 0, runs, budget=1000)
    assert 5 < len(told) < 40
    assert set(told) == set(runs[: len(told)])


def test_if_everybody_uses_all_of_their_time():
    lab = Lab(node("a", 1), policy=Policy(Ordering.FCFS))
    first = lab.submit(1, takes=10, time_limit_s=100.0)
    second = lab.submit(1, takes=10, time_limit_s=200.0)
    third = lab.submit(1, takes=10)
    last = lab.submit(1, takes=10)
    lab.step()
    lab.until(5)
    grace_s = lab.state.runs[first].spec.grace_s
    found = forecast(lab.state, lab.now, [second, third, last], lasts=at_most)
    assert (found[second], found[third]) == (100 + grace_s, 300 + 2 * grace_s)
    assert found[last] > FOREVER_S, "who has no limit may go on for ever"
