"""Names of things. A run is 12 hex characters (app/newids.py makes them); its n-th attempt is `<run>-<n>`."""

from __future__ import annotations

import re

ATTEMPT_ID = re.compile(r"([0-9a-f]{12})-([1-9][0-9]{0,5})")


def is_attempt_id(text: str) -> bool:
    return ATTEMPT_ID.fullmatch(text) is not None


def attempt_id(run_id: str, number: int) -> str:
    return f"{run_id}-{number}"


def run_of(attempt: str) -> str:
    return attempt.partition("-")[0]


def number_of(attempt: str) -> int:
    return int(attempt.partition("-")[2])
