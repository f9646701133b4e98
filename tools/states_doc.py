"""Writes the generated parts of docs/STATES.md from the transition table: `python tools/states_doc.py [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from rota.core.run import ACTIVE, ENDED, TABLE, WAITING, RunState

DOC = Path(__file__).parent.parent / "docs" / "STATES.md"
BEGIN, END = "<!-- generated from rota.core.run.TABLE by tools/states_doc.py -->", "<!-- end of generated part -->"


def generated() -> str:
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> held", "    [*] --> queued"]
    for old in RunState:
        lines += [f"    {old} --> {new}" for new in RunState if new in TABLE[old]]
    lines += [f"    {end} --> [*]" for end in RunState if end in ENDED]
    lines += ["```", "", "| state | kind | may become |", "|---|---|---|"]
    for state in RunState:
        kind = "waiting" if state in WAITING else "active" if state in ACTIVE else "ended"
        lines.append(f"| {state} | {kind} | {', '.join(new for new in RunState if new in TABLE[state]) or 'nothing'} |")
    return "\n".join(lines)


def rendered(text: str) -> str:
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{generated()}\n{END}{after}"


def main() -> int:
    text = DOC.read_text()
    fresh = rendered(text)
    if "--check" in sys.argv[1:]:
        if fresh != text:
            print("docs/STATES.md does not match the table; run: python tools/states_doc.py", file=sys.stderr)
        return int(fresh != text)
    DOC.write_text(fresh)
    return 0


if __name__ == "__main__":
    sys.exit(main())
