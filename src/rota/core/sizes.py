"""Sizes of memory as people write them."""

from __future__ import annotations

import re

UNITS_GB = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0}


def size_gb(text: str, unit: str) -> float | None:
    """Return a size such as 16G or 4000M in GB, `unit` where it names none; None = it is no size."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMGT]?)(?:I?B)?", text.strip().upper())
    return None if match is None else round(float(match[1]) * UNITS_GB[match[2] or unit], 6)
