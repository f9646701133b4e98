"""Nobody waits for ever, however much more important, shorter or thriftier work keeps coming.

"For ever" cannot be tested, but the static keys say how long it can be at most: from some moment on, whatever arrives
stands behind. What stood before it by then, and what was running, is all that may still come first. Each test feeds
more work than the cluster can do, without end, and measures against that moment.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.policy import Backfill, Ordering, Policy
from rota.core.usage import Usage
from tests.unit.core.kit import CRITICAL, HIGH, LOW, NORMAL, Lab, node

GPUS = 4
STRICT = [Backfill.EASY, Backfill.NONE]  # SKIP says itself that wide runs may wait long


def flooded(policy: Policy, wide: dict, small: dict, *, until: float, every: float, usage: float = 0.0) -> float:
    """When a run of the whole node starts while runs of one GPU come in every few seconds."""
    lab = Lab(node("a", GPUS), policy=policy, checked=False)
    for _ in range(2 * GPUS):
        lab.submit(1, user="flood", **small)
    lab.step()
    lab.state.usage["patient"] = Usage(usage, 0.0)
    patient = lab.submit(GPUS, user="patient", **wide)
    while lab.first_start(patient) is None:
        assert lab.now < until, f"still waiting at {lab.now}, should have started by {until}"
        lab.until(lab.now + every)
        lab.submit(1, user="flood", **small)
        lab.step()
    started = lab.first_start(patient)
    assert started is not None
    return started


takes = st.floats(1, 20)


@settings(max_examples=25)
@given(takes, st.sampled_from(STRICT))
def test_first_come_first_served_waits_for_those_before_it_alone(small_takes, backfill):
    """Before it: what runs, and one more round of what was queued already."""
    policy = Policy(ordering=Ordering.FCFS, backfill=backfill)
    every = small_takes / GPUS / 1.3
    flooded(policy, {"takes": 5}, {"takes": small_takes}, until=2 * small_takes + every, every=every)


@settings(max_examples=25)
@given(takes, st.sampled_from([LOW, NORMAL]), st.sampled_from([HIGH, CRITICAL]), st.sampled_from(STRICT))
def test_with_aging_the_least_important_is_overtaken_for_a_bounded_time(small_takes, mine, theirs, backfill):
    aging_s = 30.0
    policy = Policy(ordering=Ordering.PRIORITY, aging_s=aging_s, backfill=backfill)
    every = small_takes / GPUS
    overtaken = (theirs - mine) * aging_s  # whoever comes later than this stands behind
    before_it = overtaken / every + 2 * GPUS + 2
    by = overtaken + (before_it / GPUS + 2) * small_takes
    started = flooded(
        policy, {"takes": 5, "priority": mine}, {"takes": small_takes, "priority": theirs}, until=by, every=every
    )
    assert started >= overtaken - small_takes, "and until then the more important did go first"


@settings(max_examples=25)
@given(takes, st.floats(20, 60), st.sampled_from(STRICT))
def test_shortest_first_lets_the_long_one_wait_for_a_bounded_time(small_takes, long, backfill):
    policy = Policy(ordering=Ordering.SJF, sjf_aging=0.5, backfill=backfill)
    every = small_takes / GPUS
    overtaken = max(0.0, long - small_takes) / 0.5
    by = overtaken + ((overtaken / every + 2 * GPUS + 2) / GPUS + 2) * small_takes
    flooded(policy, {"takes": long}, {"takes": small_takes}, until=by, every=every)


@settings(max_examples=25)
@given(takes, st.floats(0, 400), st.sampled_from(STRICT))
def test_under_fair_share_the_flood_pays_for_itself(small_takes, used, backfill):
    """The patient one has used a lot before. Every start of the flood is charged, so its share catches up."""
    policy = Policy(ordering=Ordering.FAIR_SHARE, half_life_s=1e9, backfill=backfill)
    every = small_takes / GPUS
    catches_up = used / GPUS
    flooded(policy, {"takes": 5}, {"takes": small_takes}, until=catches_up + 4 * small_takes, every=every, usage=used)


@pytest.mark.parametrize("ordering", list(Ordering))
def test_skipping_starves_nobody_that_is_no_wider_than_the_rest(ordering):
    policy = Policy(ordering=ordering, backfill=Backfill.SKIP, aging_s=30, sjf_aging=0.5, half_life_s=1e9)
    lab = Lab(node("a", GPUS), policy=policy, checked=False)
    patient = lab.submit(1, user="patient", takes=50, priority=LOW)
    lab.state.usage["patient"] = Usage(100.0, 0.0)
    while lab.first_start(patient) is None:
        assert lab.now < 1000
        lab.submit(1, user="flood", takes=7, priority=CRITICAL)
        lab.until(lab.now + 7 / GPUS / 1.2)


def test_the_flood_is_one():
    """The tests above say something only if without aging the patient one would in fact wait and wait."""
    never = replace(Policy(), ordering=Ordering.PRIORITY, aging_s=1e9)
    with pytest.raises(AssertionError, match="still waiting"):
        flooded(never, {"takes": 5, "priority": LOW}, {"takes": 10, "priority": HIGH}, until=3000, every=2)
