"""srun in both senses, and the shell client, at the lease door of a real server."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.app.house import until
from tests.backends.helpers import sleeps
from tests.cli.lab import Lab, tool
from tests.client.stub import closed_port
from tests.doors.server import PROGRAM

SRUN = tool("srun")
SHELL = (str(Path(__file__).parents[1] / "doors" / "srun.sh"),)
SHOW = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
BOTH = pytest.mark.parametrize("srun", [SRUN, SHELL], ids=["ours", "shell"])


# -- what every client of the lease door does -----------------------------------------------------------------------
@BOTH
def test_gpus_by_number(box: Lab, srun: tuple[str, ...]) -> None:
    assert box.run(*srun, *SHOW).stdout == b"0\n"
    for words in (["-n", "3"], ["-n3"], ["--num-gpus", "3"], ["--num-gpus=3"]):
        assert box.run(*srun, *words, *SHOW).stdout == b"0,1,2\n", words
    assert box.run(*srun, "-n", "0", *SHOW).stdout == b"\n"


@BOTH
def test_the_command_is_untouched(box: Lab, srun: tuple[str, ...]) -> None:
    words = ["-n", "2", "two words", "", "new\nline", "--", "$HOME"]
    ended = box.run(*srun, "printf", "%s|", *words)
    assert ended.stdout.decode() == "".join(f"{word}|" for word in words)
    assert box.run(*srun, "-n1", "--", "echo", "-n9").stdout == b"-n9\n"


@BOTH
def test_exit_codes_and_signals_pass(box: Lab, srun: tuple[str, ...]) -> None:
    for code in (0, 1, 42):
        assert box.run(*srun, "sh", "-c", f"exit {code}").returncode == code
    assert box.run(*srun, "sh", "-c", "kill -KILL $$").returncode == -signal.SIGKILL


@BOTH
def test_too_many_are_refused(box: Lab, srun: tuple[str, ...]) -> None:
    ended = box.run(*srun, "-n", "5", "true")
    assert ended.returncode == 75
    assert b"requested 5 GPU(s) but only 4 available on this machine" in ended.stderr


@BOTH
def test_no_server_is_said(box: Lab, srun: tuple[str, ...]) -> None:
    box.env["GPUSCHED_URL"] = f"http://127.0.0.1:{closed_port()}"
    ended = box.run(*srun, "true")
    assert ended.returncode == 69
    assert box.env["GPUSCHED_URL"].encode() in ended.stderr


@BOTH
def test_waiting_and_leaving(box: Lab, srun: tuple[str, ...]) -> None:
    holder = box.start(*srun, "-n", "4", "sleep", "300")
    box.until_queue(running=1)
    leaver, waiter = box.start(*srun, "true"), box.start(*srun, "-n", "2", *SHOW)
    box.until_queue(queued=2)
    until(lambda: sleeps(leaver.pid), "it waits for its answer")
    leaver.terminate()
    assert leaver.wait(60) in (143, -signal.SIGTERM)
    box.until_queue(queued=1)
    holder.kill()
    assert box.ended(waiter).stdout == b"0,1\n"


@BOTH
def test_a_waiter_joins_again_after_a_restart(box: Lab, srun: tuple[str, ...]) -> None:
    holder = box.start(*srun, "-n", "4", "sleep", "300")
    box.until_queue(running=1)
    waiter = box.start(*srun, *SHOW)
    box.until_queue(queued=1)
    box.server.kill()
    said = waiter.stderr
    assert said is not None
    until(lambda: b"still waiting" in said.readline(), "a word about the lost server")
    box.server.start()
    box.until_queue(queued=1)
    holder.kill()
    assert box.ended(waiter).stdout.strip() == b"0"  # and not the one after a place of its own that nobody waits at


@BOTH
def test_status_and_jobs_and_help(box: Lab, srun: tuple[str, ...]) -> None:
    box.start(*srun, "-n", "2", "sleep", "300")
    box.until_queue(running=1)
    assert b"local-gpu-scheduler" in box.run(*srun, "status").stdout
    assert b"running" in box.run(*srun, "jobs").stdout
    assert b"num-gpus" in box.run(*srun, "-h").stdout


# -- Slurm's sense, which only ours knows ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["-G", "2"], "0,1"),
        (["--gpus=2", "-n", "1"], "0,1"),
        (["--gres=gpu:3", "--pty"], "0,1,2"),
        (["--gpus-per-node=2", "-N1"], "0,1"),
        (["--gres=none", "-n1"], ""),
        (["-J", "name", "-u"], "0"),
    ],
)
def test_slurms_words_for_gpus(box: Lab, words: list[str], gpus: str) -> None:
    ended = box.run(*SRUN, *words, *SHOW)
    assert (ended.returncode, ended.stdout.decode()) == (0, f"{gpus}\n"), ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-G", "2", "-n", "2", "true"], "torchrun"),
        (["-G", "a100:1", "true"], "use sbatch to choose a type"),
        (["-N", "2", "true"], "--nodes: a lease is of this machine"),
        (["-d", "afterok:x", "true"], "--dependency"),
        (["--nonsense", "true"], "unrecognized option '--nonsense'"),
        (["-n", "many", "true"], "--ntasks: 'many'"),
        ([], "no command given to execute"),
    ],
)
def test_what_cannot_be_had(box: Lab, words: list[str], said: str) -> None:
    ended = box.run(*SRUN, *words)
    assert ended.returncode == 1
    assert said in ended.stderr.decode()


def test_inside_a_job_the_command_just_runs(box: Lab) -> None:
    box.env["GPUSCHED_URL"] = f"http://127.0.0.1:{closed_port()}"
    box.env |= {"SLURM_JOB_ID": "77", "CUDA_VISIBLE_DEVICES": "5"}
    ended = box.run(*SRUN, "-n", "1", "-G", "1", "--mem=4G", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 6")
    assert (ended.returncode, ended.stdout, ended.stderr) == (6, b"5\n", b"")
    ended = box.run(*SRUN, "-n", "4", "true")
    assert ended.returncode == 1
    assert b"one task for each node" in ended.stderr
    box.env["ROTA_NODES"] = "4"
    assert box.run(*SRUN, "-n", "4", "-N", "4", "echo", "once on each node").stdout == b"once on each node\n"


def test_files_directory_and_environment(box: Lab) -> None:
    (box.home / "sub").mkdir()
    (box.home / "sub" / "in").write_text("given\n")
    box.env["MINE"] = "1"
    words = ["-D", "sub", "-o", "out-%j-%x", "-e", "err", "-i", "in", "-J", "name", "--export=ADDED=x"]
    ended = box.run(*SRUN, *words, "sh", "-c", 'cat; echo "$MINE-$ADDED-$ROTA_GPUS"; echo $ROTA_JOB_ID >&2')
    assert (ended.returncode, ended.stdout) == (0, b""), ended.stderr
    job = (box.home / "sub" / "err").read_text().strip()
    assert (box.home / "sub" / f"out-{job}-name").read_text() == "given\n-x-0\n"
    ended = box.run(*SRUN, "-o", "no/such/dir", "true")
    assert ended.returncode == 1
    assert b"no/such/dir" in ended.stderr


def test_immediate_does_not_wait(box: Lab) -> None:
    box.start(*SRUN, "-G", "4", "sleep", "300")
    box.until_queue(running=1)
    ended = box.run(*SRUN, "-I1", "true")
    assert ended.returncode == 75
    assert b"no GPUs within the time" in ended.stderr


def test_what_is_ignored_is_said(box: Lab) -> None:
    ended = box.run(*SRUN, "-G1", "-c", "8", "-p", "gpu", "true")
    assert ended.stderr.decode().splitlines() == [
        "srun: --cpus-per-task is ignored: a lease holds GPUs and nothing else",
        "srun: --partition is ignored: Rota has one queue",
    ]


def test_rota_srun_is_the_same(box: Lab) -> None:
    assert box.run(*PROGRAM, "srun", "-n", "2", "printf", "%s|", "-n", "--", "-h").stdout == b"-n|--|-h|"
    assert b"local-gpu-scheduler" in box.run(*PROGRAM, "srun", "status").stdout
    assert b"usage: srun" in box.run(*PROGRAM, "srun", "-h").stdout
