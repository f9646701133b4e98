"""The commands against a real server: what they print, how they exit, and that a pipe gets plain JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.app.house import PATIENCE_S
from tests.cli.server import PROGRAM, Server
from tests.cli.test_workspace import git

ID = re.compile(r"[0-9a-f]{12}")


# -- submit -----------------------------------------------------------------------------------------------------------


def test_a_submit_answers_with_id_place_and_expected_start(server: Server) -> None:
    first = server.out("submit", "-G", "8", "-t", "1h", "--", "sleep", "1000")
    assert (ID.match(first) and "launching" in first) or "running" in first
    second = server.out("submit", "-G", "4", "--", "true")
    assert re.fullmatch(
        r"[0-9a-f]{12} queued: position 1, expected to start in (59|60) min \(.*\); needs 4 GPUs.*\n", second
    )


def test_the_command_gets_my_environment_directory_and_umask_untouched(server: Server) -> None:
    (server.home / "in here").mkdir(exist_ok=True)
    code = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['MINE'], oct(os.umask(0)), os.environ.get('NOT'))"
    )
    env = {**server.env, "MINE": "a b", "NOT": "x"}
    done = server.rota(
        "submit", "--follow", "-q", "--export", "ALL,NOT=y", "-C", "in here", "--", sys.executable, "-c", code,
        "-G", "--", "--help", "$HOME", "a b", env=env, umask=0o027,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[1] == f"['-G', '--', '--help', '$HOME', 'a b'] {server.home}/in here a b 0o27 y"


def test_a_shell_line(server: Server) -> None:
    done = server.rota("submit", "-f", "--shell", "echo one && echo two >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, b"one\ntwo\n")
    assert b"failed: exit code 3" in done.stderr and b"ran" in done.stderr


@pytest.mark.parametrize(("line", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_waiting_exits_as_the_command_did(server: Server, line: str, code: int) -> None:
    done = server.rota("submit", "--wait", "-q", "--shell", line)
    assert done.returncode == code
    assert ID.fullmatch(done.stdout.decode().strip())


def test_a_dry_run_does_nothing(server: Server) -> None:
    before = len(server.json("history")["runs"])
    assert "nothing was done" in server.out("submit", "--dry-run", "--", "true")
    assert json.loads(server.out("submit", "--dry-run", "--json", "--", "true"))["dry_run"] is True
    assert len(server.json("history")["runs"]) == before


def test_every_wish_arrives(server: Server) -> None:
    first = server.submit("--held", "--", "true")
    run_id = server.submit(
        "-G", "2", "-N", "2", "-J", "my name", "-t", "2h", "-p", "high", "--estimate", "30m", "--retries", "5",
        "--depends", f"{first[:8]}:ended", "--tag", "a", "--tag", "b", "--gpu-type", "h100", "--cpus", "2",
        "--mem", "4", "--preemptible", "--", "echo", "hi",
    )  # fmt: skip
    run = server.json("show", run_id)
    assert (run["name"], run["gpu_count"], run["priority"], run["max_retries"]) == ("my name", 2, 3, 5)
    assert (run["time_limit_seconds"], run["estimated_duration_seconds"]) == (7200.0, 1800.0)
    assert run["depends_on"] == [{"run_id": first, "when": "ended"}]
    assert (run["tags"], run["command"]) == (["a", "b"], "echo hi")
    assert [reason["code"] for reason in run["reasons"]] == ["dependency"]


def test_many_submits_at_once_are_many_runs(server: Server) -> None:
    processes = [server.popen("submit", "-q", "--held", "--", "true") for _ in range(4)]
    ids = [process.communicate(timeout=PATIENCE_S)[0].decode().strip() for process in processes]
    assert len(set(ids)) == 4


# -- looking ----------------------------------------------------------------------------------------------------------


def test_every_reading_command_gives_one_json_value(server: Server) -> None:
    run_id = server.submit("-G", "8", "--", "sleep", "1000")
    waits = server.submit("-G", "8", "--", "true")
    queue = server.json("queue", "--all")
    assert [job["id"] for job in queue["running"] + queue["queued"]] == [run_id, waits]
    assert server.json("show", run_id)["id"] == run_id
    assert server.json("explain", waits)["reasons"][0]["runs"] == [run_id]
    assert server.json("eta", waits)["eta"] > time.time()
    assert len(server.json("nodes")) == 2
    assert {gpu["allocated_to"] for gpu in server.json("gpus")} == {run_id}
    assert server.json("history")["runs"][0]["id"] == waits
    assert isinstance(server.json("usage"), list)
    assert server.json("policy", "show")["scheduling_algorithm"] == "priority"
    assert server.json("whoami")["role"]
    assert server.json("token", "list") == []
    assert server.json("config", "show")["data_dir"]["origin"] == "ROTA_DATA_DIR"
    assert {row["level"] for row in server.json("doctor")} <= {"ok", "warn"}


def test_tables_in_a_pipe_are_plain_and_complete(server: Server) -> None:
    name = "n" * 300
    server.submit("-G", "8", "-J", name, "--", "sleep", "1000")
    for words in (["queue"], ["history"], ["gpus"], ["nodes"], ["usage"], ["doctor"], ["policy"], ["config", "show"]):
        shown = server.out(*words)
        assert "\x1b" not in shown and shown.endswith("\n"), words
    assert name in server.out("queue")
    assert server.out("queue", "-q").strip() in server.out("queue")
    assert "8 of 8 GPUs held" in server.out("gpus") and "SIMULATED" in server.out("gpus")


def test_whose(server: Server) -> None:
    run_id = server.submit("-G", "0", "--", "sleep", "1000")
    me = server.json("whoami")["name"]
    assert run_id in server.out("queue", "--mine") and run_id in server.out("queue", "--user", me)
    assert run_id not in server.out("queue", "--user", "nobody-else")


def test_a_name_of_others_is_shown_harmlessly(server: Server) -> None:
    with server.client() as client:
        run = client.submit("sleep 1000", name="x\x1b[2J\u202ey", gpus=0)
    for words in (["queue"], ["show", run.id], ["history"]):
        assert "\x1b" not in server.out(*words) and "\u202e" not in server.out(*words)


def test_ids_by_their_beginning(server: Server) -> None:
    run_id = server.submit("--held", "--", "true")
    assert server.json("show", run_id[:8])["id"] == run_id
    for text in ("", "-", "zz", "zzzz", "ffffffffffff", "../etc", "a/b", "é"):
        done = server.rota("show", "--", text)
        assert done.returncode == 75 and done.stderr.count(b"\n") == 1, (text, done)


def test_an_ambiguous_beginning_says_which(server: Server) -> None:
    with server.client() as client:
        while True:
            ids = sorted(run.id for run in client.runs())
            twins = [a for a, b in pairwise(ids) if a[0] == b[0]]
            if twins:
                break
            client.submit("true", gpus=0, held=True)
    done = server.rota("show", twins[0][0])
    assert done.returncode == 2 and b"give more of it" in done.stderr


def test_a_run_is_told_whole(server: Server) -> None:
    run_id = server.submit("--wait", "-G", "2", "--", "sh", "-c", "echo hi")
    told = server.out("show", run_id)
    for words in ("finished", "sh -c 'echo hi'", "ATTEMPT", "waited", "ran", "GPU-hours in 1 attempt"):
        assert words in told, told


# -- logs -------------------------------------------------------------------------------------------------------------


def test_logs_whole_tail_and_following(server: Server) -> None:
    text = "".join(f"line {n} é\n" for n in range(20_000))  # more than one piece
    (server.home / "long").write_text(text)
    run_id = server.submit("--wait", "-G", "0", "--", "cat", str(server.home / "long"))
    assert server.out("logs", run_id) == text
    assert server.out("logs", "-f", run_id) == text
    assert server.out("logs", "-n", "2", run_id) == "line 19998 é\nline 19999 é\n"
    assert server.out("logs", "-n", "0", run_id) == ""


def test_following_a_live_log_until_its_end(server: Server) -> None:
    gate = server.home / "gate"
    run_id = server.submit(
        "-G", "0", "--", "sh", "-c", f"echo first; until test -e {gate}; do sleep 0.05; done; echo last"
    )
    with server.popen("logs", "-f", run_id) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        gate.touch()
        assert process.stdout.read() == b"last\n"
        assert process.wait(PATIENCE_S) == 0


def test_the_logs_of_each_attempt(server: Server) -> None:
    run_id = server.submit(
        "--retries", "1", "-G", "0", "--wait", "--shell", "echo try $ROTA_ATTEMPT; test $ROTA_ATTEMPT = 2"
    )
    assert server.out("logs", "--attempt", "1", run_id) == "try 1\n"
    assert server.out("logs", run_id) == "try 2\n"
    assert server.out("logs", "-f", run_id) == "try 1\ntry 2\n"


# -- changing ---------------------------------------------------------------------------------------------------------


def test_hold_release_priority_cancel(server: Server) -> None:
    server.submit("-G", "8", "--", "sleep", "1000")
    run_id = server.submit("-G", "1", "--", "true")
    assert server.out("hold", run_id) == f"{run_id} held\n"
    assert server.json("show", run_id)["status"] == "ready"
    assert server.out("release", run_id) == f"{run_id} released\n"
    assert server.out("priority", run_id, "critical") == f"{run_id} has priority critical\n"
    assert server.json("show", run_id)["priority"] == 4
    assert server.out("cancel", "--dry-run", run_id) == f"{run_id} could be stopped\n"
    assert server.json("show", run_id)["status"] == "queued"
    assert server.out("cancel", run_id) == f"{run_id} stopping\n"
    again = server.rota("cancel", run_id)
    assert again.returncode == 75 and b"status: stopped" in again.stderr


def test_one_that_cannot_be_cancelled_does_not_keep_the_others(server: Server) -> None:
    run_id = server.submit("--held", "--", "true")
    done = server.rota("cancel", "000000000000", "111111111111", run_id)
    assert done.returncode == 75
    assert done.stderr.count(b"Run not found") == 2
    assert done.stdout.decode() == f"{run_id} stopping\n"


def test_a_sweep_over_a_grid(server: Server) -> None:
    sweep = server.json(
        "sweep", "lr", "--base", "echo", "-p", "lr=0.1,0.01", "-p", "seed=1..3", "--parallel", "2", "-G", "1"
    )
    assert sweep["progress"]["total"] == 6
    for run_id in sweep["run_ids"]:
        server.until_state(run_id, "finished")
    outputs = {server.out("logs", run_id) for run_id in sweep["run_ids"]}
    assert outputs == {f"--lr={lr} --seed={seed}\n" for lr in ("0.1", "0.01") for seed in (1, 2, 3)}
    assert server.out("sweep", "x", "--base", "true", "-p", "a=1..4", "--max-runs", "2", "--held").endswith(
        ": 2 runs\n"
    )


def test_the_policy_is_changed_and_nonsense_is_refused(server: Server) -> None:
    assert server.json("policy", "set", "max_concurrent_jobs=3")["max_concurrent_jobs"] == 3
    assert server.json("policy", "set", "--dry-run", "max_concurrent_jobs=9")["max_concurrent_jobs"] == 9
    assert server.json("policy", "show")["max_concurrent_jobs"] == 3
    server.out("policy", "set", "max_concurrent_jobs=0")
    for words in (
        ["max_concurrent_jobs=-1"],
        ["scheduling_algorithm=magic"],
        ["what=1"],
        ["nothing"],
        ["dry_run=true"],
    ):
        assert server.rota("policy", "set", *words).returncode == 2, words


def test_a_node_is_drained_and_comes_back(server: Server) -> None:
    server.out("nodes", "drain", "node2", "--why", "new fans")
    assert "new fans" in server.out("nodes")
    assert "off" in server.out("gpus")
    server.out("nodes", "undrain", "node2")
    assert server.rota("nodes", "drain", "node9").returncode == 75


# -- the code it came from --------------------------------------------------------------------------------------------


def test_the_checkout_is_recorded_and_restored(server: Server, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "say.sh").write_text("echo old\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "first")
    (repo / "say.sh").write_text("echo dirty\n")
    first = server.out("submit", "-q", "--wait", "--", "sh", "say.sh", cwd=repo).strip()
    (repo / "say.sh").write_text("echo newer\n")
    told = server.json("show", first)["workspace"]
    assert (told["branch"], told["dirty"], told["root"]) == ("main", True, str(repo))
    assert "+echo dirty" in server.out("show", "--diff", first)
    assert git(repo, "rev-parse", "HEAD") in server.out("show", first)
    again = server.rota("rerun", first, "--restore", str(tmp_path / "again"), "--follow")
    assert (again.returncode, again.stdout) == (0, b"dirty\n"), again.stderr
    other = server.rota("rerun", first, "-f", "--", "echo", "a  b", "-G", "$HOME")
    assert other.stdout == b"a  b -G $HOME\n"
    used = server.rota("rerun", first, "--restore", str(repo))
    assert used.returncode == 75 and b"not an empty directory" in used.stderr


def test_what_has_no_checkout_cannot_be_restored(server: Server, tmp_path: Path) -> None:
    run_id = server.submit("--no-snapshot", "--held", "--", "true")
    done = server.rota("rerun", run_id, "--restore", str(tmp_path / "x"))
    assert done.returncode == 75 and b"workspace" in done.stderr.lower()


# -- staying with a run -----------------------------------------------------------------------------------------------


def test_ctrl_c_takes_a_waiting_run_out_of_the_queue(server: Server) -> None:
    server.submit("-G", "8", "--", "sleep", "1000")
    with server.popen("submit", "-G", "8", "--wait", "--", "true") as process:
        assert process.stderr is not None
        run_id = process.stderr.readline().decode().split()[-1]
        assert b"queued: position 1" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 75, rest
    assert "cancelling" in rest and "Traceback" not in rest
    assert server.json("show", run_id)["status"] == "stopped"


def test_ctrl_c_asks_a_running_one_politely_and_a_stubborn_one_is_killed(server: Server) -> None:
    polite = "trap 'echo bye; exit 9' INT TERM; echo ready; while :; do sleep 0.05; done"
    with server.popen("submit", "-f", "--", "sh", "-c", polite) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith(b"bye\n")
        assert process.wait(PATIENCE_S) == 9
    stubborn = "trap '' INT TERM; echo ready; while :; do sleep 1000; done"
    with server.popen("submit", "-f", "--", "sh", "-c", stubborn) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        while b"cancelling" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        said = b""
        while b"killing" not in said:
            said += process.stderr.readline()
        assert process.wait(PATIENCE_S) == 137  # it ignores every polite signal: SIGKILL ends it after its grace
        process.stdout.read()


def test_the_reader_of_a_followed_run_may_leave(server: Server) -> None:
    with server.popen("submit", "-f", "--", "sh", "-c", "while echo more; do sleep 0.01; done") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) in (1, 141)
    assert "Traceback" not in said


def test_on_a_terminal_the_progress_line_rewrites_itself(server: Server) -> None:
    server.submit("-G", "8", "-t", "100", "--", "sleep", "1000")
    leader, follower = pty.openpty()
    with server.popen("submit", "-G", "8", "--wait", "--", "true", stderr=follower) as process:
        os.close(follower)
        seen = b""
        while b"\r" not in seen.replace(b"\r\n", b"") or b"position 1" not in seen:
            seen += os.read(leader, 4096)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.read()
    os.close(leader)


# -- odd surroundings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["queue"], ["queue", "--json"], ["gpus"], ["doctor"], ["show", "ffffffffffff"]])
def test_with_closed_output(server: Server, words: list[str]) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "rota", *words],
        env=server.env, cwd=server.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert b"Traceback" not in done.stderr and done.returncode in (0, 75)


def test_for_a_reader_that_has_left(server: Server) -> None:
    done = subprocess.run(
        ["sh", "-c", '"$@" 2>err | true; cat err', "sh", sys.executable, "-m", "rota", "nodes"],
        env=server.env, cwd=server.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert b"Traceback" not in done.stdout + done.stderr


def test_without_a_home(server: Server) -> None:
    env = {name: value for name, value in server.env.items() if name != "HOME"}
    assert server.rota("queue", env=env).returncode == 0
    done = server.rota("login", "--stdin", "--no-check", env=env, stdin=None, input=b"rota_abc")
    assert done.returncode == 2 and b"home" in done.stderr


def test_in_a_directory_that_is_gone(server: Server) -> None:
    done = subprocess.run(
        ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", *PROGRAM, "submit", "true"],
        env=server.env, cwd=server.home, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 2 and b"directory is gone" in done.stderr


def test_arguments_that_are_no_utf8(server: Server) -> None:
    done = server.rota("submit", "-q", b"-J", b"odd \xff", "--wait", "--", b"printf", b"%s", b"\xff\xfe")
    assert done.returncode in (0, 2), done.stderr
    assert done.stderr.count(b"\n") <= 1


def test_run_ids_are_completed(server: Server) -> None:
    run_id = server.submit("--held", "--", "true")
    env = {**server.env, "_ROTA_COMPLETE": "bash_complete", "COMP_WORDS": f"rota show {run_id[:2]}", "COMP_CWORD": "2"}
    words = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'rota'; from rota.cli.main import main; main(prog_name='rota')",
    ]
    done = subprocess.run(words, env=env, cwd=server.home, capture_output=True, check=False, timeout=PATIENCE_S)
    assert f"plain,{run_id}".encode() in done.stdout
    assert b"complete" in server.rota("completion", "zsh").stdout


def test_json_is_one_value_also_for_a_submit_that_waits(server: Server) -> None:
    done = server.rota("submit", "--json", "--wait", "--shell", "exit 4")
    assert done.returncode == 4
    assert json.loads(done.stdout)["exit_code"] == 4
