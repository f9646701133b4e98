"""Warnings and checkpoint signals among real processes: who hears them, and what is said of the end."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rota.adapters.backends import procs
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

SAVES = """
import os, signal, sys, time
def save(number, frame):
    print("saved", flush=True)
    if len(sys.argv) > 1:
        open(os.path.join(os.environ["ROTA_CHECKPOINT_DIR"], sys.argv[1]), "w").close()
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
os.write(1, b"ready\\n")  # not by print, which may not be entered twice: the signal may come inside it
while True:
    time.sleep(0.01)  # briefly: a signal just before the call runs its handler only after it
"""
# as torchrun does: the workers are in sessions of their own, and the launcher has never heard of USR1
LAUNCHER = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-ISc", sys.argv[1]], start_new_session=True).returncode)
"""


def launched(rig: LocalRig, backend: LocalBackend, argv: tuple[str, ...], **changes: object) -> LaunchOrder:
    order = rig.order("succeed", argv=argv, **changes)
    backend.launch(order)
    wait_for(lambda: "ready" in said(backend, order), "its handler")
    return order


def said(backend: LocalBackend, order: LaunchOrder) -> str:
    return backend.read_log(order.attempt_id, 0, 10_000).content.decode()


def checkpoints(rig: LocalRig, name: str) -> dict[str, object]:
    where = str(rig.root / f"checkpoints-{name}")
    return {"checkpoint_dir": where, "env": {"PATH": "/usr/bin:/bin", "ROTA_CHECKPOINT_DIR": where}}


def test_a_worker_below_a_shell_and_a_launcher_saves_and_they_live_to_see_it(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """A batch script without a trap, a launcher, and a worker in a session of its own: only the last may be told."""
    script = f'"{sys.executable}" -ISc "$0" "$1"; echo "left with $?"'
    order = launched(rig, backend, ("sh", "-c", script, LAUNCHER, SAVES))
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0))
    end = rig.end_of(reports, order)
    assert said(backend, order).split("\n") == ["ready", "saved", "left with 0", ""]
    assert (end.cause, end.code, end.killed) == (Cause.PREEMPTED, 0, False)


def test_a_stop_that_nothing_handles_ends_the_program_at_once(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = rig.order("last for ever")
    backend.launch(order)
    rig.start_of(reports, order)
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0))
    end = rig.end_of(reports, order)
    assert (end.cause, end.signal, end.killed) == (Cause.PREEMPTED, signal.SIGUSR1, False)


WAITS = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
print("saved", flush=True)
sys.exit(75)
"""


def test_who_waits_for_its_signal_without_a_handler_has_saved(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = launched(rig, backend, (sys.executable, "-ISc", WAITS))
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0, saves=True))
    end = rig.end_of(reports, order)
    assert said(backend, order).split("\n") == ["ready", "saved", ""]
    assert (end.cause, end.code, end.killed, end.message) == (Cause.PREEMPTED, 75, False, "")


def test_who_dies_below_a_shell_is_told_of_too(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    script = f'trap "" USR1; "{sys.executable}" -ISc "$0"; exit $?'
    waits = "import signal as s, time; s.signal(s.SIGUSR1, s.SIG_DFL); print('ready', flush=True); time.sleep(999)"
    order = launched(rig, backend, ("sh", "-c", script, waits))
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0, saves=True))
    end = rig.end_of(reports, order)
    assert (end.code, end.killed) == (128 + signal.SIGUSR1, True)
    assert end.message == "nothing of it had a handler for SIGUSR1, so it ended without saving"


def test_zero_after_a_stop_means_saved_unless_it_says_that_it_was_through(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    ends = {}
    for mark in ("model.pt", ".finished"):
        order = launched(rig, backend, (sys.executable, "-ISc", SAVES, mark), **checkpoints(rig, mark))
        backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0))
        ends[mark] = rig.end_of(reports, order)
        assert (rig.root / f"checkpoints-{mark}" / mark).exists(), "what it saved is kept"
    assert (ends["model.pt"].cause, ends["model.pt"].code) == (Cause.PREEMPTED, 0)
    assert ends[".finished"].ok


def test_a_cancel_stays_one_whatever_the_program_says(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = launched(rig, backend, (sys.executable, "-ISc", SAVES, ".finished"), **checkpoints(rig, "cancelled"))
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGUSR1, 1000.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_who_is_too_slow_is_not_called_deaf(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = launched(rig, backend, ("sh", "-c", "trap 'echo saving' USR1; echo ready; while :; do sleep 0.01; done"))
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 0.3))
    end = rig.end_of(reports, order)
    assert (end.cause, end.signal, end.killed) == (Cause.PREEMPTED, signal.SIGKILL, True)
    assert end.message == "it had not ended 0.3 s after SIGUSR1, when its grace was over, and was killed"


def test_the_warning_comes_without_a_server(rig: LocalRig, reports: Reports) -> None:
    first = rig.backend()
    first.open(reports)
    argv = ("sh", "-c", "trap 'echo saved; exit 0' USR1; echo ready; while :; do sleep 0.01; done")
    order = launched(rig, first, argv, time_limit_s=60.0, warn_signal=signal.SIGUSR1, warn_s=57.5)
    first.close()
    later = Reports()
    second = rig.backend()
    second.open(later)
    try:
        second.launch(order)  # whoever remembers it as live asks again
        end = rig.end_of(later, order)
        assert (end.cause, end.code, end.warned) == (Cause.EXITED, 0, True)
        assert said(second, order) == "ready\nsaved\n"
    finally:
        second.close()


def test_after_a_warning_the_limit_still_ends_it(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    argv = ("sh", "-c", "trap 'echo go on' USR1; echo ready; while :; do sleep 0.01; done")
    order = launched(rig, backend, argv, time_limit_s=4.0, warn_signal=signal.SIGUSR1, warn_s=1.5)
    end = rig.end_of(reports, order)
    assert (end.cause, end.signal, end.warned) == (Cause.TIME_LIMIT, signal.SIGTERM, True)
    assert said(backend, order) == "ready\ngo on\n", "once"


def test_a_warning_nobody_could_hear_is_noted(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = rig.order("last for ever", time_limit_s=0.3, warn_signal=signal.SIGUSR2, warn_s=0.2)
    backend.launch(order)
    rig.end_of(reports, order)
    note = Path(rig.path(order.attempt_id, "shim.log")).read_text()
    assert note == "not warned of its limit: nothing handles SIGUSR2\n"


def test_who_left_before_the_stop_was_seen_has_finished(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    """The supervisor sleeps while both happen, and still knows which came first."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    order = rig.order("succeed", argv=("sh", "-c", f"trap 'exit 4' USR1; read x < {gate}; exit 0"))
    backend.launch(order)
    pid = rig.start_of(reports, order).pid
    shim = procs.parent(pid)
    assert shim is not None
    os.kill(shim, signal.SIGSTOP)
    gate.write_text("go\n")
    wait_for(lambda: procs.start_time(pid) is None, "its end, which nobody has seen yet")
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0))
    os.kill(shim, signal.SIGCONT)
    assert rig.end_of(reports, order).ok
