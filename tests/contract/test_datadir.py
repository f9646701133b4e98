"""B3: one data directory, one server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rota.adapters import datadir
from rota.adapters.datadir import DataDirBusy, DataDirError, open_data_dir

# Says what came of it, then holds the directory until its stdin ends.
CONTENDER = """
import sys
from rota.adapters.datadir import DataDirBusy, open_data_dir
sys.stdin.readline()
try:
    held = open_data_dir(sys.argv[1])
except DataDirBusy as error:
    print("busy", error, flush=True)
else:
    print("won", flush=True)
    sys.stdin.read()
"""


def contender(path: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", CONTENDER, str(path)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate(timeout=60)


def pairs(path: Path, count: int) -> None:
    for n in range(count):
        two = [contender(path / str(n)) for _ in range(2)]
        for process in two:
            say(process)
        heard = sorted(hear(process) for process in two)
        finish(*two)
        assert heard[1] == "won\n"
        assert heard[0].startswith("busy another Rota server"), heard
        assert f"is using {path / str(n)}; stop it or choose another --data-dir" in heard[0]


def test_of_two_started_at_once_exactly_one_wins(tmp_path: Path) -> None:
    pairs(tmp_path, 20)


@pytest.mark.soak
def test_of_many_pairs_exactly_one_wins(tmp_path: Path) -> None:
    pairs(tmp_path, 500)


def test_kill_9_frees_it_and_the_message_names_the_holder(tmp_path: Path) -> None:
    first = contender(tmp_path)
    say(first)
    assert hear(first) == "won\n"
    with pytest.raises(DataDirBusy, match=rf"another Rota server \(pid {first.pid}, since 2"):
        open_data_dir(tmp_path)
    first.send_signal(signal.SIGKILL)
    first.wait()
    finish(first)
    open_data_dir(tmp_path).close()


# Has the directory, and then ends but for a second thread.
KILLED = """
import ctypes, sys, threading, time
from rota.adapters.datadir import open_data_dir
held = open_data_dir(sys.argv[1])
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
print("won", flush=True)
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[__import__("platform").machine()], 0)
"""


def test_a_killed_server_whose_threads_wait_is_named_as_such(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as first:
        try:
            assert hear(first) == "won\n"
            until = time.monotonic() + 60
            while datadir._state(Path(f"/proc/{first.pid}/stat")) != "Z":
                assert time.monotonic() < until
                time.sleep(0.01)
            with pytest.raises(DataDirBusy, match=rf"was killed \(pid {first.pid}, .*A lock that an account holds"):
                open_data_dir(tmp_path)
        finally:
            first.kill()
    open_data_dir(tmp_path).close()


def test_children_do_not_inherit_it(tmp_path: Path) -> None:
    held = open_data_dir(tmp_path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    held.close()
    until = time.monotonic() + 60
    while True:
        try:
            open_data_dir(tmp_path).close()
            break
        except DataDirBusy:  # Linux wakes the parent a moment before the child's exec has closed its copy
            assert time.monotonic() < until
    assert child.poll() is None
    child.communicate(b"\n", timeout=60)


def test_it_is_private(tmp_path: Path) -> None:
    held = open_data_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)
    assert (tmp_path / "a" / "b" / "lock").stat().st_mode & 0o777 == 0o600
    held.close()
    held.close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirError, match=r"cannot use .*file/x as the data directory: Not a directory"):
        open_data_dir(tmp_path / "file" / "x")


def test_a_symlink_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", tmp_path / "lock")
    with pytest.raises(DataDirError):
        open_data_dir(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


# Holds the directory, forks one that has not become another program yet, says its number and dies.
ORPHANS = """
import os, sys, time
from rota.adapters.datadir import open_data_dir
held = open_data_dir(sys.argv[1])
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdout.close()
    os.close(1)
    time.sleep(float(sys.argv[2]))
    os._exit(0)
os.kill(os.getpid(), 9)
"""


def orphan(path: Path, lasts_s: float) -> int:
    """The child of a dead server, which has the lock for so long; its pid."""
    argv = [sys.executable, "-c", ORPHANS, str(path), str(lasts_s)]
    return int(subprocess.run(argv, check=False, stdout=subprocess.PIPE).stdout)


def test_a_lock_that_a_dead_server_left_to_a_child_is_waited_for(tmp_path: Path) -> None:
    orphan(tmp_path / "a", 0.3)
    open_data_dir(tmp_path / "a").close()
    child = orphan(tmp_path / "b", 1000.0)
    try:
        with pytest.raises(DataDirBusy, match="another Rota server"):
            open_data_dir(tmp_path / "b")
    finally:
        os.kill(child, signal.SIGKILL)


def test_what_is_looked_up_while_it_runs_stays_open(tmp_path: Path) -> None:
    """What is open is found without the lock of the data directory, which other accounts can hold."""
    held = open_data_dir(tmp_path / "data")
    (tmp_path / "data" / "metrics").mkdir()
    held.pin()
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in held._pins] == [str(tmp_path / "data" / "metrics")]
    held.close()
    assert held._pins == []
