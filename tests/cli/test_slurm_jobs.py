"""sbatch, squeue, scancel, sinfo and sacct against a real server."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.app.house import until
from tests.cli.lab import Lab, tool

ID = re.compile(r"[0-9a-f]{12}")


def test_a_script_runs_with_its_options_arguments_and_files(lab: Lab) -> None:
    lab.file(
        "job.sh",
        "#!/bin/bash\n"
        "#SBATCH -J demo --gres=gpu:2 -t 10\n"
        "#SBATCH -o out-%x-%j.txt -e err.txt\n"
        'echo "$0 $# $2 $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES $SLURM_SUBMIT_DIR $PWD"\n'
        "echo bad >&2\n"
        "umask\n",
    )
    said = lab.slurm("sbatch", "--wait", "job.sh", "one", "two words")
    match = re.fullmatch(r"Submitted batch job ([0-9a-f]{12})\n", said)
    assert match is not None
    run_id = match[1]
    lines = (lab.home / f"out-demo-{run_id}.txt").read_text().splitlines()
    assert lines[0] == f"job.sh 2 two words {run_id} 0,1 {lab.home} {lab.home}"
    assert (lab.home / "err.txt").read_text() == "bad\n"
    run = lab.show(run_id)
    assert (run["name"], run["gpu_count"], run["time_limit_seconds"]) == ("demo", 2, 600)
    assert f"output goes to out-demo-{run_id}.txt" in lab.server.get(f"/runs/{run_id}/logs").ok()["content"]


def test_the_command_line_wins_over_the_script(lab: Lab) -> None:
    lab.file("job.sh", "#!/bin/sh\n#SBATCH -J fromscript -G 4\ntrue\n")
    run = lab.show(lab.sbatch("-J", "fromline", "-G1", "job.sh"))
    assert (run["name"], run["gpu_count"]) == ("fromline", 1)


def test_a_script_from_stdin(lab: Lab) -> None:
    run_id = lab.slurm("sbatch", "--parsable", given=b"#!/bin/sh\n#SBATCH -G1\nexit 3\n").strip()
    lab.wait_for(run_id, "failed")
    run = lab.show(run_id)
    assert (run["name"], run["exit_code"]) == ("sbatch", 3)


def test_wait_exits_as_the_job_did(lab: Lab) -> None:
    for line, code in (("true", 0), ("exit 42", 42), ("kill -9 $$", 137)):
        assert lab.slurm("sbatch", "--wait", "--wrap", line, code=code).startswith("Submitted batch job ")


def test_chdir_and_export(lab: Lab) -> None:
    (lab.home / "sub").mkdir()
    lab.env |= {"MINE": "1", "OTHER": "2", "ROTA_TOKEN": ""}
    line = 'pwd; echo "$MINE-$OTHER-$ADDED"'
    lab.slurm("sbatch", "--wait", "-D", "sub", "-o", "out", "--export=MINE,ADDED=x", "--wrap", line)
    assert (lab.home / "sub" / "out").read_text() == f"{lab.home}/sub\n1--x\n"


REFUSED = [
    (["--nonsense", "x.sh"], "unrecognized option '--nonsense'"),
    (["-w", "node1", "--wrap", "true"], "--nodelist: Rota chooses the nodes"),
    (["missing.sh"], "Unable to open file missing.sh"),
    (["--wrap", "true", "x"], "not permitted with --wrap"),
    (["-G", "5", "-N", "1", "--wrap", "true"], "never give 5 GPUs"),
    (["-d", "afterok:aaaaaaaaaaaa", "--wrap", "true"], "aaaaaaaaaaaa is not known"),
]


def test_what_is_refused(lab: Lab) -> None:
    for words, said in REFUSED:
        ended = lab.slurm_all("sbatch", *words)
        assert (ended.returncode, ended.stdout) == (1, b""), words
        assert said in ended.stderr.decode()
    assert lab.server.get("/runs").ok() == []


def test_what_is_ignored_is_said(lab: Lab) -> None:
    ended = lab.slurm_all("sbatch", "-q", "long", "--mail-type=END", "--wrap", "true")
    assert ended.returncode == 0
    assert ended.stderr.decode().splitlines() == [
        "sbatch: --qos is ignored: Rota has one queue",
        "sbatch: --mail-type is ignored: set up notifications on the server",
    ]


def test_test_only_makes_nothing(lab: Lab) -> None:
    ended = lab.slurm_all("sbatch", "--test-only", "-G2", "-J", "maybe", "--wrap", "true")
    assert ended.returncode == 0
    assert b"Job maybe is accepted with 2 GPUs" in ended.stderr
    assert lab.slurm("sbatch", "--test-only", "-G99", "--wrap", "true", code=1) == ""
    assert lab.server.get("/runs").ok() == []


def test_dependencies_hold_a_job_back(lab: Lab) -> None:
    first = lab.sbatch("-G1", "--wrap", "sleep 300")
    lab.wait_for(first, "running")
    after_ok = lab.sbatch("-d", f"afterok:{first}", "--wrap", "true")
    after_any = lab.sbatch("-d", f"afterany:{first}", "--wrap", "true")
    after_not = lab.sbatch("-d", f"afternotok:{first}", "--wrap", "true")
    after_start = lab.sbatch("-d", f"after:{first}", "--wrap", "true")
    lab.wait_for(after_start, "finished")
    assert lab.state(after_any) == "queued"
    assert lab.slurm("squeue", "-h", "-j", after_ok, "-o", "%t %R") == "PD (Dependency)\n"
    lab.slurm("scancel", first)
    for run_id in (after_any, after_not):
        lab.wait_for(run_id, "finished")
    lab.wait_for(after_ok, "stopped")


def test_a_start_that_has_not_been_cannot_be_waited_for(lab: Lab) -> None:
    held = lab.sbatch("-H", "--wrap", "true")
    assert lab.state(held) == "ready"
    ended = lab.slurm_all("sbatch", "-d", f"after:{held}", "--wrap", "true")
    assert ended.returncode == 1
    assert b"has not started" in ended.stderr


def test_an_array_is_one_run_an_index_under_a_cap(lab: Lab) -> None:
    line = 'echo "$SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT in $SLURM_ARRAY_JOB_ID"; '
    line += "while [ ! -e go ]; do sleep 0.05; done"
    array = lab.sbatch("-a", "1-7:2%2", "-G1", "-o", "arr-%A-%2a.txt", "--wrap", line)
    assert ID.fullmatch(array)

    def states() -> list[str]:
        return lab.slurm("squeue", "-h", "-j", array, "-o", "%i %t").splitlines()

    until(lambda: sum(line.endswith(" R") for line in states()) == 2, "two run")
    shown = states()
    assert sorted(line.split()[0] for line in shown) == [f"{array}_{index}" for index in (1, 3, 5, 7)]
    assert sum(line.endswith(" PD") for line in shown) == 2, "the cap holds though GPUs are free"
    lab.slurm("scancel", f"{array}_7")
    (lab.home / "go").touch()
    until(lambda: [line for line in states() if line.endswith((" R", " PD", " CF"))] == [], "all ended")
    assert sorted(states()) == [f"{array}_1 CD", f"{array}_3 CD", f"{array}_5 CD", f"{array}_7 CA"]
    assert (lab.home / f"arr-{array}-03.txt").read_text() == f"3 of 4 in {array}\n"
    lines = lab.slurm("sacct", "-n", "-P", "-j", array, "-o", "JobID,State").splitlines()
    assert lines == [f"{array}_1|COMPLETED", f"{array}_3|COMPLETED", f"{array}_5|COMPLETED", f"{array}_7|CANCELLED"]


def test_a_held_array_keeps_its_cap_when_it_is_released(lab: Lab) -> None:
    array = lab.sbatch("-H", "-a", "0-3%2", "-G1", "--wrap", "sleep 300")
    assert lab.json("show", array)["parallel"] == 2
    assert lab.out("release", array) == f"sweep {array} released\n"
    lab.until_queue(running=2, queued=2)
    assert lab.json("show", array)["parallel"] == 2


def test_a_sweep_that_is_held_says_how_its_cap_is_set(lab: Lab) -> None:
    said = lab.rota("sweep", "x", "--base", "sleep 300 #", "-p", "a=1..2", "--parallel", "1", "--held", "-q")
    sweep_id = said.stdout.decode().strip()
    assert f"rota release --parallel 1 {sweep_id}" in said.stderr.decode()
    assert lab.out("release", "--parallel", "1", sweep_id) == f"sweep {sweep_id} released\n"
    lab.until_queue(running=1, queued=1)


def test_an_array_that_is_refused_leaves_nothing_behind(lab: Lab) -> None:
    ended = lab.slurm_all("sbatch", "-a", "0-3", "-G99", "--wrap", "true")
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert lab.server.get("/queue").ok()["queued"] == []
    assert lab.server.get("/runs").ok() == []


def test_a_whole_array_can_be_cancelled_and_waited_for(lab: Lab) -> None:
    process = lab.start(*tool("sbatch"), "--parsable", "--wait", "-a", "0-2", "--wrap", "sleep 300")
    assert process.stdout is not None
    array = process.stdout.readline().decode().strip()
    until(lambda: lab.slurm("squeue", "-h", "-j", array, "-o", "%t") == "R\n" * 3, "all run")
    lab.slurm("scancel", array)
    assert process.wait(60) == 143


def test_squeue_shows_what_waits_in_order_and_what_runs(lab: Lab) -> None:
    running = lab.sbatch("-G8", "-N2", "-J", "holds", "--wrap", "sleep 300")
    lab.wait_for(running, "running")
    first = lab.sbatch("-G4", "-J", "second in line", "--wrap", "true")
    second = lab.sbatch("-G4", "-p", "fast", "--wrap", "true")
    lines = lab.slurm("squeue").splitlines()
    assert lines[0].split() == ["JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"]
    assert [line.split()[0] for line in lines[1:]] == [first, second, running]
    assert lines[1].endswith("(Resources)")
    assert lines[2].split()[1] == "fast"
    assert lines[3].split()[4] == "R"
    assert lines[3].endswith("node[1-2]")
    assert lab.slurm("squeue", "-h", "-t", "R", "-o", "%i|%.4t|%j|%N") == f"{running}|   R|holds|node[1-2]\n"
    assert lab.slurm("squeue", "-h", "-n", "holds", "-o", "%i") == f"{running}\n"
    assert lab.slurm("squeue", "-h", "-u", "nobody") == ""
    assert len(lab.slurm("squeue", "-h", "--me").splitlines()) == 3
    start = lab.slurm("squeue", "-h", "--start", "-j", first, "-o", "%S").strip()
    assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d", start), start


WRONG = [
    (["-j", "aaaaaaaaaaaa"], "Invalid job id specified"),
    (["-t", "SLEEPING"], "Invalid job state specified: SLEEPING"),
    (["-o", "%!"], "%! is not known"),
    (["--json"], "rota queue --json"),
    (["word"], "Unrecognized option: word"),
]


def test_squeue_says_what_is_wrong(lab: Lab) -> None:
    for words, said in WRONG:
        ended = lab.slurm_all("squeue", *words)
        assert ended.returncode == 1, words
        assert said in ended.stderr.decode()


def test_scancel_ends_what_waits_before_what_runs(lab: Lab) -> None:
    array = lab.sbatch("--array=1-3", "-G8", "-N2", "--wrap", "sleep 300")
    lab.until_queue(running=1, queued=2)
    said = lab.slurm_all("scancel", "-v", array).stderr.decode().splitlines()
    assert said == [f"scancel: Terminating job {array}_{index}" for index in (2, 3, 1)]
    assert lab.slurm("sacct", "-n", "-X", "-j", f"{array}_2", "-o", "state").split() == ["CANCELLED"]


def test_scancel_by_condition(lab: Lab) -> None:
    running = lab.sbatch("-J", "one", "--wrap", "sleep 300")
    lab.wait_for(running, "running")
    held = lab.sbatch("-H", "-J", "two", "--wrap", "true")
    lab.slurm("scancel", "-t", "PENDING", "--me")
    lab.wait_for(held, "stopped")
    assert lab.state(running) == "running"
    lab.slurm("scancel", "-n", "other")
    assert lab.state(running) == "running"
    lab.slurm("scancel", "-u", "root", "-n", "one")
    lab.wait_for(running, "stopped")
    assert lab.slurm("scancel", running) == "", "what has ended is not an error"
    ended = lab.slurm_all("scancel", "aaaaaaaaaaaa", "nonsense")
    assert ended.returncode == 1
    assert b"Kill job error on job id aaaaaaaaaaaa: Invalid job id specified" in ended.stderr
    assert lab.slurm("scancel", code=1) == ""


def test_sinfo(lab: Lab) -> None:
    assert lab.slurm("sinfo", "-h", "-o", "%P %a %l %D %t %N") == "rota* up infinite 2 idle node[1-2]\n"
    running = lab.sbatch("-G4", "--wrap", "sleep 300")
    lab.wait_for(running, "running")
    lab.server.post("/nodes/node2/drain", {"why": "new fan"}).ok()
    assert lab.slurm("sinfo", "-N", "-h", "-o", "%N %T") == "node1 allocated\nnode2 drained\n"
    assert lab.slurm("sinfo", "-h", "-R").split() == ["new", "fan", "Unknown", "node2"]
    assert lab.slurm("sinfo", "-h", "-t", "alloc", "-o", "%N") == "node1\n"
    lab.server.post("/nodes/node2/undrain").ok()
    assert lab.slurm("sinfo").splitlines()[0] == "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST"


def test_sacct(lab: Lab) -> None:
    good = lab.sbatch("-J", "good", "-A", "lab", "-G1", "--wrap", "true")
    bad = lab.sbatch("-J", "bad", "--wrap", "exit 9")
    killed = lab.sbatch("-J", "killed", "--no-requeue", "--wrap", "kill -SEGV $$")
    late = lab.sbatch("-J", "late", "-t", "0:01", "--wrap", "exec sleep 300")
    for run_id, status in ((good, "finished"), (bad, "failed"), (killed, "failed"), (late, "failed")):
        lab.wait_for(run_id, status)
    form = "JobID,JobName,Account,State,ExitCode"
    assert lab.slurm("sacct", "-P", "-n", "-j", f"{good},{bad},{killed},{late}", "-o", form).splitlines() == [
        f"{good}|good|lab|COMPLETED|0:0",
        f"{bad}|bad|root|FAILED|9:0",
        f"{killed}|killed|root|FAILED|0:{int(signal.SIGSEGV)}",
        f"{late}|late|root|TIMEOUT|0:15",
    ]
    head, rule, line = lab.slurm("sacct", "-j", good).splitlines()
    assert head.split() == ["JobID", "JobName", "Partition", "Account", "AllocCPUS", "State", "ExitCode"]
    assert set(rule) == {"-", " "}
    assert line.split() == [good, "good", "rota", "lab", "1", "COMPLETED", "0:0"]
    assert lab.slurm("sacct", "-X", "-n", "-P", "-s", "F,TO", "--name=bad,late", "-o", "JobName%-20") == "bad\nlate\n"
    assert lab.slurm("sacct", "-n", "-S", "now+1hour", "-E", "now+2hours") == ""
    assert lab.slurm("sacct", "-n", "-u", "nobody") == ""
    assert lab.slurm("sacct", "-n", "-j", "aaaaaaaaaaaa") == ""
    assert lab.slurm("sacct", "-p", "-n", "-j", good, "-o", "State,Elapsed").startswith("COMPLETED|00:0")
    assert lab.slurm("sacct", "-o", "Nonsense", code=1) == ""


@pytest.mark.parametrize("name", ["sbatch", "squeue", "scancel", "sinfo", "sacct"])
def test_without_a_server_each_says_so(tmp_path: Path, name: str) -> None:
    lab = Lab(tmp_path)
    lab.env["ROTA_URL"] = "http://127.0.0.1:1"
    words = {"sbatch": ["--wrap", "true"], "scancel": ["aaaaaaaaaaaa"]}.get(name, [])
    ended = lab.slurm_all(name, *words)
    assert ended.returncode == 69
    assert b"no server answers at http://127.0.0.1:1" in ended.stderr
    assert b"rota up" in ended.stderr
    assert b"usage: " in lab.slurm_all(name, "--help").stdout
