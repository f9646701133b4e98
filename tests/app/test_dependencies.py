"""Runs that wait for runs."""

from __future__ import annotations

import pytest

from rota.app import budget
from rota.app.commands import Cancel, Submit, SubmitMany
from rota.app.errors import Full, Invalid
from rota.core import events as e
from rota.core.run import Dependency, RunState, When
from tests.app.house import ANN, BOB, House

ENDS = {"true": RunState.SUCCEEDED, "exit 1": RunState.FAILED}


def after(house: House, *dependencies: Dependency, **more: object) -> str:
    return house.submit("true", depends_on=dependencies, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("line", ENDS)
@pytest.mark.parametrize("when", When)
def test_each_condition_against_each_end(house, when, line):
    first, gate = house.gated(after=line)
    waiter = after(house, Dependency(first, when))
    house.in_state(first, RunState.RUNNING)
    assert house.run(waiter).state is RunState.QUEUED
    assert [reason.code for reason in house.rota.explain(waiter).reasons] == ["dependency"]
    gate.open()
    assert house.wait(first).state is ENDS[line]
    wanted = {When.SUCCEEDED: line == "true", When.FAILED: line != "true", When.ENDED: True}[when]
    run = house.wait(waiter)
    assert run.state is (RunState.SUCCEEDED if wanted else RunState.CANCELLED)
    if not wanted:
        assert run.why == f"its dependency {first} ended as {ENDS[line]}"
        assert waiter not in house.starts()


def test_a_cancelled_dependency_takes_the_whole_chain_with_it(house):
    first = house.submit("true", held=True)
    second = after(house, Dependency(first))
    third = after(house, Dependency(second))
    cleanup = after(house, Dependency(third, When.FAILED))
    house.do(Cancel(first), ANN)
    assert [house.wait(run_id).state for run_id in (second, third)] == [RunState.CANCELLED] * 2
    assert house.wait(cleanup).state is RunState.SUCCEEDED, "a cancelled run has not succeeded"


def test_a_run_waits_for_all_of_its_dependencies(house):
    (first, one), (second, two) = house.gated(), house.gated()
    waiter = after(house, Dependency(first), Dependency(second, When.ENDED))
    one.open()
    house.wait(first)
    assert house.run(waiter).state is RunState.QUEUED
    assert house.run(waiter).waiting_on == (Dependency(second, When.ENDED),)
    two.open()
    assert house.wait(waiter).state is RunState.SUCCEEDED


def test_conditions_that_exclude_each_other_end_the_run(house):
    first, gate = house.gated()
    waiter = after(house, Dependency(first, When.SUCCEEDED), Dependency(first, When.FAILED))
    gate.open()
    assert house.wait(waiter).state is RunState.CANCELLED


@pytest.mark.parametrize("line", ENDS)
@pytest.mark.parametrize("when", When)
def test_a_dependency_that_has_already_ended(house, when, line):
    first = house.wait(house.submit(line)).id
    if when is When.ENDED or (line == "true") == (when is When.SUCCEEDED):
        assert house.wait(after(house, Dependency(first, when))).state is RunState.SUCCEEDED
    else:
        with pytest.raises(Invalid, match="would never start") as refusal:
            after(house, Dependency(first, when))
        assert refusal.value.field == "depends_on"
        assert len(house.events(e.RunSubmitted)) == 1


def test_an_unknown_dependency(house):
    with pytest.raises(Invalid, match="no run") as refusal:
        after(house, Dependency("0" * 12))
    assert refusal.value.field == "depends_on"
    assert house.events(e.RunSubmitted) == []


def test_open_dependencies_of_one_user_are_bounded(house, monkeypatch):
    monkeypatch.setattr(budget, "MAX_EDGES", 6)
    first, second = (house.submit("true", held=True) for _ in range(2))
    on = (Dependency(first), Dependency(second, When.ENDED))

    def many(count: int) -> SubmitMany:
        return SubmitMany(tuple(Submit(house.spec("true", depends_on=on), held=True) for _ in range(count)))

    with pytest.raises(
        Full, match=r"depends_on: ann's waiting runs wait for 0 .* at least 8; the limit is 6"
    ) as refusal:
        house.do(many(4), ANN)
    assert refusal.value.field == "depends_on"
    assert "wait for one run that waits for the rest" in refusal.value.message
    assert len(house.events(e.RunSubmitted)) == 2
    house.do(many(3), ANN)
    house.reopen()
    with pytest.raises(Full, match="wait for 6 dependencies"):
        after(house, on[0], held=True)
    with pytest.raises(Full, match="wait for 6 dependencies"):
        house.do(Submit(house.spec("true", depends_on=on), user="ann", held=True))  # an admin for ann
    house.submit("true", held=True)
    house.submit("true", who=BOB, held=True, depends_on=on)
    house.do(Cancel(second), ANN)  # ends well enough for those that only wait for its end
    waiters = [house.run(after(house, on[0], held=True)).waiting_on for _ in range(3)]
    assert waiters == [(on[0],)] * 3
    with pytest.raises(Full, match="wait for 6 dependencies"):
        after(house, on[0], held=True)


def test_a_held_dependent_stays_held_when_its_dependency_is_met(house):
    first, gate = house.gated()
    waiter = after(house, Dependency(first), held=True)
    gate.open()
    house.wait(first)
    assert house.run(waiter).state is RunState.HELD
    assert house.run(waiter).waiting_on == ()


def test_dependents_survive_a_restart(house):
    first, gate = house.gated()
    waiter = after(house, Dependency(first))
    house.in_state(first, RunState.RUNNING)
    house.close()
    gate.open()
    house.open()
    assert house.wait(waiter).state is RunState.SUCCEEDED


def test_a_chain_of_thirty_runs_in_order(house):
    chain = [house.submit("true")]
    for _ in range(29):
        chain.append(after(house, Dependency(chain[-1])) if house.run(chain[-1]) else "")
    assert {run.state for run in house.wait_all(chain)} == {RunState.SUCCEEDED}
    assert house.starts() == chain
