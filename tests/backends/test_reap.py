"""A supervisor looks at the clock and at its orders however many dead children there are to collect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rota.adapters.backends import heard, procs
from rota.adapters.backends.logcap import LogCap
from rota.adapters.backends.shim import Shim
from tests.backends.helpers import descendants, wait_for

TASK, ORPHAN, DEEP = 1 << 30, 1 << 29, 100
ORDER = {"log_cap_bytes": 1 << 20, "grace_s": 0.0, "time_limit_s": 0.05, "warn_signal": 0, "warn_s": 0.0}
CHAIN = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork():
        signal.pause()
os.write(1, b"x")
signal.pause()
"""
# at the end of the chain a process that takes in orphans, and below it a parent with many children
BROOD = """
import ctypes, os, signal, sys
for _ in range(int(sys.argv[1])):
    if os.fork():
        signal.pause()
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
if os.fork():
    signal.pause()
for _ in range(int(sys.argv[2])):
    if os.fork() == 0:
        signal.pause()
os.write(1, b"%d " % os.getpid())
signal.pause()
"""
KIDS = 60


def test_the_limit_holds_while_orphans_end_without_end(shim: Shim, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[bool] = []

    def wait(pid: int, options: int) -> tuple[int, int]:
        return (TASK, signal.SIGKILL) if killed and shim.tasks else (ORPHAN, 0)

    def kill(shim: Shim) -> float:
        killed.append(True)
        return float("inf")

    monkeypatch.setattr(os, "waitpid", wait)
    monkeypatch.setattr(heard, "look", lambda signum, top: [])  # else all that pytest has started would get the SIGTERM
    monkeypatch.setattr(Shim, "_kill_all", kill)
    monkeypatch.setattr(Shim, "_announce", lambda shim, started: True)
    monkeypatch.setattr(signal, "sigtimedwait", lambda signals, timeout: None)  # pytest does not block them
    shim.tasks = {TASK: 0}
    shim._begun(procs.boottime())
    shim._wait()
    assert (shim.cause, shim.failure) == ("time_limit", signal.SIGKILL)


def test_a_log_keeps_its_cap_while_a_killed_process_does_not_end(
    shim: Shim, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log, give_up = tmp_path / "log", procs.boottime() + 60
    log.write_bytes(b"x" * (4 << 20))
    used: list[int] = []

    def reap(shim: Shim) -> bool:
        used.append(log.stat().st_blocks * 512)
        return used[-1] > 2 << 20 and procs.boottime() < give_up

    monkeypatch.setattr(Shim, "_reap", reap)
    monkeypatch.setattr(Shim, "_has_strays", lambda shim: False)
    monkeypatch.setattr(Shim, "_kill_all", lambda shim: float("inf"))
    shim.directory = str(tmp_path)
    shim.cap = LogCap(shim.log, shim.directory, 1 << 20)
    shim.order = {**ORDER, "checkpoint_dir": None}
    shim._extinguish()
    assert used[0] > 2 << 20 >= used[-1]


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
        asked = heard.Asking(signal.SIGCONT, [chain.pid], heard.Handlers())
        asked._tell(heard.look(signal.SIGCONT, os.getpid()))
        assert len(looks) < 10 * DEEP
    finally:
        monkeypatch.undo()
        for pid in [*descendants(chain.pid), chain.pid]:
            os.kill(pid, signal.SIGKILL)
        chain.communicate()


def test_a_parent_that_ends_during_a_look_makes_it_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its children have another parent by the time they are looked at, deep below the supervisor: still its own."""
    looks: list[object] = []
    stat_text, children = procs._stat_text, procs.children
    brood = subprocess.Popen([sys.executable, "-I", "-S", "-c", BROOD, str(DEEP), str(KIDS)], stdout=subprocess.PIPE)
    try:
        assert brood.stdout is not None
        parent = int(b"".join(iter(lambda: brood.stdout.read(1), b" ")))  # type: ignore[union-attr]
        kids = set(procs.children(parent))
        assert len(kids) == KIDS

        def look(pid: int | str) -> bytes | None:
            looks.append(pid)
            return stat_text(pid)

        def list_and_end(pid: int) -> list[int]:
            listed = children(pid)
            if pid == parent:
                os.kill(parent, signal.SIGKILL)
                wait_for(lambda: all(procs.parent(kid) != parent for kid in kids), "others to be their parent")
                looks.clear()
            return listed

        monkeypatch.setattr(procs, "_stat_text", look)
        monkeypatch.setattr(procs, "children", list_and_end)
        assert kids <= {each.pid for each in heard.look(signal.SIGCONT, os.getpid())}
        assert len(looks) < 10 * KIDS
    finally:
        monkeypatch.undo()
        for pid in [*descendants(brood.pid), brood.pid]:
            os.kill(pid, signal.SIGKILL)
        brood.communicate()


def test_at_the_end_of_its_grace_it_is_killed_without_a_look_before(
    shim: Shim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes as long as the run has processes; what to say of it is known from the last one."""
    at_work = subprocess.Popen(["sleep", "1000"])
    try:
        shim.tasks = {at_work.pid: 0}
        shim._end("time_limit", signal.SIGCONT, 0.001)
        order: list[str] = []

        def look(signum: int, top: int) -> list[heard.Process]:
            order.append("look")
            return []

        def kill(shim: Shim) -> float:
            order.append("kill")
            return float("inf")

        def is_killed() -> bool:
            shim._check_deadlines(procs.boottime())
            return bool(shim.unheeded)

        monkeypatch.setattr(heard, "look", look)
        monkeypatch.setattr(Shim, "_kill_all", kill)
        wait_for(is_killed, "its grace to be over")
        assert order[0] == "kill", order
        assert "ignored SIGCONT" in shim.unheeded
    finally:
        at_work.kill()
        at_work.wait()
