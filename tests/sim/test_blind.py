"""The scheduler does not see the future: whatever is changed from some moment on changes nothing before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core.node import simulated_cluster
from rota.core.presets import NAMES
from rota.sim.engine import simulate
from rota.sim.model import Job, Result
from rota.sim.policyfile import read_policy

NODES = simulated_cluster(2, 4)

job = st.builds(
    Job,
    id=st.just(""),
    submit_s=st.integers(0, 3000),
    duration_s=st.integers(0, 3000),
    gpus=st.sampled_from([1, 1, 2, 3, 4, 8]),
    user=st.sampled_from(["ann", "ben"]),
    limit_s=st.sampled_from([None, 600, 3600]),
    priority=st.sampled_from([1, 2, 2, 3]),
    preemptible=st.booleans(),
    command=st.sampled_from(["", "train", "test"]),
)


@pytest.fixture(scope="module", autouse=True)
def give_up_soon() -> Iterator[None]:
    """A policy that goes round in circles is another test's matter."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rota.sim.engine.IDLE_MOMENTS", 1000)
        yield


def numbered(jobs: list[Job]) -> list[Job]:
    return [replace(one, id=str(n)) for n, one in enumerate(jobs)]


def until(result: Result, moment: int) -> list[tuple[object, ...]]:
    """All that was to be seen before a moment."""
    return sorted(
        (one.job, one.attempt, one.start_s, min(one.end_s, moment), one.placement)
        for one in result.segments
        if one.start_s < moment
    )


def done_by(result: Result, number: int, moment: int) -> int:
    """Seconds of useful work."""
    return sum(max(0, min(one.end_s, moment) - result.useful_from(one)) for one in result.segments if one.job == number)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=max(40, settings().max_examples // 2))
@given(
    jobs=st.lists(job, min_size=1, max_size=25),
    moment=st.integers(1, 6000),
    others=st.lists(job, max_size=5),
    longer=st.lists(st.integers(-3000, 3000), min_size=25, max_size=25),
)
def test_the_future_changes_nothing_in_the_past(
    name: str, jobs: list[Job], moment: int, others: list[Job], longer: list[int]
) -> None:
    _, policy = read_policy(name)
    before = simulate(numbered(jobs), NODES, policy)
    changed = []
    for number, (one, end_s) in enumerate(zip(before.jobs, before.ends, strict=True)):
        if one.submit_s >= moment:
            continue  # it never comes
        if end_s < moment:
            changed.append(one)
        else:  # its end was not seen: it may need more, or less, but not so little as to end before the moment
            least = done_by(before, number, moment) + 1
            changed.append(replace(one, duration_s=max(least, one.duration_s + longer[number])))
    changed += [replace(one, id=f"new{n}", submit_s=moment + one.submit_s) for n, one in enumerate(others)]
    after = simulate(changed, NODES, policy)
    assert until(after, moment) == until(before, moment)
