"""A sweep or array by its id: seen, filtered and cancelled as one thing."""

from __future__ import annotations

import re

import pytest

from tests.cli.lab import Lab, tool
from tests.client.stub import Asked, ok, stub

MANY = 50
NOT_FOUND = ok({"detail": "Not Found"}, "404 Not Found")


def grid(lab: Lab) -> str:
    """Four runs of 4 GPUs each: two run, two wait."""
    sweep_id = lab.out("sweep", "lr", "--base", "sleep 1000 #", "-p", "seed=1..4", "-G", "4", "-q").strip()
    lab.until_queue(running=2, queued=2)
    return sweep_id


def test_a_sweep_is_shown_with_its_runs(lab: Lab) -> None:
    sweep_id = grid(lab)
    run_ids = lab.json("show", sweep_id)["run_ids"]
    told = lab.out("show", sweep_id)
    assert "seed=1,2,3,4" in told and "2 queued" in told
    assert "INDEX" not in told
    assert len(run_ids) == 4 and all(run_id in told for run_id in run_ids)
    other = lab.submit("-G", "0", "--", "sleep", "1000")
    assert set(lab.out("queue", "--sweep", sweep_id, "-q").split()) == set(run_ids)
    assert other not in lab.out("queue", "--sweep", sweep_id) and other in lab.out("queue")


def test_a_sweep_is_cancelled_whole_by_either_way_of_naming_it(lab: Lab) -> None:
    sweep_id = grid(lab)
    assert lab.out("cancel", "--dry-run", sweep_id) == f"sweep {sweep_id}: 4 could be stopped\n"
    assert lab.out("cancel", sweep_id) == f"sweep {sweep_id}: 2 cancelled, 2 stopping\n"
    for run_id in lab.json("show", sweep_id)["run_ids"]:
        lab.wait_for(run_id, "stopped")
    assert lab.out("cancel", "--sweep", sweep_id) == f"sweep {sweep_id}: nothing of it waits or runs\n"


def test_a_sweep_is_released_whole_and_keeps_its_cap_until_it_is_lifted(lab: Lab) -> None:
    sweep_id = lab.out(
        "sweep", "x", "--base", "sleep 1000 #", "-p", "a=1..2", "-G", "4", "--parallel", "1", "-q"
    ).strip()
    lab.until_queue(running=1, queued=1)
    assert lab.out("release", "--dry-run", sweep_id) == f"sweep {sweep_id} could be released\n"
    assert lab.json("show", sweep_id)["parallel"] == 1
    assert lab.out("release", sweep_id) == f"sweep {sweep_id} released\n"
    assert lab.json("show", sweep_id)["parallel"] == 1
    assert lab.out("release", "--parallel", "0", sweep_id) == f"sweep {sweep_id} released\n"
    lab.until_queue(running=2, queued=0)
    assert lab.json("show", sweep_id)["parallel"] is None


def test_of_two_sweeps_all_that_waits_goes_before_any_that_runs(lab: Lab) -> None:
    first, second = grid(lab), lab.out("sweep", "x", "--base", "true", "-p", "a=1..2", "-G", "4", "-q").strip()
    lab.until_queue(running=2, queued=4)
    done = lab.out("cancel", first, second)
    assert done == f"sweep {first}: 2 cancelled, 2 stopping\nsweep {second}: 2 cancelled, 0 stopping\n"
    for run_id in lab.json("show", second)["run_ids"]:
        assert lab.show(run_id)["attempts"] == [], "never started"


def test_an_array_of_batch_jobs_is_a_sweep_too(lab: Lab) -> None:
    array_id = lab.sbatch("--array=1-3", "-H", lab.file("job.sh", "#!/bin/sh\nsleep 1000\n"))
    told = lab.out("show", array_id)
    assert "3 held" in told
    head, *rows = told.splitlines()[-4:]
    assert head.split()[:3] == ["RUN", "INDEX", "STATE"]
    assert [row.split()[1] for row in rows] == ["1", "2", "3"]
    second = lab.json("show", f"{array_id}_2")
    assert (second["id"], second["sweep_id"]) == (rows[1].split()[0], array_id)
    for words in (["show", f"{array_id}_9"], ["logs", f"{array_id}_{10**9}"], ["show", f"{'0' * 12}_1"]):
        done = lab.rota(*words)
        assert done.returncode == 75 and f"no array has the task {words[1]}".encode() in done.stderr
    assert lab.out("hold", f"{array_id}_3", "--dry-run") == f"{rows[2].split()[0]} could be held\n"
    assert lab.out("cancel", array_id) == f"sweep {array_id}: 3 cancelled, 0 stopping\n"


def test_an_id_of_nothing_says_where_ids_come_from(lab: Lab) -> None:
    for words in (["show", "0" * 12], ["cancel", "0" * 12], ["logs", "0" * 12]):
        done = lab.rota(*words)
        assert done.returncode == 75 and b"a sweep's id goes with `rota show` and `rota cancel`" in done.stderr
    assert lab.rota("cancel", "--sweep", "0" * 12).returncode == 75
    assert lab.rota("cancel").returncode == 2


def many(asked: Asked, *, new: bool) -> bytes:
    """Answer as a server that has a sweep of MANY waiting runs: a new one, or one that cannot stop them by one call."""
    sweep_id = "a" * 12
    if asked.method == "POST" and asked.target.startswith(f"/sweeps/{sweep_id}/stop"):
        return ok({"cancelled": MANY, "stopping": 0, "refused": [], "refused_count": 0}) if new else NOT_FOUND
    if asked.method == "POST" and (found := re.match(r"/runs/(\w+)/stop", asked.target)):
        return NOT_FOUND if found[1] == sweep_id else ok({"id": found[1], "status": "stopped"})
    if asked.target.startswith("/runs?"):
        return ok(
            [{"id": f"{number:012x}", "name": "r", "status": "queued", "sweep_id": sweep_id} for number in range(MANY)]
        )
    if asked.target == f"/sweeps/{sweep_id}":
        return ok({"id": sweep_id, "name": "s", "status": "running"})
    return NOT_FOUND


@pytest.mark.parametrize("new", [True, False])
def test_the_calls_of_a_cancel_do_not_grow_with_the_sweep(lab: Lab, new: bool) -> None:
    """Each run of a sweep was a call and a commit of its own. With an older server it still is, and that is told."""
    with stub(lambda asked: many(asked, new=new)) as server:
        done = lab.rota("cancel", "a" * 12, "--server", server.url)
    assert done.stdout.decode() == f"sweep {'a' * 12}: {MANY} cancelled, 0 stopping\n", done.stderr
    assert (len(server.asked) < 10) is new, [asked.target for asked in server.asked]
    assert (b"cancelling" in done.stderr) is not new
    with stub(lambda asked: many(asked, new=new)) as server:
        batch = lab.run(*tool("scancel"), "a" * 12, env={**lab.env, "ROTA_URL": server.url})
    assert (batch.returncode, batch.stderr) == (0, b"")
    assert (len(server.asked) < 10) is new
