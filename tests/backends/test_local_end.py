"""No process of an attempt outlives it, whatever it does and whoever of us is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rota.adapters.backends import procs, records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, wait_for

# Ways to slip away: a new session, a double fork, no environment, all of it at once, deaf to TERM.
SHAPES = {
    "plain": "sleep {n} &",
    "setsid": "setsid sleep {n} &",
    "double fork": "(setsid sh -c 'sleep {n} &' &)",
    "no environment": "env -i setsid sleep {n} &",
    "deaf": "(trap '' TERM; setsid sleep {n}) &",
    "all": "(trap '' TERM HUP INT; env -i setsid sh -c 'setsid sh -c \"sleep {n} & sleep {n}\" & sleep {n}' &)",
}


def brood(number: int) -> str:
    return "\n".join(shape.format(n=number) for shape in SHAPES.values())


def launch_brood(rig: LocalRig, backend: LocalBackend, reports: Reports, then: str) -> tuple[LaunchOrder, str]:
    """An attempt with descendants of every shape; returns a text only their command lines contain."""
    order = rig.order("succeed")
    number = 10_000_000 + int(order.attempt_id[:10], 16)
    argv = ("sh", "-c", f"{brood(number)}\necho ready; {then}")
    order = LaunchOrder(order.attempt_id, argv, order.env, order.workdir, order.tasks, grace_s=0.3)
    backend.launch(order)
    return order, f"sleep\0{number}"


def shim_of(rig: LocalRig, order: LaunchOrder) -> int:
    record = wait_for(lambda: records.read(str(rig.path(order.attempt_id, "pid"))), "the pid record")
    return int(record["pid"])


def test_nothing_is_left_after_a_normal_end(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    for code in (0, 5):
        order, children = launch_brood(rig, backend, reports, f"sleep 0.1; exit {code}")
        end = rig.end_of(reports, order)
        assert command_lines(children) == []
        assert (end.cause, end.code) == (Cause.EXITED, code)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGUSR1])
def test_nothing_is_left_after_a_cancel(
    rig: LocalRig, backend: LocalBackend, reports: Reports, signum: signal.Signals
) -> None:
    order, children = launch_brood(rig, backend, reports, "sleep 1000")
    wait_for(lambda: len(command_lines(children)) >= 7, "all the brood")
    backend.stop(order.attempt_id, StopOrder("cancelled", signum, 0.3))
    end = rig.end_of(reports, order)
    assert command_lines(children) == []
    assert end.cause is Cause.CANCELLED


def test_a_polite_end_reaches_every_process_and_a_message_only_the_program(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    helper = f"trap 'echo helper TERM; : >{heard}; exit' TERM; echo helper up; while :; do sleep 0.01; done"
    main = f"trap 'echo main USR1' USR1; trap 'until [ -e {heard} ]; do sleep 0.01; done; exit 4' TERM; echo main up"
    script = f'setsid sh -c "$0" & {main}; while :; do sleep 0.01; done'
    order = rig.order("succeed", argv=("sh", "-c", script, helper))
    backend.launch(order)

    def said(text: str, order: LaunchOrder = order) -> bool:
        return text in backend.read_log(order.attempt_id, 0, 10_000).content.decode()

    wait_for(lambda: said("main up") and said("helper up"), "both have set their traps")
    backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 3600))
    wait_for(lambda: said("main USR1"), "the checkpoint signal")
    pid = rig.start_of(reports, order).pid  # its record may come after the signal
    assert backend.observe(order.attempt_id) == Live(pid)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED

    assert not heard.exists()
    second = rig.order("succeed", argv=("sh", "-c", script, helper))
    backend.launch(second)
    wait_for(lambda: said("main up", second) and said("helper up", second), "both once more")
    backend.stop(second.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, second).code == 4
    assert said("helper TERM", second)


def test_a_stop_that_is_repeated_writes_nothing(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    """On a full disk each record takes one of a hundred spare files, and a stop is repeated every few seconds."""
    order = rig.order("ignore TERM")
    backend.launch(order)
    wait_for(lambda: b"deaf" in backend.read_log(order.attempt_id, 0, 100).content, "it runs")
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 300.0))
    written = rig.path(order.attempt_id, "stop").stat()
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 300.0))
    again = rig.path(order.attempt_id, "stop").stat()
    assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED, "another one is written, and obeyed"


def test_a_stopped_process_is_cancelled_too(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = rig.order("last for ever")
    backend.launch(order)
    os.kill(rig.start_of(reports, order).pid, signal.SIGSTOP)
    backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=3600))
    assert rig.end_of(reports, order).signal == signal.SIGTERM


def test_a_killed_shim_means_lost_and_its_children_dead(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order, children = launch_brood(rig, backend, reports, "sleep 1000")
    wait_for(lambda: len(command_lines(children)) >= 7, "all the brood")
    os.kill(shim_of(rig, order), signal.SIGKILL)
    end = rig.end_of(reports, order)
    assert command_lines(children) == []
    assert end.cause is Cause.LOST
    assert backend.observe(order.attempt_id) == end
    after = rig.order("succeed")
    backend.launch(after)
    assert rig.end_of(reports, after).ok


def test_a_shim_killed_while_the_server_is_away_is_found_lost(rig: LocalRig, reports: Reports) -> None:
    first = rig.backend()
    first.open(reports)
    order, children = launch_brood(rig, first, reports, "sleep 1000")
    wait_for(lambda: len(command_lines(children)) >= 7, "all the brood")
    shim = shim_of(rig, order)
    first.close()
    os.kill(shim, signal.SIGKILL)
    second = rig.backend()
    second.open(reports)
    try:
        wait_for(lambda: records.locked(str(rig.root / "backend"), order.attempt_id) is False, "the lock to be free")
        wait_for(lambda: isinstance(second.observe(order.attempt_id), Exit), "its burial")
        end = second.observe(order.attempt_id)
        assert isinstance(end, Exit) and end.cause is Cause.LOST
        if rig.settings["cgroups"] and os.geteuid() == 0:
            assert command_lines(children) == []
        else:  # nobody was there to inherit them and they hide their environment: only a cgroup could have held those
            for pid in command_lines(children):
                assert not procs.has_marker(pid, order.attempt_id, os.getuid())
                os.kill(pid, signal.SIGKILL)
    finally:
        second.close()


def test_an_adopted_shim_that_is_killed_is_reported_lost(rig: LocalRig, reports: Reports) -> None:
    first = rig.backend()
    first.open(reports)
    order = rig.order("last for ever")
    first.launch(order)
    pid = rig.start_of(reports, order).pid
    first.close()
    later = Reports()
    second = rig.backend()
    second.open(later)
    try:
        assert second.observe(order.attempt_id) == Live(pid)
        os.kill(shim_of(rig, order), signal.SIGKILL)
        assert rig.end_of(later, order).cause is Cause.LOST
        assert procs.start_time(pid) is None
    finally:
        second.close()


def test_a_killed_zygote_costs_no_attempt(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    lasting = rig.order("last for ever")
    backend.launch(lasting)
    pid = rig.start_of(reports, lasting).pid
    for _ in range(3):
        zygote = backend._launcher.pid
        assert zygote is not None
        os.kill(zygote, signal.SIGKILL)
        burst = [rig.order("say hello") for _ in range(20)]
        for order in burst:
            backend.launch(order)
        for order in burst:
            assert rig.end_of(reports, order).ok
            assert backend.read_log(order.attempt_id, 0, 100).content == b"hello\n"
    assert backend.observe(lasting.attempt_id) == Live(pid)
    backend.stop(lasting.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, lasting).cause is Cause.CANCELLED


def test_a_server_killed_outright_loses_nothing(rig: LocalRig, reports: Reports) -> None:
    """kill -9 of a whole server process with attempts running; the next one adopts them and hears their ends."""
    code = (
        "import sys, time; from pathlib import Path; from rota.adapters.backends.local import LocalBackend\n"
        "from rota.app.ports import LaunchOrder, Task\n"
        "b = LocalBackend(Path(sys.argv[1]), cgroups=sys.argv[2] == 'True'); b.open(lambda r: print(r, flush=True))\n"
        "argv = ('sh', '-c', f'read x <{sys.argv[3]}; echo over; exit 9')\n"
        "b.launch(LaunchOrder('a7c3b6d11f02-1', argv, {'PATH': '/usr/bin:/bin'}, '/', (Task('here', ()),)))\n"
        "time.sleep(100)"
    )
    source, gate = str(Path(records.__file__).parents[3]), rig.root / "gate"
    os.mkfifo(gate)
    argv = [sys.executable, "-c", code, str(rig.root / "backend"), str(rig.settings["cgroups"]), str(gate)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": source}) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("Started")
        server.kill()
    backend = rig.backend()
    backend.open(reports)
    try:
        assert isinstance(backend.observe("a7c3b6d11f02-1"), Live)
        gate.write_text("go\n")
        end = wait_for(lambda: reports.exit("a7c3b6d11f02-1"), "the end")
        assert (end.cause, end.code) == (Cause.EXITED, 9)
        assert backend.read_log("a7c3b6d11f02-1", 0, 100).content == b"over\n"
    finally:
        backend.close()


def test_a_reused_pid_is_never_signalled(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = rig.order("last for ever")
    backend.launch(order)
    rig.start_of(reports, order)
    time.sleep(0.05)  # the kernel dates processes by hundredths of a second: the stranger must be of a later one
    with subprocess.Popen(["sleep", "1000"]) as stranger:
        try:
            started = procs.start_time(stranger.pid)
            assert started is not None
            assert not procs.send_to(stranger.pid, started + 1, signal.SIGKILL)
            path = rig.path(order.attempt_id, "pid")
            record = json.loads(path.read_text())
            true_record = dict(record)
            record["pid"] = stranger.pid  # as if the shim had died and the stranger had got its number
            path.write_text(json.dumps(record))
            backend.stop(order.attempt_id, StopOrder("cancelled"))
            assert stranger.poll() is None
            path.write_text(json.dumps(true_record))
            backend.stop(order.attempt_id, StopOrder("cancelled"))
            assert rig.end_of(reports, order).cause is Cause.CANCELLED
            assert stranger.poll() is None
            assert procs.send_to(stranger.pid, started, signal.SIGKILL)
        finally:
            stranger.kill()


def test_a_marker_is_the_whole_variable(tmp_path: Path) -> None:
    for value, expected in (("a" * 12 + "-1", True), ("a" * 12 + "-11", False), ("x" + "a" * 12 + "-1", False)):
        with subprocess.Popen(["sleep", "1000"], env={"Z": "1", procs.MARKER: value, "Y": "2"}) as process:
            wait_for(partial(_has_run, process.pid), "exec")
            assert procs.has_marker(process.pid, "a" * 12 + "-1", os.getuid()) is expected
            process.kill()


def _has_run(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep")


def test_what_a_program_calls_itself_ends_no_supervisor(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    """A carriage return in the name begins no line of /proc/<pid>/status."""
    program = (
        "import ctypes, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: exit(3))\n"
        "ctypes.CDLL(None).prctl(15, b'\\rSigCgt:zz', 0, 0, 0)\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(0.01)\n"  # briefly: a signal just before the call runs its handler only after it
    )
    order = rig.order("last for ever", argv=(sys.executable, "-c", program))
    backend.launch(order)
    wait_for(lambda: b"ready" in backend.read_log(order.attempt_id, 0, 100).content, "it has its name")
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 30.0))
    end = rig.end_of(reports, order)
    assert (end.cause, end.code) == (Cause.CANCELLED, 3)
