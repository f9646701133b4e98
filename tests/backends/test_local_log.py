"""Logs: capped in place, read by cursor, never through a link."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import logcap, logfile, logs
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import DEADLINE_S, LocalRig, patched_launcher, wait_for

MORE_THAN_ANY_DISK = 1 << 62  # bytes
ATTEMPT = "000000000001-1"
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "attempts" / ATTEMPT
    path.mkdir(parents=True)
    return path


def read_on(root: Path, offset: int = 0, limit: int = 5000) -> tuple[bytes, int]:
    """All there is from `offset`, as a follower would read it, and the offset to go on from."""
    content = b""
    while chunk := logs.read_log(str(root), ATTEMPT, offset, limit):
        if not chunk.content:
            return content, offset
        content += chunk.content
        offset = chunk.offset + len(chunk.content)
    raise AssertionError


def test_the_middle_goes_the_offsets_stay(tmp_path: Path, directory: Path) -> None:
    log = os.open(directory / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    cap = logcap.LogCap(log, str(directory), 64 << 10)
    lines = b"".join(b"%09d\n" % number for number in range(20_000))
    os.write(log, lines[:100_000])
    cap.check()
    content, offset = read_on(tmp_path)
    assert content.startswith(lines[: 16 << 10])
    assert content.count(b"bytes dropped by the log cap ...]") == 1
    assert b"\0" not in content
    assert content.endswith(lines[100_000 - (32 << 10) : 100_000])
    assert offset == 100_000
    os.write(log, lines[100_000:])
    assert read_on(tmp_path, offset) == (lines[100_000:], 200_000)
    cap.check()
    assert os.stat(directory / "log").st_blocks * 512 <= (64 << 10) + 8192
    assert logs.read_log(str(tmp_path), ATTEMPT, -100, 1000).content == lines[-100:]
    assert logs.read_log(str(tmp_path), ATTEMPT, -150_000, 20).content.rstrip(b"\n").split(b"\n")[-1].isdigit()
    # One who stood in what is now the hole is told how much was missed, once, and goes on behind it.
    content, _ = read_on(tmp_path, 100_000)
    dropped = int(content.split(b"[... ")[1].split(b" ")[0])
    assert content.endswith(lines[100_000 + dropped :])
    os.close(log)


def test_where_holes_cannot_be_made_the_log_is_cut(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logcap, "PUNCH_HOLE_KEEP_SIZE", 0x40000000)  # a mode no file system knows
    log = os.open(directory / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    cap = logcap.LogCap(log, str(directory), 64 << 10)
    os.write(log, b"x" * 100_000)
    cap.check()
    os.write(log, b"after")
    content, _ = read_on(tmp_path)
    assert content == b"x" * (16 << 10) + b"\n[... 83616 bytes dropped by the log cap ...]\nafter"
    os.close(log)


def test_a_flood_is_bounded_on_disk(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = rig.order("succeed", argv=("sh", "-c", "echo begin; while :; do yes | head -c 500000; sleep 0.02; done"))
    order = rig.order("succeed", argv=order.argv, log_cap_bytes=1 << 20)
    backend.launch(order)
    log = rig.path(order.attempt_id, "log")
    wait_for(lambda: log.exists() and log.stat().st_size > 20 << 20, "twenty times the cap")
    wait_for(lambda: log.stat().st_blocks * 512 < 4 << 20, "the cap, and what one look apart can bring")
    backend.stop(order.attempt_id, StopOrder("cancelled"))
    rig.end_of(reports, order)
    assert backend.read_log(order.attempt_id, 0, 6).content == b"begin\n"
    newest = backend.read_log(order.attempt_id, -1000, 1000)
    assert len(newest.content) == 1000 and set(newest.content) == set(b"y\n")
    assert newest.size == log.stat().st_size


def test_a_log_that_cannot_be_bounded_costs_the_run_nothing(tmp_path: Path, reports: Reports) -> None:
    patch = """
from rota.adapters.backends.logcap import LogCap
def fail(self):
    raise OSError(28, "No space left on device")
LogCap.check = fail
"""
    rig = LocalRig(tmp_path, zygote_prefix=patched_launcher(patch))
    backend = rig.backend()
    backend.open(reports)
    go = tmp_path / "go"
    order = rig.order("succeed", argv=("sh", "-c", f"while ! [ -e {go} ]; do sleep 0.01; done; exit 3"))
    backend.launch(order)
    note = rig.path(order.attempt_id, "shim.log")
    wait_for(lambda: note.exists() or reports.exit(order.attempt_id), "a look at its log")
    go.touch()
    end = rig.end_of(reports, order)
    assert (end.cause, end.code) == (Cause.EXITED, 3)
    assert note.read_text().count("No space left on device") == 1, "said once, however often it is looked"
    backend.close()


def used(log: Path | int) -> int:
    return os.stat(log).st_blocks * 512


@pytest.fixture
def capped(directory: Path) -> Iterator[tuple[int, logcap.LogCap]]:
    """A log that a job may open for itself, as one of the server's own account can."""
    log = os.open(directory / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    yield log, logcap.LogCap(log, str(directory), 64 << 10)
    os.close(log)


def test_preallocated_blocks_are_given_back(tmp_path: Path, directory: Path, capped: tuple[int, logcap.LogCap]) -> None:
    log, cap = capped
    os.write(log, b"begin\n")
    subprocess.run(["fallocate", "--keep-size", "-l", "32M", directory / "log"], check=True)
    assert used(log) >= 32 << 20
    cap.check()
    assert used(log) <= 128 << 10
    assert read_on(tmp_path)[0] == b"begin\n"
    os.write(log, b"end\n")
    assert read_on(tmp_path)[0] == b"begin\nend\n"


def test_a_preallocated_hole_is_made_again(directory: Path, capped: tuple[int, logcap.LogCap]) -> None:
    log, cap = capped
    os.truncate(directory / "log", 32 << 20)
    cap.check()
    subprocess.run(["fallocate", "-l", "32M", directory / "log"], check=True)
    assert used(log) >= 31 << 20
    cap.check()
    assert used(log) <= 128 << 10


def test_a_log_that_was_made_long_and_short_again_is_still_capped(
    tmp_path: Path, directory: Path, capped: tuple[int, logcap.LogCap]
) -> None:
    log, cap = capped
    os.truncate(directory / "log", 1 << 34)
    cap.check()
    os.truncate(directory / "log", 0)
    assert read_on(tmp_path) == (b"", 0)
    cap.check()
    for _ in range(8):
        os.write(log, b"x" * (1 << 20))
        cap.check()
    assert used(log) <= 128 << 10
    content, offset = read_on(tmp_path)
    assert offset == 8 << 20 and content.count(b"dropped by the log cap") == 1 and b"\0" not in content


def test_what_was_preallocated_last_is_gone_at_the_end(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    script = "echo begin; fallocate --keep-size -l 64M /proc/self/fd/1"
    order = rig.order("succeed", argv=("sh", "-c", script), log_cap_bytes=1 << 20)
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    log = rig.path(order.attempt_id, "log")
    assert log.read_bytes() == b"begin\n"
    assert used(log) <= 2 << 20


def test_a_link_is_not_followed(tmp_path: Path, directory: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (directory / "log").symlink_to(tmp_path / "secret")
    assert logs.read_log(str(tmp_path), ATTEMPT, 0, 100).content == b""
    (directory / "log").unlink()
    (directory / "log").write_text("content")
    (directory / "dropped").symlink_to(tmp_path / "secret")
    assert logs.read_log(str(tmp_path), ATTEMPT, 0, 100).content == b"content"


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path, directory: Path) -> None:
    os.mkfifo(directory / "log")
    assert logs.read_log(str(tmp_path), ATTEMPT, 0, 100).content == b""
    (directory / "log").unlink()
    (directory / "log").mkdir()
    assert logs.read_log(str(tmp_path), ATTEMPT, 0, 100).content == b""


@ROOT_ONLY
def test_another_accounts_job_has_no_hold_on_its_log(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    """It can neither preallocate nor truncate nor link it, and what it prints is there all the same."""
    script = (
        "echo begin; fallocate -l 100M /proc/self/fd/1; truncate -s 100M /proc/self/fd/1; chmod 666 /proc/self/fd/1;"
        'ln -L /proc/self/fd/1 "$ROTA_CHECKPOINT_DIR/mine"; echo again > /dev/stdout; seq 100000; echo end >&2'
    )
    name = f"{os.urandom(6).hex()}-1"
    where = str(rig.root / "backend" / "checkpoints" / name[:12])
    order = rig.order(
        "succeed",
        attempt_id=name,
        argv=("sh", "-c", script),
        env={"PATH": "/usr/bin:/bin", "ROTA_CHECKPOINT_DIR": where},
        account="nobody",
        workdir="/",
        checkpoint_dir=where,
    )
    backend.launch(order)
    assert rig.end_of(reports, order).ok
    facts = rig.path(order.attempt_id, "log").stat()
    assert (facts.st_uid, facts.st_mode & 0o777, facts.st_nlink) == (0, 0o600, 1)
    content = rig.path(order.attempt_id, "log").read_bytes()
    assert content.startswith(b"begin\n") and content.endswith(b"99999\n100000\nend\n") and b"\nagain\n" in content
    assert content.count(b"\n1234\n") == 1 and b"\0" not in content


@ROOT_ONLY
def test_what_still_holds_the_output_after_the_end_writes_nothing_more(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """A process outside the attempt with a descriptor of its output neither delays the end nor reaches the log."""
    order = rig.order("succeed", argv=("sh", "-c", "echo begin; exec sleep 1000"), account="nobody", workdir="/")
    backend.launch(order)
    pid = rig.start_of(reports, order).pid
    flood = subprocess.Popen(["sh", "-c", f"echo open; exec yes > /proc/{pid}/fd/1"], stdout=subprocess.PIPE)
    assert flood.stdout is not None and flood.stdout.readline() == b"open\n"
    log = rig.path(order.attempt_id, "log")
    wait_for(lambda: log.stat().st_size > 1 << 20, "the flood reaches the log while the attempt runs")
    backend.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
    rig.end_of(reports, order)
    flood.communicate(timeout=DEADLINE_S)
    assert flood.returncode == -signal.SIGPIPE
    assert log.stat().st_size == backend.read_log(order.attempt_id, 0, 0).size


@ROOT_ONLY
def test_a_terminals_other_end_in_strange_hands_does_not_keep_the_attempt(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    order = rig.order("succeed", argv=("sleep", "1000"), terminal=True)
    backend.launch(order)
    pid = rig.start_of(reports, order).pid
    flood = subprocess.Popen(["sh", "-c", f"echo open; exec yes > /proc/{pid}/fd/1"], stdout=subprocess.PIPE)
    assert flood.stdout is not None and flood.stdout.readline() == b"open\n"
    log = rig.path(order.attempt_id, "log")
    wait_for(lambda: log.stat().st_size > 1 << 16, "the flood reaches the log while the attempt runs")
    backend.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
    rig.end_of(reports, order)
    flood.communicate(timeout=DEADLINE_S)


def test_nothing_is_printed_into_the_last_of_the_disk(tmp_path: Path) -> None:
    log = os.open(tmp_path / "log", os.O_CREAT | os.O_APPEND | os.O_RDWR)
    file = logfile.LogFile(log, MORE_THAN_ANY_DISK)
    file.write(b"x" * 70_000)
    file.write(b"y" * 30_000)
    assert os.fstat(log).st_size == 0
    file._least_free = 1  # there is room again
    file.write(b"after\n")
    file.say_lost()
    assert os.pread(log, 1000, 0) == b"\n[... 100000 bytes of output were lost: the disk is nearly full ...]\nafter\n"
    os.close(log)


def test_a_log_that_the_job_writes_itself_stops_growing_when_the_disk_is_nearly_full(
    tmp_path: Path, directory: Path
) -> None:
    log = os.open(directory / "log", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    cap = logcap.LogCap(log, str(directory), 1 << 30, 1)
    os.write(log, b"a" * (2 << 20))
    assert cap.check() == 1.0
    cap.least_free = MORE_THAN_ANY_DISK
    for _ in range(10):
        cap.check()
        os.write(log, b"b" * (2 << 20))
    assert cap.check() < 1.0
    assert os.fstat(log).st_blocks * 512 <= (3 << 20) + 8192
    content, _ = read_on(tmp_path, limit=1 << 20)
    assert content.startswith(b"a" * (1 << 19)) and content.endswith(b"b" * (3 << 19)) and b"\0" not in content
    cap.least_free = 1
    cap.check()
    os.write(log, b"c" * (4 << 20))
    cap.check()
    assert os.fstat(log).st_blocks * 512 > 5 << 20, "it grows again when there is room"
    os.close(log)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_job_that_prints_to_a_nearly_full_disk_goes_on(tmp_path: Path, reports: Reports, *, terminal: bool) -> None:
    rig = LocalRig(tmp_path, least_free=MORE_THAN_ANY_DISK)
    backend = rig.backend()
    backend.open(reports)
    ways = {"terminal": True} if terminal else {"account": "nobody", "workdir": "/"}
    if not terminal and os.geteuid() != 0:
        pytest.skip("needs root to run a job as another account")
    order = rig.order("fail with 3", argv=("sh", "-c", "echo hello; exit 3"), **ways)
    backend.launch(order)
    assert rig.end_of(reports, order).code == 3
    content = backend.read_log(order.attempt_id, 0, 1000).content
    assert b"hello" not in content and b"bytes of output were lost: the disk is nearly full" in content
    backend.close()
