"""Batch scripts: #SBATCH lines, interpreters, and the argv that carries the text."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rota.cli.slurm import script
from rota.cli.slurm.options import UsageError


@pytest.mark.parametrize(
    ("lines", "options"),
    [
        ("#SBATCH -J demo\n#SBATCH --gres=gpu:2\n", ["-J", "demo", "--gres=gpu:2"]),
        ("#SBATCH -J 'two words' -t 5\n", ["-J", "two words", "-t", "5"]),
        ("#SBATCH -J demo   # why not\n", ["-J", "demo"]),
        ("# a comment\n\n   # another\n#SBATCH -n 1\n", ["-n", "1"]),
        ("#SBATCH -n 1\necho first command\n#SBATCH -n 2\n", ["-n", "1"]),
        ("##SBATCH -n 1\n#SBATCHX -n 2\n # SBATCH -n 3\n #SBATCH -n 4\n", []),
        ("#SBATCH\n#SBATCH\t-n\t1\n", ["-n", "1"]),
        ("", []),
    ],
)
def test_the_lines_with_options(lines: str, options: list[str]) -> None:
    assert list(script.read("s", f"#!/bin/sh\n{lines}".encode()).options) == options


@pytest.mark.parametrize(
    ("first", "interpreter"),
    [
        ("#!/bin/sh", ("/bin/sh",)),
        ("#! /bin/bash -l", ("/bin/bash", "-l")),
        ("#!/usr/bin/env bash", ("/usr/bin/env", "bash")),
        ("#!/usr/bin/env -S python3 -u", ("/usr/bin/env", "python3", "-u")),
        ("#!/opt/conda/bin/python3.12", ("/opt/conda/bin/python3.12",)),
    ],
)
def test_interpreters(first: str, interpreter: tuple[str, ...]) -> None:
    assert script.read("s", f"{first}\ntrue\n".encode()).interpreter == interpreter


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"echo hello\n", "first line must start with #!"),
        (b"#!/bin/sh\r\necho\r\n", "DOS line breaks"),
        (b"#!/bin/sh\necho \0\n", "NULL"),
        (b"#!/usr/bin/perl\n", "perl cannot take a script's text"),
        (b"#!\n", "whole path"),
        (b"#!sh\n", "whole path"),
        (b"#!/usr/bin/env\n", "cannot take"),
        (b"#!/bin/sh\n#SBATCH -J 'open\n", "line 2"),
        (b"#!/bin/sh\n" + b"x" * script.MAX_TEXT, "at most"),
    ],
)
def test_what_is_no_batch_script(data: bytes, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        script.read("s", data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('#!/bin/sh\nprintf \'%s|\' "$0" "$@"\n', "job.sh|a b||-c|"),
        (f"#!{sys.executable}\nimport sys\nprint('|'.join(sys.argv[1:]), end='')\n", "a b||-c"),
    ],
)
def test_a_script_gets_its_arguments(text: str, said: str) -> None:
    argv = script.read("job.sh", text.encode()).argv(["a b", "", "-c"])
    assert subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout == said


def test_bytes_that_are_no_utf8_stay_as_they_are() -> None:
    argv = script.read("s", b"#!/bin/sh\nprintf '\xff'\n").argv([])
    assert subprocess.run(argv, capture_output=True, timeout=60, check=True).stdout == b"\xff"
