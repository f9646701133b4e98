"""Text of others on this terminal."""

from __future__ import annotations


def plain(text: str) -> str:
    """Without control characters, bidi tricks and line ends: a name is data, it must not steer the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
