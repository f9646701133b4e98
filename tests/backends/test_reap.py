"""A supervisor looks at the clock and at its orders however many dead children there are to collect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rota.adapters.backends import heard, procs
from rota.adapters.backends.shim import Shim

TASK, ORPHAN, DEEP = 1 << 30, 1 << 29, 300
ORDER = {"log_cap_bytes": 1 << 20, "grace_s": 0.0, "time_limit_s": 0.05, "warn_signal": 0, "warn_s": 0.0}
CHAIN = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork():
        signal.pause()
os.write(1, b"x")
signal.pause()
"""


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Shim]:
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR)
    house: Any = SimpleNamespace(group="", boot_id="boot", least_free=0)
    yield Shim(house, "0123456789ab-1", ORDER, log)
    os.close(log)


def test_the_limit_holds_while_orphans_end_without_end(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[bool] = []

    def wait(pid: int, options: int) -> tuple[int, int]:
        return (TASK, signal.SIGKILL) if killed and shim.tasks else (ORPHAN, 0)

    def kill(shim: Shim) -> float:
        killed.append(True)
        return float("inf")

    monkeypatch.setattr(os, "waitpid", wait)
    monkeypatch.setattr(Shim, "_kill_all", kill)
    monkeypatch.setattr(Shim, "_announce", lambda shim, started: True)
    monkeypatch.setattr(signal, "sigtimedwait", lambda signals, timeout: None)  # pytest does not block them
    shim.tasks = {TASK: 0}
    shim._begun(procs.boottime())
    shim._wait()
    assert (shim.cause, shim.failure) == ("time_limit", signal.SIGKILL)


def test_what_a_deep_chain_of_processes_costs_grows_with_its_length_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    stat_text = procs._stat_text

    def look(pid: int | str) -> bytes | None:
        looks.append(pid)
        return stat_text(pid)

    chain = subprocess.Popen([sys.executable, "-I", "-S", "-c", CHAIN, str(DEEP)], stdout=subprocess.PIPE)
    try:
        assert chain.stdout is not None
        assert chain.stdout.read(1) == b"x"
        monkeypatch.setattr(procs, "_stat_text", look)
        asked = heard.Asking(signal.SIGCONT, [chain.pid])
        asked._tell(heard.look(signal.SIGCONT, os.getpid()))
        assert len(looks) < 10 * DEEP
    finally:
        monkeypatch.undo()
        for pid in [*procs.descendants(chain.pid), chain.pid]:
            os.kill(pid, signal.SIGKILL)
        chain.communicate()
