"""The states of a run, as the wire has them."""

from __future__ import annotations

WAITING = ("ready", "queued")
ACTIVE = ("launching", "running")
ENDED = ("finished", "failed", "stopped")
