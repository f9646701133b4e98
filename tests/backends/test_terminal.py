"""A job with a terminal: it is a real one, people look in and type, and who looks neither keeps nor ends it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket

import pytest

from rota.adapters.backends import records, terminal
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.logfile import LogFile
from rota.adapters.backends.ptypump import PtyPump
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

ASK = 'tty; echo size $(stty size); while read line; do echo got:$line; [ "$line" = bye ] && exit 5; done'


@pytest.fixture
def root(rig: LocalRig) -> Path:
    return rig.root / "backend"


def launch(rig: LocalRig, backend: LocalBackend, reports: Reports, script: str = ASK) -> LaunchOrder:
    order = rig.order("succeed", argv=("sh", "-c", script), terminal=True)
    backend.launch(order)
    rig.start_of(reports, order)
    return order


def hear(line: socket, text: bytes, heard: bytes = b"") -> bytes:
    line.settimeout(60)
    while text not in heard:
        chunk = line.recv(4096)
        assert chunk, heard
        heard += chunk
    return heard


def test_it_has_a_terminal_and_what_is_typed_arrives(
    rig: LocalRig, backend: LocalBackend, reports: Reports, root: Path
) -> None:
    order = launch(rig, backend, reports)
    with terminal.connect(root, order.attempt_id) as one, terminal.connect(root, order.attempt_id) as two:
        hear(one, b"size")
        one.sendall(terminal.window_size(33, 99) + terminal.typed(b"hello\n"))
        hear(one, b"got:hello")
        hear(two, b"got:hello")
        two.sendall(terminal.typed(b"bye\n"))
        end = rig.end_of(reports, order)
    assert (end.cause, end.code) == (Cause.EXITED, 5)
    text = backend.read_log(order.attempt_id, 0, 10_000).content.decode()
    assert text.startswith("/dev/pts/") and text.endswith("got:bye\r\n")
    assert not (root / "attempts" / order.attempt_id / "tty").exists()
    with pytest.raises(terminal.NoTerminal):
        terminal.connect(root, order.attempt_id)


def test_a_late_comer_sees_what_came_before_and_a_window_has_its_size(
    rig: LocalRig, backend: LocalBackend, reports: Reports, root: Path
) -> None:
    order = launch(rig, backend, reports, "echo early; read go; stty size; read end")
    wait_for(lambda: b"early" in backend.read_log(order.attempt_id, 0, 100).content, "the first word")
    with terminal.connect(root, order.attempt_id) as line:
        hear(line, b"early")
        line.sendall(terminal.window_size(33, 99) + terminal.typed(b"\n"))
        hear(line, b"33 99")
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_who_does_not_read_is_dropped_and_a_fifth_is_refused(
    rig: LocalRig, backend: LocalBackend, reports: Reports, root: Path
) -> None:
    order = launch(rig, backend, reports, "echo up; read go; yes | head -c 3000000; echo; echo flood over; read end")
    lines = [terminal.connect(root, order.attempt_id) for _ in range(4)]
    try:
        for line in lines:
            hear(line, b"up")
        with terminal.connect(root, order.attempt_id) as fifth:
            fifth.settimeout(60)
            assert fifth.recv(10) == b""
        lines[0].sendall(terminal.typed(b"\n"))
        wait_for(lambda: b"flood over" in backend.read_log(order.attempt_id, -100, 100).content, "the flood")
        with pytest.raises(AssertionError):  # its connection ends before the last line
            hear(lines[1], b"flood over")
        with terminal.connect(root, order.attempt_id) as again:
            hear(again, b"flood over")
    finally:
        for line in lines:
            line.close()


def test_those_who_hang_up_while_the_command_does_not_read_cost_nothing_and_leave_their_places(
    rig: LocalRig, backend: LocalBackend, reports: Reports, root: Path
) -> None:
    order = launch(rig, backend, reports, "stty raw -echo; echo up; sleep 1000")
    for _ in range(6):  # there is room for four at a time
        with terminal.connect(root, order.attempt_id) as line:
            hear(line, b"up")
            line.settimeout(1.0)
            with contextlib.suppress(TimeoutError, BrokenPipeError, ConnectionResetError):
                for _ in range(20):
                    line.sendall(terminal.typed(b"x" * 20_000))

    def is_let_in() -> bool:
        with terminal.connect(root, order.attempt_id) as again:
            again.settimeout(60)
            return again.recv(10) != b""

    wait_for(is_let_in, "a place")


def test_attach_by_hand_and_detach(rig: LocalRig, backend: LocalBackend, reports: Reports, root: Path) -> None:
    order = launch(rig, backend, reports)
    stdin, keyboard = os.pipe()
    screen, stdout = os.pipe()
    result: list[str] = []
    person = threading.Thread(target=lambda: result.append(terminal.attach(root, order.attempt_id, stdin, stdout)))
    person.start()
    os.write(keyboard, b"one\n")
    seen = b""
    while b"got:one" not in seen:
        seen += os.read(screen, 4096)
    os.write(keyboard, terminal.DETACH)
    person.join(60)
    assert result == ["detached"]
    assert reports.exit(order.attempt_id) is None
    for fd in (stdin, keyboard, screen, stdout):
        os.close(fd)


def test_a_terminal_job_outlives_the_server(rig: LocalRig, reports: Reports, root: Path) -> None:
    first = rig.backend()
    first.open(reports)
    order = launch(rig, first, reports)
    first.close()
    with terminal.connect(root, order.attempt_id) as line:
        line.sendall(terminal.typed(b"bye\n"))
        hear(line, b"got:bye")
    second = rig.backend()
    second.open(reports)
    try:
        wait_for(lambda: records.read(str(root / "attempts" / order.attempt_id / "exit")), "the end")
    finally:
        second.close()


@pytest.fixture
def tmux() -> Iterator[Callable[..., str]]:
    if not shutil.which("tmux"):
        pytest.skip("needs tmux")
    name = f"rota-test-{os.getpid()}-{time.monotonic_ns()}"

    def call(*argv: str) -> str:
        return subprocess.run(
            ["tmux", "-L", name, *argv], check=True, capture_output=True, text=True, timeout=60
        ).stdout

    call.__name__ = name
    call("-f", "/dev/null", "new-session", "-d", "-s", "look", "-x", "80", "-y", "24")
    yield call
    call("kill-server")


def test_a_tmux_window_is_only_an_onlooker(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmux: Callable[..., str]
) -> None:
    order = launch(rig, backend, reports)
    root = rig.root / "backend"
    tmux("set-environment", "-g", "PYTHONPATH", str(Path(terminal.__file__).parents[3]))
    terminal.tmux_window(root, order.attempt_id, "look", tmux.__name__)
    target = f"look:{order.attempt_id}"
    wait_for(lambda: "size" in tmux("capture-pane", "-p", "-t", target), "the window shows the job")
    tmux("send-keys", "-t", target, "typed in tmux", "Enter")
    wait_for(lambda: b"got:typed in tmux" in backend.read_log(order.attempt_id, 0, 4096).content, "the typed line")
    tmux("kill-window", "-t", target)
    assert reports.exit(order.attempt_id) is None
    with terminal.connect(root, order.attempt_id) as line:
        line.sendall(terminal.typed(b"bye\n"))
    assert rig.end_of(reports, order).code == 5


def test_a_session_that_is_not_there_is_made(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmux: Callable[..., str]
) -> None:
    order = launch(rig, backend, reports)
    tmux("set-environment", "-g", "PYTHONPATH", str(Path(terminal.__file__).parents[3]))
    for _ in range(2):
        terminal.tmux_window(rig.root / "backend", order.attempt_id, "loo", tmux.__name__)
    assert tmux("list-windows", "-t", "=loo", "-F", "#W").split() == [order.attempt_id] * 2
    assert order.attempt_id not in tmux("list-windows", "-t", "=look", "-F", "#W"), "whose name only begins so"
    wait_for(lambda: "size" in tmux("capture-pane", "-p", "-t", "=loo:0"), "the window shows the job")
    with terminal.connect(rig.root / "backend", order.attempt_id) as line:
        line.sendall(terminal.typed(b"bye\n"))
    assert rig.end_of(reports, order).code == 5


def test_a_window_runs_no_module_of_the_directory_it_begins_in(
    rig: LocalRig,
    backend: LocalBackend,
    reports: Reports,
    tmux: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hostile, ran = rig.root / "hostile", rig.root / "ran"
    (hostile / "rota").mkdir(parents=True)
    (hostile / "rota" / "__init__.py").write_text(f"open({str(ran)!r}, 'w')")
    monkeypatch.chdir(hostile)
    order = launch(rig, backend, reports)
    tmux("set-environment", "-g", "PYTHONPATH", str(Path(terminal.__file__).parents[3]))
    terminal.tmux_window(rig.root / "backend", order.attempt_id, "elsewhere", tmux.__name__)
    wait_for(lambda: "size" in tmux("capture-pane", "-p", "-t", "=elsewhere:0"), "the window shows the job")
    assert not ran.exists()
    with terminal.connect(rig.root / "backend", order.attempt_id) as line:
        line.sendall(terminal.typed(b"bye\n"))
    assert rig.end_of(reports, order).code == 5


def test_what_tmux_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    with pytest.raises(terminal.NoTerminal, match="tmux"):
        terminal.tmux_window(tmp_path, "0123456789ab-1", socket_name=f"rota-test-{os.getpid()}-nobody")


def test_a_pump_that_fails_still_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its supervisor waits for it, and else would never record the end."""

    def fail() -> set[int]:
        raise MemoryError

    told: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))
    master, slave = os.openpty()
    with open(tmp_path / "log", "wb") as log:
        pump = PtyPump(master, LogFile(log.fileno(), 0), str(tmp_path))
        monkeypatch.setattr(pump, "_poll", fail)
        pump.start()
        assert pump.is_over(60)
        assert pump.is_closed(60)
        pump.finish()
        with pytest.raises(OSError, match="Input/output"):
            os.write(slave, b"x")
    wait_for(lambda: told == [MemoryError], "the thread has told of it, and no other test hears of that")
    os.close(slave)
    pump._server.close()
    os.close(pump._enough)
