"""Dry runs: which words ask for one, and what an answer says about itself: that it was one, since an answer kept in a
file looks like a real one, and which fields of the request were ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

IGNORED = 'Fields of the request that are not known here, each with a hint: "gpus: did you mean gpu_count?".'
MEANT = frozenset({"dry", "dryrun", "dryruns"})


def marked(answer: dict[str, Any], dry_run: bool, ignored: Sequence[str] = ()) -> dict[str, Any]:
    if not dry_run and not ignored:
        return answer
    return {**answer, **({"dry_run": True} if dry_run else {}), **({"ignored": list(ignored)} if ignored else {})}


def is_dry_run(name: str) -> bool:
    """Who wrote `dry-run` or `dryRun` must not have it done in earnest."""
    return len(name) < 20 and re.sub(r"[^a-z]", "", name.lower()) in MEANT
