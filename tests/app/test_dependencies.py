"""Runs that wait for runs."""

from __future__ import annotations

import pytest

from rota.app.commands import Cancel
from rota.app.errors import Invalid
from rota.core import events as e
from rota.core.run import Dependency, RunState, When
from tests.app.house import ANN, House

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
