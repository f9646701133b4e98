"""How busy it is, for agents that ask before they start anything."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rota.api.doors.wild import system_health
from tests.app.house import House, until
from tests.doors.people import MakeServer
from tests.doors.server import Server


def test_six_numbers(server: Server) -> None:
    first = {"running": 0, "queued": 0, "completed": 0, "failed": 0, "total": 0, "max_concurrent": 16}
    assert server.get("/wild/v2/system-health").ok() == first
    for _ in range(17):
        server.post("/runs", {"name": "a", "command": "exec sleep 100000", "auto_start": True}).ok()
    server.post("/runs", {"name": "a", "command": "true"}).ok()

    def busy() -> bool:
        health = server.get("/wild/v2/system-health").ok()
        assert health["running"] <= 16, "also those that are being launched are counted, and never too many"
        return bool(health["running"] == 16)

    until(busy, "all GPUs are taken")
    assert server.get("/wild/v2/system-health").ok() == {**first, "running": 16, "queued": 2, "total": 18}


def test_what_is_only_reported_takes_no_place(server: Server) -> None:
    """Else an agent that waits for a place waits for as long as somebody's report stands."""
    first = server.get("/wild/v2/system-health").ok()
    made = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    server.post(f"/runs/{made}/status", {"status": "running"}).ok()
    assert server.get("/wild/v2/system-health").ok() == {**first, "total": first["total"] + 1}


def test_what_is_enforced_is_what_is_told(server: Server) -> None:
    server.put("/orchestrator/policy", {"max_concurrent_jobs": 3}).ok()
    assert server.get("/wild/v2/system-health").ok()["max_concurrent"] == 3


def test_the_counts_are_open_and_nothing_else(make_server: MakeServer) -> None:
    server = make_server(env={"RESEARCH_AGENT_USER_AUTH_TOKEN": "common-token-0123456789"})
    assert server.get("/wild/v2/system-health").ok()["total"] == 0
    for path in ("/runs", "/cluster", "/sweeps", "/alerts", "/sessions", "/journey/loop"):
        assert server.get(path).status == 401, path
    server.token = "common-token-0123456789"
    assert server.get("/runs").ok() == []


def test_whoever_polls_it_copies_nothing(tmp_path: Path) -> None:
    """It is open to all, so it must not cost what a view of all live runs costs."""
    house = House(tmp_path / "house", 2, 8)
    house.open()
    busy: Any = SimpleNamespace(service=house.rota)
    try:
        with patch.object(house.rota, "view", side_effect=AssertionError("a view was made")):
            answer = json.loads(bytes(system_health(busy).body))
        assert (answer["total"], answer["max_concurrent"]) == (0, 16)
    finally:
        house.finish()
