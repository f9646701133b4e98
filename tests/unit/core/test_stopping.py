"""How a run is warned and stopped, and what that cost it: the rules alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rota.core import filler
from rota.core.resources import Slice
from rota.core.run import Cause, Exit, Holder, PastAttempt, Run, RunState
from rota.core.suspended import Suspended, suspended
from rota.core.times import seconds, told
from rota.core.warning import Notice, warning
from tests.unit.core.kit import spec

USR1, TERM, KILL = 10, 15, 9


@pytest.mark.parametrize(
    ("text", "value"),
    [("1h", 3600), ("4h", 14400), ("12h", 43200), ("1d", 86400), ("3d", 259200), ("1w", 604800), ("2w", 1209600),
     ("30d", 2592000), ("90d", 7776000), ("90", 90), ("1.5m", 90), ("1:30", 90), ("1-12", 129600)],
)  # fmt: skip
def test_a_time_is_exact_or_a_class(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "0", "1x", "w", "-1h", "1h30", "1e3", "999999999d", "1 h", "١h"])
def test_what_is_no_time_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time"):
        seconds(text)


def test_zero_is_a_time_only_where_it_means_something() -> None:
    assert seconds("0", least=0.0) == seconds("0s", least=0.0) == 0.0


def test_a_time_is_told_without_fractions() -> None:
    assert [told(s) for s in (0.5, 60, 90, 5400, 3600, 86400)] == ["0.5 s", "1 min", "90 s", "90 min", "1 h", "1 d"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        ({"time_limit_s": 3600.0}, None),  # TERM comes anyhow
        ({"time_limit_s": 3600.0, "warn_signal": TERM}, Notice(TERM, 60.0)),
        ({"time_limit_s": 100.0, "warn_signal": USR1}, Notice(USR1, 5.0)),
        ({"time_limit_s": 3600.0, "checkpoint_signal": USR1}, Notice(USR1, 60.0)),
        ({"time_limit_s": 3600.0, "checkpoint_signal": USR1, "warn_signal": 12, "warn_s": 300.0}, Notice(12, 300.0)),
        ({"time_limit_s": 3600.0, "checkpoint_signal": USR1, "warn_s": 0.0}, None),
        ({"time_limit_s": 3600.0, "checkpoint_signal": KILL}, None),
        ({"checkpoint_signal": USR1}, None),
    ],
)
def test_only_who_asked_is_warned(said: dict[str, Any], expected: Notice | None) -> None:
    assert warning(spec(**said)) == expected


def test_a_filler_is_short_and_lets_itself_be_killed() -> None:
    made = filler.as_filler(spec(filler=True, time_limit_s=60.0, grace_s=60.0, checkpoint_signal=USR1, warn_s=5.0))
    assert (made.preemptible, made.checkpoint_signal, made.grace_s, warning(made)) == (True, KILL, 0.0, None)
    assert not filler.as_filler(spec(filler=True, saves=True)).saves
    assert filler.as_filler(made) == made


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"time_limit_s": 3600.0}, ""),
        ({"estimate_s": 60.0}, ""),
        ({"time_limit_s": 7200.0, "estimate_s": 60.0}, ""),
        ({}, "must be short"),
        ({"time_limit_s": 7200.0}, "at most 1 h, and this one says 2 h"),
        ({"time_limit_s": 60.0, "holder": Holder(1, 2, "boot")}, "a lease cannot be a filler"),
    ],
)
def test_what_can_be_a_filler(said: dict[str, Any], wrong: str) -> None:
    problem = filler.problem(spec(filler=True, **said))
    assert wrong in problem and bool(problem) == bool(wrong)


def past(number: int, planned_at: float, ended_at: float, cause: Cause, **more: Any) -> PastAttempt:
    where = (Slice("a", 0b11),)
    return PastAttempt(
        f"{'0' * 12}-{number}", number, where, planned_at, planned_at, ended_at, Exit(cause), 0.0, **more
    )


def a_run(state: RunState, **more: Any) -> Run:
    return Run("0" * 12, 1, "ann", spec(2), state, 2, 0.0, 60.0, "default", **more)


def test_standing_still_for_others_is_counted_and_waiting_for_other_reasons_is_not() -> None:
    first = past(1, 100.0, 200.0, Cause.PREEMPTED, stopped_at=190.0, for_run="x")
    second = past(2, 500.0, 600.0, Cause.LOST)
    third = past(3, 700.0, 700.0, Cause.NEVER_STARTED, stopped_at=700.0, for_run="y")
    waiting = a_run(RunState.QUEUED)
    assert suspended(waiting, (first,), now=250.0) == Suspended(1, 50.0, 20.0), "it is standing still now"
    assert suspended(waiting, (first, second), now=650.0) == Suspended(1, 300.0, 20.0)
    assert suspended(waiting, (first, second, third), now=1000.0) == Suspended(2, 600.0, 20.0)
    gone = a_run(RunState.CANCELLED, ended_at=800.0)
    assert suspended(gone, (first, second, third), now=1e9) == Suspended(2, 400.0, 20.0)
    assert suspended(a_run(RunState.QUEUED), (second,), now=1e9) == Suspended()


def test_an_older_record_that_does_not_say_when_it_was_asked_costs_no_grace() -> None:
    old = replace(past(1, 0.0, 10.0, Cause.PREEMPTED), stopped_at=None)
    assert suspended(a_run(RunState.QUEUED), (old,), now=5.0) == Suspended(1, 0.0, 0.0), "nor does a clock set back"
