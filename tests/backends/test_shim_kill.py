"""kill -9 of the shim at every system call of an attempt's life, by `strace -e inject`.

After each: the attempt has ended (by itself, or lost, or begun again by another worker because this one had not
claimed it yet), it ran at most once, and none of its processes lives.
"""

from __future__ import annotations

import collections
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota.adapters.backends import procs, records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, wait_for

Point = tuple[str, int]
ALWAYS = ("rename", "link", "linkat", "fsync", "vfork", "clone", "clone3", "write")  # the calls that change the state
SAMPLE = 40

pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="needs strace")


class Range:
    """A backend whose idle workers are shot at, one attempt after the other."""

    def __init__(self, root: Path, *, forked: bool) -> None:
        self.rig, self.reports = LocalRig(root), Reports()
        self.journal = root / "journal"
        self.backend: LocalBackend = self.rig.backend()
        self.account = "root" if forked else None

    def order(self) -> LaunchOrder:
        order = self.rig.order("succeed")
        child = f"setsid sleep {self.number(order)}"
        script = f"echo {order.attempt_id} >> {self.journal}; ({child} &); sleep 0.03"
        return self.rig.order("succeed", attempt_id=order.attempt_id, argv=("sh", "-c", script), account=self.account)

    @staticmethod
    def number(order: LaunchOrder) -> int:
        return 1000 + int(order.attempt_id[:12], 16)

    def idle_workers(self) -> list[int]:
        zygote = self.backend._launcher.pid
        assert zygote is not None
        names = os.listdir(self.rig.root / "backend" / "live")  # an idle worker has a claim ready
        ready = {int(name.split(".")[1]) for name in names if records.is_private(name)}
        return [pid for pid in procs.children(zygote) if pid in ready]

    @contextmanager
    def traced(self, *options: str) -> Iterator[None]:
        strace = wait_for(lambda: self.attach(options), "strace to hold all idle workers")
        try:
            yield
        finally:
            strace.terminate()
            strace.communicate(timeout=60)

    def attach(self, options: tuple[str, ...]) -> subprocess.Popen[str] | None:
        """None when a worker went away meanwhile: one that was shot just after it was through."""
        workers = wait_for(lambda: len(found := self.idle_workers()) >= 2 and found, "idle workers")
        argv = ["strace", *options, *[f"--attach={pid}" for pid in workers]]
        strace = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        assert strace.stderr is not None
        if all("attached" in strace.stderr.readline() for _ in workers):
            return strace
        strace.terminate()
        strace.communicate(timeout=60)
        return None

    def points(self, trace: Path) -> list[Point]:
        """Every call that a shim makes for one attempt."""
        with self.traced("-o", str(trace)):
            self.run_one()
        names = re.findall(r"^(?:\d+ +)?([a-z0-9_]+)\(", trace.read_text(), re.MULTILINE)
        return [(name, k) for name, count in collections.Counter(names).items() for k in range(1, count + 1)]

    def run_one(self) -> tuple[LaunchOrder, Cause]:
        order = self.order()
        self.backend.launch(order)
        end = self.rig.end_of(self.reports, order)
        ran = self.journal.read_text().splitlines().count(order.attempt_id) if self.journal.exists() else 0
        assert ran <= 1, "started twice"
        assert ran == 1 or end.cause is not Cause.EXITED
        assert procs.marked(order.attempt_id, os.getuid()) == []
        assert command_lines(f"sleep\0{self.number(order)}") == []
        assert self.backend.observe(order.attempt_id) == end
        return order, end.cause

    def shoot(self, points: list[Point]) -> collections.Counter[Cause]:
        causes: collections.Counter[Cause] = collections.Counter()
        for name, k in points:
            with self.traced("-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={k}"):
                causes[self.run_one()[1]] += 1
        return causes


@contextmanager
def shooting_range(root: Path, *, forked: bool) -> Iterator[Range]:
    place = Range(root, forked=forked)
    place.backend.open(place.reports)
    try:
        yield place
    finally:
        place.backend.close()


def kinds() -> list[bool]:
    return [False, True] if os.geteuid() == 0 else [False]


@pytest.mark.parametrize("forked", kinds(), ids=lambda forked: "forked" if forked else "spawned")
def test_a_shim_killed_at_a_sample_of_its_calls(tmp_path: Path, forked: bool) -> None:
    with shooting_range(tmp_path, forked=forked) as place:
        points = place.points(tmp_path / "trace")
        chosen = [point for point in points if point[0] in ALWAYS]
        others = [point for point in points if point[0] not in ALWAYS]
        chosen += others[:: max(1, len(others) // max(1, SAMPLE - len(chosen)))]
        causes = place.shoot(chosen)
        print(f"{len(chosen)} of {len(points)} points: {dict(causes)}")
        assert causes[Cause.LOST] > 0, "no shot hit: the test itself is broken"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("forked", kinds(), ids=lambda forked: "forked" if forked else "spawned")
def test_a_shim_killed_at_every_call(tmp_path: Path, forked: bool) -> None:
    with shooting_range(tmp_path, forked=forked) as place:
        points = place.points(tmp_path / "trace")
        causes = place.shoot(points)
        print(f"{len(points)} points: {dict(causes)}")
        assert causes[Cause.LOST] > 0
