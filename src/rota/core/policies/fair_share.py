"""Whoever has used least is next: GPU-seconds, halved every `half_life_s`, and within one person by priority.

A start is charged at once with what it is expected to use (core/usage.py), so that a burst of one person's submits does
not win every GPU before the first of them has used a second.
"""

from __future__ import annotations

from rota.core.policies import priority

key = priority.key  # within one person
