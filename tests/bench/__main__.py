"""`make bench`: every figure beside a peer or a physical limit taken in the same run, for machines are noisy.

    python -m tests.bench [row ...] [--quick] [--record]

--record writes the table into docs/BENCHMARKS.md; --quick takes a tenth of the work.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

from tests.bench import decision, dispatch, doors, restart, slurm, start
from tests.bench.table import Row, render

ROWS = {
    "submits": dispatch.submits,
    "first-line": dispatch.first_line,
    "drain": dispatch.drain,
    "refill": dispatch.refill,
    "decision": decision.at_scale,
    "growth": decision.growth,
    "restart": restart.restart,
    "start": start.first_answer,
    "preempt": dispatch.preempt,
    "http-submits": doors.submits,
    "http-first-line": doors.first_line,
    "http-drain": doors.drain,
    "http-queue": doors.queue,
    "leases": doors.leases,
    "cli": doors.command_line,
    "watchers": doors.watchers,
    "slurm": slurm.beside_slurm,
}
DOC = Path(__file__).parent.parent.parent / "docs" / "BENCHMARKS.md"
BEGIN, END = "<!-- written by make bench ARGS=--record -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help="default: all")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.rows or ROWS:
        print(f"{name} ...", file=sys.stderr, flush=True)
        begun = time.monotonic()
        made = ROWS[name](0.1 if options.quick else 1.0)
        print(render(made), f"({time.monotonic() - begun:.0f} s)\n", sep="\n", flush=True)
        rows += made
    if options.record:
        text = DOC.read_text()
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        where = f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {_cpus()}"
        stamp = f"Taken {time.strftime('%Y-%m-%d')} on {where}."
        DOC.write_text(f"{before}{BEGIN}\n{stamp}\n\n{render(rows)}\n{END}{after}")


def _cpus() -> str:
    import os

    return f"{os.cpu_count()} cores"


if __name__ == "__main__":
    main()
