"""The demonstration that every queue client of this field begins with, call by call, with curl."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.house import until
from tests.doors.server import PROGRAM, Server

# The round that looks at everything anew comes too late for these tests: what happens in them, happens at once.
NO_ROUNDS = f"from rota.app import loop; loop.RECONCILE_S = 3600.0; {PROGRAM[-1]}"

JOBS = (("experiment-1", 2, 2), ("experiment-2", 4, 3), ("experiment-3", 1, 2))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    made.argv[: len(PROGRAM)] = [sys.executable, "-c", NO_ROUNDS]
    with made:
        yield made


def test_three_jobs_on_sixteen_gpus(server: Server) -> None:
    shaped = server.post("/gpu/initialize", {"node_count": 2, "gpus_per_node": 8}).ok()
    assert shaped["message"] == "GPU cluster initialized"
    assert shaped["cluster_status"]["total_gpus"] == 16
    server.post("/orchestrator/stop").ok()
    for label, gpus, priority in JOBS:
        body = {"run_id": label, "user": "ann", "command": "sleep 100000", "gpu_count": gpus, "priority": priority}
        answer = server.post("/queue/submit", body).ok()
        assert answer["success"] is True
        assert answer["job"]["run_id"] == label
    # the one of high priority stands first, the others in the order they came
    assert [job["run_id"] for job in server.get("/queue").ok()["queued"]] == [JOBS[1][0], JOBS[0][0], JOBS[2][0]]

    started = server.post("/orchestrator/start").ok()
    assert started["message"] == "Orchestration agent started"
    assert started["status"]["running"] is True

    def all_run() -> bool:
        queue = server.get("/queue").ok()
        return [job["state"] for job in queue["running"]] == ["running"] * 3 and not queue["queued"]

    until(all_run, "all three run")
    for _ in range(5):
        status = server.get("/orchestrator/status").ok()
        assert status["running"] is True
        assert status["stats"]["jobs_scheduled"] == 3
        assert status["resource_summary"] == {"total_gpus": 16, "available_gpus": 9, "allocated_gpus": 7}
        assert status["queue_summary"]["running"] == 3

    gpus = server.get("/gpu/status").ok()
    cluster = gpus["cluster_status"]
    assert (cluster["available_gpus"], cluster["allocated_gpus"]) == (9, 7)
    assert cluster["utilization_percent"] == 43.8
    assert cluster["simulated"] is True
    assert sorted(len(one["gpus"]) for one in cluster["allocations"]) == [1, 2, 4]
    assert gpus["queue_stats"]["running"] == 3

    stopped = server.post("/orchestrator/stop").ok()
    assert stopped["success"] is True
    assert stopped["message"] == "Orchestration agent stopped"
    assert len(server.get("/queue").ok()["running"]) == 3, "what runs runs on"


def test_by_query_and_without_anything(server: Server) -> None:
    """The numbers may stand in the query; without any the cluster is 2 x 8."""
    small = server.post("/gpu/initialize?node_count=1&gpus_per_node=4").ok()["cluster_status"]
    assert (len(small["nodes"]), small["total_gpus"]) == (1, 4)
    plain = server.post("/gpu/initialize").ok()["cluster_status"]
    assert (len(plain["nodes"]), plain["total_gpus"]) == (2, 16)
