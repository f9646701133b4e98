"""A machine that is suspended: its time counts against limits, and never against the time a program has to save."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.adapters.backends import heard, procs
from rota.adapters.backends.shim import Shim
from rota.adapters.clock import SystemClock

NIGHT_S = 8 * 3600.0


class Machine:
    """Both clocks of a machine: `run` moves both, `suspend` only the one that counts the sleep as well."""

    def __init__(self) -> None:
        self.since_boot, self.awake = 10_000.0, 4_000.0

    def run(self, seconds: float) -> None:
        self.since_boot += seconds
        self.awake += seconds

    def suspend(self, seconds: float) -> None:
        self.since_boot += seconds


class Attempt:
    """A supervisor whose program has a handler for everything and never ends; what was done to it is written down."""

    def __init__(self, machine: Machine, log: int, **order: Any) -> None:
        self.machine = machine
        given = {"log_cap_bytes": 1 << 20, "grace_s": 60.0, "time_limit_s": None, "warn_signal": 0, "warn_s": 0.0}
        house: Any = SimpleNamespace(group="", boot_id="boot", least_free=0)
        self.shim = Shim(house, "0123456789ab-1", {**given, **order}, log)
        self.shim.tasks = {1 << 30: 0}
        self.shim._begun(machine.since_boot)

    def done(self, seen: list[str]) -> list[str]:
        """What the next look leads to."""
        seen.clear()
        self.shim._check_deadlines(self.machine.since_boot)
        return list(seen)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(procs, "boottime", lambda: made.since_boot)
    monkeypatch.setattr(procs, "time_awake", lambda: made.awake)
    return made


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    acts: list[str] = []

    def ask(signum: int, leaders: object, handlers: heard.Handlers, **more: object) -> Any:
        acts.append(f"asked by {heard.name(signum)}")
        return SimpleNamespace(heard=True, waiting=False, unheeded=lambda waited_s: f"killed after {waited_s} s")

    def message(signum: int, handlers: heard.Handlers) -> bool:
        acts.append(f"warned by {heard.name(signum)}")
        return True

    def kill(shim: Shim) -> float:
        acts.append("killed")
        return float("inf")

    monkeypatch.setattr(heard, "Asking", ask)
    monkeypatch.setattr(heard, "message", message)
    monkeypatch.setattr(Shim, "_kill_all", kill)
    return acts


@pytest.fixture
def log(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY)
    yield fd
    os.close(fd)


def test_a_suspended_night_counts_against_the_limit_and_the_grace_begins_after_it(
    machine: Machine, seen: list[str], log: int
) -> None:
    attempt = Attempt(machine, log, time_limit_s=4 * 3600.0)
    machine.suspend(NIGHT_S)
    assert attempt.done(seen) == ["asked by SIGTERM"]
    machine.run(59.0)
    assert attempt.done(seen) == []
    machine.run(1.0)
    assert attempt.done(seen) == ["killed"]


def test_a_grace_is_time_in_which_the_machine_runs(machine: Machine, seen: list[str], log: int) -> None:
    attempt = Attempt(machine, log)
    attempt.shim._end("preempted", signal.SIGUSR2, 60.0)
    machine.run(1.0)
    machine.suspend(NIGHT_S)
    assert attempt.done(seen) == [], "the lid was closed while it saved"
    assert attempt.shim._next_deadline(machine.since_boot) == pytest.approx(machine.since_boot + 59.0)
    machine.run(59.0)
    assert attempt.done(seen) == ["killed"]


def test_a_warning_that_was_slept_through_comes_first_and_leaves_time_to_save(
    machine: Machine, seen: list[str], log: int
) -> None:
    attempt = Attempt(machine, log, time_limit_s=3600.0, warn_signal=signal.SIGUSR2, warn_s=300.0)
    machine.suspend(NIGHT_S)
    assert attempt.done(seen) == ["warned by SIGUSR2"]
    machine.run(59.0)
    assert attempt.done(seen) == [], "a minute of the five that it asked for: others have waited all night"
    machine.run(1.0)
    assert attempt.done(seen) == ["asked by SIGTERM"]


def test_the_clocks_are_those_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The house's time, limits and GPU-seconds go by the one that counts suspended time, graces by the other. On a
    machine that was never suspended both show the same, so that it must be seen which one is asked."""
    shows = {time.CLOCK_BOOTTIME: 10_000.0 + NIGHT_S, time.CLOCK_MONOTONIC: 10_000.0}
    monkeypatch.setattr(time, "clock_gettime", shows.__getitem__)
    assert procs.boottime() == SystemClock().tick() == shows[time.CLOCK_BOOTTIME]
    assert procs.time_awake() == shows[time.CLOCK_MONOTONIC]
