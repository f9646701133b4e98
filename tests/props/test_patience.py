"""Under auto nobody waits for ever: what a stream of short runs can do to a wide one, and for how long.

A run that has waited for `w` stands at left x share x weight / (1 + w / (patience x declared)). A stream of short runs
that the cluster can carry is passed once that is below theirs, which is at the latest, for a run of `declared` seconds
among ones of `short`, after

    patience x declared x MORE x declared / short

(the first of them ten minutes at least: nobody's patience is shorter) and a hundred times that for every step of
priority that the stream has above it. MORE takes in what is not the same for all: shares (at most 4 ** 0.4), buckets
(2 ** 0.5), the margin of a stop (1.5), and that a short run which has waited as long as it takes is itself twice as
urgent. Then it waits for the next stop, or for its reservation.

A stream that the cluster can not carry is another matter: its runs grow impatient as well, and faster.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.policies.auto import BRIEF_S
from rota.core.policy import Policy
from rota.core.presets import named
from tests.props.stage import KINDS, Stage
from tests.unit.core.kit import CRITICAL, LOW, NORMAL, node

GPUS = 4
MORE = 4**0.4 * 2**0.5 * 1.5 * 2.0
SAVES, PLAIN = 0, 2
# How long each of the stream takes, and how much of the cluster all of them. Whoever is done within `min_run_s` is not
# stopped: to those what is said of plain ones applies.
STREAMS = [(30.0, 0.5), (60.0, 0.5), (100.0, 0.5), (333.0, 0.5)]


def bound(policy: Policy, declared: float, short: float) -> float:
    overtaken = policy.patience * max(declared, BRIEF_S) * MORE * declared / short
    return overtaken + policy.min_run_s + 3 * short


def streamed(declared: float, short: float, kind: int, *, carried: float, user: str = "ann") -> float | None:
    """When a run of the whole node starts while ones of a GPU keep coming, or None: not within its bound."""
    policy = named("auto")
    stage = Stage(node("a", GPUS), policy=policy, judged=False, checked=False)
    stream = {"takes": short, "time_limit_s": short, "grace_s": 0.0, **KINDS[kind]}
    for _ in range(GPUS):
        stage.submit(1, user="stream", **stream)
    stage.step()
    wide = stage.submit(GPUS, user=user, takes=declared, time_limit_s=declared, grace_s=0.0, **KINDS[kind])
    by = bound(policy, declared, short)
    while stage.first_start(wide) is None and stage.now <= by:
        stage.until(stage.now + short / GPUS / carried)
        stage.submit(1, user="stream", **stream)
        stage.step()
    return stage.first_start(wide)


@settings(max_examples=8)
@given(st.sampled_from(STREAMS), st.floats(1.0, 5.0), st.booleans())
def test_a_wide_run_starts_in_its_time_although_short_ones_that_save_keep_coming(stream, longer, own):
    """Those that come may use its reservation only if they can be stopped by then; of its own person or another's."""
    short, carried = stream
    assert streamed(short * longer, short, SAVES, carried=carried, user="stream" if own else "ann") is not None


@settings(max_examples=8)
@given(st.sampled_from([30.0, 60.0, 333.0]), st.floats(1.0, 4.0))
def test_where_nobody_can_be_stopped_its_reservation_carries_it(short, longer):
    assert streamed(short * longer, short, PLAIN, carried=0.5) is not None


@pytest.mark.parametrize(("short", "longer", "kind"), [(60.0, 4.0, PLAIN), (333.0, 2.0, SAVES)])
def test_a_dense_stream_is_passed_too(short, longer, kind):
    assert streamed(longer * short, short, kind, carried=0.8) is not None


@settings(max_examples=40)
@given(
    st.floats(1.0, 1000.0),
    st.floats(10.0, 5000.0),
    st.sampled_from([SAVES, PLAIN]),
    st.sampled_from([(CRITICAL, NORMAL), (CRITICAL, LOW)]),
)
def test_a_critical_run_goes_before_a_normal_one_up_to_a_thousand_times_shorter(longer, short, kind, priorities):
    more, less = priorities
    stage = Stage(node("a", GPUS), policy=named("auto"), judged=False, checked=False)
    stage.submit(GPUS, takes=50.0)
    stage.step()
    first = stage.submit(GPUS, takes=short, time_limit_s=short, priority=less, **KINDS[kind])
    second = stage.submit(
        GPUS, takes=short * longer, time_limit_s=short * longer, priority=more, user="ben", **KINDS[kind]
    )
    stage.until(1e8)
    earlier, later = stage.first_start(second), stage.first_start(first)
    assert earlier is not None
    assert later is not None
    assert earlier < later


@settings(max_examples=10)
@given(st.sampled_from([(100.0, 100.0), (300.0, 300.0), (100.0, 400.0)]), st.sampled_from([SAVES, PLAIN]))
def test_two_people_with_the_same_jobs_get_about_the_same(takes, kind):
    """One of them submits all of hers first."""
    stage = Stage(node("a", GPUS), policy=named("auto"), judged=False, checked=False)
    users = {"ann": 60, "ben": 60}
    for user, count in users.items():
        for number in range(count):
            length = takes[number % 2]
            stage.submit(1, user=user, takes=length, time_limit_s=length, grace_s=0.0, **KINDS[kind])
    stage.until(sum(takes) / 2 * 60 / GPUS)  # half of it is done
    used = dict.fromkeys(users, 0.0)
    for run in stage.state.runs.values():
        used[run.user] += sum(past.gpu_s for past in run.past)
    assert max(used.values()) <= 2 * min(used.values()), used
