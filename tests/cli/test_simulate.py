"""`rota simulate` as people call it: traces and a real server's past, tables, JSON, files, and what is said wrongly."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rota.cli.main import main
from tests.app.house import PATIENCE_S, until
from tests.cli.lab import Lab
from tests.cli.test_attach import terminal
from tests.doors.server import PROGRAM

HEAD = "job_id,submit_time_s,duration_s,gpus,user,limit_s"
HOSTILE = "</td><script>alert(1)</script>"


def trace(path: Path, jobs: int = 40) -> Path:
    """More than two GPUs can do at a time, so that there is something to wait for."""
    rows = [
        f"j{n},{60 * n},{100 + 370 * n % 900},{1 + n % 2},{'ab'[n % 2]},{600 + 3600 * (n % 2)}" for n in range(jobs)
    ]
    path.write_text("\n".join([HEAD, *rows, f"{HOSTILE},5,50,1,{HOSTILE},60"]) + "\n")
    return path


def rota(*words: str | Path) -> Any:
    """In this process: quick."""
    return CliRunner().invoke(main, ["simulate", *map(str, words)])


def done(*words: str | Path) -> str:
    found = rota(*words)
    assert found.exit_code == 0, (found.output, found.exception)
    out: str = found.stdout
    return out


# -- traces -----------------------------------------------------------------------------------------------------------
def test_without_a_word_auto_stands_beside_easy(tmp_path):
    said = done(trace(tmp_path / "t.csv"), "--nodes", "1x2")
    lines = said.splitlines()
    assert lines[0].startswith("41 jobs of 3 people") and "on 1 node with 2 GPUs" in said
    assert next(line for line in lines if "easy" in line).split() == ["auto", "easy"]
    for row in (
        "mean wait ",
        "jobs that wait > 5 min",
        "mean wait, declared <= 1 h",
        "longest wait / fair turn",
        "(JCT)",
    ):
        assert row in said
    assert "auto lets jobs wait " in said and "--shakes 20" in said
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in said


def test_shakes_are_means_and_deviations_and_the_same_every_time(tmp_path):
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", "easy", "--shakes", "2", "--json")
    first = json.loads(done(*words))
    assert first == json.loads(done(*words))
    assert first != json.loads(done(*words, "--seed", "2"))
    (easy,) = first["policies"]
    assert easy["deviations"]["mean_wait_s"] > 0
    assert first["shakes"] == 2 and "--shakes" not in " ".join(first["says"])
    assert "(" in done(*words[:-1]).split("mean wait ")[1].splitlines()[0]


def test_json_has_plain_numbers_and_all_of_them(tmp_path):
    found = json.loads(
        done(trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", "auto", "--policy", "sjf", "--json")
    )
    assert (found["jobs"], found["cluster"], found["declared"]) == (41, {"nodes": 1, "gpus": 2}, "class")
    assert [one["name"] for one in found["policies"]] == ["auto", "sjf"]
    measures = found["policies"][0]["measures"]
    for name in (
        "mean_wait_s", "p50_wait_s", "p95_wait_s", "max_wait_s", "share_over_5min", "short_mean_wait_s", "mean_jct_s",
        "busy_when_full", "utilisation", "preemptions", "worst_user_over_mean", "jain", "starvation",
    ):  # fmt: skip
        assert isinstance(measures[name], int | float), name
    assert measures["wide_p99_wait_s"] is None, "there was no such job"
    assert found["policies"][0]["user_mean_wait_s"].keys() == {"a", "b", HOSTILE}
    assert found["policies"][0]["deviations"] is None and "compare" not in found
    assert found["says"][0].startswith("auto lets jobs wait")


def test_what_people_declare_and_whether_they_may_be_stopped_matters(tmp_path):
    where = tmp_path / "t.csv"
    rows = [f"j{n},{60 * n},{5000 if n % 5 == 0 else 60},1" for n in range(40)]
    where.write_text("\n".join([HEAD.removesuffix(",user,limit_s"), *rows]) + "\n")

    def run(*words: str) -> Any:
        return json.loads(done(where, "--nodes", "1x2", "--policy", "auto", "--json", *words))["policies"][0][
            "measures"
        ]

    stopped = run()
    assert stopped["preemptions"] > 0
    assert run("--no-preempt")["preemptions"] == run("--preemptible", "none")["preemptions"] == 0
    assert run("--preempt-cost", "0")["mean_wait_s"] <= stopped["mean_wait_s"]
    assert run("--declare", "none")["short_mean_wait_s"] is None
    assert run("--declare", "true")["short_mean_wait_s"] is not None


def test_a_policy_from_a_file_stands_beside_the_one_it_is_named_after(tmp_path):
    (tmp_path / "easy.toml").write_text('base = "easy"\nbackfill_depth = 1\n')
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", "easy", "--policy", tmp_path / "easy.toml")
    found = json.loads(done(*words, "--json"))
    assert [one["name"] for one in found["policies"]] == ["easy", str(tmp_path / "easy.toml")]


def test_a_schedule_a_policy(tmp_path):
    out = tmp_path / "out.csv"
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", "easy", "--policy", "fcfs-strict")
    found = rota(*words, "--schedule", out)
    assert found.exit_code == 0
    assert [line.split()[-1] for line in found.stderr.splitlines()] == [str(out), str(tmp_path / "out.fcfs-strict.csv")]
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41 and rows[0].keys() == {"job_id", "attempt", "start_s", "end_s", "placement"}
    assert rows[0]["placement"] == "node1:1"
    assert out.read_text() != (tmp_path / "out.fcfs-strict.csv").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.fcfs-strict.csv", "t.csv"], (
        "no leavings"
    )
    assert stat.S_IMODE(out.stat().st_mode) & 0o444 == 0o444, "a file like any other"


def test_pictures_as_a_page_a_picture_or_a_directory(tmp_path):
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", "easy", "--plots")
    done(*words, tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page
    done(*words, tmp_path / "r.png")
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG\r\n")
    done(*words, tmp_path / "r.svg")
    assert (tmp_path / "r.svg").read_text().startswith("<svg ")
    done(*words, tmp_path / "new")
    names = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert names == ["gantt-easy.png", "mean-wait.png", "utilisation.png", "waits.png"]
    done(*words, tmp_path / "new")  # once more, over what is there


# -- said wrongly -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "name a TRACE.csv, or say --since 30d"),
        ("t.csv --since 30d", "not both"),
        ("t.csv", "add --nodes, such as --nodes 2x8"),
        ("t.csv --nodes 2x8 --compare live", "a trace does not say how long its jobs waited"),
        ("--since 30d --nodes 2x8 --compare live", "leave --nodes out"),
        ("t.csv --nodes 0x8", "--nodes"),
        ("t.csv --nodes nowhere.toml", "nowhere.toml"),
        ("t.csv --nodes 1x1", "line 3: gpus: job j1 asks for 2"),
        ("absent.csv --nodes 1x2", "absent.csv: cannot be read"),
        (". --nodes 1x2", "cannot be read"),
        ("bad.csv --nodes 1x2", "bad.csv: line 2: duration_s: '-5' is wrong"),
        ("t.csv --nodes 1x2 --policy best", "best: no such policy; use one of"),
        ("t.csv --nodes 1x2 --policy absent.toml", "absent.toml: cannot be read"),
        ("t.csv --nodes 1x2 --policy bad.toml", "bad.toml: agign_s: unknown key"),
        ("t.csv --nodes 1x2 --policy easy --policy easy", "easy is named twice"),
        ("t.csv --nodes 1x2" + " --policy easy" * 13, "13 are too many"),
        ("t.csv --nodes 1x2 --shakes -1", "--shakes"),
        ("t.csv --nodes 1x2 --shakes 1e3", "--shakes"),
        ("t.csv --nodes 1x2 --preempt-cost nan", "--preempt-cost"),
        ("t.csv --nodes 1x2 --declare often", "--declare"),
        ("t.csv --nodes 1x2 --preemptible some", "--preemptible"),
        ("t.csv --nodes 1x2 --compare yesterday", "--compare"),
        ("--since yesterday", "is not a time"),
        ("--since nan", "is not a time"),
        ("t.csv --nodes 1x2 --plots r.pdf", "r.pdf: pictures are .html, .png, .svg, or a directory"),
        ("t.csv --nodes 1x2 --plots file", "is a file"),
        ("t.csv --nodes 1x2 --plots absent/r.png", "there is no directory absent"),
        ("t.csv --nodes 1x2 --schedule absent/o.csv", "there is no directory absent"),
        ("t.csv --nodes 1x2 --schedule .", "is a directory"),
        ("t.csv --nodes 1x2 --schedule ../{here}/t.csv", "is what is read"),
        ("t.csv --nodes 1x2 --schedule r.svg --plots r.svg", "r.svg is for the pictures already"),
        ("t.csv --nodes 1x2 --processes 0", "--processes"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_done(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rota.sim.many.answer", lambda *_: pytest.fail("it was simulated"))
    trace(Path("t.csv"))
    Path("bad.csv").write_text(f"{HEAD}\nj0,0,-5,1,a,60\n")
    Path("bad.toml").write_text("agign_s = 3\n")
    Path("file").touch()
    before = sorted(Path().iterdir())
    found = rota(*words.format(here=tmp_path.name).split())
    assert found.exit_code == 2, (found.output, found.exception)
    assert said in " ".join(found.stderr.replace("│", " ").split())
    assert "Traceback" not in found.output and found.stdout == ""
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("option", ["--plots", "--schedule"])
def test_an_empty_name_is_not_the_current_directory(tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    found = rota(trace(Path("t.csv")), "--nodes", "1x2", option, "")
    assert found.exit_code == 2 and f"'{option}': is empty" in " ".join(found.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_trace_that_does_not_say_who_may_be_stopped_is_told_how_it_is_taken(tmp_path):
    where = trace(tmp_path / "t.csv", jobs=3)
    words = (where, "--nodes", "1x2", "--policy", "easy")
    said = " ".join(done(*words).split())
    assert "no column `preemptible`: every job is taken to be one that may be stopped" in said
    assert "--preemptible none" in said and "Rows with x are ratios: " in said
    for settled in (("--preemptible", "all"), ("--no-preempt",)):
        assert "no column" not in done(*words, *settled)
    where.write_text("job_id,submit_time_s,duration_s,gpus,preemptible\nj,0,60,1,0\n")
    said = done(*words)
    assert "no column" not in said and said.startswith("1 job of 1 person")


def test_a_policy_under_which_a_job_can_never_start_is_said_and_writes_nothing(tmp_path):
    (tmp_path / "one.toml").write_text('base = "easy"\n[limits]\ngpus = 1\n')
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--policy", tmp_path / "one.toml", "--schedule")
    found = rota(*words, tmp_path / "out.csv")
    assert found.exit_code == 75
    assert "look at the limits of the policy" in found.stderr
    assert not (tmp_path / "out.csv").exists()


def test_files_are_there_whole_or_not_at_all(tmp_path, monkeypatch):
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("rota.sim.schedule.write_schedule", fails)
    page = tmp_path / "r.html"
    page.write_text("the old one")
    words = (trace(tmp_path / "t.csv"), "--nodes", "1x2", "--schedule", tmp_path / "out.csv", "--plots")
    assert rota(*words, page).exit_code == rota(*words, tmp_path / "new").exit_code == 74
    assert page.read_text() == "the old one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "t.csv"]


def test_the_policies_in_the_help_are_those_there_are():
    from rota.core.presets import NAMES

    shown = " ".join(CliRunner().invoke(main, ["simulate", "--help"]).output.split())
    assert f"Policies: {' '.join(NAMES)}." in shown


def test_a_bar_on_a_terminal_and_none_elsewhere(tmp_path):
    where = trace(tmp_path / "t.csv")
    argv = [*PROGRAM, "simulate", str(where), "--nodes", "1x2", "--policy", "easy", "--json"]
    quiet = subprocess.run(argv, capture_output=True, check=True)
    assert quiet.stderr == b""
    with terminal() as (ours, screen):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=screen, env={**os.environ, "TERM": "xterm"}) as ran:
            out, _ = ran.communicate(timeout=PATIENCE_S)
        shown = os.read(ours, 1 << 16).decode()
    assert json.loads(out) == json.loads(quiet.stdout)
    assert "simulating [" in shown and shown.endswith("\r"), "and it is gone at the end"


# -- the server's own past --------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Six runs of three people on 2 x 4 GPUs, of which two had to wait; and some that are no history."""
    with Lab(tmp_path_factory.mktemp("past")) as lab:
        lab.server.post("/orchestrator/stop").ok()  # they come at once, however long it takes to send them
        ids = [
            lab.server.submit("exec sleep 1.5", 4, user=user, time_limit_seconds=3600)
            for user in ("ann", "ann", "ben", HOSTILE)
        ]
        ids += [lab.server.submit("true", 1, user="ben", priority=1) for _ in range(2)]
        lab.server.post("/orchestrator/start").ok()
        ended = lab.submit("-G", "8", "--held", "--", "true")
        lab.rota("cancel", ended)
        lab.submit("-G", "0", "--wait", "--", "true")
        for run_id in ids:
            lab.wait_for(run_id, "finished")
        lab.submit("-G", "8", "--", "sleep", "1000")
        lab.until_queue(running=1)
        yield lab


def test_the_servers_history_is_simulated_on_its_own_machines(past):
    found = past.json("simulate", "--since", "30d")
    assert found["jobs"] == 6 and found["cluster"] == {"nodes": 2, "gpus": 8}
    live = past.json("policy", "show")["scheduling_algorithm"]
    names = [one["name"] for one in found["policies"]]
    assert f"live:{live}" in names and len(names) == 2
    assert found["history"]["left_out"] == {"not ended yet": 1, "never started": 1, "without a GPU": 1}
    said = past.out("simulate", "--since", "1h", "--policy", "sjf", "--nodes", "1x4")
    assert "on 1 node with 4 GPUs" in said and "Not in it, of the server's runs: 1 not ended yet" in said
    assert found["history"]["not_ended"]["runs"] == 1 and "1 run that has not ended yet held" in said


def test_who_would_have_waited_more_and_less(past):
    words = ("simulate", "--since", "1h", "--policy", "fcfs-strict", "--compare", "live")
    found = past.json(*words)
    assert [one["name"] for one in found["policies"]] == ["fcfs-strict"]
    assert found["live"]["name"] == "what happened"
    assert found["live"]["measures"]["max_wait_s"] >= 1, "two had to wait for the first two"
    (one,) = found["compare"]
    assert (one["policy"], one["runs"]) == ("fcfs-strict", 6)
    assert {person["user"]: person["runs"] for person in one["people"]} == {"ann": 2, "ben": 3, HOSTILE: 1}
    assert one["live_mean_wait_s"] == pytest.approx(found["live"]["measures"]["mean_wait_s"])
    assert found["fidelity"]["policy"] == "live:auto"
    assert abs(found["fidelity"]["simulated_mean_wait_s"] - found["fidelity"]["live_mean_wait_s"]) < 10
    said = " ".join(past.out(*words).split())
    assert "Under fcfs-strict these 6 runs would have waited" in said
    assert "Of 3 people" in said and "How far to believe it" in said and "what happened" in said


def test_the_policy_that_the_server_runs_has_no_winners(past):
    words = ("simulate", "--since", "1h", "--policy", "auto", "--compare", "live")
    (one,) = past.json(*words)["compare"]
    assert one["runs_already"] and one["people"] == one["gains"] == one["losses"] == []
    said = " ".join(past.out(*words).split())
    assert "auto is what the server runs already" in said and "would have waited" not in said
    (other,) = past.json(*words, "--preemptible", "all")["compare"]
    assert not other["runs_already"] and other["people"], "other jobs are another question"


def test_a_page_about_real_people_is_harmless(past):
    past.out("simulate", "--since", "1h", "--compare", "live", "--plots", "report.html")
    page = (past.home / "report.html").read_text()
    assert "What auto would have changed" in page or "What easy would have changed" in page
    assert "<script" not in page and "&lt;script&gt;" in page


def test_a_time_in_which_nothing_ran(past):
    with past.client() as client:
        newest = max(run.ended_at or 0.0 for run in client.runs())
    until(lambda: time.time() > newest + 2.0, "the last of them is a while ago")
    found = past.rota("simulate", "--since", "1s")
    assert found.returncode == 75
    assert b"nothing to simulate" in found.stderr


def test_no_server():
    found = rota("--since", "30d", "--server", "http://127.0.0.1:1")
    assert found.exit_code == 69
    assert "no server answers" in found.stderr


def test_files_of_policies_with_like_names_do_not_overwrite_each_other(tmp_path):
    from rota.cli.simulate.outputs import Outputs

    outputs = Outputs()
    for content in ("first", "second", "third"):
        outputs.text(tmp_path / "out.a-b.csv", content)
    assert [(path.name, path.read_text()) for path in outputs.write()] == [
        ("out.a-b.csv", "first"),
        ("out.a-b-2.csv", "second"),
        ("out.a-b-3.csv", "third"),
    ]
