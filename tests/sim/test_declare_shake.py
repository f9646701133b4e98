"""What people would have said, and the same jobs shaken: chance comes from the seed alone."""

from __future__ import annotations

from collections import Counter

import pytest

from rota.sim.declare import declare
from rota.sim.model import DAY_S, HOUR_S, Job
from rota.sim.shake import shake


def jobs(*durations: int) -> list[Job]:
    return [Job(str(n), 10_000 * n, duration, 1) for n, duration in enumerate(durations)]


def limits(durations: list[int], how: str, seed: int = 1) -> list[int | None]:
    return [job.limit_s for job in declare(jobs(*durations), how, seed)]


def test_true_class_and_none() -> None:
    durations = [0, 1, HOUR_S, HOUR_S + 1, 2 * DAY_S, 90 * DAY_S, 400 * DAY_S]
    assert limits(durations, "none") == [None] * 7
    assert limits(durations, "true") == [1, *durations[1:]]
    assert limits(durations, "class") == [
        HOUR_S, HOUR_S, HOUR_S, 4 * HOUR_S, 3 * DAY_S, 90 * DAY_S, 90 * DAY_S
    ]  # fmt: skip


def test_the_sloppy_are_right_half_the_time() -> None:
    said = Counter(limits([50] * 10_000, "sloppy"))
    assert set(said) == {HOUR_S, 4 * HOUR_S, 3 * DAY_S}
    assert said[HOUR_S] == pytest.approx(5000, abs=200)
    assert said[4 * HOUR_S] == pytest.approx(3000, abs=200)
    said = Counter(limits([80 * DAY_S] * 10_000, "sloppy"))
    assert set(said) == {90 * DAY_S, 3 * DAY_S}  # there is no higher class; three days may be too little
    assert said[3 * DAY_S] == pytest.approx(2000, abs=200)


def test_what_the_trace_says_stands() -> None:
    (job,) = declare([Job("a", 0, 50, 1, limit_s=77)], "class", 1)
    assert job.limit_s == 77


def test_a_word_that_is_none() -> None:
    with pytest.raises(ValueError, match="'guess' is not a valid Declared"):
        declare([], "guess", 1)


def test_the_seed_is_all_the_chance() -> None:
    many = jobs(*range(1, 2000, 7))
    assert limits(list(range(500)), "sloppy", 3) == limits(list(range(500)), "sloppy", 3)
    assert limits(list(range(500)), "sloppy", 3) != limits(list(range(500)), "sloppy", 4)
    assert shake(many, 3) == shake(many, 3)
    assert shake(many, 3) != shake(many, 4)


def test_a_shake_moves_a_little_and_loses_nobody() -> None:
    many = [Job(str(n), 20 * n, 1 + n % 1000, 1 + n % 8, f"u{n % 3}") for n in range(3000)]
    shaken = shake(many, 1)
    assert sorted(job.id for job in shaken) == sorted(job.id for job in many)
    assert [job.submit_s for job in shaken] == sorted(job.submit_s for job in shaken)
    before = {job.id: job for job in many}
    for job in shaken:
        old = before[job.id]
        assert (job.gpus, job.user) == (old.gpus, old.user)
        assert max(0, old.submit_s - 300) <= job.submit_s <= old.submit_s + 300
        assert max(1, round(old.duration_s * 0.95)) <= job.duration_s <= round(old.duration_s * 1.05)
    assert any(job.submit_s == 0 for job in shaken)
    assert {job.submit_s - before[job.id].submit_s for job in shaken} > {-200, 200}


def test_a_job_of_no_length_stays_one_and_a_limit_that_was_kept_is_kept() -> None:
    kept = Job("kept", 0, 1000, 1, limit_s=1000)
    broken = Job("broken", 0, 2000, 1, limit_s=1000)
    for seed in range(50):
        none, one, kept_now, broken_now = sorted(
            shake([Job("0", 0, 0, 1), Job("1", 0, 1, 1), kept, broken], seed),
            key=lambda job: (job.limit_s or 0, job.duration_s),
        )
        assert (none.duration_s, one.duration_s) == (0, 1)
        assert kept_now.duration_s <= 1000
        assert broken_now.duration_s >= 1900


def test_a_rush_stays_one() -> None:
    rush = [Job(str(number), 1000 + 10 * number, 50, 1) for number in range(21)]  # in 200 s
    moved = {job.id: job.submit_s - (1000 + 10 * int(job.id)) for job in shake(rush, 1)}
    assert set(moved.values()) == {-2, -1, 0, 1, 2}
