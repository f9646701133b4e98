"""Processes that fork ahead of a supervisor's look do not hold it up: its time limit and its kill come when due."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest

from rota.adapters.backends import defunct, evict, heard, inside, procs
from rota.adapters.backends.shim import Shim
from rota.core.run import Holder

FIRST, STEP_S, GRACE_S = 1 << 24, 0.001, 10.0  # above every pid that there can be
ORDER = {"log_cap_bytes": 1 << 20, "grace_s": GRACE_S, "time_limit_s": 1.0, "warn_signal": 0, "warn_s": 0.0}


class Chain:
    """A process table in which every process has one child, and a clock that goes on with each question for it."""

    def __init__(self) -> None:
        self.now, self.asked, self.told = 1000.0, 0, set[tuple[int, int]]()

    def children(self, pid: int) -> list[int]:
        self.asked += 1
        assert self.asked < 200_000, "the look does not end"
        return [FIRST if pid == os.getpid() else pid + 1]

    def origin(self, pid: int) -> Any:
        parent = os.getpid() if pid == FIRST else pid - 1
        return SimpleNamespace(
            start=1, image=0, parent=parent, group=pid, dead=False, forked=False, may_be_fork_of=lambda other: False
        )

    def time(self) -> float:
        self.now += STEP_S
        return self.now

    def send(self, pid: int, started: int, signum: int) -> bool:
        self.told.add((pid, signum))
        return True


@pytest.fixture
def chain(monkeypatch: pytest.MonkeyPatch) -> Chain:
    made = Chain()
    monkeypatch.setattr(procs, "children", made.children)
    monkeypatch.setattr(procs, "origin", made.origin)
    monkeypatch.setattr(procs, "caught", lambda pid: 0)
    monkeypatch.setattr(procs, "time_awake", made.time)
    monkeypatch.setattr(procs, "send_to", made.send)
    return made


@pytest.fixture
def kills(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a supervisor killed all that it has."""
    times: list[float] = []

    def kill(shim: Shim) -> float:
        times.append(chain.now)
        return float("inf")

    monkeypatch.setattr(Shim, "_kill_all", kill)
    return times


def test_a_look_ends_in_time_with_what_it_has_found(chain: Chain) -> None:
    begun = chain.now
    found = heard.look(signal.SIGTERM, os.getpid())
    assert [each.pid for each in found] == list(range(FIRST, FIRST + len(found)))
    assert len(found) > 100
    assert chain.now <= begun + heard.LOOK_S + 10 * STEP_S


def test_a_look_ends_at_a_number_of_processes(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "MAX_FOUND", 50)
    assert len(heard.look(signal.SIGTERM, os.getpid())) == 50


def test_who_has_to_know_all_is_told_that_these_are_not_all(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TimeoutError):
        heard.look(signal.SIGKILL, os.getpid(), whole=True)
    monkeypatch.setattr(defunct, "are_all", lambda pids, uid: True)
    assert defunct.left(os.getuid()) == frozenset()


def test_a_process_that_was_not_looked_below_counts_as_a_launcher(chain: Chain) -> None:
    """A program that saves may be below it, which would end with it."""
    asking = heard.Asking(signal.SIGTERM, [FIRST], heard.Handlers())
    assert asking.waiting
    assert chain.told == set()


def test_what_one_look_finds_is_killed(chain: Chain) -> None:
    killed = heard.kill_all()
    assert killed
    assert chain.told == {(pid, signal.SIGKILL) for pid in killed}


@pytest.mark.parametrize(("signum", "grace_s"), [(signal.SIGKILL, 0.0), (signal.SIGKILL, 5.0), (signal.SIGTERM, 0.0)])
def test_one_that_gets_no_time_is_not_looked_at_before_its_kill(
    shim: Shim, chain: Chain, kills: list[float], signum: int, grace_s: float
) -> None:
    shim.tasks = {FIRST: 0}
    shim._end("cancelled", signum, grace_s)
    assert chain.asked == 0
    assert (shim.cause, shim.ending[0], shim.ending[2]) == ("cancelled", signum, grace_s)
    shim._check_deadlines(0.0)
    assert len(kills) == 1
    assert shim.unheeded == ""


def test_the_kill_comes_when_the_grace_is_over_however_its_processes_fork(
    shim: Shim, chain: Chain, kills: list[float]
) -> None:
    shim.tasks, begun = {FIRST: 0}, chain.now
    shim._end("time_limit", signal.SIGTERM, GRACE_S)
    looks = chain.asked
    while not kills:
        shim._check_deadlines(0.0)
    assert chain.asked > looks, "it was looked at again meanwhile"
    assert begun + GRACE_S <= kills[0] <= begun + GRACE_S + heard.LOOK_S + 1.0


@pytest.fixture
def holder(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Holder:
    """The first process of the chain, which has a lease."""
    monkeypatch.setattr(procs, "start_time", lambda pid: 1)
    monkeypatch.setattr(procs, "name_and_parent", lambda pid: (b"sh", pid - 1))
    monkeypatch.setattr(procs, "is_of", lambda pid, uid, subuids: True)
    monkeypatch.setattr(inside, "lineage", lambda pid: {pid})
    monkeypatch.setattr(inside, "groups_of", lambda pid: set())
    return Holder(FIRST, 1, "boot", os.getuid())


def test_a_look_at_the_family_of_a_lease_ends_in_time(chain: Chain, holder: Holder) -> None:
    begun = chain.now
    found, unseen = evict.family(holder)
    assert found == tuple((pid, 1) for pid in range(FIRST, FIRST + len(found)))
    assert len(found) > 100
    assert unseen == {found[-1]}, "the only one that there may be more below"
    assert chain.now <= begun + heard.LOOK_S + 10 * STEP_S


def test_the_next_look_at_a_family_goes_on_where_the_last_one_ended(
    chain: Chain, holder: Holder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heard, "MAX_FOUND", 50)
    first = evict.family(holder)
    assert len(first.found) == 50
    more = evict.family(holder, first.found)
    assert [pid for pid, _ in more.found] == [FIRST, *range(FIRST + 50, FIRST + 99)]
    monkeypatch.setattr(procs, "start_time", lambda pid: None if pid == FIRST else 1)
    orphans = evict.family(holder, first.found)
    assert [pid for pid, _ in orphans.found] == list(range(FIRST + 50, FIRST + 100)), "the holder has ended"


def test_below_a_number_that_is_a_strangers_by_now_nothing_is_of_the_family(chain: Chain, holder: Holder) -> None:
    assert evict.family(Holder(FIRST, 2, "boot", holder.uid), [(FIRST + 9, 2)]) == evict.Family()
