"""`rota submit`: what arrives, what is printed, and staying with a run until its end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
from itertools import pairwise

import pytest

from rota.cli import follow
from rota.client import Client
from tests.app.house import PATIENCE_S
from tests.cli.lab import Lab
from tests.cli.test_exits import call
from tests.client.stub import Asked, ok, stub

SWEEP = ("sweep", "-q", "--no-snapshot", "--base", "true", "-p", "x=1", "s")

ID = re.compile(r"[0-9a-f]{12}")


def test_a_submit_answers_with_id_place_and_where_to_ask_when(lab: Lab) -> None:
    first = lab.out("submit", "-G", "8", "-t", "1h", "--", "sleep", "1000")
    assert (ID.match(first) and "launching" in first) or "running" in first
    second = lab.out("submit", "-G", "4", "--", "true")
    assert re.fullmatch(r"([0-9a-f]{12}) queued: position 1, needs 4 GPUs.*; when: rota eta \1\n", second)
    assert "expected to start" not in second, "two times for one run are none"


def test_the_command_gets_my_environment_directory_and_umask_untouched(lab: Lab) -> None:
    (lab.home / "in here").mkdir(exist_ok=True)
    code = (
        "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['MINE'], oct(os.umask(0)), os.environ.get('NOT'))"
    )
    env = {**lab.env, "MINE": "a b", "NOT": "x"}
    done = lab.rota(
        "submit", "--follow", "-q", "--export", "ALL,NOT=y", "-C", "in here", "--", sys.executable, "-c", code,
        "-G", "--", "--help", "$HOME", "a b", env=env, umask=0o027,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().splitlines()
    assert lines[1] == f"['-G', '--', '--help', '$HOME', 'a b'] {lab.home}/in here a b 0o27 y"


def test_a_shell_line(lab: Lab) -> None:
    done = lab.rota("submit", "-f", "--shell", "echo one && echo two >&2; exit 3")
    assert (done.returncode, done.stdout) == (3, b"one\ntwo\n")
    assert b"failed: exit code 3" in done.stderr and b"ran" in done.stderr


@pytest.mark.parametrize(("line", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -TERM $$", 143)])
def test_waiting_exits_as_the_command_did(lab: Lab, line: str, code: int) -> None:
    done = lab.rota("submit", "--wait", "-q", "--shell", line)
    assert done.returncode == code
    assert ID.fullmatch(done.stdout.decode().strip())


def test_a_dry_run_does_nothing(lab: Lab) -> None:
    assert "nothing was done" in lab.out("submit", "--dry-run", "--", "true")
    assert json.loads(lab.out("submit", "--dry-run", "--json", "--", "true"))["dry_run"] is True
    with lab.client() as client:
        assert list(client.runs()) == []


def test_every_wish_arrives(lab: Lab) -> None:
    first = lab.submit("--held", "--", "true")
    run_id = lab.submit(
        "-G", "2", "-N", "2", "-J", "my name", "-t", "2h", "-p", "high", "--estimate", "30m", "--retries", "5",
        "--depends", f"{first[-6:]}:ended", "--tag", "a", "--tag", "b", "--gpu-type", "h100", "--cpus", "2",
        "--mem", "4096M", "--preemptible", "--", "echo", "hi",
    )  # fmt: skip
    run = lab.json("show", run_id)
    assert (run["name"], run["gpu_count"], run["priority"], run["max_retries"]) == ("my name", 2, 3, 5)
    assert (run["time_limit_seconds"], run["estimated_duration_seconds"]) == (7200.0, 1800.0)
    assert run["depends_on"] == [{"run_id": first, "when": "ended"}]
    assert (run["tags"], run["command"]) == (["a", "b"], "echo hi")
    assert [reason["code"] for reason in run["reasons"]] == ["dependency"]


def test_many_submits_at_once_are_many_runs(lab: Lab) -> None:
    processes = [lab.popen("submit", "-q", "--held", "--", "true") for _ in range(4)]
    ids = [process.communicate(timeout=PATIENCE_S)[0].decode().strip() for process in processes]
    assert len(set(ids)) == 4


def test_ctrl_c_takes_a_waiting_run_out_of_the_queue(lab: Lab) -> None:
    lab.submit("-G", "8", "--", "sleep", "1000")
    with lab.popen("submit", "-G", "4", "--wait", "--", "true") as process:
        assert process.stderr is not None
        first, second = process.stderr.readline(), process.stderr.readline()
        assert b"queued: position 1" in second, (first, second)
        run_id = first.decode().split()[-1]
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 75, rest
    assert "cancelling" in rest and "Traceback" not in rest
    assert lab.json("show", run_id)["status"] == "stopped"


def test_ctrl_c_asks_a_running_one_politely_and_a_stubborn_one_is_killed(lab: Lab) -> None:
    polite = "trap 'echo bye; exit 9' INT TERM; echo ready; while :; do sleep 0.05; done"
    with lab.popen("submit", "-f", "--", "sh", "-c", polite) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().endswith(b"bye\n")
        assert process.wait(PATIENCE_S) == 9
    stubborn = "trap '' INT TERM; echo ready; while :; do sleep 1000; done"
    with lab.popen("submit", "-f", "--", "sh", "-c", stubborn) as process:
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


def test_the_reader_of_a_followed_run_may_leave(lab: Lab) -> None:
    with lab.popen("submit", "-f", "--", "sh", "-c", "while echo more; do sleep 0.01; done") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) in (1, 141)
    assert "Traceback" not in said


def test_on_a_terminal_changes_of_somebody_do_not_steer_it(lab: Lab) -> None:
    workspace = {"root": "/", "commit": "0" * 40, "branch": "b", "dirty": True, "diff": "+\x1b]0;title\x07\n"}
    asked = {"name": "one", "command": "true", "workspace": workspace}
    run_id = lab.server.post("/runs", asked).ok()["id"]
    assert lab.out("show", "--diff", run_id) == workspace["diff"], "a pipe gets every byte"
    leader, follower = pty.openpty()
    with lab.popen("show", "--diff", run_id, stdout=follower) as process:
        os.close(follower)
        assert process.wait(PATIENCE_S) == 0
    seen = os.read(leader, 4096)
    os.close(leader)
    assert b"title" in seen and b"\x1b" not in seen, seen


def test_on_a_terminal_the_progress_line_rewrites_itself(lab: Lab) -> None:
    lab.submit("-G", "8", "-t", "100", "--", "sleep", "1000")
    leader, follower = pty.openpty()
    with lab.popen("submit", "-G", "4", "--wait", "--", "true", stderr=follower) as process:
        os.close(follower)
        seen = b""
        while b"\r" not in seen.replace(b"\r\n", b"") or b"position 1" not in seen:
            seen += os.read(leader, 4096)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.read()
    os.close(leader)


def test_waiting_looks_at_the_cheap_view_and_more_and_more_seldom() -> None:
    """A forecast is asked for when there is something new to tell, and once at the end."""
    looks = 60
    asked: list[str] = []
    run = {"id": "0123456789ab", "name": "x", "status": "queued", "position": 3}

    def reply(request: Asked) -> bytes:
        asked.append(request.target)
        cheap = sum(target.startswith("/queue/") for target in asked)
        if request.target.startswith("/queue/"):
            state = "queued" if cheap < looks else "completed"
            return ok({"id": run["id"], "state": state, "queue_position": 3 if cheap < looks else None})
        return ok({**run, "status": "finished", "exit_code": 0} if cheap >= looks else run)

    pauses: list[float] = []
    clock = [1000.0]

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    with stub(reply) as server, Client(server.url) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr("rota.cli.follow.time.sleep", sleep)
        patch.setattr("rota.cli.follow.time.monotonic", lambda: clock[0])
        assert follow.stay(client, "0123456789ab", output=False) == 0
    assert pauses == sorted(pauses) and 0.05 <= pauses[0] < 0.1 and pauses[-1] == 2.0
    assert max(later / earlier for earlier, later in pairwise(pauses)) < 1.5, "it slows down gently"
    dear = [target for target in asked if target.startswith("/runs/")]
    assert 3 <= len(dear) <= 2 + sum(pauses) / 10


@pytest.mark.parametrize(
    "words", [("submit", "-q", "--", "true"), ("rerun", "-q", "0123456789ab"), SWEEP], ids=" ".join
)
def test_a_field_that_the_server_did_not_know_is_told(words: tuple[str, ...]) -> None:
    """The answer of a server that is older than this client."""
    answer = {"id": "0123456789ab", "status": "queued", "ignored": ["filler: there is no such field here"]}
    with stub(lambda asked: ok(answer)) as server:
        code, out, err = call(*words, ROTA_URL=server.url)
    assert (code, out) == (0, "0123456789ab\n")
    assert err == "rota: note: the server ignored a field that it does not know, filler: there is no such field here\n"
