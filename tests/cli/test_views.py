"""The commands that look: tables for people, one JSON value for programs, and logs."""

from __future__ import annotations

import json
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.app.house import PATIENCE_S
from tests.cli.lab import Lab


def test_every_reading_command_gives_one_json_value(lab: Lab) -> None:
    run_id = lab.submit("-G", "8", "--", "sleep", "1000")
    waits = lab.submit("-G", "8", "--", "true")
    queue = lab.json("queue", "--all")
    assert [job["id"] for job in queue["running"] + queue["queued"]] == [run_id, waits]
    assert lab.json("show", run_id)["id"] == run_id
    assert lab.json("explain", waits)["reasons"][0]["runs"] == [run_id]
    assert lab.json("eta", waits)["eta"] > time.time()
    assert len(lab.json("nodes")) == 2
    assert {gpu["allocated_to"] for gpu in lab.json("gpus")} == {run_id}
    assert lab.json("history")["runs"][0]["id"] == waits
    assert isinstance(lab.json("usage"), list)
    assert lab.json("policy", "show")["scheduling_algorithm"] == "auto"
    assert lab.json("whoami")["role"]
    assert lab.json("token", "list") == []
    assert lab.json("config", "show")["data_dir"]["origin"] == "ROTA_DATA_DIR"
    assert {row["level"] for row in lab.json("doctor")} <= {"ok", "warn"}


def test_the_doctor_looks_at_the_server_that_it_asks(lab: Lab, tmp_path: Path) -> None:
    """Not at the directory that a server of the caller's own would have."""
    lab.server.post("/orchestrator/stop").ok()
    try:
        env = {**lab.env, "ROTA_DATA_DIR": str(tmp_path / "other"), "ROTA_URL": lab.server.url}
        found = {row["about"]: row for row in json.loads(lab.out("doctor", "--json", env=env))}
    finally:
        lab.server.post("/orchestrator/start").ok()
    assert str(tmp_path) not in found["data directory"]["text"]
    assert found["data directory"]["text"].endswith(", of the server that answers")
    assert found["scheduling"]["level"] == "warn" and "/orchestrator/start" in found["scheduling"]["next_step"]


@pytest.mark.parametrize("by", ["socket", "port"])
def test_what_the_doctor_says_ends_a_pause_can_be_typed(tmp_path_factory: pytest.TempPathFactory, by: str) -> None:
    # Below tmp_path the socket's name may have more than the 107 bytes that one can have, as the worker's name decides.
    with Lab(tmp_path_factory.mktemp("Ann's $HOME")) as lab:
        lab.server.post("/orchestrator/stop").ok()
        env = {**lab.env, "ROTA_URL": lab.server.url} if by == "port" else lab.env
        found = {row["about"]: row for row in json.loads(lab.out("doctor", "--json", env=env))}
        said, _, line = found["scheduling"]["next_step"].partition(": ")
        assert said == "as an admin" and line.startswith("curl ") and ("--unix-socket" in line) == (by == "socket")
        done = subprocess.run(["sh", "-c", line], env=env, capture_output=True, text=True, check=False, timeout=100)
        assert json.loads(done.stdout)["success"] is True, done.stderr
        assert lab.server.get("/orchestrator/status").ok()["running"] is True


def test_tables_in_a_pipe_are_plain_and_complete(lab: Lab) -> None:
    name = "n" * 300
    lab.submit("-G", "8", "-J", name, "--", "sleep", "1000")
    for words in (["queue"], ["history"], ["gpus"], ["nodes"], ["usage"], ["doctor"], ["policy"], ["config", "show"]):
        shown = lab.out(*words)
        assert "\x1b" not in shown and shown.endswith("\n"), words
    assert name in lab.out("queue")
    assert lab.out("queue", "-q").strip() in lab.out("queue")
    assert "8 of 8 GPUs held" in lab.out("gpus") and "SIMULATED" in lab.out("gpus")


def test_a_pause_is_seen_where_people_look(tmp_path: Path) -> None:
    with Lab(tmp_path) as lab:
        lab.submit("-G", "1", "--wait", "--", "true")
        assert "paused" not in lab.out("queue")
        lab.server.post("/orchestrator/stop").ok()
        run_id = lab.submit("-G", "1", "--", "true")
        for words in (["queue"], ["queue", "--user", "nobody-else"], ["explain", run_id]):
            assert "scheduling is paused" in lab.out(*words), words
        assert "not known" in lab.out("eta", run_id)


def test_whose(lab: Lab) -> None:
    run_id = lab.submit("-G", "0", "--", "sleep", "1000")
    me = lab.json("whoami")["name"]
    assert run_id in lab.out("queue", "--mine") and run_id in lab.out("queue", "--user", me)
    assert run_id not in lab.out("queue", "--user", "nobody-else")
    assert "everybody's: " in lab.out("queue", "--user", me) and "everybody's" not in lab.out("queue")


def test_what_others_wrote_is_shown_harmlessly(lab: Lab) -> None:
    with lab.client() as client:
        run = client.submit("sleep 1000 # x\x1b[2J\u202ey", name="x", gpus=0)
    for words in (["queue"], ["show", run.id], ["history"]):
        assert "\x1b" not in lab.out(*words) and "\u202e" not in lab.out(*words)


def test_ids_by_their_end(lab: Lab) -> None:
    run_id = lab.submit("--held", "--", "true")
    assert lab.json("show", run_id[-6:])["id"] == run_id
    for text in ("", "-", "zz", "zzzz", "ffffffffffff", "../etc", "a/b", "é"):
        done = lab.rota("show", "--", text)
        assert done.returncode == 75 and done.stderr.count(b"\n") == 1, (text, done)


def test_an_ambiguous_beginning_says_which(lab: Lab) -> None:
    with lab.client() as client:
        while True:
            ids = sorted(run.id for run in client.runs())
            twins = [a for a, b in pairwise(ids) if a[0] == b[0]]
            if twins:
                break
            client.submit("true", gpus=0, held=True)
    done = lab.rota("show", twins[0][0])
    assert done.returncode == 2 and b"give more of it" in done.stderr


def test_a_run_is_told_whole(lab: Lab) -> None:
    run_id = lab.submit("--wait", "-G", "2", "--", "sh", "-c", "echo hi")
    told = lab.out("show", run_id)
    for words in ("finished", "sh -c 'echo hi'", "ATTEMPT", "waited", "ran", "GPU-hours in 1 attempt"):
        assert words in told, told


def test_logs_whole_tail_and_following(lab: Lab) -> None:
    text = "".join(f"line {n} é\n" for n in range(20_000))  # more than one piece
    (lab.home / "long").write_text(text)
    run_id = lab.submit("--wait", "-G", "0", "--", "cat", str(lab.home / "long"))
    assert lab.out("logs", run_id) == text
    assert lab.out("logs", "-f", run_id) == text
    assert lab.out("logs", "-n", "2", run_id) == "line 19998 é\nline 19999 é\n"
    assert lab.out("logs", "-n", "0", run_id) == ""


def test_a_pipe_gets_every_byte_of_a_log(lab: Lab) -> None:
    content = (bytes(range(256)) + b"\x80" * 7 + b"\xe9t\xe9\n") * 1000  # more than one piece, and no UTF-8
    (lab.home / "odd").write_bytes(content)
    run_id = lab.submit("--wait", "-G", "0", "--", "cat", str(lab.home / "odd"))
    with lab.popen("logs", run_id) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == content
    with lab.popen("logs", "-n", "1", run_id) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == content[-len(content) // 1000 :].splitlines(True)[-1]


def test_following_a_live_log_until_its_end(lab: Lab) -> None:
    gate = lab.home / "gate"
    run_id = lab.submit(
        "-G", "0", "--", "sh", "-c", f"echo first; until test -e {gate}; do sleep 0.05; done; echo last"
    )
    with lab.popen("logs", "-f", run_id) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        gate.touch()
        assert process.stdout.read() == b"last\n"
        assert process.wait(PATIENCE_S) == 0


def test_the_logs_of_each_attempt(lab: Lab) -> None:
    run_id = lab.submit(
        "--retries", "1", "-G", "0", "--wait", "--shell", "echo try $ROTA_ATTEMPT; test $ROTA_ATTEMPT = 2"
    )
    assert lab.out("logs", "--attempt", "1", run_id) == "try 1\n"
    assert lab.out("logs", run_id) == "try 2\n"
    assert f"rota logs --attempt 1 {run_id}" in lab.rota("logs", run_id).stderr.decode()
    assert lab.rota("logs", "--attempt", "2", run_id).stderr == b""
    assert lab.out("logs", "-f", run_id) == "try 1\ntry 2\n"
