"""Rows 10 and 12: `rota serve` from its start to its first HTTP answer, with a small data directory and a full one."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.restart import fill
from tests.bench.served import Served
from tests.bench.table import Row, verdict

LIBRARIES = "import fastapi, uvicorn"
TIMES = 5


def first_answer(scale: float) -> list[Row]:
    count = int(100_000 * scale)
    return [
        _row("10", "`rota serve`, small data directory: start to the first HTTP answer", 0, 0.8, 0.4),
        _row("12", f"{count:,} waiting runs on disk, kill -9, `rota serve` to the first HTTP answer", count, 2.0, 1.0),
    ]


def _row(number: str, what: str, waiting: int, goal: float, moonshot: float) -> Row:
    """Taken in turns with the peer, so that what else the machine does meets both; the median of each."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-", dir="/var/tmp") as where:
        if waiting:
            (Path(where) / "data").mkdir(mode=0o700)
            fill(Path(where) / "data", waiting, ended=False)
        server = Served(Path(where), 2, 8, {})
        ours, libraries = [], []
        try:
            for _ in range(TIMES):
                server.kill()
                libraries.append(_libraries())
                begun = time.perf_counter()
                server.start()
                ours.append(time.perf_counter() - begun)
        finally:
            server.kill()
            server.stop()
    took, peer = statistics.median(ours), statistics.median(libraries)
    return Row(
        number,
        what,
        f"{took:.2f} s",
        f"python -c '{LIBRARIES}' {peer:.2f} s",
        f"{took / peer:.1f}x",
        f"{goal:g} s",
        f"{moonshot:g} s",
        verdict(took, goal, moonshot, more_is_better=False),
    )


def _libraries() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True)
    return time.perf_counter() - begun
