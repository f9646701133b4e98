"""What an answer says about itself: that it was a dry run, since one kept in a file looks like a real one, and which
fields of the request were ignored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def marked(answer: dict[str, Any], dry_run: bool, ignored: Sequence[str] = ()) -> dict[str, Any]:
    if not dry_run and not ignored:
        return answer
    return {**answer, **({"dry_run": True} if dry_run else {}), **({"ignored": list(ignored)} if ignored else {})}
