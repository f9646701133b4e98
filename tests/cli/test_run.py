"""`rota run`: it waits, and then it is the command."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from typing import Any

import pytest

from tests.app.house import PATIENCE_S, until
from tests.cli.lab import RUN, Lab, tool
from tests.client.stub import DROP, Asked, closed_port, ok, stub

SHOW = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv[1:], "env": dict(os.environ), "pid": os.getpid(), "cwd": os.getcwd(), "umask": os.umask(0),
    "fds": sorted(os.listdir("/proc/self/fd")),
}))
"""


def shown(box: Lab, *options: str, words: tuple[str, ...] = (), **more: Any) -> dict:
    ended = box.run(*RUN, *options, "--", sys.executable, "-c", SHOW, *words, **more)
    assert ended.returncode == 0, ended.stderr
    seen: dict = json.loads(ended.stdout)
    return seen


def hold(box: Lab, gpus: int = 4) -> subprocess.Popen[bytes]:
    """Somebody who has the GPUs until killed."""
    process = box.start(*RUN, "-G", str(gpus), "sleep", "300")
    box.until_queue(running=1)
    return process


def test_the_command_gets_its_gpus_in_the_environment(box: Lab) -> None:
    env = shown(box, "-G", "2")["env"]
    assert env["CUDA_VISIBLE_DEVICES"] == env["ROTA_GPUS"] == "0,1"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert len(env["ROTA_JOB_ID"]) == 12
    assert env["SLURM_JOB_ID"] == env["ROTA_JOB_ID"]


def test_inside_slurm_its_job_id_stays(box: Lab) -> None:
    box.env["SLURM_JOB_ID"] = "4711"
    assert shown(box)["env"]["SLURM_JOB_ID"] == "4711"


def test_no_gpus_hides_them_all(box: Lab) -> None:
    assert shown(box, "-G", "0")["env"]["CUDA_VISIBLE_DEVICES"] == ""


def test_it_is_this_very_process(box: Lab) -> None:
    where = box.home / "a place"
    where.mkdir()
    process = box.start(*RUN, sys.executable, "-c", SHOW, cwd=where, umask=0o027)
    seen = json.loads(box.ended(process).stdout)
    assert seen["pid"] == process.pid
    assert seen["cwd"] == str(where)
    assert seen["umask"] == 0o027
    assert seen["fds"] == ["0", "1", "2", "3"], "nothing of ours is left open; 3 is the listing itself"


def test_no_signal_stays_ignored_that_only_python_ignores(box: Lab) -> None:
    ignored = int(box.run(*RUN, "grep", "SigIgn", "/proc/self/status").stdout.split()[1], 16)
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
def test_the_words_of_the_command_are_its_own(box: Lab, words: tuple[str, ...]) -> None:
    ended = box.run(*RUN, "-G", "1", sys.executable, "-c", "import os,sys;print(ascii(sys.argv[1:]))", *words)
    assert ended.stdout.decode().strip() == ascii(list(words))


def test_a_command_may_begin_with_two_dashes_of_its_own(box: Lab) -> None:
    assert box.run(*RUN, "--", "echo", "--", "-n").stdout == b"-- -n\n"


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_is_the_commands(box: Lab, code: int) -> None:
    assert box.run(*RUN, "sh", "-c", f"exit {code}").returncode == code


def test_a_signal_that_ends_the_command_ends_this_process(box: Lab) -> None:
    assert box.run(*RUN, "sh", "-c", "kill -9 $$").returncode == -signal.SIGKILL


def test_signals_reach_the_command(box: Lab) -> None:
    process = box.start(*RUN, "sh", "-c", "trap 'exit 33' TERM; echo ready; while :; do sleep 0.1; done")
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.terminate()
    assert process.wait(PATIENCE_S) == 33


def test_stdin_and_stdout_pass_straight_through(box: Lab) -> None:
    process = box.start(*RUN, "cat", stdin=subprocess.PIPE)
    assert box.ended(process, b"bytes \0 \xff\n").stdout == b"bytes \0 \xff\n"


def test_the_terminal_is_the_commands(box: Lab) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 123))
    line = "import os,sys;print([os.isatty(n) for n in (0,1,2)], os.get_terminal_size().columns, flush=True);input()"
    process = box.start(*RUN, sys.executable, "-c", line, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"123" not in seen:
        seen += os.read(ours, 1000)
    assert b"[True, True, True] 123" in seen
    os.write(ours, b"enter\n")
    assert process.wait(PATIENCE_S) == 0
    os.close(ours)


def test_it_waits_until_gpus_are_given_back(box: Lab) -> None:
    holder = hold(box)
    waiter = box.start(*RUN, "-G", "3", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    box.until_queue(queued=1)
    assert waiter.poll() is None
    holder.kill()
    ended = box.ended(waiter)
    assert ended.stdout == b"0,1,2\n"


def test_in_a_pipe_it_says_once_that_it_waits(box: Lab) -> None:
    holder = hold(box)
    waiter = box.start(*RUN, "true")
    assert waiter.stderr is not None
    line = waiter.stderr.readline().decode()
    assert re.fullmatch(r"rota: waiting for 1 GPU, place 1 of 1 in the queue.* \(Ctrl-C leaves the queue\)\n", line), (
        line
    )
    time.sleep(2.5)  # more looks would have come by now
    holder.kill()
    assert box.ended(waiter).stderr == b""


def test_on_a_terminal_the_line_rewrites_itself_and_goes(box: Lab) -> None:
    holder = hold(box)
    before_us = box.start(*RUN, "true")
    box.until_queue(queued=1)
    ours, theirs = pty.openpty()
    waiter = box.start(*RUN, "echo", "here I am", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = b""
    while b"\rrota: waiting for 1 GPU, place 2 of 2" not in seen:
        seen += os.read(ours, 1000)
    before_us.terminate()
    while b"\rrota: waiting for 1 GPU, place 1 of 1" not in seen:
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
def test_a_waiter_leaves_cleanly(box: Lab, number: signal.Signals, code: int) -> None:
    hold(box)
    waiter = box.start(*RUN, "echo", "never")
    box.until_queue(queued=1)
    waiter.send_signal(number)
    ended = box.ended(waiter)
    assert ended.returncode == code
    assert b"left the queue" in ended.stderr
    assert ended.stdout == b""
    box.until_queue(queued=0)


def test_a_killed_waiter_leaves_too(box: Lab) -> None:
    hold(box)
    waiter = box.start(*RUN, "echo", "never")
    box.until_queue(queued=1)
    waiter.kill()
    box.until_queue(queued=0)


def test_what_is_ignored_for_us_stays_ignored(box: Lab) -> None:
    """nohup: a hangup must not throw a waiter out of the queue."""
    holder = hold(box)
    waiter = box.start("nohup", *RUN, "echo", "got it")
    box.until_queue(queued=1)
    waiter.send_signal(signal.SIGHUP)
    holder.kill()
    assert box.ended(waiter).stdout == b"got it\n"


def test_the_timeout_ends_the_waiting_and_not_the_command(box: Lab) -> None:
    assert box.run(*RUN, "--timeout", "3s", "sleep", "3.5").returncode == 0
    box.until_queue(running=0)
    hold(box)
    ended = box.run(*RUN, "--timeout", "0.3s", "echo", "never")
    assert ended.returncode == 75
    assert b"no GPUs within the time" in ended.stderr
    box.until_queue(queued=0)


def test_more_than_there_are_is_refused(box: Lab) -> None:
    ended = box.run(*RUN, "-G", "5", "true")
    assert ended.returncode == 75
    assert b"requested 5 GPU(s) but only 4 available on this machine" in ended.stderr


@pytest.mark.parametrize("options", [("-G", "-1"), ("-G", "x"), ("--timeout", "soon"), ("--nonsense",), ()])
def test_usage_is_2(box: Lab, options: tuple[str, ...]) -> None:
    ended = box.run(*RUN, *options, *(("true",) if options else ()))
    assert ended.returncode == 2
    assert b"Usage: " in ended.stderr


def test_no_such_command_is_known_before_any_waiting(box: Lab) -> None:
    hold(box)
    ended = box.run(*RUN, "no-such-command")
    assert (ended.returncode, ended.stderr) == (127, b"rota: no-such-command: command not found\n")
    box.until_queue(running=1, queued=0)


def test_a_command_that_vanished_while_waiting_is_127(box: Lab) -> None:
    holder = hold(box)
    tool = box.home / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    waiter = box.start(*RUN, str(tool))
    box.until_queue(queued=1)
    tool.unlink()
    holder.kill()
    assert box.ended(waiter).returncode == 127
    box.until_queue(running=0)


def test_what_is_no_program_is_126(box: Lab) -> None:
    file = box.home / "notes.txt"
    file.write_text("plain text")
    assert box.run(*RUN, str(file)).returncode == 126
    file.chmod(0o755)
    ended = box.run(*RUN, str(file))
    assert ended.returncode == 126
    assert b"no #! line" in ended.stderr


def test_no_server_is_69_and_says_what_to_do(box: Lab) -> None:
    box.env["GPUSCHED_URL"] = f"http://127.0.0.1:{closed_port()}"
    ended = box.run(*RUN, "true")
    assert ended.returncode == 69
    assert b"no server answers at http://127.0.0.1:" in ended.stderr
    assert b"rota up" in ended.stderr


def test_an_address_that_is_none_is_69(box: Lab) -> None:
    box.env["GPUSCHED_URL"] = "ftp://there"
    ended = box.run(*RUN, "true")
    assert ended.returncode == 69
    assert b"no address of a server" in ended.stderr


def test_a_waiter_without_a_server_can_still_be_stopped(box: Lab) -> None:
    hold(box)
    waiter = box.start(*RUN, "true")
    box.until_queue(queued=1)
    box.server.kill()
    said = waiter.stderr
    assert said is not None
    until(lambda: b"still waiting" in said.readline(), "the word about the lost server")
    waiter.terminate()
    assert box.ended(waiter).returncode == 143


def test_the_request_leaves_soon(box: Lab) -> None:
    """A generous bound on a busy machine; what counts is that no heavy library is loaded on the way."""
    line = "import sys; sys.argv=['rota','run','true']; sys.modules['http.client']=sys.modules['asyncio']=None\n"
    line += "from rota.cli.main import main; main()"
    assert box.run(sys.executable, "-c", line).returncode == 0


# -- seen from the server ----------------------------------------------------------------------------------------------
def test_a_lease_is_a_run_like_any_other(box: Lab) -> None:
    process = box.start(*RUN, "-G", "3", "-J", "my try", "--", "sh", "-c", "echo $ROTA_JOB_ID; read x", stdin=-1)
    assert process.stdout is not None
    run_id = process.stdout.readline().decode().strip()
    box.wait_for(run_id, "running")
    run = box.show(run_id)
    assert (run["name"], run["status"], run["gpu_count"]) == ("my try", "running", 3)
    assert run["command"] == "sh -c 'echo $ROTA_JOB_ID; read x'"
    assert box.slurm("squeue", "-h", "-o", "%i %t %j") == f"{run_id} R my try\n"
    box.ended(process, b"\n")
    box.wait_for(run_id, "finished")


def test_a_name_that_is_none_is_refused(box: Lab) -> None:
    for body, field in (({"name": 5}, "name"), ({"argv": "python x.py"}, "argv"), ({"argv": [1]}, "argv")):
        answer = box.server.post("/acquire", {"pid": os.getpid(), "num_gpus": 0, **body}, lease=True)
        assert answer.status == 400
        assert answer.json["error"].startswith(f"{field}: ")


def test_through_each_door(box: Lab) -> None:
    for url in ("", box.server.lease_url, box.server.url):  # "": the socket in the data directory
        box.env["GPUSCHED_URL"] = url
        ended = box.run(*RUN, "-G2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 42")
        assert (ended.returncode, ended.stdout) == (42, b"0,1\n"), url


def test_a_waiter_sees_its_place_and_leaves_when_told(box: Lab) -> None:
    del box.env["GPUSCHED_URL"]  # the lease door has no forecast; the socket has all doors
    holder = box.sbatch("-G4", "-t", "10", "--wrap", "sleep 300")
    box.wait_for(holder, "running")
    waiter = box.start(*RUN, "echo", "never")
    assert waiter.stderr is not None
    line = waiter.stderr.readline().decode()
    assert line.startswith("rota: waiting for 1 GPU, place 1 of 1 in the queue, expected to start "), line
    waiter.terminate()
    assert waiter.wait(PATIENCE_S) == 143
    until(lambda: box.server.get("/queue").ok()["queued"] == [], "it left the queue")


def test_a_waiter_outlives_kill_9_of_the_server(box: Lab) -> None:
    holder = box.start(*RUN, "-G4", "sh", "-c", "echo ready; read x; exit 7", stdin=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    waiter = box.start(*RUN, "-G2", "sh", "-c", "echo $ROTA_JOB_ID $CUDA_VISIBLE_DEVICES")
    until(lambda: box.server.get("/queue").ok()["queued"], "it waits")
    run_id = box.server.get("/queue").ok()["queued"][0]["id"]
    box.server.kill()
    said = waiter.stderr
    assert said is not None
    until(lambda: b"still waiting" in said.readline(), "the word about the lost server")
    box.server.start()
    assert said.readline() == b"rota: the server is back; waiting again\n"
    until(lambda: [job["id"] for job in box.server.get("/queue").ok()["queued"]] == [run_id], "its place is kept")
    assert box.ended(holder, b"\n").returncode == 7
    assert box.ended(waiter).stdout.decode() == f"{run_id} 0,1\n"


def test_a_polite_stop_of_the_server_is_survived_too(box: Lab) -> None:
    holder = box.sbatch("-G4", "--wrap", "sleep 300")
    box.wait_for(holder, "running")
    waiter = box.start(*RUN, "echo", "at last")
    until(lambda: box.server.get("/queue").ok()["queued"], "it waits")
    assert box.server.stop() == 0
    box.server.start()
    until(lambda: len(box.server.get("/queue").ok()["queued"]) == 1, "it is back")
    box.slurm("scancel", holder)
    assert box.ended(waiter).stdout == b"at last\n"


def test_srun_inside_a_batch_job_just_runs_it(box: Lab) -> None:
    srun = " ".join(tool("srun"))
    line = f"{srun} -n 1 --mem=1G sh -c 'echo $CUDA_VISIBLE_DEVICES; exit 5'"
    assert box.slurm("sbatch", "--wait", "-G4", "-o", "out", "--wrap", line, code=5)
    assert (box.home / "out").read_text() == "0,1,2,3\n"


def test_status_and_jobs(box: Lab) -> None:
    running = box.sbatch("-G2", "--wrap", "sleep 300")
    box.wait_for(running, "running")
    status = box.slurm("srun", "status")
    assert "GPUs: 4 in all, given out: 0,1" in status
    assert "1 running, 0 waiting" in status
    head, *lines = box.slurm("srun", "jobs").splitlines()
    (line,) = [line for line in lines if " running " in line]
    assert head.split() == ["ID", "STATUS", "GPUS", "PID", "USER", "COMMAND"]
    assert line.split()[:3] == [running, "running", "0,1"]


def test_jobs_are_told_as_their_owners_know_them(box: Lab) -> None:
    script = box.file("train.sh", "#!/bin/sh\n#SBATCH -o out.txt\nsleep 300\n")
    box.sbatch("-G1", script, "--lr", "0.1")
    long = box.sbatch("-G1", "--wrap", f"sleep 300; : {'x' * 300}")
    box.until_queue(running=2)
    jobs = box.slurm("srun", "jobs")
    assert "train.sh --lr 0.1\n" in jobs and "fill()" not in jobs
    (line,) = [line for line in jobs.splitlines() if line.startswith(long)]
    assert line.endswith("xxx...") and "sleep 300" in line and len(line) < 160
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 70))
    assert box.run(*tool("srun"), "jobs", stdout=theirs).returncode == 0
    os.close(theirs)
    shown = b""
    while b"..." not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert max(map(len, shown.decode().splitlines())) <= 70


# -- what a server of ours does not do ---------------------------------------------------------------------------------
def scripted(
    box: Lab, *answers: bytes | None, options: tuple[str, ...] = (), last_after_s: float = 0
) -> tuple[int, str, str]:
    """`rota run` against a server that gives these answers, one after the other, and the last one so much later."""

    def reply(asked: Asked) -> bytes | None:
        if asked.method == "GET":  # the place in the queue, for the word about waiting
            return ok([])
        keys.add(asked.headers["idempotency-key"])
        number = next(numbers)
        if number >= len(answers):
            time.sleep(last_after_s)
        return answers[min(number, len(answers)) - 1]

    keys: set[str] = set()
    numbers = itertools.count(1)
    with stub(reply) as server:
        box.env["GPUSCHED_URL"] = server.url
        ended = box.run(*RUN, *options, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert len(keys) == 1, "each try is the same request"
    return ended.returncode, ended.stdout.decode(), ended.stderr.decode()


def test_a_dropped_connection_and_a_busy_server_are_tried_again(box: Lab) -> None:
    busy = ok({"error": "not now"}, "503 Busy")
    code, out, said = scripted(box, DROP, busy, ok({"job_id": "abc", "gpus": "1,3"}))
    assert (code, out) == (0, "1,3\n")
    assert "hung up without an answer; still waiting" in said


def test_a_server_that_takes_nothing_now_is_asked_more_and_more_seldom_and_it_is_said_once(box: Lab) -> None:
    full = ok({"error": "the disk is below the floor"}, "507 Insufficient Storage")
    began = time.monotonic()
    code, out, said = scripted(box, *[full] * 5, ok({"job_id": "abc", "gpus": "1,3"}))
    assert (code, out) == (0, "1,3\n")
    assert said.count("still waiting") == 1 and "the server is back" not in said
    assert time.monotonic() - began > 0.1 + 0.2 + 0.4 + 0.8 + 1.6


FULL_QUEUE = ok({"error": "Queue is full (max 2 jobs)"}, "429 Too Many Requests")
BACK = "the server is back"


@pytest.mark.parametrize(
    ("troubles", "said_of_it"),
    [
        ([FULL_QUEUE, FULL_QUEUE], ["max 2 jobs"]),
        ([DROP], ["hung up", BACK]),
        ([FULL_QUEUE, DROP, FULL_QUEUE, DROP], ["max 2 jobs", "hung up", BACK]),
    ],
    ids=["refused", "away", "both"],
)
def test_only_a_server_that_was_away_is_back(box: Lab, troubles: list[bytes | None], said_of_it: list[str]) -> None:
    """A server that refuses since the queue is full was there all the time."""
    granted = ok({"job_id": "abc", "gpus": "1,3"})
    code, out, said = scripted(box, *troubles, granted, last_after_s=1.5)  # longer than one look at the progress
    assert (code, out) == (0, "1,3\n")
    lines = [line for line in said.splitlines() if "still waiting" in line or BACK in line]
    assert len(lines) == len(said_of_it), said
    assert all(part in line for part, line in zip(said_of_it, lines, strict=True)), said


@pytest.mark.parametrize("trouble", [FULL_QUEUE, DROP], ids=["refused", "away"])
def test_the_end_of_the_time_is_no_word_about_the_server(box: Lab, trouble: bytes | None) -> None:
    granted = ok({"job_id": "abc", "gpus": "1,3"})
    code, _, said = scripted(box, trouble, granted, options=("--timeout", "0.6s"), last_after_s=3)
    assert code != 0 and "no GPUs within the time" in said
    assert BACK not in said


@pytest.mark.parametrize(
    "answer",
    [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", ok([1, 2]), ok({"gpus": 5, "job_id": "x"}), ok({}).replace(b"{}", b"{{")],
)
def test_what_is_no_lease_door_is_69(box: Lab, answer: bytes) -> None:
    code, out, said = scripted(box, answer)
    assert (code, out) == (69, "")
    assert said.count("\n") == 1


ODD_IDS = ["../.profile", "/etc/x", ".", "..", ".hidden", "", "a" * 65, "a\nb", "a b", "-o", 5.5, True, None, ["x"]]
ODD_GPUS = ["0,1;reboot", "0, 1", ",", "0,", "GPU-", "../0", "0\n1", "0" * 9, "all"]


@pytest.mark.parametrize(
    "answer",
    [
        *({"job_id": odd, "gpus": "0"} for odd in ODD_IDS),
        *({"job_id": "0123456789ab", "gpus": odd} for odd in ODD_GPUS),
    ],
    ids=repr,
)
def test_a_grant_that_does_not_look_like_one_is_not_acted_on(box: Lab, answer: dict[str, Any]) -> None:
    """The id goes into names of files, and both into variables of the command."""
    code, out, said = scripted(box, ok(answer))
    assert (code, out) == (69, "")
    assert "no grant of GPUs" in said


@pytest.mark.parametrize(
    "answer",
    [
        {"job_id": "7b0c5c8e-5f0e-4f8e-9a3c-0d2f4b6a8c1e", "gpus": "0,1,15"},
        {"job_id": 17, "gpus": "GPU-8f6d1c2e-0a1b-4c3d-9e8f-001122334455"},
        {"job_id": "job_1.2", "gpus": ""},
    ],
    ids=repr,
)
def test_ids_and_gpus_of_other_schedulers_will_do(box: Lab, answer: dict[str, Any]) -> None:
    assert scripted(box, ok(answer))[:2] == (0, f"{answer['gpus']}\n")
