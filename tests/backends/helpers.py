"""A real rig for the local backend, and ways to look at real processes."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends import procs
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.lookers import Lookers
from rota.app.ports import StopOrder
from tests.backends.contract import Kind, Reports, Rig, is_over

DEADLINE_S = 60.0  # the machine may be slow, and may have much else to do
COMMANDS: dict[Kind, tuple[str, ...]] = {
    "succeed": ("true",),
    "fail with 3": ("sh", "-c", "exit 3"),
    "last for ever": ("sleep", "1000"),
    "ignore TERM": ("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 1000; done"),
    "say hello": ("echo", "hello"),
    "exit 5 on USR1": ("sh", "-c", "trap 'exit 5' USR1; echo ready; while :; do sleep 0.01; done"),
}

# Runs the launcher as it is told to, after other code has run in it.
PATCHED = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
exec(sys.argv[2])
del sys.path[0]
program = next(at for at, word in enumerate(sys.argv) if word.endswith("zygote.py"))
sys.argv = sys.argv[program:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SOURCES = str(Path(__file__).parents[2] / "src")


def patched_launcher(patch: str) -> tuple[str, ...]:
    """Return the `zygote_prefix` for a launcher, and so for supervisors, in which this code has run first."""
    return (sys.executable, "-S", "-c", PATCHED, SOURCES, patch)


class LocalRig(Rig):
    def __init__(self, root: Path, **settings: Any) -> None:
        self.root, self.settings = root, settings

    def backend(self) -> LocalBackend:
        return LocalBackend(self.root / "backend", **self.settings)

    def argv(self, kind: Kind) -> tuple[str, ...]:
        return COMMANDS[kind]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return wait_for(condition, what)

    def workdir(self) -> str:
        return str(self.root)

    def path(self, attempt_id: str, name: str) -> Path:
        return self.root / "backend" / "attempts" / attempt_id / name


@contextmanager
def opened(rig: LocalRig, reports: Reports) -> Iterator[LocalBackend]:
    """Open the rig's backend; nothing of it is left after."""
    backend = rig.backend()
    backend.open(reports)
    try:
        yield backend
    finally:
        for stray in backend.strays():
            backend.stop(stray, StopOrder("cancelled", signal.SIGKILL, 0.0))
            wait_for(partial(is_over, backend, stray), f"clean-up of {stray}")
        backend.close()


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + deadline_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {deadline_s} s in vain for: {what}"
        time.sleep(0.002)
    return result


def command_lines(text: str) -> list[int]:
    """Living processes (zombies have no command line) with this text in their command line."""
    wanted = text.encode()
    return [pid for pid in procs.all_pids() if wanted in _command_line(pid) and pid != os.getpid()]


def descendants(pid: int) -> list[int]:
    """Return every process below `pid`, parents before children."""
    found: list[int] = []
    todo = [pid]
    while todo:
        below = procs.children(todo.pop())
        found += below
        todo += below
    return found


def zombies_below(pid: int) -> list[int]:
    return [each for each in descendants(pid) if _state(each) == "Z"]


def sleeps(pid: int) -> bool:
    """Tell whether a process waits for something. A bash that is to wait for a child can lose a signal that comes
    before it does: a test signals it only after this."""
    return _state(pid) == "S"


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def look_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have looks at processes made in this process, in which a test has put something in their place."""

    def ask(self: Lookers, party: int | str, place: int, look: Callable[..., Any], *given: Any) -> Any:
        return True, look(*given[0])

    monkeypatch.setattr(Lookers, "_ask", ask)
