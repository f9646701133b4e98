"""The options that say how a run is warned and stopped, and how that is told; against a real server."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rota.cli.slurm import values
from rota.cli.slurm.batchopts import TABLE
from rota.cli.slurm.options import UsageError, parse
from rota.cli.slurm.request import cap_grace, shape, unsent
from tests.app.house import until
from tests.cli.lab import Lab
from tests.cli.rota import Shell

USR1 = 10
HEEDS = "trap 'echo warned; exit 7' USR1; while :; do sleep 0.01; done"


def test_every_word_about_stopping_arrives_and_is_shown(lab: Lab) -> None:
    words = ("-t", "1w", "--preemptible", "--checkpoint-signal", "usr1", "--grace", "60s", "--warn", "5m")
    run_id = lab.submit("--held", *words, "--", "true")
    run = lab.json("show", run_id)
    assert (run["time_limit_seconds"], run["preemptible"], run["checkpoint_signal"]) == (604800.0, True, USR1)
    assert (run["grace_seconds"], run["warn_signal"], run["warn_seconds"]) == (60.0, USR1, 300.0)
    told = lab.out("show", run_id)
    assert "SIGUSR1 5 min before the limit" in told
    assert "for others, by SIGUSR1 with 60 s of grace" in told
    sweep_id = lab.out("sweep", "s", "--base", "true", "-p", "x=1..2", "--held", "-q", *words).strip()
    for run_id in lab.json("show", sweep_id)["run_ids"]:
        assert lab.json("show", run_id)["warn_seconds"] == 300.0


def test_a_filler_stands_in_the_queue_as_one(lab: Lab) -> None:
    lab.submit("-G", "8", "-N", "2", "--", "sleep", "1000")
    lab.until_queue(running=1)
    run_id = lab.submit("-G", "8", "-N", "2", "--filler", "-t", "20m", "-J", "eval", "--", "true")
    (line,) = [line for line in lab.out("queue").splitlines() if line.startswith(run_id)]
    assert " filler " in line
    assert "at once, for anybody: a filler" in lab.out("show", run_id)


def test_a_checkpoint_signal_alone_makes_nobody_make_way_and_that_is_said(lab: Lab) -> None:
    def told(*words: str) -> str:
        return lab.rota("submit", "--held", "--checkpoint-signal", "USR1", *words, "--", "true").stderr.decode()

    note = "note: without --preemptible the run does not make way for others, and the checkpoint signal is "
    assert f"{note}only sent as the warning before the time limit" in told("-t", "1h")
    assert f"{note}never sent" in told() and f"{note}never sent" in told("-t", "1h", "--warn", "0")
    assert f"{note}never sent" in told("-t", "1h", "--dry-run", "--warn-signal", "USR2")
    assert "make way" not in told("-t", "1h", "--preemptible")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint-signal", "HELLO"], "'HELLO' is no signal; write a name such as USR2"),
        (["--checkpoint-signal", "KILL"], "no program can hear SIGKILL, so it could not save; use USR2, USR1, TERM"),
        (["--checkpoint-signal", "19"], "no program can hear SIGSTOP"),
        (["--grace", "soon"], "'soon' is not a time"),
        (["--warn-signal", "USR1"], "there is no time limit to warn of"),
        (["--filler"], "give a time limit, or an estimate, of at most 1 h"),
        (["--filler", "-t", "20m", "--grace", "1m"], "a filler is killed at once"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_is_done(lab: Lab, words: list[str], said: str) -> None:
    done = lab.rota("submit", *words, "--", "true")
    assert done.returncode != 0
    assert said in done.stderr.decode()


def test_who_ignored_its_signal_is_shown_as_such(lab: Lab) -> None:
    with lab.client() as client:
        client.set_policy(enable_preemption=True)
        try:
            line = "trap '' USR1; echo ready; while :; do sleep 1000; done"
            words = (
                "-p",
                "low",
                "--preemptible",
                "--checkpoint-signal",
                "USR1",
                "--grace",
                "0.3",
                "-G",
                "8",
                "-N",
                "2",
            )
            run_id = lab.submit(*words, "--shell", line)
            until(lambda: client.logs(run_id).content.count("ready") == 2, "its handlers")
            lab.submit("-p", "critical", "-G", "8", "-N", "2", "--", "sleep", "1000")
            until(lambda: client.run(run_id).preemptions, "it has made way")
        finally:
            lab.out("policy", "set", "enable_preemption=default")  # other tests have the same server
    told = lab.out("show", run_id)
    assert "it ignored SIGUSR1 and was killed after its grace of 0.3 s" in told
    assert "stopped 1 time for others, " in told
    assert "it ignored SIGUSR1" in lab.out("history")


def test_a_local_run_is_warned_too(shell: Shell) -> None:
    done = shell.local("-t", "60", "--warn-signal", "USR1", "--warn", "52", "--", "sh", "-c", HEEDS)
    assert (done.returncode, done.stdout) == (7, b"warned\n")
    assert b"it had been warned of its time limit" in done.stderr
    assert b"filler: " in shell.local("--filler", "--", "true").stderr


# -- a run that does not want to go -----------------------------------------------------------------------------------
DEAF = "trap '' TERM; echo ready; while :; do sleep 1000; done"


def deaf(lab: Lab, *words: str) -> str:
    run_id = lab.submit(*words, "--", "sh", "-c", DEAF)
    until(lambda: "ready" in lab.out("logs", run_id), "it ignores TERM")
    return run_id


def test_a_cancel_tells_until_when_it_may_live_and_now_kills_it(lab: Lab) -> None:
    run_id = deaf(lab, "-G", "0", "--grace", "5m")
    told = lab.out("cancel", run_id)
    assert re.match(rf"{run_id} stopping: killed in [45] min \(", told), told
    assert told.endswith(f"at the latest; at once with: rota cancel --now {run_id}\n")
    assert lab.state(run_id) == "running"
    assert re.search(r"^stopping +cancelled by root; killed at .+ at the latest$", lab.out("show", run_id), re.M)
    (row,) = [line for line in lab.out("queue").splitlines() if line.startswith(run_id)]
    assert row.split()[1] == "stopping"
    assert lab.out("cancel", "--now", run_id) == f"{run_id} stopping: killed now\n"
    lab.wait_for(run_id, "stopped")


def test_a_forced_cancel_of_what_can_be_killed_is_a_plain_one(lab: Lab) -> None:
    run_id = deaf(lab, "-G", "0", "--grace", "5m")
    done = lab.rota("cancel", "--force", run_id)
    assert (done.returncode, done.stdout.decode()) == (0, f"{run_id} cancelled\n")
    assert b"if it has not ended in 10 s, its GPUs are given back all the same" in done.stderr
    assert "by force" not in lab.out("show", run_id)
    refused = lab.rota("cancel", "--force", "--sweep", "aaaaaaaaaaaa")
    assert (refused.returncode, b"--force ends single runs" in refused.stderr) == (2, True)


def test_scancel_with_the_signal_kill_ends_a_job_at_once(lab: Lab) -> None:
    for words in (["-s", "KILL"], ["--signal=9"]):
        run_id = deaf(lab, "-G", "0", "--grace", "5m")
        lab.slurm("scancel", *words, run_id)
        lab.wait_for(run_id, "stopped")
    refused = lab.slurm_all("scancel", "-s", "USR1", "aaaaaaaaaaaa")
    assert refused.returncode == 1
    assert b"besides that only KILL can be sent" in refused.stderr


def test_who_is_overdue_is_told_by_eta_explain_and_the_calendar(lab: Lab) -> None:
    run_id = deaf(lab, "-G", "8", "-N", "2", "--grace", "5m")
    lab.out("cancel", run_id)
    lab.out("reserve", "--gpus", "8", "--for", "1h", "--name", "demo")
    waiting = lab.submit("-G", "1", "--", "true")
    said = f"{run_id} of "
    for words in (("eta", waiting), ("explain", waiting), ("reserve", "list")):
        told = lab.out(*words)
        assert said in told and f"rota cancel --now {run_id}" in told, told
    lab.out("reserve", "cancel", "demo")
    lab.out("cancel", "--now", run_id)
    lab.wait_for(waiting, "finished")


def test_a_slurm_script_that_wants_longer_to_save_than_the_policy_allows_is_taken_and_told(lab: Lab) -> None:
    fields: dict[str, Any] = {"grace_seconds": 600}
    assert cap_grace(fields, {"max_grace_seconds": 300.0, "max_checkpoint_grace_seconds": 600.0}) == ""
    assert cap_grace(fields, {}) == "" and fields == {"grace_seconds": 600}, "an earlier server has no cap"
    told = lab.slurm_all("sbatch", "-H", "-t", "60", "--requeue", "--signal=B:USR1@900", "--parsable", "--wrap", "true")
    assert b"a preempted job is killed 600 s after it, not 900" in told.stderr
    run = lab.json("show", told.stdout.decode().strip())
    assert (run["grace_seconds"], run["warn_seconds"]) == (600.0, 900.0), "before the limit it is asked as early"


# -- Slurm's words ----------------------------------------------------------------------------------------------------
def test_a_batch_script_is_warned_as_slurm_would(lab: Lab) -> None:
    """The shell of the script has no trap and lives; what it runs has one."""
    lab.file(
        "job.sh", f'#!/bin/bash\n#SBATCH -t 1:00 --signal=USR1@52\nsh -c "{HEEDS}"\necho "code $?" > out\nexit 5\n'
    )
    lab.slurm("sbatch", "--wait", "job.sh", code=5)
    assert (lab.home / "out").read_text() == "code 7\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-t", "10", "--signal=USR1@300"], {"warn_signal": USR1, "warn_seconds": 300}),
        (["-t", "10", "--signal=B:10"], {"warn_signal": USR1, "warn_seconds": 60}),
        (["--signal=USR1@300"], {}),
        (["-t", "1", "--signal=USR1@300"], {}),
        (["--requeue"], {"preemptible": True}),
        (["--requeue", "--no-requeue"], {"max_retries": 0}),
        (["--no-requeue", "--requeue"], {"preemptible": True}),
        (["--requeue", "--signal=USR1@90"], {"preemptible": True, "checkpoint_signal": USR1, "grace_seconds": 90}),
        (["--requeue", "--signal=USR1@1"], {"preemptible": True, "checkpoint_signal": USR1, "grace_seconds": 10}),
    ],
)
def test_signal_and_requeue(words: list[str], expected: dict[str, Any]) -> None:
    fields = shape(parse(words, TABLE))
    assert {name: fields[name] for name in fields if name not in ("gpu_count", "time_limit_seconds")} == expected


def test_a_signal_that_cannot_be_sent_is_noted() -> None:
    for words, said in (
        (["--signal=USR1"], "there is none (-t)"),
        (["-t", "1", "--signal=USR1@60"], "before the start"),
        (["-t", "2", "--signal=USR1@60"], ""),
        ([], ""),
    ):
        assert said in unsent(parse(words, TABLE)) and bool(said) == bool(unsent(parse(words, TABLE)))


@pytest.mark.parametrize("text", ["", "HELLO", "USR1@", "USR1@soon", "@60", "X:USR1", "99", "USR1@999999"])
def test_no_signals(text: str) -> None:
    with pytest.raises(UsageError, match="--signal: "):
        values.signal(text)
