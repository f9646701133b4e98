"""`rota run` and `srun` against a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli2.kit import PATIENCE_S, RUN, tool, until
from tests.cli2.live import Lab


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path, nodes=1, gpus=4)
    made.server.start()
    yield made
    made.finish()


def test_a_lease_is_a_run_like_any_other(lab: Lab) -> None:
    process = lab.person.start(*RUN, "-G", "3", "-J", "my try", "--", "sh", "-c", "echo $ROTA_JOB_ID; read x", stdin=-1)
    assert process.stdout is not None
    run_id = process.stdout.readline().decode().strip()
    run = lab.server.get(f"/runs/{run_id}").ok()
    assert (run["name"], run["status"], run["gpu_count"]) == ("my try", "running", 3)
    assert run["command"] == "sh -c 'echo $ROTA_JOB_ID; read x'"
    assert lab.slurm("squeue", "-h", "-o", "%i %t %j") == f"{run_id} R my try\n"
    lab.person.ended(process, b"\n")
    lab.wait_for(run_id, "finished")


def test_a_name_that_is_none_is_refused(lab: Lab) -> None:
    for body, field in (({"name": 5}, "name"), ({"argv": "python x.py"}, "argv"), ({"argv": [1]}, "argv")):
        answer = lab.server.post("/acquire", {"pid": os.getpid(), "num_gpus": 0, **body}, lease=True)
        assert answer.status == 400
        assert answer.json["error"].startswith(f"{field}: ")


def test_through_each_door(lab: Lab) -> None:
    for url in ("", lab.server.lease_url, lab.server.url):  # "": the socket in the data directory
        lab.person.env["GPUSCHED_URL"] = url
        ended = lab.person.run(*RUN, "-G2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 42")
        assert (ended.returncode, ended.stdout) == (42, b"0,1\n"), url


def test_a_waiter_sees_its_place_and_leaves_when_told(lab: Lab) -> None:
    holder = lab.sbatch("-G4", "-t", "10", "--wrap", "sleep 300")
    lab.wait_for(holder, "running")
    waiter = lab.person.start(*RUN, "echo", "never")
    assert waiter.stderr is not None
    line = waiter.stderr.readline().decode()
    assert line.startswith("rota: waiting for 1 GPU, place 1 of 1 in the queue, expected to start in "), line
    waiter.terminate()
    assert waiter.wait(PATIENCE_S) == 143
    until(lambda: lab.server.get("/queue").ok()["queued"] == [], "it left the queue")


def test_a_waiter_outlives_kill_9_of_the_server(lab: Lab) -> None:
    holder = lab.person.start(*RUN, "-G4", "sh", "-c", "echo ready; read x; exit 7", stdin=-1)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"ready\n"
    waiter = lab.person.start(*RUN, "-G2", "sh", "-c", "echo $ROTA_JOB_ID $CUDA_VISIBLE_DEVICES")
    until(lambda: lab.server.get("/queue").ok()["queued"], "it waits")
    run_id = lab.server.get("/queue").ok()["queued"][0]["id"]
    lab.server.kill()
    lab.server.start()
    until(lambda: [job["id"] for job in lab.server.get("/queue").ok()["queued"]] == [run_id], "its place is kept")
    assert lab.person.ended(holder, b"\n").returncode == 7
    assert lab.person.ended(waiter).stdout.decode() == f"{run_id} 0,1\n"


def test_a_polite_stop_of_the_server_is_survived_too(lab: Lab) -> None:
    holder = lab.sbatch("-G4", "--wrap", "sleep 300")
    lab.wait_for(holder, "running")
    waiter = lab.person.start(*RUN, "echo", "at last")
    until(lambda: lab.server.get("/queue").ok()["queued"], "it waits")
    assert lab.server.stop() == 0
    lab.server.start()
    until(lambda: len(lab.server.get("/queue").ok()["queued"]) == 1, "it is back")
    lab.slurm("scancel", holder)
    assert lab.person.ended(waiter).stdout == b"at last\n"


def test_srun_inside_a_batch_job_just_runs_it(lab: Lab) -> None:
    srun = " ".join(tool("srun"))
    line = f"{srun} -n 1 --mem=1G sh -c 'echo $CUDA_VISIBLE_DEVICES; exit 5'"
    assert lab.slurm("sbatch", "--wait", "-G4", "-o", "out", "--wrap", line, code=5)
    assert (lab.here / "out").read_text() == "0,1,2,3\n"


def test_status_and_jobs(lab: Lab) -> None:
    running = lab.sbatch("-G2", "--wrap", "sleep 300")
    lab.wait_for(running, "running")
    status = lab.slurm("srun", "status")
    assert "GPUs: 4 in all, given out: 0,1" in status
    assert "1 running, 0 waiting" in status
    head, line = lab.slurm("srun", "jobs").splitlines()
    assert head.split() == ["ID", "STATUS", "GPUS", "PID", "USER", "COMMAND"]
    assert line.split()[:3] == [running, "running", "0,1"]
