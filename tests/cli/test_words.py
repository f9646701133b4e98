"""What the commands say to somebody who does not know Rota yet: notes, states, and what to do about a mistake."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from rota.cli.exits import REFUSED, USAGE
from rota.cli.follow import place, summary
from rota.cli.slurm.output import wrap
from rota.cli.slurm.told import told
from rota.cli.spent import ran, waited
from rota.cli.story import changed_lines, efficiency
from rota.client.model.run import Run
from rota.client.model.run import run as made
from rota.client.wire import MAX_BODY
from tests.app.house import SOURCES, until
from tests.cli.lab import RUN, Lab
from tests.cli.test_exits import call
from tests.client.stub import ok, stub


def test_staying_says_what_ctrl_c_does(lab: Lab) -> None:
    done = lab.rota("submit", "-G", "0", "--wait", "--", "true")
    assert b"Ctrl-C cancels it; to only watch: rota logs -f " in done.stderr.splitlines()[0]
    assert "Ctrl-C cancels it" in lab.out("submit", "--help")


def test_more_gpus_than_a_node_has_is_a_copy_on_each(lab: Lab) -> None:
    said = lab.rota("submit", "-G", "8", "--", "true").stderr
    assert b"more than the 4 GPUs of a node: the command is started once on each node" in said
    assert b"note: 2 nodes: " in lab.rota("submit", "-G", "2", "-N", "2", "--", "true").stderr
    assert lab.rota("submit", "-G", "4", "--", "true").stderr == b""


def test_held_is_the_word_wherever_people_read(lab: Lab) -> None:
    run_id = lab.submit("--held", "--", "true")
    for words in (["queue", "--all"], ["show", run_id], ["history"], ["explain", run_id]):
        shown = lab.out(*words)
        assert "held" in shown and "ready" not in shown, (words, shown)
    assert lab.json("show", run_id)["status"] == "ready"


def test_the_end_of_an_id_is_enough_and_so_is_its_beginning(lab: Lab) -> None:
    run_id, other = lab.submit("--held", "--", "true"), lab.submit("--held", "--", "true")
    assert lab.json("show", run_id[-6:])["id"] == run_id
    assert lab.json("show", other[:-1])["id"] == other
    vague, unknown = lab.rota("show", run_id[:3]), lab.rota("show", "0000000")
    assert (vague.returncode, unknown.returncode) == (USAGE, REFUSED)
    assert f"{run_id[:3]} is part of" in vague.stderr.decode() and "give more of it" in vague.stderr.decode()
    assert "no run's id ends with 0000000" in unknown.stderr.decode()


def test_everything_in_the_queue_by_id_and_for_how_long_it_ran(lab: Lab) -> None:
    first = lab.submit("-G", "0", "--wait", "--", "sleep", "0.2")
    never = lab.submit("--held", "--", "true")
    assert lab.out("cancel", never) == f"{never} cancelled\n"
    held = lab.submit("--held", "--", "true")
    live = lab.submit("-G", "0", "--", "sleep", "1000")
    lab.wait_for(live, "running")
    assert lab.out("queue", "--all", "-q").split() == [live, held, never, first]
    rows = {line.split()[0]: line for line in lab.out("queue", "--all").splitlines() if line}
    assert " - " in rows[never] and " s " in rows[first]
    assert lab.out("cancel", live).startswith(f"{live} stopping: killed ")


def test_logs_of_what_never_ran_say_so(lab: Lab) -> None:
    held = lab.submit("--held", "--", "true")
    done = lab.rota("logs", held)
    assert (done.returncode, done.stdout) == (0, b"") and b"has not started: it is held" in done.stderr
    lab.out("cancel", held)
    assert b"never started: it was stopped" in lab.rota("logs", held).stderr
    ran = lab.submit("-G", "0", "--wait", "--", "true")
    done = lab.rota("logs", "--attempt", "5", ran)
    assert done.returncode == 75 and b"has no attempt 5: it made 1" in done.stderr


def test_logs_of_a_lease_say_where_its_output_is(box: Lab) -> None:
    box.start(*RUN, "-G", "1", "sleep", "300")
    box.until_queue(running=1)
    done = box.rota("logs", box.out("queue", "-q").strip())
    assert (done.returncode, done.stdout) == (0, b"") and b"its own terminal" in done.stderr


def test_variables_that_are_not_set_are_named(lab: Lab) -> None:
    done = lab.rota("submit", "-q", "--held", "-e", "NOT_A", "--export", "PATH,NOT_B", "--", "true")
    assert done.returncode == 0 and done.stderr.count(b"\n") == 1
    assert b"NOT_B, NOT_A are not set here" in done.stderr
    assert lab.rota("submit", "-q", "--held", "-e", "HOME", "-e", "NEW=1", "--", "true").stderr == b""


def test_a_held_run_is_explained_without_saying_it_twice(lab: Lab) -> None:
    run_id = lab.submit("-G", "0", "--held", "--", "true")
    explained = lab.out("explain", run_id)
    assert "held: held" not in explained and "unknown" not in explained
    assert "  held" in explained and explained.endswith("start not known\n")
    assert lab.out("eta", run_id) == f"{run_id}: start not known; held; release it to let it start\n"


def test_a_batch_job_is_told_by_its_script(lab: Lab) -> None:
    script = lab.file("train.sh", "#!/bin/sh\n#SBATCH -o out.txt\necho the-text\n")
    run_id = lab.sbatch("-H", script, "--lr", "0.1")
    shown, whole = lab.out("show", run_id), lab.out("show", "--full", run_id)
    assert "train.sh --lr 0.1" in shown and "the-text" not in shown
    assert "\N{REPLACEMENT CHARACTER}" not in whole and "  echo the-text\n" in whole


@pytest.mark.parametrize(
    ("argv", "name", "expected"),
    [
        (("/usr/bin/env", "python3", "-c", "#!/usr/bin/env python3\n1", "a"), "fit.py", "fit.py a  (its text: "),
        (wrap(("/bin/sh", "-c", "make all"), "", "o", "", append=False), "wrap", "/bin/sh -c 'make all'"),
        (("sh", "-c", "echo hi"), "x", "sh -c 'echo hi'"),
    ],
)
def test_what_carries_a_command_is_not_told(argv: tuple[str, ...], name: str, expected: str) -> None:
    import shlex

    assert told(Run({}, "0" * 12, name, shlex.join(argv))).startswith(expected)


def test_a_line_that_cannot_be_split_is_told_as_it_is() -> None:
    assert told(Run({}, "0" * 12, "x", "echo 'open")) == "echo 'open"


def test_changed_lines_are_those_added_and_taken_away() -> None:
    patch = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n same\n-- old\n+new\n same\n"
    assert changed_lines(patch + patch) == 4
    assert changed_lines("") == 0


def test_work_that_was_done_is_no_wait() -> None:
    """Submitted at 0; 100 s in line, 1000 s of work, stopped for 50 s, 500 s lost with a node, 20 s, and to its end."""
    tries = [
        {"id": "r-1", "started": 100.0, "ended": 1100.0, "reason": "preempted: preempted for x"},
        {"id": "r-2", "started": 1150.0, "ended": 1650.0, "reason": "lost"},
        {"id": "r-3", "started": 1670.0, "ended": 1970.0, "reason": "exited"},
    ]
    whole = {"id": "r", "status": "finished", "created_at": 0.0, "started_at": 1670.0, "ended_at": 1970.0}
    ended = made({**whole, "attempts": tries})
    assert (waited(ended), ran(ended)) == (120.0, 1800.0)
    assert "waited 2 min, ran 30 min" in efficiency(ended) and "waited 2 min, ran 30 min" in summary(ended)
    again = made({"id": "r", "status": "queued", "created_at": 0.0, "started_at": 100.0, "attempts": tries[:1]})
    assert (waited(again), ran(again)) == (100.0, 1000.0), "now it is suspended, which is told apart"
    retried = made({**again.raw, "attempts": [{**tries[0], "reason": "lost"}]})
    assert waited(retried) == pytest.approx(time.time() - 1000.0, abs=60)
    live = made({"id": "r", "status": "running", "created_at": 0.0, "attempts": [{"id": "r-1", "started": 7.0}]})
    assert (waited(live), ran(live)) == (7.0, None)
    assert (waited(made({"id": "r"})), ran(made({"id": "r"}))) == (None, None)


ODD = "\x1b]0;owned\x07"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({}, "1" * 12 + " "),
        ({"status": ODD}, "1" * 12 + " \ufffd]0;owned\ufffd"),
        ({"status": "queued"}, "1" * 12 + " queued: start not known"),
        ({"status": "queued", "reasons": [{}]}, "1" * 12 + " queued: start not known"),
        ({"status": "queued", "position": 2, "reasons": ["full"]}, "position 2, full; start not known"),
        ({"status": "ready"}, "held; let it go"),
    ],
)
def test_where_a_run_stands_from_what_any_server_says(said: dict[str, object], shown: str) -> None:
    assert shown in place({"id": "1" * 12, **said})


@pytest.mark.parametrize("said", [{"position": ODD}, {"reasons": 5}, {"id": None, "position": [1]}])
def test_what_is_not_understood_is_said_to_be_so(box: Lab, said: dict[str, object]) -> None:
    """By one line, without what was said on the terminal."""
    run = {"id": "1" * 12, "status": "queued", **said}
    with stub(partial(_same, ok(run))) as server:
        code, out, err = call("submit", "--", "true", ROTA_URL=server.url)
    assert code == 69 and ODD not in out + err and err.count("\n") == 1


def test_a_token_that_has_expired_is_named(tmp_path: Path) -> None:
    with Lab(tmp_path) as lab:
        token = lab.out("token", "create", "--user", "ann", "--expires", "0.05", "-q").strip()
        env = {"PATH": os.environ["PATH"], "HOME": str(lab.home), "PYTHONPATH": SOURCES, "ROTA_URL": lab.server.url}
        env["ROTA_TOKEN"] = token
        until(lambda: " expired" in lab.out("token", "list"), "it has expired")
        done = lab.rota("queue", env=env)
        assert done.returncode == 77 and b"the token from ROTA_TOKEN is not valid or has expired" in done.stderr
        checked = lab.rota("doctor", env=env)
        rows = [line.split()[:2] for line in checked.stdout.decode().splitlines()]
        assert checked.returncode == 1 and ["fail", "token"] in rows and ["ok", "token"] not in rows


def _same(answer: bytes, asked: object) -> bytes:
    return answer


def test_the_doctor_tells_what_the_server_warns_of() -> None:
    health = {"status": "ok", "version": "1", "warnings": ["the server's time is 400 d ahead of the machine's clock"]}
    with stub(partial(_same, ok(health))) as server:
        _, out, _ = call("doctor", ROTA_URL=server.url)
    assert any(line.startswith("warn") and "400 d ahead" in line for line in out.splitlines()), out


def test_who_answers_but_is_no_rota_server(box: Lab) -> None:
    code, _, err = call("queue", ROTA_URL=box.server.lease_url)
    assert code == 69 and f"{box.server.lease_url} is no Rota server" in err and err.count("\n") == 1
    for answer in (ok({}, "301 Moved"), b"HTTP/1.1 404 No\r\nContent-Length: 6\r\n\r\n<html>", ok([1])):
        with stub(partial(_same, answer)) as server:
            code, _, err = call("queue", ROTA_URL=server.url)
        assert code == 69 and f"{server.url} is no Rota server" in err and "ROTA_URL" in err, err


def test_an_answer_that_is_too_long_is_still_one_of_a_rota_server() -> None:
    too_long = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY + 1)
    with stub(partial(_same, too_long)) as server:
        code, _, err = call("queue", ROTA_URL=server.url)
    assert code == 69 and f"the answer is larger than {MAX_BODY} bytes; `rota history` reads" in err
    assert "no Rota server" not in err


def test_https_where_http_is_spoken(box: Lab) -> None:
    code, _, err = call("queue", ROTA_URL=box.server.url.replace("http:", "https:"))
    assert code == 69 and "is it http:// and not https://?" in err and err.count("\n") == 1


def test_a_slip_of_the_finger_is_seen_through() -> None:
    code, _, err = call("submti", "true")
    assert code == 2 and "did you mean `rota submit`" in err
    assert "`rota --help` lists them" in call("xyzzy")[2]
    assert "not both" in call("submit", "--shell", "x", "--", "true")[2]


def test_ctrl_c_while_the_program_is_loaded_is_quiet(tmp_path: Path) -> None:
    """Click itself is the import that is interrupted: its stand-in presses Ctrl-C."""
    (tmp_path / "click.py").write_text(f"import os\nos.kill(os.getpid(), {int(signal.SIGINT)})\nwhile True: pass\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{tmp_path}{os.pathsep}{SOURCES}"}
    done = subprocess.run(
        [sys.executable, "-c", "from rota.cli.start import main; main()"], check=False, env=env, capture_output=True
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_attach_wants_a_terminal() -> None:
    code, _, err = call("attach", "0" * 12)
    assert code == 75 and "needs a terminal" in err


def test_nobody_at_a_port_is_not_a_stranger() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        code, _, err = call("queue", ROTA_URL=f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert code == 69 and "no server answers" in err and "is no Rota server" not in err
