"""`dry_run=true`: the answer says so itself, since a dry answer kept in a file looks like a real one."""

from __future__ import annotations

from typing import Any


def marked(answer: dict[str, Any], dry_run: bool) -> dict[str, Any]:
    return {**answer, "dry_run": True} if dry_run else answer
