"""Output of runs on a terminal: other people's programs do not steer it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rota.cli import streams

PROGRAM = "import sys; from rota.cli.streams import write; [write(text) for text in eval(sys.argv[1])]"


def written(pieces: list[str], *, terminal: bool) -> str:
    """What arrives at the other end of a terminal, or of a pipe."""
    argv = [sys.executable, "-c", PROGRAM, repr(pieces)]
    env = {**os.environ, "PYTHONPATH": str(Path(streams.__file__).parents[2])}
    if not terminal:
        return subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True).stdout.decode()
    ours, theirs = os.openpty()
    try:
        with subprocess.Popen(argv, env=env, stdout=theirs) as process:
            os.close(theirs)
            found = b""
            try:
                while piece := os.read(ours, 65536):
                    found += piece
            except OSError:  # the other end is closed
                pass
        assert process.returncode == 0
    finally:
        os.close(ours)
    return found.decode().replace("\r\n", "\n")


ODD = [
    "\x1b]0;owned\x07",  # title
    "\x1b]52;c;ZXZpbA==\x1b\\",  # clipboard
    "\x1bP+q544e\x1b\\",  # a question that the terminal answers into the shell's input
    "\x1b[6n",
    "\x1b[?1049h",
    "\x1bc",
    "\x9b6n",
    "\x07\x00\x7f",
    "\u202egpj.exe\u202c",  # reads from right to left
    "\u2066a\u2069",
]


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_would_steer_the_terminal_is_made_visible(odd: str) -> None:
    shown = written([f"before {odd} after\n"], terminal=True)
    assert shown.startswith("before ") and shown.endswith(" after\n")
    assert shown.strip("\n").isprintable()


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_pipe_gets_every_byte(odd: str) -> None:
    assert written([odd], terminal=False) == odd


def test_colours_and_bars_of_progress_are_as_they_were() -> None:
    text = "\x1b[1;31mred\x1b[0m\tloss 0.1\n 10%|#  |\r 20%|## |\x1b[K\n\x1b[A\x1b[2Kdone \N{SNOWMAN}\b\n"
    assert written([text], terminal=True) == text


def test_a_sequence_that_comes_in_two_pieces_is_one() -> None:
    assert written(["a\x1b", "[3", "1mred\n"], terminal=True) == "a\x1b[31mred\n"
    assert written(["a\x1b", "]0;x\n"], terminal=True) == "a\N{SYMBOL FOR ESCAPE}]0;x\n"


@pytest.mark.parametrize("pieces", [["\x1b[?25l 10%\r 20%\x1b[?25h\n"], ["\x1b[", "?2", "5l 10%\r 20%\x1b[?25", "h\n"]])
def test_a_bar_that_hides_the_cursor_leaves_it_as_it_is(pieces: list[str]) -> None:
    """A run that is killed meanwhile would leave its reader without one."""
    assert written(pieces, terminal=True) == " 10%\r 20%\n"
