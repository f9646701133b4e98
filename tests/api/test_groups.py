"""What is known of sweeps: bounded, kept true while a sweep is read, and no dearer to the writer the more are known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from rota.api import groups
from rota.api.groups import Groups
from rota.core import events as e
from rota.core.run import RunState
from tests.unit.core.kit import spec

QUEUED, RUNNING, CANCELLED = RunState.QUEUED, RunState.RUNNING, RunState.CANCELLED


class Runs:
    """A service that has only runs, and says how often it was asked for a page of them."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, RunState]] = {}
        self.tell: Callable[[int, Sequence[e.Event]], None] = lambda first, events: None
        self.during: Callable[[], object] = lambda: None  # happens after a page was read
        self.pages = 0

    def subscribe(self, hear: Callable[[int, Sequence[e.Event]], None]) -> None:
        self.tell = hear

    def runs_page(self, which: Any) -> tuple[list[Any], bool]:
        self.pages += 1
        states = self.of.get(which.group, {})
        rows = [SimpleNamespace(id=run_id, state=state, seq=0) for run_id, state in states.items()]
        self.during()
        return rows[::-1], False


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def known(runs: Runs) -> Groups:
    service: Any = runs
    return Groups(service)


def submitted(run_id: str, group: str) -> e.Event:
    return e.RunSubmitted(
        at=1.0, run_id=run_id, seq=1, user="ann", spec=spec(1, group=group), held=False, waiting_on=(),
        expected_s=1.0, expected_from="estimate",
    )  # fmt: skip


def ended(run_id: str) -> e.Event:
    return e.RunEnded(at=1.0, run_id=run_id, state=CANCELLED, why="")


def moved(run_id: str, group: str) -> e.Event:
    return e.RunEdited(at=1.0, run_id=run_id, spec=spec(1, group=group))


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of groups.py `work` runs: each turn of a loop counts."""
    count = 0

    def trace(frame: FrameType, what: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != groups.__file__:
            return None
        count += what == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("event", [ended("r"), submitted("r", "elsewhere"), moved("r", "elsewhere")])
def test_an_event_costs_the_writer_the_same_however_many_sweeps_are_known(
    runs: Runs, known: Groups, event: e.Event
) -> None:
    known.states("first")
    few = lines_run(lambda: runs.tell(1, [event] * 10))
    for n in range(2000):
        known.states(f"empty {n}")
    assert lines_run(lambda: runs.tell(1, [event] * 10)) == few


def test_sweeps_without_runs_are_forgotten_too(runs: Runs, known: Groups, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "MOST_GROUPS", 3)
    for name in "abc":
        known.states(name)
    known.states("a")
    known.states("d")
    assert runs.pages == 4
    known.states("a")
    assert runs.pages == 4, "who was asked for last is kept"
    known.states("b")
    assert runs.pages == 5, "who was not asked for longest has gone"


def test_what_happens_while_a_sweep_is_read_is_not_lost(runs: Runs, known: Groups) -> None:
    runs.of["s"] = {"r1": RUNNING, "r2": RUNNING}
    runs.during = lambda: runs.tell(1, [ended("r1"), submitted("r3", "s"), submitted("r4", "t"), ended("r4")])
    assert known.states("s") == {"r1": CANCELLED, "r2": RUNNING, "r3": QUEUED}
    runs.tell(5, [ended("r3")])
    assert list(known.states("s").items()) == [("r1", CANCELLED), ("r2", RUNNING), ("r3", CANCELLED)]
    assert runs.pages == 1


def test_a_run_that_changes_its_sweep_makes_both_be_read_again(runs: Runs, known: Groups) -> None:
    runs.of["s"], runs.of["t"] = {"r1": RUNNING}, {}
    known.states("s"), known.states("t"), known.states("other")
    runs.of["s"], runs.of["t"] = {}, {"r1": RUNNING}
    runs.tell(1, [moved("r1", "t")])
    assert (known.states("s"), known.states("t"), known.states("other")) == ({}, {"r1": RUNNING}, {})
    assert runs.pages == 5


def test_what_was_read_while_a_run_changed_its_sweep_is_not_kept(runs: Runs, known: Groups) -> None:
    runs.of["s"] = {"r1": RUNNING}
    runs.during = lambda: runs.tell(1, [moved("r1", "t")])
    known.states("s")
    runs.during = lambda: None
    runs.of["s"] = {}
    assert known.states("s") == {}


@pytest.mark.parametrize(
    ("during", "pages"),
    [
        (moved("x", "t"), 1),  # in neither: a label of somebody else's run was edited
        (moved("r1", "s"), 1),
        (moved("x", "s"), 2),  # it joined, after its page was read
        (moved("r1", "t"), 2),
    ],
)
def test_edits_elsewhere_do_not_keep_a_sweep_from_being_kept(
    runs: Runs, known: Groups, during: e.Event, pages: int
) -> None:
    """Else one person who edits without end would have everybody's large sweeps read anew each time."""
    runs.of["s"] = {"r1": RUNNING}
    runs.during = lambda: runs.tell(1, [during])
    known.states("s")
    runs.during = lambda: None
    known.states("s")
    assert runs.pages == pages


def test_a_run_read_in_two_sweeps_since_its_move_was_not_heard_yet_costs_nobody_news(runs: Runs, known: Groups) -> None:
    runs.of = {"a": {"x": QUEUED, "a1": QUEUED}, "b": {"b1": QUEUED}, "others": {"o1": QUEUED}}
    known.states("a"), known.states("others")
    runs.of["a"], runs.of["b"] = {"a1": QUEUED}, {"x": QUEUED, "b1": QUEUED}
    assert known.states("b") == {"x": QUEUED, "b1": QUEUED}
    runs.tell(1, [moved("x", "b")])
    runs.of["b"] = {"b1": QUEUED}
    runs.tell(2, [moved("x", "elsewhere")])
    runs.tell(3, [ended("a1"), ended("b1"), ended("o1")])
    pages = runs.pages
    assert known.states("others") == {"o1": CANCELLED}
    assert runs.pages == pages, "it is still kept"
    assert (known.states("a"), known.states("b")) == ({"a1": QUEUED}, {"b1": QUEUED}), "these are read again"
    assert runs.pages == pages + 2


def test_a_run_whose_move_was_read_before_its_submit_was_heard_costs_nobody_news(runs: Runs, known: Groups) -> None:
    runs.of = {"b": {"x": QUEUED}, "others": {"o1": QUEUED}}
    known.states("a"), known.states("b"), known.states("others")
    runs.tell(1, [submitted("x", "a"), moved("x", "b"), ended("o1")])
    runs.tell(2, [ended("x")])
    pages = runs.pages
    assert known.states("others") == {"o1": CANCELLED}
    assert runs.pages == pages
    runs.of = {"b": {"x": CANCELLED}}
    assert (known.states("a"), known.states("b")) == ({}, {"x": CANCELLED})


def test_a_read_that_fails_leaves_nothing_behind(runs: Runs, known: Groups) -> None:
    def fail() -> None:
        raise OSError("the store does not answer")

    known.states("other")
    quiet = lines_run(lambda: runs.tell(1, [ended("r1")]))
    runs.of["s"] = {"r1": RUNNING}
    runs.during = fail
    with pytest.raises(OSError, match="does not answer"):
        known.states("s")
    assert lines_run(lambda: runs.tell(1, [ended("r1")])) == quiet, "nobody is told news any more"
    runs.during = lambda: None
    assert known.states("s") == {"r1": RUNNING}
    runs.tell(2, [ended("r1")])
    assert known.states("s") == {"r1": CANCELLED}
    assert runs.pages == 3


def test_two_who_read_a_sweep_at_once_get_the_same(runs: Runs, known: Groups) -> None:
    runs.of["s"] = {"r1": RUNNING}
    inner: list[Any] = []

    def meanwhile() -> None:
        if not inner:
            inner.append(None)
            inner[0] = known.states("s")
            runs.tell(1, [ended("r1")])

    runs.during = meanwhile
    assert known.states("s") == {"r1": CANCELLED}
    assert inner == [{"r1": RUNNING}]
    assert known.states("s") == {"r1": CANCELLED}
