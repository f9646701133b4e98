"""`rota attach`: words go in, words come out, and leaving changes nothing."""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends.helpers import wait_for
from tests.cli.rota import Shell, ends


def run_id_of(shell: Shell) -> str:
    match = re.search(rb"^([0-9a-f]{12})  running", shell.rota("history").stdout, re.MULTILINE)
    return match[1].decode() if match else ""


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Where somebody types, and what a program has for its stdin."""
    keyboard, screen = pty.openpty()
    try:
        yield keyboard, screen
    finally:
        os.close(keyboard)
        os.close(screen)


def echoes(screen: int) -> bool:
    """Until somebody has attached; what was typed before is thrown away."""
    return bool(termios.tcgetattr(screen)[3] & termios.ECHO)


def test_a_word_typed_into_a_run_with_a_terminal(shell: Shell, tmp_path: Path) -> None:
    told = tmp_path / "told"
    line = f"test -t 0 && read word && echo $word > {told}"
    with shell.start("local", "--simulate", "1x1", "--terminal", "--", "sh", "-c", line) as process:
        run_id = wait_for(lambda: run_id_of(shell), "the run to be running")
        with terminal() as (keyboard, screen), shell.start("attach", run_id, stdin=screen) as attached:
            wait_for(lambda: not echoes(screen), "the terminal to be joined to the run's")
            os.write(keyboard, b"hello\n")
            answer, said = ends(attached)
        code, _ = ends(process)
    assert answer == 0, said
    assert said.startswith(f"rota: joining {run_id}; Ctrl-] leaves it, and it goes on\n")
    assert (code, told.read_text()) == (0, "hello\n")


def test_a_run_without_a_terminal_says_what_to_do(shell: Shell) -> None:
    with shell.start("local", "--simulate", "1x1", "--", "sleep", "1000") as process:
        run_id = wait_for(lambda: run_id_of(shell), "the run to be running")
        with terminal() as (_, stdin):
            answer = shell.rota("attach", run_id, stdin=stdin)
        process.terminate()
        ends(process)
    assert answer.returncode == 75
    assert b"start runs with --terminal" in answer.stderr


def test_an_unknown_run(shell: Shell) -> None:
    shell.rota("local", "--simulate", "1x1", "--", "true")
    with terminal() as (_, stdin):
        answer = shell.rota("attach", "000000000000", stdin=stdin)
        far = shell.rota("attach", "000000000000", stdin=stdin, env={**shell.env, "ROTA_URL": "http://far:10000"})
    assert answer.returncode == 75 and b"no run" in answer.stderr and b"ROTA_URL" not in answer.stderr
    assert far.returncode == 75 and b"attach does not use ROTA_URL: be on the machine of that server" in far.stderr


@pytest.mark.skipif(not shutil.which("tmux"), reason="needs tmux")
@pytest.mark.parametrize("name", ["ROTA_TMUX_SESSION", "RESEARCH_AGENT_TMUX_SESSION"])
def test_the_tmux_session_that_the_environment_names(shell: Shell, tmp_path: Path, name: str) -> None:
    (tmp_path / "tmux").mkdir(mode=0o700)
    env = {**shell.env, "TMUX_TMPDIR": str(tmp_path / "tmux")}
    with shell.start("local", "--simulate", "1x1", "--terminal", "--", "sleep", "1000") as process:
        run_id = wait_for(lambda: run_id_of(shell), "the run to be running")
        bad = shell.rota("attach", "--tmux", run_id, env={**env, name: "a:b"})
        answer = shell.rota("attach", "--tmux", run_id, env={**env, name: "research agent"})
        try:
            windows = subprocess.run(
                ["tmux", "list-windows", "-a", "-F", "#S/#W"], env=env, capture_output=True, text=True, check=True
            )
        finally:
            subprocess.run(["tmux", "kill-server"], env=env, capture_output=True, check=False)
            process.terminate()
            ends(process)
    assert (bad.returncode, answer.returncode) == (2, 0), (bad, answer)
    assert name.encode() in bad.stderr
    assert windows.stdout == f"research agent/{run_id}-1\n"
