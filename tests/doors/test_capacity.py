"""How many more runs make sense: the formula, and the numbers it came from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.api.doors.capacity import places
from tests.doors.server import Server


@pytest.mark.parametrize(
    ("kind", "gpus", "g"),
    [
        ("local_gpu", 8, 8),
        ("local_gpu", None, 1),
        ("local_gpu", 0, 1),
        ("slurm", 32, 32),
        ("slurm", None, 4),
        ("slurm", 0, 4),
        ("cpu_only", None, 1),
        ("cpu_only", 8, 1),
        ("unknown", 8, 1),
    ],
)
def test_g_by_kind_of_cluster(kind: str, gpus: int | None, g: int) -> None:
    assert places(kind, gpus) == g


def test_the_numbers_add_up(server: Server) -> None:
    empty = server.get("/capacity").ok()
    assert (empty["g"], empty["r"], empty["q"], empty["max_new_runs"]) == (16, 0, 0, 0)
    assert (empty["cluster_type"], empty["gpu_count"]) == ("local_gpu", 16)
    assert "min(q, g - r)" in empty["formula"]
    server.in_state(server.sleeper(2), "running")
    for n in range(3):
        server.post("/runs", {"name": f"later {n}", "command": "true"}).ok()
    found = server.get("/capacity").ok()
    assert (found["g"], found["r"], found["q"], found["max_new_runs"]) == (16, 1, 3, 3)
    assert (found["running"], found["ready"], found["queued"]) == (1, 3, 0)
    assert (found["free_gpus"], found["total_gpus"]) == (14, 16)


def test_a_run_that_is_only_reported_from_elsewhere_takes_no_place(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=1)
    made = [server.post("/runs", {"name": f"run {n}", "command": "true"}).ok()["id"] for n in range(2)]
    server.post(f"/runs/{made[0]}/status", {"status": "running"}).ok()
    found = server.get("/capacity").ok()
    assert (found["g"], found["r"], found["q"], found["max_new_runs"]) == (1, 0, 1, 1)
    assert (found["running"], found["free_gpus"]) == (0, 1)


def test_what_is_said_by_hand_is_advice_and_the_ledger_decides(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=1)
    server.post("/cluster", {"type": "slurm", "gpu_count": 4}).ok()
    jobs = [server.sleeper() for _ in range(3)]
    server.in_state(jobs[0], "running")
    found = server.get("/capacity").ok()
    assert (found["cluster_type"], found["g"], found["r"], found["q"]) == ("slurm", 4, 1, 2)
    assert found["max_new_runs"] == 2
    assert found["free_gpus"] == 0
    assert server.job(jobs[1])["state"] == "queued", "there is one GPU, whatever was said"


def test_more_runs_than_places_leave_room_for_none(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=1)
    for _ in range(2):
        server.in_state(server.sleeper(0), "running")
    server.post("/runs", {"name": "later", "command": "true"}).ok()
    found = server.get("/capacity").ok()
    assert (found["g"], found["r"], found["q"], found["max_new_runs"]) == (1, 2, 1, 0)
