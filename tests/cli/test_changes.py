"""The commands that change something; and the code a run came from, made again."""

from __future__ import annotations

from pathlib import Path

from tests.cli.lab import Lab
from tests.cli.test_workspace import git


def test_hold_release_priority_cancel(lab: Lab) -> None:
    lab.submit("-G", "8", "--", "sleep", "1000")
    run_id = lab.submit("-G", "1", "--", "true")
    assert lab.out("hold", run_id) == f"{run_id} held\n"
    assert lab.json("show", run_id)["status"] == "ready"
    assert lab.out("release", run_id) == f"{run_id} released\n"
    assert lab.out("priority", run_id, "critical") == f"{run_id} has priority critical\n"
    assert lab.json("show", run_id)["priority"] == 4
    assert lab.out("cancel", "--dry-run", run_id) == f"{run_id} could be stopped\n"
    assert lab.json("show", run_id)["status"] == "queued"
    assert lab.out("cancel", run_id) == f"{run_id} cancelled\n"
    again = lab.rota("cancel", run_id)
    assert again.returncode == 75 and b"status: stopped" in again.stderr


def test_one_that_cannot_be_cancelled_does_not_keep_the_others(lab: Lab) -> None:
    run_id = lab.submit("--held", "--", "true")
    done = lab.rota("cancel", "000000000000", "111111111111", run_id)
    assert done.returncode == 75
    assert [line.split(b":")[1].strip() for line in done.stderr.splitlines()] == [b"0" * 12, b"1" * 12]
    assert done.stderr.count(b"Run not found") == 2
    assert done.stdout.decode() == f"{run_id} cancelled\n"


def test_what_waits_is_cancelled_first_so_that_it_never_starts(lab: Lab) -> None:
    running, waiting = (lab.submit("-G", "8", "--", "sleep", "1000") for _ in range(2))
    held = lab.submit("--held", "--", "true")
    lab.until_queue(running=1, queued=1)
    done = lab.out("cancel", running, held, waiting[-8:])
    first, second, last = done.splitlines()
    assert [first, second] == [f"{waiting} cancelled", f"{held} cancelled"]
    assert last.startswith(f"{running} stopping: killed ")
    lab.wait_for(running, "stopped")
    assert lab.show(waiting)["attempts"] == []


def test_a_sweep_goes_before_what_runs_and_after_what_waits(lab: Lab) -> None:
    running, waiting = (lab.submit("-G", "8", "--", "sleep", "1000") for _ in range(2))
    sweep_id = lab.out("sweep", "x", "--base", "true", "-p", "a=1..2", "-G", "8", "-q").strip()
    lab.until_queue(running=1, queued=3)
    for words in ([sweep_id], ["--sweep", sweep_id]):
        done = lab.out("cancel", "--dry-run", running, *words, waiting)
        assert [line.split()[0] for line in done.splitlines()] == [waiting, "sweep", running]


def test_a_sweep_over_a_grid(lab: Lab) -> None:
    sweep = lab.json(
        "sweep", "lr", "--base", "echo", "-p", "lr=0.1,0.01", "-p", "seed=1..3", "--parallel", "2", "-G", "1"
    )
    assert sweep["progress"]["total"] == 6
    for run_id in sweep["run_ids"]:
        lab.wait_for(run_id, "finished")
    outputs = {lab.out("logs", run_id) for run_id in sweep["run_ids"]}
    assert outputs == {f"--lr={lr} --seed={seed}\n" for lr in ("0.1", "0.01") for seed in (1, 2, 3)}
    assert lab.out("sweep", "x", "--base", "true", "-p", "a=1..4", "--max-runs", "2", "--held").endswith(": 2 runs\n")


def test_a_sweep_is_tried_before_it_is_made(lab: Lab) -> None:
    words = ("sweep", "lr", "--base", "python fit.py", "-p", "lr=0.1,a b", "-p", "seed=1..3", "--dry-run")
    assert lab.out(*words).splitlines() == [
        "would be 6 runs; nothing was done",
        "  python fit.py --lr=0.1 --seed=1",
        "  python fit.py --lr=0.1 --seed=2",
        "  python fit.py --lr=0.1 --seed=3",
        "  ... and 3 more",
    ]
    assert lab.out(*words, "--max-runs", "1").splitlines() == [
        "would be 1 run; nothing was done",
        "  python fit.py --lr=0.1 --seed=1",
    ]
    made = lab.json("sweep", "lr", "--base", "echo", "-p", "lr=a b", "--held")
    shown = lab.out("sweep", "lr", "--base", "echo", "-p", "lr=a b", "--dry-run").splitlines()[1].strip()
    assert lab.show(made["run_ids"][0])["command"] == shown, "as the server writes it"


def test_the_policy_is_changed_and_nonsense_is_refused(lab: Lab) -> None:
    assert lab.json("policy", "set", "max_concurrent_jobs=3")["max_concurrent_jobs"] == 3
    assert lab.json("policy", "set", "--dry-run", "max_concurrent_jobs=9")["max_concurrent_jobs"] == 9
    would = lab.out("policy", "set", "--dry-run", "max_concurrent_jobs=9")
    assert would.splitlines()[:2] == ["would change; nothing was done:", "max_concurrent_jobs  3 -> 9"]
    assert "scheduling_algorithm" not in would, "which stays"
    assert lab.out("policy", "set", "max_concurrent_jobs=3") == "nothing changes: the policy is like that already\n"
    assert lab.json("policy", "show")["max_concurrent_jobs"] == lab.json("policy")["max_concurrent_jobs"] == 3
    lab.out("policy", "set", "max_concurrent_jobs=0")
    would = lab.out("policy", "set", "--dry-run", "policy=auto", "patience=0.5")
    assert would.splitlines()[1].split(maxsplit=1) == ["policy", "auto -> auto (patience 0.5)"]
    rows = [line.split(maxsplit=1) for line in would.splitlines()]
    assert ["patience", "1.0 -> 0.5"] in rows and "twice as urgent" in would
    assert max(len(line) for line in would.splitlines()) <= 80
    lab.out("policy", "set", "patience=0.5", "policy=easy")
    assert lab.json("policy", "set", "--dry-run", "enable_preemption=default")["enable_preemption"] is False
    sjf = lab.json("policy", "set", "--dry-run", "scheduling_algorithm=sjf", "enable_preemption=default")
    assert (sjf["policy"], sjf["enable_preemption"]) == ("sjf", False)
    auto = lab.json("policy", "set", "--dry-run", "scheduling_algorithm=default", "enable_correction=default")
    assert (auto["scheduling_algorithm"], auto["enable_correction"]) == ("auto", True)
    again = lab.json("policy", "set", "policy=default", "patience=default", "enable_preemption=default")
    assert (again["policy"], again["patience"], again["enable_preemption"]) == ("auto", 1.0, True)
    for words in (
        ["max_concurrent_jobs=-1"],
        ["scheduling_algorithm=magic"],
        ["what=1"],
        ["nothing"],
        ["dry_run=true"],
        ["scheduling_algorithm=auto", "policy=easy"],
    ):
        assert lab.rota("policy", "set", *words).returncode == 2, words


def test_a_node_is_drained_and_comes_back(lab: Lab) -> None:
    lab.out("nodes", "drain", "node2", "--why", "new fans")
    assert "new fans" in lab.out("nodes")
    assert "off" in lab.out("gpus")
    lab.out("nodes", "undrain", "node2")
    assert lab.rota("nodes", "drain", "node9").returncode == 75


def test_the_checkout_is_recorded_and_restored(lab: Lab, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "say.sh").write_text("echo old\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "first")
    (repo / "say.sh").write_text("echo dirty\n")
    first = lab.out("submit", "-q", "--wait", "--", "sh", "say.sh", cwd=repo).strip()
    (repo / "say.sh").write_text("echo newer\n")
    told = lab.json("show", first)["workspace"]
    assert (told["branch"], told["dirty"], told["root"]) == ("main", True, str(repo))
    assert "+echo dirty" in lab.out("show", "--diff", first)
    assert git(repo, "rev-parse", "HEAD") in lab.out("show", first)
    again = lab.rota("rerun", first, "--restore", str(tmp_path / "again"), "--follow")
    assert (again.returncode, again.stdout) == (0, b"dirty\n"), again.stderr
    other = lab.rota("rerun", first, "-f", "--", "echo", "a  b", "-G", "$HOME")
    assert other.stdout == b"a  b -G $HOME\n"
    assert b"Ctrl-C cancels it; to only watch: rota logs -f " in other.stderr.splitlines()[0]
    used = lab.rota("rerun", first, "--restore", str(repo))
    assert used.returncode == 75 and b"not an empty directory" in used.stderr


def test_what_has_no_checkout_cannot_be_restored(lab: Lab, tmp_path: Path) -> None:
    run_id = lab.submit("--no-snapshot", "--held", "--", "true")
    done = lab.rota("rerun", run_id, "--restore", str(tmp_path / "x"))
    assert done.returncode == 75 and b"workspace" in done.stderr.lower()
