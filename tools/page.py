"""What the tools that write docs/reference share: one page each, written, or with --check only compared."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"


def finish(name: str, text: str) -> int:
    """Write the page, or say that it is stale. Returns an exit code."""
    path = REFERENCE / name
    if "--check" not in sys.argv[1:]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return 0
    fresh = path.exists() and path.read_text() == text
    if not fresh:
        print(f"docs/reference/{name} is not what the code says; run: make docs", file=sys.stderr)
    return int(not fresh)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table; none without rows."""
    if not rows:
        return []
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell(text) for text in line) + " |" for line in lines] + [""]


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
