"""Times and durations as Slurm writes them."""

from __future__ import annotations

import time


def duration(seconds: float | None, *, always_hours: bool = False) -> str:
    """M:SS, H:MM:SS or D-HH:MM:SS as squeue has it; sacct always shows the hours."""
    if seconds is None:
        return "INVALID"
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    if hours or always_hours:
        return f"{hours:02}:{minutes:02}:{left:02}" if always_hours else f"{hours}:{minutes:02}:{left:02}"
    return f"{minutes}:{left:02}"


def limit(seconds: float | None, word: str = "UNLIMITED") -> str:
    return word if seconds is None else duration(seconds)


def stamp(at: float | None, word: str = "N/A") -> str:
    return word if at is None else time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))
