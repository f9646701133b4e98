"""Seeded lives of the whole system. A failure prints its seed: ROTA_SEED=<seed> runs that one alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.world.system import System

SEEDS = [int(os.environ["ROTA_SEED"])] if "ROTA_SEED" in os.environ else range(1, 14)


def live(where: Path, seed: int, steps: int) -> None:
    system = System(where, seed)
    try:
        for _ in range(steps):
            system.step()
        system.settle()
    except Exception as error:
        raise AssertionError(f"ROTA_SEED={seed}: {error!r}") from error
    finally:
        system.kill()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_troubled_life(tmp_path: Path, seed: int) -> None:
    live(tmp_path, seed, 400)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_thousand_long_lives(tmp_path: Path) -> None:
    for seed in range(1000, 2000):
        live(tmp_path, seed, 3000)
