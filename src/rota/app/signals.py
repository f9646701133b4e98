"""Signals by the names people use for them: USR2, SIGUSR2, usr2, 12."""

from __future__ import annotations

import signal

HIGHEST = 31  # above are the real-time ones, of which no program of ours expects any


def number(text: str) -> int:
    """Raises ValueError with what would be right."""
    word = text.strip().upper()
    if word.isascii() and word.isdigit() and 1 <= int(word[:9]) <= HIGHEST:
        return int(word)
    found = signal.Signals.__members__.get(f"SIG{word.removeprefix('SIG')}")
    if found is None or found > HIGHEST:
        raise ValueError(
            f"{text[:50]!r} is no signal; write a name such as USR2, TERM or INT, or a number from 1 to {HIGHEST}"
        )
    return int(found)


def unheard(number: int) -> str:
    """Why one of those that no program can catch is no way to ask it, and what is."""
    return f"no program can hear {name(number)}, so it could not save; use USR2, USR1, TERM, INT or HUP"


def name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
