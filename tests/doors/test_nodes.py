"""Machines one by one, and taking one out of service."""

from __future__ import annotations

from typing import Any

from tests.app.house import until
from tests.doors.server import Server
from tests.doors.test_gpu import GPU, NODE
from tests.doors.test_queue import field_of, has


def nodes(server: Server) -> dict[str, Any]:
    return {node["node_id"]: node for node in server.get("/nodes").ok()}


def test_the_machines(common: Server) -> None:
    found = nodes(common)
    assert list(found) == ["node1", "node2"]
    for node in found.values():
        has(NODE, node)
        assert (node["drained"], node["alive"], node["simulated"]) == (False, True, True)
    flat = common.get("/gpus").ok()
    assert len(flat) == 16
    for gpu in flat:
        has(GPU, gpu)
    assert [(gpu["node_id"], gpu["gpu_id"]) for gpu in flat[:9]] == [*(("node1", n) for n in range(8)), ("node2", 0)]


def test_a_misspelt_reason_drains_nothing(common: Server) -> None:
    refused = common.post("/nodes/node1/drain", {"reason": "fan broken"})
    assert refused.status == 422 and refused.json["detail"][0]["msg"] == "no such field: did you mean why?"
    assert not nodes(common)["node1"]["drained"]


def test_draining_a_machine(server: Server) -> None:
    first = server.in_state(server.sleeper(8), "running")
    place, other = ("node1", "node2") if first["gpus"][0].startswith("node1") else ("node2", "node1")
    tried = server.post(f"/nodes/{place}/drain?dry_run=true", {"why": "new fans"}).ok()
    assert (tried["dry_run"], tried["drained"]) == (True, True)
    assert nodes(server)[place]["drained"] is False

    drained = server.post(f"/nodes/{place}/drain", {"why": "new fans"}).ok()
    assert (drained["node_id"], drained["drained"], drained["drain_why"]) == (place, True, "new fans")
    assert {gpu["status"] for gpu in drained["gpus"]} == {"allocated"}, "what runs there runs on"
    second = server.in_state(server.sleeper(8), "running")
    assert all(gpu.startswith(other) for gpu in second["gpus"])
    waiting = server.sleeper(8)
    server.delete(f"/queue/{first['id']}").ok()
    server.in_state(first["id"], "canceled")
    until(lambda: {gpu["status"] for gpu in nodes(server)[place]["gpus"]} == {"offline"}, "its GPUs are out of service")
    assert {gpu["why"] for gpu in nodes(server)[place]["gpus"]} == {"new fans"}
    assert server.job(waiting)["state"] == "queued"
    assert server.get("/gpu/status").ok()["cluster_status"]["available_gpus"] == 0

    back = server.post(f"/nodes/{place}/undrain").ok()
    assert back["drained"] is False
    server.in_state(waiting, "running")


def test_a_machine_that_is_not_there(common: Server) -> None:
    for act in ("drain", "undrain"):
        answer = common.post(f"/nodes/node99/{act}")
        assert answer.status == 404
        assert "node1" in answer.json["detail"], "it says which there are"
    assert field_of(common.post("/nodes/node1/drain", {"why": "x" * 1001})) == "why"
    assert field_of(common.post("/nodes/node1/drain", {"why": 3})) == "why"
    assert nodes(common)["node1"]["drained"] is False
