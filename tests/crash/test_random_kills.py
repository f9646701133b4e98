"""kill -9 of the server at random moments with jobs in flight: nothing lost, doubled, leaked or left over."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.app.house import until
from tests.crash.kit import Template, acknowledged, kill, violations

SEED = int(os.environ.get("ROTA_SEED", "0")) or random.SystemRandom().randrange(1 << 30)


def storms(template: Template, where: Path, kills: int, in_flight: int, seed: int) -> None:
    rnd = random.Random(seed)
    data_dir, marks, acks = where / "data", where / "marks", where / "acks"
    for number in range(kills):
        pid = template.spawn(
            "storm", data_dir=str(data_dir), marks=str(marks), acks=str(acks), in_flight=in_flight, seed=seed + number
        )
        # half of the kills hit the start itself: opening, reconciling, relaunching; the others a server at work
        if rnd.random() < 0.5:
            time.sleep(rnd.uniform(0, 0.15))
        else:
            already = submits(acks)
            until(lambda: submits(acks) >= already + 2, "the server is at work")  # noqa: B023 - called at once
            time.sleep(rnd.uniform(0, 0.4))
        kill(pid)
        assert template.wait(pid) == -9, "the server ended by itself: see its output above"
    assert violations(template, data_dir, marks, acks) == [], f"ROTA_SEED={seed}"
    assert submits(acks) > kills, "too little happened to mean anything"


def submits(acks: Path) -> int:
    return sum(fact["what"] == "submit" for fact in acknowledged(acks))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(1))
def test_fifty_kills_with_thirty_jobs_in_flight(template: Template, tmp_path: Path, part: int) -> None:
    storms(template, tmp_path, kills=50, in_flight=30, seed=SEED + 1000 * part)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_kills(template: Template, tmp_path: Path) -> None:
    for part in range(10):
        where = tmp_path / str(part)
        where.mkdir()
        storms(template, where, kills=100, in_flight=50, seed=SEED + 1000 * part)
