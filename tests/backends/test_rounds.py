"""Looks that wait without end hold up neither their round's owner nor the looks at others."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from rota.adapters.backends import rounds, routed
from rota.adapters.backends.rounds import Rounds
from rota.adapters.backends.routed import RoutedBackend
from rota.adapters.looks import SharedLooks
from tests.backends.helpers import LocalRig, wait_for


class Sights:
    """Looks at one of the names wait until they are let go."""

    def __init__(self, *held: str) -> None:
        self.held, self.let_go, self.seen = set(held), threading.Event(), list[str]()

    def look(self, name: str, number: int) -> None:
        if name in self.held:
            assert self.let_go.wait(60)
        self.seen.append(name)


def test_a_look_that_waits_is_left_out_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LEFT_AFTER_S", 0.2)
    sights = Sights("b")
    each = [("a", 1), ("b", 2), ("c", 3)]
    looks: Rounds[int] = Rounds("rounds", sights.look)

    def others_are_seen() -> bool:
        looks.begin(each)
        return sights.seen.count("c") >= 3

    wait_for(others_are_seen, "three looks behind the one that waits")
    assert "b" not in sights.seen
    assert looks._held_up == {"b"}
    sights.let_go.set()
    wait_for(lambda: "b" in sights.seen and not looks._held_up, "it has ended")
    sights.seen.clear()

    def all_are_seen() -> bool:
        looks.begin(each)
        return {"a", "b", "c"} <= set(sights.seen)

    wait_for(all_are_seen, "it is looked at again")


def test_a_defect_ends_one_round_and_not_those_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    told: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))

    def look(name: str, number: int) -> None:
        seen.append(name)
        raise ZeroDivisionError

    looks: Rounds[int] = Rounds("defect", look)

    def twice() -> bool:
        looks.begin([("a", 1)])
        return len(seen) >= 2

    wait_for(twice, "another round", 4.0)
    wait_for(lambda: len(told) == len(seen), "each defect is told")
    assert set(told) == {ZeroDivisionError}
    assert not looks._held_up


def test_the_rounds_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "LEFT_AFTER_S", 0.05)
    monkeypatch.setattr(rounds, "MOST_LEFT", 2)
    sights = Sights("a", "b", "c", "d")
    looks: Rounds[int] = Rounds("bounded", sights.look)
    each = [(name, 0) for name in "abcd"]

    def two_are_left() -> bool:
        looks.begin(each)
        return looks._held_up == {"a", "b"}

    wait_for(two_are_left, "two are left alone")
    for _ in range(10):
        looks.begin(each)
    assert sum(thread.name == "bounded" for thread in threading.enumerate()) == 3
    sights.let_go.set()
    wait_for(lambda: not looks._held_up, "they have ended")


def test_who_asks_why_an_attempt_stalls_is_answered_though_the_look_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routed, "LOOK_S", 0.2)
    jobs, go_on = LocalRig(tmp_path, cgroups=False).backend(), threading.Event()
    monkeypatch.setattr(jobs, "stalled_by", lambda attempt_id: (go_on.wait(60) and "found") or "")
    backend = RoutedBackend(jobs, _NoLeases())  # type: ignore[arg-type]
    told = [backend.stalled_by("0123456789ab-1") for _ in range(3)]
    assert all("does not end" in text and "rota cancel --force 0123456789ab" in text for text in told)
    assert sum(thread.name == "rota-stalled" for thread in threading.enumerate()) == 1, "all wait for one look"
    go_on.set()
    wait_for(lambda: backend.stalled_by("0123456789ab-1") == "found", "it has ended")


class _NoLeases:
    def carries(self, attempt_id: str) -> bool:
        return False


def test_looks_that_do_not_end_are_bounded() -> None:
    go_on = threading.Event()
    looks: SharedLooks[bool] = SharedLooks("shared", 2, 0.01)
    assert [looks.look(place, lambda: go_on.wait(60)) for place in "abc"] == [None, None, None]
    assert sum(thread.name == "shared" for thread in threading.enumerate()) == 2
    go_on.set()
    wait_for(lambda: looks.look("c", lambda: True), "there is room again")
