"""Odd surroundings: output that is closed, full or unread, no home, no directory, bytes that are no text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.house import PATIENCE_S
from tests.cli.lab import RUN, Lab, tool
from tests.doors.server import PROGRAM


@pytest.mark.parametrize("words", [["queue"], ["queue", "--json"], ["gpus"], ["doctor"], ["show", "ffffffffffff"]])
def test_with_closed_output(lab: Lab, words: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "rota", *words],
        env=lab.env, cwd=lab.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr and done.returncode in (0, 75)


def test_for_a_reader_that_has_left(lab: Lab) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>err | true; cat err', "sh", sys.executable, "-m", "rota", "nodes"],
        env=lab.env, cwd=lab.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert b"Traceback" not in done.stdout + done.stderr


def test_without_a_home(lab: Lab) -> None:
    env = {name: value for name, value in lab.env.items() if name != "HOME"}
    assert lab.rota("queue", env=env).returncode == 0
    done = lab.rota("login", "--stdin", "--no-check", env=env, given=b"rota_abc")
    assert done.returncode == 2 and b"home" in done.stderr


def test_in_a_directory_that_is_gone(lab: Lab) -> None:
    done = subprocess.run(
        ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *PROGRAM, "submit", "true"],
        env=lab.env, cwd=lab.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 2 and b"directory is gone" in done.stderr


def test_arguments_that_are_no_utf8(lab: Lab) -> None:
    done = lab.rota("submit", "-q", b"-J", b"odd \xff", "--wait", "--", b"printf", b"%s", b"\xff\xfe")
    assert done.returncode in (0, 2), done.stderr
    assert done.stderr.count(b"\n") <= 1


def test_a_variable_that_is_no_utf8_holds_up_nothing(lab: Lab) -> None:
    env: dict[str, str] = {**lab.env, "ODD": os.fsdecode(b"\xff")}
    assert lab.rota("submit", "-q", "--wait", "--", "sh", "-c", "test -z $ODD", env=env).returncode == 0


@pytest.mark.parametrize("part", [slice(2), slice(-4, None)])
def test_run_ids_are_completed(lab: Lab, part: slice) -> None:
    run_id = lab.submit("--held", "--", "true")
    env = {**lab.env, "_ROTA_COMPLETE": "bash_complete", "COMP_WORDS": f"rota show {run_id[part]}", "COMP_CWORD": "2"}
    words = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'rota'; from rota.cli.main import main; main(prog_name='rota')",
    ]
    done = subprocess.run(words, env=env, cwd=lab.home, capture_output=True, check=False, timeout=PATIENCE_S)
    assert f"plain,{run_id}".encode() in done.stdout
    assert b"complete" in lab.rota("completion", "zsh").stdout


def test_json_is_one_value_also_for_a_submit_that_waits(lab: Lab) -> None:
    done = lab.rota("submit", "--json", "--wait", "--shell", "exit 4")
    assert done.returncode == 4
    assert json.loads(done.stdout)["exit_code"] == 4


NO_SPACE = b"cannot write the output: No space left on device\n"
FULL = [
    ["--version"], ["--help"], ["queue"], ["queue", "--json"], ["gpus"], ["nodes"], ["history"], ["usage"], ["doctor"],
    ["policy"], ["whoami"], ["config", "show"], ["completion", "bash"], ["skill"], ["submit", "--held", "true"],
]  # fmt: skip


def test_output_that_cannot_be_written_is_one_line_and_74(lab: Lab) -> None:
    for words in FULL:
        with Path("/dev/full").open("wb") as full:
            done = lab.rota(*words, stdout=full)
        assert (done.returncode, done.stderr) == (74, b"rota: " + NO_SPACE), words
    run_id = lab.submit("--wait", "--shell", "echo words")
    for words in (["logs", run_id], ["logs", "-f", run_id], ["submit", "-f", "--shell", "echo words"]):
        with Path("/dev/full").open("wb") as full:
            done = lab.rota(*words, stdout=full)
        assert done.returncode == 74, words
        assert done.stderr.endswith(b"rota: " + NO_SPACE), words


def test_when_even_the_complaint_cannot_be_written_the_code_says_it(lab: Lab) -> None:
    with Path("/dev/full").open("wb") as full:
        assert lab.rota("nodes", stdout=full, stderr=full).returncode == 74


@pytest.mark.parametrize("name", ["squeue", "sinfo", "sacct", "sbatch"])
def test_slurms_names_with_output_that_is_full_or_closed(lab: Lab, name: str) -> None:
    words = [*tool(name), *(["--hold", "--wrap", "true"] if name == "sbatch" else [])]
    with Path("/dev/full").open("wb") as full:
        done = lab.run(*words, stdout=full)
    assert (done.returncode, done.stderr) == (
        74,
        name.encode() + b": " + NO_SPACE,
    )
    closed = lab.run("sh", "-c", 'exec "$@" >&-', "sh", *words)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_a_command_that_we_become_finds_its_output_closed_as_it_was(lab: Lab) -> None:
    done = lab.run("sh", "-c", 'exec "$@" >&-', "sh", *RUN, "sh", "-c", "test -e /proc/self/fd/1 || exit 33")
    assert done.returncode == 33, done.stderr
