"""From an order to a running command: what it gets, what it does not get, and what is said when it cannot begin."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends import confine, limits, task, zygote
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.lookers import SPARE
from rota.app.ports import Ended, LaunchOrder, StopOrder, Task
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for, zombies_below

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def run(rig: LocalRig, backend: LocalBackend, reports: Reports, *argv: str, **changes: Any) -> tuple[LaunchOrder, Exit]:
    order = rig.order("succeed", argv=argv, **changes)
    backend.launch(order)
    return order, rig.end_of(reports, order)


def text_of(backend: LocalBackend, order: LaunchOrder) -> str:
    return backend.read_log(order.attempt_id, 0, 1 << 20).content.decode()


def test_the_environment_is_exactly_the_orders(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROTA_SECRET", "must not leak")
    env = {"PATH": "/usr/bin:/bin", "A": "1", "ODD": "x\ny=z \udcff"}
    order, _ = run(rig, backend, reports, "env", "-0", env=env, tasks=(Task("here", (), {"A": "2"}),))
    raw = backend.read_log(order.attempt_id, 0, 1 << 20).content
    got = dict(item.split(b"=", 1) for item in raw.split(b"\0") if item)
    assert re.fullmatch(rb"[0-9a-f]{16}", got.pop(b"ROTA_INSTALLATION_ID")), "which server's it is"
    assert got == {
        b"PATH": b"/usr/bin:/bin",
        b"A": b"2",
        b"ODD": b"x\ny=z \xff",
        b"ROTA_ATTEMPT_ID": order.attempt_id.encode(),
    }


def test_nothing_of_the_server_is_to_be_read_off_its_helpers(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = rig.order("last for ever", env={"PATH": "/usr/bin:/bin", "TOKEN": "s3cret"}, argv=("sleep", "1000"))
    backend.launch(order)
    started = rig.start_of(reports, order)
    shim = json.loads(rig.path(order.attempt_id, "pid").read_text())["pid"]
    zygote = backend._launcher.pid
    for pid in (shim, zygote):
        assert b"s3cret" not in Path(f"/proc/{pid}/environ").read_bytes()
        assert b"s3cret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
    assert b"s3cret" in Path(f"/proc/{started.pid}/environ").read_bytes()
    for name in rig.path(order.attempt_id, "").iterdir():
        assert b"s3cret" not in name.read_bytes(), name


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"argv": ("no-such-command",)}, 127, "command not found: no-such-command"),
        ({"argv": ("/no/such/command",)}, 127, "command not found: /no/such/command"),
        ({"argv": ("/etc/passwd",)}, 126, "cannot run /etc/passwd: Permission denied"),
        ({"argv": ("/tmp",)}, 126, "cannot run /tmp: Permission denied"),
        ({"argv": ("echo", "a\0b")}, 126, "embedded null byte"),
        ({"argv": ("echo", "x" * 200_000)}, 126, "too long for the kernel"),
        ({"workdir": "/no/such/dir"}, 126, "workdir does not exist: /no/such/dir (create it or submit from another"),
        ({"workdir": "/etc/passwd"}, 126, "workdir is not a directory: /etc/passwd"),
        ({"workdir": "relative"}, 126, "workdir is not an absolute path"),
        ({"account": "no-such-user"}, 126, "no such account on this machine: no-such-user"),
        ({"argv": ()}, 126, "there is nothing to run"),
        ({"env": {"X": "y" * (9 << 20)}}, 126, "the order is too large"),
    ],
)
def test_what_cannot_begin_says_why(
    rig: LocalRig, backend: LocalBackend, reports: Reports, *, changes: dict[str, Any], code: int, message: str
) -> None:
    order = rig.order("succeed", **changes)
    backend.launch(order)
    end = rig.end_of(reports, order)
    assert (end.cause, end.code, end.started_tick) == (Cause.LAUNCH_FAILED, code, None)
    assert message in end.message
    assert reports.started(order.attempt_id) is None
    if changes.get("argv", ("x",)) and "env" not in changes:
        assert f"rota: {end.message}\n" == text_of(backend, order)


@pytest.mark.parametrize("name", ["/no\r/such", "/no\u2028/such", "/no\x85/such\x0c"])
def test_a_forked_task_says_why_in_whole_whatever_characters_a_name_has(
    rig: LocalRig, backend: LocalBackend, reports: Reports, name: str
) -> None:
    """A task with a terminal is forked, and tells its supervisor through a pipe."""
    order = rig.order("succeed", workdir=f"{name} dir", terminal=True)
    backend.launch(order)
    end = rig.end_of(reports, order)
    assert (end.cause, end.code) == (Cause.LAUNCH_FAILED, 126)
    assert end.message == f"workdir does not exist: {name} dir (create it or submit from another directory)"


def test_a_script_without_an_interpreter_line_is_the_shells(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text("echo plain $1\n")
    script.chmod(0o755)
    order, end = run(rig, backend, reports, "./script", "text")
    assert end.ok and text_of(backend, order) == "plain text\n"


def test_workdir_umask_and_streams(rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path) -> None:
    script = "pwd; umask; echo oops >&2; cat; echo err >>/dev/stderr"
    order, end = run(rig, backend, reports, "sh", "-c", script, umask=0o027)
    assert end.ok
    assert text_of(backend, order) == f"{tmp_path}\n0027\noops\nerr\n"
    _, end = run(rig, backend, reports, "sh", "-c", "[ $(umask) = 0022 ]")
    assert end.ok, "the last attempt's umask must not stay with the worker"


def test_signals_and_descriptors_are_clean(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    look = (
        "import os, signal\n"
        "print(sorted(os.listdir('/proc/self/fd')))\n"
        "print([l.split() for l in open('/proc/self/status') if l.startswith(('SigBlk', 'ShdPnd'))])\n"
        "print(os.getpid() == os.getsid(0) == os.getpgid(0), os.readlink('/proc/self/fd/0'))\n"
    )
    order, end = run(rig, backend, reports, sys.executable, "-c", look)
    lines = text_of(backend, order).splitlines()
    assert end.ok, lines
    assert lines[0] == "['0', '1', '2', '3']", "only the standard three, and listdir's own"
    assert lines[1] == "[['ShdPnd:', '0000000000000000'], ['SigBlk:', '0000000000000000']]"
    assert lines[2] == "True /dev/null"
    order, _ = run(rig, backend, reports, "grep", "SigIgn", "/proc/self/status")
    reserved = 0x180000000  # 32 and 33 belong to the C library, which lets nobody change them
    assert int(text_of(backend, order).split()[1], 16) & ~reserved == 0


def test_a_signal_that_killed_it_comes_back(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    for signum in (signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM, signal.SIGPIPE):
        _, end = run(rig, backend, reports, "sh", "-c", f"kill -{int(signum)} $$")
        assert (end.cause, end.code, end.signal) == (Cause.EXITED, None, signum)


def test_a_gang_knows_its_ranks_and_succeeds_together(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    tasks = tuple(Task(f"node{rank}", (rank,), {"RANK": str(rank)}) for rank in range(2))
    order, end = run(rig, backend, reports, "sh", "-c", "sleep 0.0$RANK; echo rank $RANK", tasks=tasks)
    assert end.ok
    assert sorted(text_of(backend, order).splitlines()) == ["rank 0", "rank 1"]


@pytest.mark.parametrize("letter", ["x", "\U0001d11e", "\udcff"])
def test_what_a_task_says_that_cannot_begin_goes_into_the_pipe_as_one_piece(letter: str) -> None:
    """Else those of a gang could write into one another's words."""
    reading, writing = os.pipe()
    task._tell(task.Fds(-1, writing, -1, -1, writing), 126, f"no\n{letter * 5000}")
    for line, begin in zip(os.read(reading, 1 << 16).splitlines(), (b"126 no ", b"rota: no "), strict=True):
        assert line.startswith(begin) and len(line) < select.PIPE_BUF
        assert line.decode(errors="surrogateescape").endswith(letter * 900), "cut between characters"
    os.close(reading)
    os.close(writing)


def test_a_gang_falls_together_with_the_first_failures_code(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    tasks = tuple(Task(f"node{rank}", (), {"RANK": str(rank)}) for rank in range(3))
    order, end = run(rig, backend, reports, "sh", "-c", "[ $RANK = 1 ] && exit 7; sleep 1000", tasks=tasks)
    assert (end.cause, end.code) == (Cause.EXITED, 7)
    order = rig.order("succeed", argv=("sh", "-c", "[ $RANK = 0 ] && exit 0; exec sleep 1000"), tasks=tasks)
    backend.launch(order)
    rig.start_of(reports, order)
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_twenty_orders_from_two_servers_start_one_attempt(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    other_reports = Reports()
    other = rig.backend()
    other.open(other_reports)
    try:
        for _ in range(5):
            order = rig.order("say hello")
            gate = threading.Barrier(20)

            def launch(to: LocalBackend, order: LaunchOrder = order, gate: threading.Barrier = gate) -> None:
                gate.wait()
                to.launch(order)

            threads = [threading.Thread(target=launch, args=(each,)) for each in (backend, other) * 10]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert rig.end_of(reports, order) == rig.end_of(other_reports, order)
            assert text_of(backend, order) == "hello\n"
    finally:
        other.close()


def test_five_hundred_attempts_leave_no_zombie_no_descriptor_no_litter(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    orders = [rig.order("succeed") for _ in range(500)]
    for order in orders:
        backend.launch(order)
    for order in orders:
        assert rig.end_of(reports, order).ok
        assert len([each for each in reports.of(order.attempt_id) if isinstance(each, Ended)]) == 1
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= before + SPARE, "no descriptor but those to lookers")
    zygote = backend._launcher.pid
    assert zygote is not None
    wait_for(lambda: not zombies_below(os.getpid()), "no zombies")
    wait_for(lambda: len(os.listdir(f"/proc/{zygote}/fd")) < 60, "no descriptor of the launcher's")
    assert len(backend._known) == 0
    for order in orders:
        assert set(os.listdir(rig.path(order.attempt_id, ""))) - {"pid"} == {"exit", "lock", "log"}


def test_a_dismissed_worker_closes_no_pipe_of_another() -> None:
    """The kernel gives the number of its pipe to the next one, and its reaping comes later."""
    reading, writing = os.pipe()
    dismissed = zygote.Worker(writing, limits.WorkerGroups(confine.Hierarchies(), "w"))
    dismissed.dismiss()
    assert os.dup(reading) == writing
    dismissed.dismiss()
    os.close(writing)
    os.close(reading)


@ROOT_ONLY
def test_another_account_is_fully_that_account(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    script = "id -un; id -G; echo $HOME $USER $LOGNAME; echo again >>/dev/stderr; grep NoNew /proc/self/status; pwd"
    order, end = run(rig, backend, reports, "sh", "-c", script, account="nobody", workdir="/")
    assert end.ok, text_of(backend, order)
    user, groups, names, again, privileges, where = text_of(backend, order).splitlines()
    assert (user, groups, again, where) == ("nobody", "65534", "again", "/")
    assert names == "/nonexistent nobody nobody"
    assert privileges.split() == ["NoNewPrivs:", "1"]
    private = str(rig.path(order.attempt_id, "exit"))
    order, end = run(rig, backend, reports, "cat", private, account="nobody", workdir="/")
    assert end.code == 1, "a job must not read the backend's files"


@ROOT_ONLY
def test_a_workdir_closed_to_the_account_is_refused(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    _, end = run(rig, backend, reports, "true", account="nobody", workdir=str(closed))
    assert (end.cause, end.message) == (Cause.LAUNCH_FAILED, f"workdir is not open to nobody: {closed}")
    _, end = run(rig, backend, reports, "no-such-command", account="nobody", workdir="/")
    assert (end.cause, end.code, end.message) == (Cause.LAUNCH_FAILED, 127, "command not found: no-such-command")


@ROOT_ONLY
@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_of_another_account_reaches_nothing_that_its_supervisor_has_open(
    rig: LocalRig, backend: LocalBackend, reports: Reports, terminal: bool
) -> None:
    """Its directory and its command are names of the user's choice, which are looked up before the command runs. From
    the data directory a run would get to what the account may not search the way to."""
    theirs: dict[str, Any] = {"account": "nobody", "terminal": terminal}
    order, end = run(rig, backend, reports, "pwd", workdir="/proc/self/cwd", **theirs)
    assert end.ok and text_of(backend, order).split() == ["/"]
    names = [f"/proc/{who}/fd/{number}" for who in ("self", "thread-self") for number in range(3, 48)]
    orders = [rig.order("succeed", argv=("pwd",), workdir=name, **theirs) for name in names]
    orders += [rig.order("succeed", argv=(f"{name}/../../bin/pwd",), workdir="/", **theirs) for name in names[:48]]
    backend.launch(*orders)
    for each in orders:
        assert rig.end_of(reports, each).code in {126, 127}, (each.workdir, each.argv, text_of(backend, each))
