"""The simulated backend keeps the same contract as the real one; time passes when its clock is moved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.adapters.backends.simulated import SimulatedBackend, World
from rota.adapters.clock import ManualClock
from tests.backends.contract import BackendContract, Kind, Rig

COMMANDS: dict[Kind, tuple[str, ...]] = {
    "succeed": ("sim", "0.1"),
    "fail with 3": ("sim", "0.1", "3"),
    "last for ever": ("sim", "1e12"),
    "ignore TERM": ("sim", "1e12", "0", "deaf\n", "deaf"),
    "say hello": ("sim", "0.1", "0", "hello\n"),
    "exit 5 on USR1": ("sim", "1e12", "5", "ready\n", "saves"),
}


class SimulatedRig(Rig):
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.world = World(self.clock)

    def backend(self) -> SimulatedBackend:
        return SimulatedBackend(self.world)

    def argv(self, kind: Kind) -> tuple[str, ...]:
        return COMMANDS[kind]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        for _ in range(1000):
            if result := condition():
                return result
            self.clock.advance(0.01)
            self.world.pump()
        raise AssertionError(f"waited in vain for: {what}")

    def workdir(self) -> str:
        return "/"


class TestSimulated(BackendContract):
    @pytest.fixture
    def rig(self) -> SimulatedRig:
        return SimulatedRig()
