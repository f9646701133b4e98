"""A run that has all the processes it may have is asked to end and killed as any other, though its supervisor, which is
bounded with it, gets no thread to look at them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rota.app.ports import StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, opened, patched_launcher, wait_for

# argv: a text to be found by
FULL = """
import os, signal, time

def save(number, frame):
    os.write(1, b"saved\\n")
    os._exit(0)

signal.signal(signal.SIGTERM, save)
while True:
    try:
        child = os.fork()
    except OSError:
        break
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
os.write(1, b"full\\n")
while True:
    time.sleep(0.01)
"""
# As for as long as whatever is killed of a run is there again at once.
NO_THREADS = """
import _thread
def fail(*given):
    raise RuntimeError("can't start new thread")
_thread.start_new_thread = fail
"""
PROCESSES = 30


def found_by(root: Path) -> str:
    return f"of the run in {root}"


def test_it_is_asked_to_save(tmp_path: Path, reports: Reports, needs: Callable[..., None]) -> None:
    needs("pids")
    rig = LocalRig(tmp_path, processes=PROCESSES)
    with opened(rig, reports) as backend:
        order = rig.order("succeed", argv=(sys.executable, "-ISc", FULL, found_by(tmp_path)))
        backend.launch(order)
        wait_for(lambda: b"full" in backend.read_log(order.attempt_id, 0, 1000).content, "all its processes")
        backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGTERM, 600.0, saves=True))
        end = rig.end_of(reports, order)
        assert backend.read_log(order.attempt_id, 0, 1000).content.endswith(b"saved\n")
        assert (end.cause, end.code, end.killed) == (Cause.PREEMPTED, 0, False)


def test_what_has_left_its_session_is_found_and_killed(tmp_path: Path, reports: Reports) -> None:
    rig = LocalRig(tmp_path, cgroups=False, zygote_prefix=patched_launcher(NO_THREADS))
    with opened(rig, reports) as backend:
        script = 'setsid sh -c \'trap "" TERM; echo up; while :; do sleep 0.01; done\' "$0" & wait'
        order = rig.order("succeed", argv=("sh", "-c", script, found_by(tmp_path)))
        backend.launch(order)
        wait_for(lambda: b"up" in backend.read_log(order.attempt_id, 0, 1000).content, "it is up")
        backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED
        assert command_lines(found_by(tmp_path)) == []
