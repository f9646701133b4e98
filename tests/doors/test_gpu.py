"""The GPU door: what there is, who holds it, and the shape of a simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.doors.server import Server
from tests.doors.test_queue import STATISTICS, field_of, has

CLUSTER: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("total_gpus", "available_gpus", "allocated_gpus"), (int,)),
    "nodes": (list,),
    "allocations": (list,),
    "utilization_percent": (float,),
}
NODE: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("node_id", "hostname", "gpu_type"), (str,)),
    "gpu_count": (int,),
    "gpus": (list,),
    "last_updated": (float,),
}
GPU: dict[str, tuple[type, ...]] = {
    "node_id": (str,),
    "gpu_id": (int,),
    **dict.fromkeys(("memory_total_gb", "memory_available_gb", "utilization_percent"), (float,)),
    "temperature_celsius": (float,),
    "status": (str,),
    "allocated_to": (str, type(None)),
    "allocated_at": (float, type(None)),
}
ALLOCATION: dict[str, tuple[type, ...]] = {"job_id": (str,), "gpus": (list,), "allocated_at": (float,), "user": (str,)}


def cluster(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/gpu/status").ok()["cluster_status"]
    return found


def test_an_idle_cluster(common: Server) -> None:
    answer = common.get("/gpu/status").ok()
    has(STATISTICS, answer["queue_stats"])
    found = answer["cluster_status"]
    has(CLUSTER, found)
    assert (found["total_gpus"], found["available_gpus"], found["allocated_gpus"]) == (16, 16, 0)
    assert found["utilization_percent"] == 0.0
    assert found["simulated"] is True
    assert [node["gpu_count"] for node in found["nodes"]] == [8, 8]
    for node in found["nodes"]:
        has(NODE, node)
        assert [gpu["gpu_id"] for gpu in node["gpus"]] == list(range(8))
        for gpu in node["gpus"]:
            has(GPU, gpu)
            assert (gpu["status"], gpu["allocated_to"], gpu["measured"]) == ("available", None, False)


def test_who_holds_what(server: Server) -> None:
    job = server.in_state(server.sleeper(3, user="ann"), "running")
    found = cluster(server)
    assert (found["available_gpus"], found["allocated_gpus"], found["utilization_percent"]) == (13, 3, 18.8)
    (held,) = found["allocations"]
    has(ALLOCATION, held)
    assert (held["job_id"], held["user"], held["allocated_at"]) == (job["id"], "ann", job["scheduled_at"])
    gpus = [gpu for node in found["nodes"] for gpu in node["gpus"]]
    assert held["gpus"] == [gpu for gpu in gpus if gpu["status"] == "allocated"], "whole GPU objects, as in a node"
    assert [f"{gpu['node_id']}:{gpu['gpu_id']}" for gpu in held["gpus"]] == job["allocated_gpus"]
    for gpu in held["gpus"]:
        has(GPU, gpu)
    assert {gpu["allocated_to"] for gpu in gpus} == {None, job["id"]}


def test_a_job_without_gpus_holds_none(server: Server) -> None:
    server.in_state(server.sleeper(0), "running")
    found = cluster(server)
    assert (found["allocated_gpus"], found["allocations"]) == (0, [])


# -- initialize -----------------------------------------------------------------------------------------------------
def test_another_shape_stays_over_a_restart(server: Server) -> None:
    answer = server.post("/gpu/initialize", {"node_count": 3, "gpus_per_node": 4}).ok()
    assert answer["message"] == "GPU cluster initialized"
    assert answer["cluster_status"]["total_gpus"] == 12
    assert Counter(node["gpu_count"] for node in cluster(server)["nodes"]) == {4: 3}
    server.stop()
    server.start()
    assert cluster(server)["total_gpus"] == 12


def test_one_number_in_the_body_and_one_in_the_query(server: Server) -> None:
    found = server.post("/gpu/initialize?gpus_per_node=2", {"node_count": 3}).ok()["cluster_status"]
    assert [node["gpu_count"] for node in found["nodes"]] == [2, 2, 2]
    found = server.post("/gpu/initialize?node_count=1", {"node_count": 2}).ok()["cluster_status"]
    assert [node["gpu_count"] for node in found["nodes"]] == [8, 8], "the body wins"


def test_a_misspelt_number_is_named(common: Server) -> None:
    path, body = "/gpu/initialize?dry_run=true", {"node_counts": 4, "gpus_per_node": 1}
    answer = common.post(path, body).ok()
    assert answer["ignored"] == ["node_counts: did you mean node_count?"]
    assert answer["cluster_status"]["total_gpus"] == 2
    refused = common.post(f"{path}&strict=true", body)
    assert (refused.status, field_of(refused)) == (422, "node_counts")


def test_a_dry_run_of_a_shape(common: Server) -> None:
    answer = common.post("/gpu/initialize?dry_run=true", {"node_count": 4, "gpus_per_node": 1}).ok()
    assert answer["dry_run"] is True
    assert (answer["cluster_status"]["total_gpus"], len(answer["cluster_status"]["nodes"])) == (4, 4)
    assert cluster(common)["total_gpus"] == 16


def test_not_while_work_holds_it(server: Server) -> None:
    server.in_state(server.sleeper(1), "running")
    refused = server.post("/gpu/initialize", {"node_count": 2, "gpus_per_node": 8})
    assert refused.status == 409
    assert "active" in refused.json["detail"]
    assert cluster(server)["allocated_gpus"] == 1


@pytest.mark.parametrize(
    ("body", "query", "field"),
    [
        ({"node_count": 0}, "", "node_count"),
        ({"node_count": -1}, "", "node_count"),
        ({"gpus_per_node": 65}, "", "gpus_per_node"),
        ({"gpus_per_node": 2**63}, "", "gpus_per_node"),
        ({"node_count": "two"}, "", "node_count"),
        ({"node_count": 1e400}, "", "node_count"),
        (None, "?node_count=0", "node_count"),
        (None, "?gpus_per_node=x", "gpus_per_node"),
    ],
)
def test_shapes_that_make_no_sense(common: Server, body: Any, query: str, field: str) -> None:
    assert field_of(common.post(f"/gpu/initialize{query}", body)) == field
    assert cluster(common)["total_gpus"] == 16


def test_other_peoples_jobs_can_be_hidden(make_server: Callable[..., Server]) -> None:
    """A GPU that is taken is seen to be taken; by whom, only those who may see the job."""
    server = make_server(nodes=1, gpus=2, env={"ROTA_PRIVACY": "private", "ROTA_SHARED_TOKEN": "shared-secret"})
    server.token = "shared-secret"
    tokens = {user: server.post("/tokens", {"user": user, "role": "user"}).ok()["token"] for user in ("ann", "ben")}
    hers = server.sleeper(2, user="ann")
    server.in_state(hers, "running")
    for who, sees in (("ann", True), ("ben", False)):
        server.token = tokens[who]
        assert {gpu["status"] for gpu in cluster(server)["nodes"][0]["gpus"]} == {"allocated"}
        assert (cluster(server)["allocations"][0]["job_id"] == hers) is sees
        assert (server.get(f"/queue/{hers}").status == 200) is sees
        assert (len(server.get("/queue").ok()["running"]) == 1) is sees
        if not sees:
            held = cluster(server)["allocations"][0]
            assert held["user"] == "hidden"
            assert {(gpu["allocated_to"], gpu["user"], gpu["name"]) for gpu in held["gpus"]} == {("hidden",) * 3}
            refused = server.delete(f"/queue/{hers}")
            assert refused.status == 404, "that it is there at all is not told"
    server.token = "shared-secret"


def test_no_more_gpus_than_a_look_can_show(common: Server) -> None:
    answer = common.post("/gpu/initialize", {"node_count": 65, "gpus_per_node": 64})
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body", "node_count"])
    assert "4096" in answer.json["detail"][0]["msg"]
    assert common.post("/gpu/initialize?dry_run=true", {"node_count": 64, "gpus_per_node": 64}).status == 200
