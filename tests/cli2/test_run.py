"""`rota run`: it waits, and then it is the command."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli2.kit import PATIENCE_S, RUN, Person, StandIn, until

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd(), "umask": os.umask(0),
    "fds": sorted(os.listdir("/proc/self/fd")),
}))
"""


def shown(person: Person, *options: str, words: tuple[str, ...] = (), **more: object) -> dict:
    ended = person.run(*RUN, *options, "--", sys.executable, "-c", SHOW, *words, **more)
    assert ended.returncode == 0, ended.stderr
    seen: dict = json.loads(ended.stdout)
    return seen


def hold(person: Person, server: StandIn, gpus: int = 4) -> subprocess.Popen[bytes]:
    """Somebody who has the GPUs until killed."""
    before = server.count("running")
    process = person.start(*RUN, "-G", str(gpus), "sleep", "300")
    server.wait_for(running=before + 1)
    return process


def test_the_command_gets_its_gpus_in_the_environment(person: Person) -> None:
    env = shown(person, "-G", "2")["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == env["ROTA_GPUS"] == "0,1"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert len(env["ROTA_JOB_ID"]) == 12
    assert env["SLURM_JOB_ID"] == env["ROTA_JOB_ID"]


def test_inside_slurm_its_job_id_stays(person: Person) -> None:
    person.env["SLURM_JOB_ID"] = "4711"
    assert shown(person)["env"]["SLURM_JOB_ID"] == "4711"


def test_no_gpus_hides_them_all(person: Person) -> None:
    assert shown(person, "-G", "0")["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_it_is_this_very_process(person: Person) -> None:
    where = person.where / "a place"
    where.mkdir()
    process = person.start(*RUN, sys.executable, "-c", SHOW, cwd=where, umask=0o027)
    seen = json.loads(person.ended(process).stdout)
    assert seen["pid"] == process.pid
    assert seen["cwd"] == str(where)
    assert seen["umask"] == 0o027
    assert seen["fds"] == ["0", "1", "2", "3"], "nothing of ours is left open; 3 is the listing itself"


def test_no_signal_stays_ignored_that_only_python_ignores(person: Person) -> None:
    ignored = int(person.run(*RUN, "grep", "SigIgn", "/proc/self/status").stdout.split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1


@pytest.mark.parametrize(
    "words",
    [
        ("-n", "3", "--gpus", "9", "-G9", "--help"),
        ("two words", "", "new\nline", "tab\t", "*", "$HOME", "`id`", "'\""),
        ("--", "-x", "--", "y"),
        ("päivää", "\udcff\udcfe"),
    ],
)
def test_the_words_of_the_command_are_its_own(person: Person, words: tuple[str, ...]) -> None:
    ended = person.run(*RUN, "-G", "1", sys.executable, "-c", "import os,sys;print(ascii(sys.argv[1:]))", *words)
    assert ended.stdout.decode().strip() == ascii(list(words))


def test_a_command_may_begin_with_two_dashes_of_its_own(person: Person) -> None:
    assert person.run(*RUN, "--", "echo", "--", "-n").stdout == b"-- -n\n"


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_the_commands(person: Person, code: int) -> None:
    assert person.run(*RUN, "sh", "-c", f"exit {code}").returncode == code


def test_a_signal_that_ends_the_command_ends_this_process(person: Person) -> None:
    assert person.run(*RUN, "sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_signals_reach_the_command(person: Person) -> None:
    process = person.start(*RUN, "sh", "-c", "trap 'exit 33' TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(PATIENCE_S) == 33


def test_stdin_and_stdout_pass_straight_through(person: Person) -> None:
    process = person.start(*RUN, "cat", stdin=subprocess.PIPE)
    assert person.ended(process, b"bytes \0 \xff\n").stdout == b"bytes \0 \xff\n"


def test_the_terminal_is_the_commands(person: Person) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 123))
    line = "import os,sys;print([os.isatty(n) for n in (0,1,2)], os.get_terminal_size().columns, flush=True);input()"
    process = person.start(*RUN, sys.executable, "-c", line, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"123" not in seen:
        seen += os.read(ours, 1000)
    assert b"[True, True, True] 123" in seen
    os.write(ours, b"enter\n")
    assert process.wait(PATIENCE_S) == 0
    os.close(ours)


def test_it_waits_until_gpus_are_given_back(person: Person, server: StandIn) -> None:
    holder = hold(person, server)
    waiter = person.start(*RUN, "-G", "3", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    server.wait_for(queued=1)
    assert waiter.poll() is None
    holder.kill()
    ended = person.ended(waiter)
    assert ended.stdout == b"0,1,2\n"


def test_in_a_pipe_it_says_once_that_it_waits(person: Person, server: StandIn) -> None:
    holder = hold(person, server)
    waiter = person.start(*RUN, "true")
    assert waiter.stderr is not None
    assert waiter.stderr.readline() == (
        b"rota: waiting for 1 GPU, place 1 of 1 in the queue (Ctrl-C leaves the queue)\n"
    )
    time.sleep(2.5)  # more looks would have come by now
    holder.kill()
    assert person.ended(waiter).stderr == b""


def test_on_a_terminal_the_line_rewrites_itself_and_goes(person: Person, server: StandIn) -> None:
    holder = hold(person, server)
    ours, theirs = pty.openpty()
    waiter = person.start(*RUN, "echo", "here I am", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while seen.count(b"\rrota: waiting for 1 GPU, place 1 of 1") < 2:
        seen += os.read(ours, 1000)
    assert b"\n" not in seen
    holder.kill()
    while b"here I am" not in seen:
        seen += os.read(ours, 1000)
    last_line = seen.split(b"here I am")[0]
    assert last_line.endswith(b" \r"), "the line is wiped before the command writes"
    assert waiter.wait(PATIENCE_S) == 0
    os.close(ours)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_waiter_leaves_cleanly(person: Person, server: StandIn, number: signal.Signals, code: int) -> None:
    hold(person, server)
    waiter = person.start(*RUN, "echo", "never")
    server.wait_for(queued=1)
    waiter.send_signal(number)
    ended = person.ended(waiter)
    assert ended.returncode == code
    assert b"left the queue" in ended.stderr
    assert ended.stdout == b""
    server.wait_for(queued=0)


def test_a_killed_waiter_leaves_too(person: Person, server: StandIn) -> None:
    hold(person, server)
    waiter = person.start(*RUN, "echo", "never")
    server.wait_for(queued=1)
    waiter.kill()
    server.wait_for(queued=0)


def test_what_is_ignored_for_us_stays_ignored(person: Person, server: StandIn) -> None:
    """nohup: a hangup must not throw a waiter out of the queue."""
    holder = hold(person, server)
    waiter = person.start("nohup", *RUN, "echo", "got it")
    server.wait_for(queued=1)
    waiter.send_signal(signal.SIGHUP)
    holder.kill()
    assert person.ended(waiter).stdout == b"got it\n"


def test_the_timeout_ends_the_waiting_and_not_the_command(person: Person, server: StandIn) -> None:
    assert person.run(*RUN, "--timeout", "1s", "sleep", "1.5").returncode == 0
    hold(person, server)
    ended = person.run(*RUN, "--timeout", "0.3s", "echo", "never")
    assert ended.returncode == 75
    assert b"no GPUs within the time" in ended.stderr
    server.wait_for(queued=0)


def test_more_than_there_are_is_refused(person: Person) -> None:
    ended = person.run(*RUN, "-G", "5", "true")
    assert ended.returncode == 75
    assert b"requested 5 GPU(s) but only 4 available on this machine" in ended.stderr


@pytest.mark.parametrize("options", [("-G", "-1"), ("-G", "x"), ("--timeout", "soon"), ("--nonsense",), ()])
def test_usage_is_2(person: Person, options: tuple[str, ...]) -> None:
    ended = person.run(*RUN, *options, *(("true",) if options else ()))
    assert ended.returncode == 2
    assert b"Usage: " in ended.stderr


def test_no_such_command_is_known_before_any_waiting(person: Person, server: StandIn) -> None:
    hold(person, server)
    ended = person.run(*RUN, "no-such-command")
    assert (ended.returncode, ended.stderr) == (127, b"rota: no-such-command: command not found\n")
    assert server.get("/status")["jobs_total"] == 1


def test_a_command_that_vanished_while_waiting_is_127(person: Person, server: StandIn) -> None:
    holder = hold(person, server)
    tool = person.where / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    waiter = person.start(*RUN, str(tool))
    server.wait_for(queued=1)
    tool.unlink()
    holder.kill()
    assert person.ended(waiter).returncode == 127
    server.wait_for(running=0)


def test_what_is_no_program_is_126(person: Person) -> None:
    file = person.where / "notes.txt"
    file.write_text("plain text")
    assert person.run(*RUN, str(file)).returncode == 126
    file.chmod(0o755)
    ended = person.run(*RUN, str(file))
    assert ended.returncode == 126
    assert b"no #! line" in ended.stderr


def test_no_server_is_69_and_says_what_to_do(person: Person, server: StandIn) -> None:
    server.kill()
    ended = person.run(*RUN, "true")
    assert ended.returncode == 69
    assert b"no server answers at http://127.0.0.1:" in ended.stderr
    assert b"rota up" in ended.stderr


def test_an_address_that_is_none_is_69(person: Person) -> None:
    person.env["GPUSCHED_URL"] = "ftp://there"
    ended = person.run(*RUN, "true")
    assert ended.returncode == 69
    assert b"no address of a server" in ended.stderr


def test_a_holder_does_not_notice_that_the_server_died(person: Person, server: StandIn) -> None:
    process = person.start(*RUN, "sh", "-c", "echo ready; read line; exit 5", stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    server.kill()
    assert person.ended(process, b"go\n").returncode == 5


def test_a_waiter_joins_again_after_a_restart(person: Person, server: StandIn) -> None:
    holder = hold(person, server)
    waiter = person.start(*RUN, "-G", "2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    server.wait_for(queued=1)
    server.kill()
    said = waiter.stderr
    assert said is not None
    until(lambda: b"still waiting" in said.readline(), "the word about the lost server")
    server.start(f"{holder.pid}:0,1,2,3")
    assert said.readline() == b"rota: the server is back; waiting again\n"
    server.wait_for(queued=1)
    holder.kill()
    assert person.ended(waiter).stdout == b"0,1\n"


def test_a_waiter_without_a_server_can_still_be_stopped(person: Person, server: StandIn) -> None:
    hold(person, server)
    waiter = person.start(*RUN, "true")
    server.wait_for(queued=1)
    server.kill()
    said = waiter.stderr
    assert said is not None
    until(lambda: b"still waiting" in said.readline(), "the word about the lost server")
    waiter.terminate()
    assert person.ended(waiter).returncode == 143


def test_a_token_is_shown_where_one_is_needed(tmp_path: Path) -> None:
    server = StandIn(token="rota_secret")
    person = Person(tmp_path, server.url)
    try:
        ended = person.run(*RUN, "true")
        assert ended.returncode == 77
        assert b"ROTA_TOKEN" in ended.stderr
        person.env["ROTA_TOKEN"] = "rota_secret"
        assert person.run(*RUN, "true").returncode == 0
    finally:
        person.finish()
        server.kill()


def test_the_request_leaves_soon(person: Person) -> None:
    """A generous bound on a busy machine; what counts is that no heavy library is loaded on the way."""
    line = "import sys; sys.argv=['rota','run','true']; sys.modules['http.client']=sys.modules['asyncio']=None\n"
    line += "from rota.cli.main import main; main()"
    assert person.run(sys.executable, "-c", line).returncode == 0
