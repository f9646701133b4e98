"""Small lives on the virtual clock, each of which once went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota.app import commands as c
from rota.core import events as e
from rota.core.explain import explain
from rota.core.policy import Policy
from rota.core.resources import Request
from rota.core.run import Spec
from tests.world.system import System


@pytest.fixture
def system(tmp_path: Path) -> System:
    made = System(tmp_path, 1)
    made.faults = False
    made.world.launch_s = lambda: 0.001
    made.restart()
    return made


def spec(*argv: str, **more: object) -> Spec:
    return Spec("x", ("sim", *argv), "/", Request(gpus=1), **more)  # type: ignore[arg-type]


def pass_time(system: System, seconds: float) -> None:
    system.clock.advance(seconds)
    system.world.pump()
    system.turn()


def test_an_end_that_recovery_finds_is_told_like_any_other(system: System) -> None:
    told: list[e.Event] = []
    run = system.do(c.Submit(spec("10")))
    pass_time(system, 1)
    system.loop.subscribers.append(lambda first, events: told.extend(events))
    system.store.next_fault = "busy"
    pass_time(system, 10)  # the report of its end meets a store that takes nothing
    assert system.loop.degraded and not told
    pass_time(system, 2)
    assert not system.loop.degraded
    assert [event.run_id for event in told if isinstance(event, e.AttemptEnded)] == [run.id]
    system.kill()


def test_a_look_at_a_run_does_not_steal_the_end_of_its_back_off(system: System) -> None:
    system.do(c.SetPolicy(Policy(retry_base_s=50.0)))
    run = system.do(c.Submit(spec("1", "3", retry_failures=True)))
    pass_time(system, 1)
    pass_time(system, 2)
    assert system.loop.state.delayed, "it failed and backs off"
    system.clock.advance(100)
    explain(system.loop.state, system.loop.now(), run.id)
    system.turn()
    pass_time(system, 1)
    assert system.loop.state.runs[run.id].attempts_made == 2
    system.kill()
