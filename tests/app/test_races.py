"""B4: cancel against start, exit and itself. Exactly one end each, and every GPU is free."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from rota.app.commands import Cancel, Hold, Release, Reprioritise, Submit
from rota.app.errors import Conflict, NotFound, Refused
from rota.core import events as e
from rota.core.run import ENDED, RunState
from tests.app.house import ANN, PATIENCE_S, House, with_policy

SEED = 20240607


def ends_of(house: House, run_id: str) -> int:
    ended = [x for x in house.events(e.AttemptEnded, run_id) if x.next in ENDED]
    return len(ended) + len(house.events(e.RunEnded, run_id))


def judged(house: House, runs: list[str]) -> Counter[RunState]:
    done = house.wait_all(runs)
    assert [run_id for run_id in runs if ends_of(house, run_id) != 1] == []
    assert all(len(house.store.attempts(run.id)) == run.attempts_made <= 1 for run in done)
    assert house.free() == 8
    assert house.leftovers() == []
    return Counter(run.state for run in done)


def test_cancels_at_random_moments_against_quick_runs(house):
    """From at once to long after: against the start, against the exit, too late."""
    chance = random.Random(SEED)
    lines = [("/bin/true",), ("/bin/sleep", "0.02"), ("/bin/sleep", "0.2"), ("/bin/sh", "-c", "exit 3")]

    def one(number: int) -> str:
        run_id: str = house.submit(lines[number % 4], number % 3, grace_s=0.0)
        time.sleep(chance.choice((0.0, 0.0, 0.005, 0.01, 0.02, 0.03, 0.05)))  # the moment is what is tested
        try:
            house.do(Cancel(run_id), ANN)
        except Conflict as refusal:
            assert "already ended" in refusal.message
        return run_id

    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(one, range(160)))
    states = judged(house, runs)
    assert set(states) <= {RunState.CANCELLED, RunState.SUCCEEDED, RunState.FAILED}
    assert states[RunState.CANCELLED] > 0


def test_a_submit_and_its_cancel_in_one_batch(house):
    sent = []
    for number in range(60):
        submitted = house.rota.send(ANN, Submit(house.spec(("/bin/true",), number % 4, grace_s=0.0)))
        sent.append(submitted)
        submitted.add_done_callback(lambda f: house.rota.send(ANN, Cancel(f.result().id, grace_s=0.0)))
    judged(house, [future.result(PATIENCE_S).id for future in sent])


def test_many_hands_on_the_same_runs(house):
    """Cancel, hold, release and reprioritise from six threads: refusals are fine, double ends are not."""
    with_policy(house, max_concurrent=3)
    runs = [house.submit(("/bin/sleep", "0.01"), 1, grace_s=0.0) for _ in range(40)]
    others: list[BaseException] = []

    def meddle(seed: int) -> None:
        mine = random.Random(SEED + seed)
        for _ in range(60):
            run_id = mine.choice(runs)
            command = mine.choice(
                (
                    Cancel(run_id),
                    Hold(run_id),
                    Release(run_id),
                    Release(run_id),
                    Reprioritise(run_id, mine.randint(1, 4)),
                )
            )
            try:
                house.do(command, ANN)
            except (Conflict, NotFound):
                pass
            except BaseException as error:
                others.append(error)
                raise

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(meddle, range(6)))
    assert others == []
    for run_id in runs:
        with contextlib.suppress(Refused):
            house.do(Release(run_id), ANN)
    judged(house, runs)


def test_cancels_while_the_house_closes_and_opens(house):
    """What was acknowledged holds after the opening; what was not can be asked again."""
    runs = [house.submit(("/bin/sleep", "100000"), 1, grace_s=0.0) for _ in range(8)]
    sent = [house.rota.send(ANN, Cancel(run_id)) for run_id in runs]
    house.close()
    house.open()
    for run_id, future in zip(runs, sent, strict=True):
        if future.exception(PATIENCE_S) is not None:
            house.do(Cancel(run_id), ANN)
    assert judged(house, runs) == {RunState.CANCELLED: 8}


@pytest.mark.parametrize("rounds", [15])
def test_stop_against_birth(house, rounds):
    """A stop that comes while the supervisor is being born is never missed."""
    for number in range(rounds):
        run_id = house.sleeper(1 + number % 4, grace_s=0.0)
        deadline = time.monotonic() + number * 0.002
        while time.monotonic() < deadline:
            pass
        house.do(Cancel(run_id), ANN)
        assert house.wait(run_id).state is RunState.CANCELLED
