"""How fast is the bare local backend? Run by hand: `python tests/backends/measure.py [jobs]`. Prints ratios to bare
Popen, same run."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from rota.adapters.backends.local import LocalBackend
from rota.app.ports import Ended, LaunchOrder, Report, Task

ENV = {"PATH": "/usr/bin:/bin"}
IN_FLIGHT = 16


def order(number: int, *argv: str) -> LaunchOrder:
    return LaunchOrder(f"{number:012x}-1", argv, ENV, "/tmp", (Task("here", ()),))


def await_end(reports: queue.SimpleQueue[Report]) -> Ended:
    while True:
        report = reports.get(timeout=30)
        if isinstance(report, Ended):
            return report


def latency(backend: LocalBackend, root: Path, reports: queue.SimpleQueue[Report], count: int) -> list[float]:
    """Seconds from launch() to the first byte in the log, seen by busy looking so that only the backend is measured."""
    taken = []
    for number in range(1, count + 1):
        each = order(number, "echo", "hello")
        log = f"{root}/attempts/{each.attempt_id}/log"
        begun = time.perf_counter()
        backend.launch(each)
        while not _size(log):
            time.sleep(0)
        taken.append(time.perf_counter() - begun)
        await_end(reports)
    return sorted(taken)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def throughput(backend: LocalBackend, reports: queue.SimpleQueue[Report], count: int) -> float:
    begun = time.perf_counter()
    for number in range(IN_FLIGHT):
        backend.launch(order(1_000_000 + number, "true"))
    for number in range(IN_FLIGHT, count + IN_FLIGHT):
        assert await_end(reports).exit.ok
        if number < count:
            backend.launch(order(1_000_000 + number, "true"))
    return count / (time.perf_counter() - begun)


def bare(count: int, in_flight: int, directory: Path) -> float:
    """The floor: Popen with a log file and a session, the same number at a time, nothing recorded."""
    begun = time.perf_counter()
    running: list[subprocess.Popen[bytes]] = []
    for number in range(count):
        with open(directory / f"{number}.log", "wb") as log:
            running.append(
                subprocess.Popen(
                    ["true"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/tmp",
                    env=ENV,
                    start_new_session=True,
                )
            )
        if len(running) == in_flight:
            running.pop(0).wait()
    for process in running:
        process.wait()
    return count / (time.perf_counter() - begun)


def with_backend(act: Callable[[LocalBackend, Path, queue.SimpleQueue[Report]], None], cgroups: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        backend = LocalBackend(Path(directory), cgroups=cgroups)
        backend.open(reports.put)
        try:
            act(backend, Path(directory), reports)
        finally:
            backend.close()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory() as directory:
        floor = bare(count, IN_FLIGHT, Path(directory))
    print(f"bare Popen, {IN_FLIGHT} in flight: {floor:.0f} true/s")
    for cgroups in (True, False):

        def act(backend: LocalBackend, root: Path, reports: queue.SimpleQueue[Report], cgroups: bool = cgroups) -> None:
            taken = latency(backend, root, reports, max(100, count // 10))
            p50, p99 = taken[len(taken) // 2] * 1e3, taken[len(taken) * 99 // 100] * 1e3
            rate = throughput(backend, reports, count)
            print(f"cgroups={cgroups}: first line p50 {p50:.2f} ms, p99 {p99:.2f} ms")
            print(f"cgroups={cgroups}: {rate:.0f} true/s, {IN_FLIGHT} in flight ({rate / floor:.2f} of bare)")

        with_backend(act, cgroups)


if __name__ == "__main__":
    main()
