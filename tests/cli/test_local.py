"""`rota local`: one command through the whole house and back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from rota.cli.main import main
from rota.core.run import RunState
from tests.app.house import SOURCES, alive, locked, until
from tests.cli.rota import Shell, ends

STUBBORN = "trap '' TERM INT; echo ready; while :; do sleep 1000; done"
# A signal that comes just before a blocking call runs its Python handler only after the call, so every wait is short.
POLITE = """
import signal, sys, time
signal.signal(15, lambda *a: sys.exit(9))
print("ready", flush=True)
while True:
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 3"], 3),
        (["sh", "-c", "kill -9 $$"], 128 + 9),
        (["sh", "-c", "kill -TERM $$"], 128 + 15),
        (["no-such-command"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_it_exits_as_the_command_did(shell, argv, code):
    done = shell.local("--", *argv)
    assert done.returncode == code
    if code:
        assert done.stderr.startswith(b"rota: ")
    if code == 127:
        assert b"command not found: no-such-command" in done.stderr


def test_output_passes_through_byte_by_byte(shell):
    code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000); sys.stdout.flush(); sys.stderr.write('e')"
    done = shell.local("--", sys.executable, "-c", code)
    assert done.stdout == bytes(range(256)) * 4000 + b"e"
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_comes_while_the_job_still_runs(shell):
    with shell.at_work("--", "sh", "-c", STUBBORN) as process:
        assert process.poll() is None


def test_the_gpus_it_was_given(shell):
    done = shell.local("-G", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $ROTA_NODE")
    assert done.stdout == b"0,1 node1\n"
    gang = shell.local("-G", "4", "-N", "2", "--", "sh", "-c", "echo $ROTA_NODE $CUDA_VISIBLE_DEVICES")
    assert sorted(gang.stdout.splitlines()) == [b"node1 0,1", b"node2 0,1"]
    assert shell.local("-G", "0", "--", "sh", "-c", "echo [$CUDA_VISIBLE_DEVICES]").stdout == b"[]\n"


def test_flags_after_the_command_are_the_commands(shell):
    assert shell.local("echo", "-G", "99", "--simulate", "--help").stdout == b"-G 99 --simulate --help\n"
    assert shell.local("--", "echo", "--", "-n").stdout == b"-- -n\n"


def test_environment_directory_and_umask_are_the_callers(shell):
    (shell.where / "in").mkdir()
    env = {**shell.env, "MINE": "a b", "BASH_FUNC_module%%": "() { :; }", "odd.name": "x"}
    code = "import os; print(os.environ['MINE'], os.getcwd(), oct(os.umask(0)), os.environ['BASH_FUNC_module%%'])"
    done = shell.local("--", sys.executable, "-c", code, cwd=shell.where / "in", env=env, umask=0o027)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"a b {shell.where / 'in'} 0o27 () {{ :; }}\n"


def test_arguments_and_names_that_are_no_utf8(shell):
    done = shell.local(b"-J", b"odd \xff name", b"--", b"printf", b"%s", b"\xff\xfe")
    assert (done.returncode, done.stdout) == (0, b"\xff\xfe"), done.stderr
    listed = shell.rota("history")
    assert listed.returncode == 0, listed.stderr
    assert b"succeeded" in listed.stdout


def test_the_run_is_on_record(shell):
    shell.local("-J", "my name", "-p", "3", "-t", "100", "--", "true")
    shell.house.open()
    from rota.app.ports import RunFilter

    (run,) = shell.house.rota.runs(RunFilter())
    assert (run.spec.name, run.priority, run.spec.time_limit_s) == ("my name", 3, 100.0)


def test_a_time_limit(shell):
    done = shell.local("-t", "0.2", "--", "sleep", "1000")
    assert done.returncode == 124  # as timeout(1) says it
    assert b"time limit of 0.2 s reached" in done.stderr


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_cancels_politely(shell, number):
    with shell.at_work("--", sys.executable, "-c", POLITE) as process:
        code, said = ends(process, number)
    assert code == 9, "the job had time to end in its own way"
    assert "cancelled by" in said


def test_a_second_ctrl_c_kills(shell):
    with shell.at_work("--", "sh", "-c", STUBBORN) as process:
        process.send_signal(signal.SIGINT)
        (attempts,) = until(lambda: list((shell.house.data / "attempts").glob("*/stop")), "the first one was heard")
        assert attempts
        assert process.poll() is None
        code, said = ends(process, signal.SIGINT)
    assert code == 128 + 9
    assert "cancelled by" in said


def test_if_rota_is_killed_the_job_runs_on_and_the_next_one_finds_it(shell):
    with shell.at_work("--", "sh", "-c", "echo ready; echo $$ > pid; exec sleep 100000") as process:
        pid = int(until(lambda: (shell.where / "pid").exists() and (shell.where / "pid").read_text(), "it runs"))
        process.kill()
        process.wait()
        assert alive(pid)
    assert shell.local("--", "true").returncode == 0
    assert alive(pid)
    shell.house.open()
    from rota.app.ports import RunFilter

    assert {run.state for run in shell.house.rota.runs(RunFilter())} == {RunState.RUNNING, RunState.SUCCEEDED}


# -- what cannot be ---------------------------------------------------------------------------------------------------


def test_a_busy_data_directory(shell):
    shell.house.open()
    done = shell.local("--", "true")
    assert done.returncode == 75
    said = done.stderr.decode()
    assert said.startswith("rota: another Rota server")
    assert f"pid {os.getpid()}" in said
    assert "--data-dir" in said
    assert said.count("\n") == 1


def test_a_locked_database(shell):
    assert shell.local("--", "true").returncode == 0
    with locked(shell.house.data / "rota.db"):
        done = shell.local("--", "true")
    assert done.returncode == 75
    assert done.stderr.startswith(b"rota: ")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--"],
        ["--no-such-flag", "true"],
        ["-G", "x", "true"],
        ["-G", "-1", "true"],
        ["-G", "99", "true"],
        ["-G", "3", "-N", "2", "true"],
        ["-t", "nan", "true"],
        ["-t", "0", "true"],
        ["-t", "soon", "true"],
        ["-p", "5", "true"],
        ["--simulate", "0x8", "true"],
        ["--simulate", "2x65", "true"],
        ["--simulate", "big", "true"],
        ["-J", "x" * 501, "true"],
        ["--", ""],
    ],
)
def test_bad_options_are_two(shell, args):
    where = ["--data-dir", str(shell.house.data), *([] if "--simulate" in args else ["--simulate", "2x4"])]
    done = CliRunner().invoke(main, ["local", *where, *args])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr


def test_a_data_directory_that_cannot_be(shell):
    (shell.where / "file").write_text("")
    done = shell.rota("local", "--data-dir", str(shell.where / "file" / "in it"), "true")
    assert done.returncode == 75
    assert b"cannot use" in done.stderr


def test_without_a_home(shell):
    env = {"PATH": shell.env["PATH"], "PYTHONPATH": SOURCES, "ROTA_DATA_DIR": shell.env["ROTA_DATA_DIR"]}
    assert shell.local("--", "echo", "hello", env=env).stdout == b"hello\n"


def test_as_somebody_without_a_name(monkeypatch):
    """A container may run as a number that no passwd file knows."""
    import getpass

    from rota.cli.commands.local import _me

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr(getpass, "getuser", nobody)
    assert _me().name == f"uid{os.getuid()}"


def test_in_a_directory_that_is_gone(shell):
    gone = shell.where / "gone"
    gone.mkdir()
    code = f"import os; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); from rota.cli.main import main; main()"
    argv = [sys.executable, "-c", code, "local", "true"]
    done = subprocess.run(argv, env=shell.env, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (2, False), done.stderr


def test_a_reader_that_leaves_early(shell):
    """rota local -- seq ... | head -1"""
    with shell.start("local", "--simulate", "2x4", "--", "seq", "200000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.stdout.close()
        code, _ = ends(process)
    assert code in (0, 141)


def test_closed_standard_output(shell):
    done = shell.local("--", "echo", "hello", stdout=None, preexec_fn=lambda: os.close(1))
    assert done.returncode in (0, 1)


def test_a_lost_job_is_tried_again_and_all_of_its_output_is_shown(shell):
    """The supervisor of the first attempt is killed: what both attempts printed comes out, in order."""
    line = 'echo ready; [ "$ROTA_ATTEMPT" = 2 ] && exit 4; echo first; exec sleep 100000'
    from rota.app.commands import SetPolicy
    from rota.core.policy import Policy

    shell.house.open().do(SetPolicy(Policy(retry_base_s=0.0, retry_cap_s=0.0)))
    shell.house.close()
    with shell.at_work("--", "sh", "-c", line) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        record = until(lambda: list((shell.house.data / "attempts").glob("*/pid")), "its pid is recorded")[0]
        import json

        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        assert process.stdout.read() == b"ready\n"
        assert process.wait(60) == 4


def test_the_shell_helper_itself_is_judged(shell: Shell):
    assert shell.local("--", "sh", "-c", "sleep 1000 & exit 0").returncode == 0
    assert shell.house.leftovers() == []
