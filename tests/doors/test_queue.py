"""The queue door, line by line, with curl against a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.app.house import until
from tests.doors.server import Answer, Server

JOB_FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "run_id": (str,),
    "user": (str,),
    "command": (str,),
    "gpu_count": (int,),
    "gpu_memory_gb": (float, int),
    "priority": (int,),
    "state": (str,),
    "submitted_at": (float,),
    "scheduled_at": (float, type(None)),
    "started_at": (float, type(None)),
    "completed_at": (float, type(None)),
    "estimated_duration_seconds": (float, int, type(None)),
    "retry_count": (int,),
    "max_retries": (int,),
    "error_message": (str, type(None)),
    "allocated_gpus": (list, type(None)),
}
STATISTICS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("total_jobs", "queued", "scheduled", "running", "completed", "failed"), (int,)),
    **dict.fromkeys(("average_wait_time_seconds", "jobs_per_hour", "queue_utilization_percent"), (float,)),
    "queue_capacity": (int,),
}
BODY: dict[str, Any] = {"run_id": "experiment-1", "user": "ann", "command": "true", "gpu_count": 1}


def has(shape: dict[str, tuple[type, ...]], found: dict[str, Any]) -> None:
    for name, kinds in shape.items():
        assert name in found, name
        assert type(found[name]) in kinds, f"{name} is {found[name]!r}"


def field_of(answer: Answer) -> str:
    """Which field a 422 names."""
    assert answer.status == 422, f"{answer.status}: {answer.body!r}"
    faults = answer.json["detail"]
    assert all(fault.keys() >= {"type", "loc", "msg", "input"} for fault in faults)
    name: str = faults[0]["loc"][-1]
    return name


# -- submit ---------------------------------------------------------------------------------------------------------
def test_the_life_of_a_job(server: Server) -> None:
    asked = {
        "run_id": "bert-training",
        "user": "ann",
        "command": "echo on $CUDA_VISIBLE_DEVICES",
        "gpu_count": 4,
        "gpu_memory_gb": 40,
        "priority": 3,
        "estimated_duration_seconds": 3600,
    }
    answer = server.post("/queue/submit", asked).ok()
    assert answer["success"] is True
    assert answer["queue_position"] == 1
    job = answer["job"]
    has(JOB_FIELDS, job)
    assert answer["job_id"] == job["id"]
    assert job["state"] == "queued"
    assert {name: job[name] for name in asked} == asked
    assert (job["max_retries"], job["retry_count"]) == (3, 0)
    assert job["allocated_gpus"] is None
    assert job["scheduled_at"] is None

    done = server.in_state(job["id"], "completed")
    has(JOB_FIELDS, done)
    assert job["submitted_at"] <= done["scheduled_at"] <= done["started_at"] <= done["completed_at"]
    assert done["error_message"] is None
    assert done["allocated_gpus"] is None, "it holds nothing any more"
    assert len(done["gpus"]) == 4, "but where it was is known"
    until(lambda: server.get("/queue").ok()["statistics"]["completed"] == 1, "it is counted")


def test_a_job_that_fails_is_not_run_again(server: Server) -> None:
    job = server.in_state(server.submit("exit 3"), "failed")
    assert job["retry_count"] == 0
    assert "3" in job["error_message"]
    until(lambda: server.get("/queue").ok()["statistics"]["failed"] == 1, "it is counted")


def test_a_job_is_a_run_seen_through_another_door(server: Server) -> None:
    job_id = server.sleeper(2, run_id="seen-everywhere")
    server.in_state(job_id, "running")
    run = server.get(f"/runs/{job_id}").ok()
    assert (run["id"], run["name"], run["status"]) == (job_id, "seen-everywhere", "running")
    made = server.post("/runs", {"name": "from there", "command": "sleep 100000", "auto_start": True}).ok()
    server.in_state(made["id"], "running")
    listed = {job["id"]: job for job in server.get("/queue").ok()["running"]}
    assert listed.keys() == {job_id, made["id"]}
    assert listed[made["id"]]["run_id"] == made["id"], "without a label of its own it goes by its id"
    assert listed[made["id"]]["name"] == "from there"
    assert len(listed[job_id]["allocated_gpus"]) == 2


def test_a_run_that_is_only_ready_is_not_in_the_queue(server: Server) -> None:
    ready = server.post("/runs", {"name": "later", "command": "true"}).ok()
    queue = server.get("/queue").ok()
    assert queue["queued"] == []
    assert queue["statistics"]["held"] == 1
    job = server.job(ready["id"])
    assert (job["state"], job["held"], job["queue_position"]) == ("queued", True, None)


def test_words_instead_of_a_shell_line(server: Server) -> None:
    body = {**BODY, "command": None, "argv": ["echo", "a b", "$HOME"]}
    job_id = server.post("/queue/submit", body).ok()["job_id"]
    server.in_state(job_id, "completed")
    assert server.job(job_id)["command"] == "echo 'a b' '$HOME'"
    assert server.get(f"/runs/{job_id}/logs").ok()["content"] == "a b $HOME\n", "no shell has read it"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"gpu_count": -1}, "gpu_count"),
        ({"gpu_count": "many"}, "gpu_count"),
        ({"gpu_count": 1.5}, "gpu_count"),
        ({"gpu_count": 2**63}, "gpu_count"),
        ({"gpu_count": None}, "gpu_count"),
        ({"priority": 0}, "priority"),
        ({"priority": 5}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"gpu_memory_gb": -1}, "gpu_memory_gb"),
        ({"gpu_memory_gb": float("nan")}, "gpu_memory_gb"),
        ({"estimated_duration_seconds": 0}, "estimated_duration_seconds"),
        ({"estimated_duration_seconds": float("inf")}, "estimated_duration_seconds"),
        ({"run_id": ""}, "run_id"),
        ({"run_id": "x" * 501}, "run_id"),
        ({"run_id": "abc\0def"}, "run_id"),
        ({"run_id": "invoice\u202efdp.exe"}, "run_id"),
        ({"run_id": 7}, "run_id"),
        ({"user": "two\nlines"}, "user"),
        ({"user": ""}, "user"),
        ({"command": ""}, "command"),
        ({"command": "echo \0"}, "command"),
        ({"command": None}, "command"),
        ({"command": ["ls"]}, "command"),
        ({"env": {"A=B": "c"}}, "env"),
        ({"workspace": 3}, "workspace"),
    ],
)
def test_a_wrong_field_is_named(common: Server, change: dict[str, Any], field: str) -> None:
    assert field_of(common.post("/queue/submit", {**BODY, **change})) == field
    assert common.get("/queue").ok()["statistics"]["total_jobs"] == 0


@pytest.mark.parametrize("field", ["run_id", "user", "command", "gpu_count"])
def test_a_missing_field_is_named(common: Server, field: str) -> None:
    body = {name: value for name, value in BODY.items() if name != field}
    assert field_of(common.post("/queue/submit", body)) == field


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b"[" * 40_000])
def test_what_is_no_object_is_refused(common: Server, body: bytes) -> None:
    assert common.post("/queue/submit", body).status == 422


def test_more_than_there_can_ever_be(common: Server) -> None:
    answer = common.post("/queue/submit", {**BODY, "gpu_count": 17})
    assert field_of(answer) == "gpu_count"
    said = answer.json["detail"][0]["msg"]
    assert "16 GPUs" in said
    assert said.startswith("gpu_count: ")
    heavy = common.post("/queue/submit", {**BODY, "gpu_memory_gb": 81})
    assert field_of(heavy) == "gpu_memory_gb"
    assert "81" in heavy.json["detail"][0]["msg"]


def test_a_body_without_end_is_cut_off(common: Server) -> None:
    huge = json.dumps({**BODY, "command": "x" * (10 << 20)}).encode()
    assert common.post("/queue/submit", huge).status == 413
    chunked = common.post("/queue/submit", huge, headers=["Transfer-Encoding: chunked"])
    assert chunked.status == 413
    assert field_of(common.post("/queue/submit", {**BODY, "command": "x" * (1 << 20)})) == "command"


def test_a_full_queue(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=1, env={"RESEARCH_AGENT_MAX_QUEUE_SIZE": "3"})
    server.in_state(server.sleeper(), "running")
    for _ in range(3):
        server.sleeper()
    refused = server.post("/queue/submit", BODY)
    assert (refused.status, refused.json) == (400, {"detail": "Queue is full (max 3 jobs)"})
    numbers = server.get("/queue").ok()["statistics"]
    assert (numbers["queue_capacity"], numbers["queue_utilization_percent"]) == (3, 100.0)


def test_the_same_key_is_the_same_job(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    first = server.post("/queue/submit", BODY, headers=["Idempotency-Key: k-1"]).ok()
    again = server.post("/queue/submit", BODY, headers=["Idempotency-Key: k-1"]).ok()
    assert again["job_id"] == first["job_id"]
    assert len(server.get("/queue").ok()["queued"]) == 1
    other = server.post("/queue/submit", {**BODY, "gpu_count": 2}, headers=["Idempotency-Key: k-1"])
    assert other.status == 409
    assert first["job_id"] in other.json["detail"]
    assert server.post("/queue/submit", BODY, headers=[f"Idempotency-Key: {'k' * 501}"]).status == 422


def test_a_key_stays_good_when_the_server_starts_in_another_directory(server: Server) -> None:
    def send() -> tuple[str, str]:
        job = server.post("/queue/submit", BODY, headers=["Idempotency-Key: k-1"]).ok()
        run = server.post("/runs", {"name": "a", "command": "true"}, headers=["Idempotency-Key: k-2"]).ok()
        return job["job_id"], run["id"]

    server.post("/orchestrator/stop").ok()
    first = send()
    server.kill()
    server.argv[server.argv.index("--workdir") + 1] = "/"
    server.start()
    assert send() == first


def test_a_dry_run_changes_nothing(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    for _ in range(2):
        server.submit("true")
    tried = server.post("/queue/submit?dry_run=true", {**BODY, "priority": 3}).ok()
    assert tried["dry_run"] is True
    assert tried["queue_position"] == 1, "it would pass the two of lower priority"
    assert server.post("/queue/submit?dry_run=true", BODY).ok()["queue_position"] == 3
    assert server.get(f"/queue/{tried['job_id']}").status == 404
    assert field_of(server.post("/queue/submit?dry_run=true", {**BODY, "gpu_count": 99})) == "gpu_count"
    assert field_of(server.post("/queue/submit?dry_run=perhaps", BODY)) == "dry_run"
    assert len(server.get("/queue").ok()["queued"]) == 2


# -- the list -------------------------------------------------------------------------------------------------------
def test_the_list_and_its_order(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    low, normal, high, urgent = (server.submit("true", priority=priority) for priority in (1, 2, 3, 4))
    second = server.submit("true", priority=3)
    queue = server.get("/queue").ok()
    assert queue.keys() >= {"queued", "running", "statistics"}
    order = [urgent, high, second, normal, low]
    assert [job["id"] for job in queue["queued"]] == order
    assert [server.job(job_id)["queue_position"] for job_id in order] == [1, 2, 3, 4, 5]
    for job in queue["queued"]:
        has(JOB_FIELDS, job)
    has(STATISTICS, queue["statistics"])
    assert queue["statistics"]["queued"] == 5
    assert queue["statistics"]["queue_capacity"] == 100
    assert queue["statistics"]["queue_utilization_percent"] == 5.0


def test_a_position_counts_those_of_the_same_priority_and_above(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    places = [server.post("/queue/submit", {**BODY, "priority": p}).ok()["queue_position"] for p in (2, 2, 3, 1, 2)]
    assert places == [1, 2, 1, 4, 4]


def test_an_unknown_job(common: Server) -> None:
    answer = common.get("/queue/nothere")
    assert answer.status == 404
    assert "nothere" in answer.json["detail"]
    assert common.get(f"/queue/{'x' * 5000}").status == 404
    assert common.get("/queue/..%2f..%2fetc%2fpasswd").status == 404


# -- cancel ---------------------------------------------------------------------------------------------------------
def test_cancelling(server: Server) -> None:
    running = server.sleeper(16)
    server.in_state(running, "running")
    waiting = server.sleeper(1)
    assert server.delete(f"/queue/{waiting}?dry_run=true").ok()["dry_run"] is True
    assert server.job(waiting)["state"] == "queued"
    for job_id in (waiting, running):
        answer = server.delete(f"/queue/{job_id}").ok()
        assert answer["success"] is True
        assert answer["message"] == f"Job {job_id} canceled"
        assert server.in_state(job_id, "canceled")["completed_at"] is not None
    until(lambda: server.get("/gpu/status").ok()["cluster_status"]["available_gpus"] == 16, "the GPUs are free again")
    for job_id in (waiting, running, "0123456789ab"):
        refused = server.delete(f"/queue/{job_id}")
        assert refused.status == 404
        assert refused.json == {"detail": f"Job {job_id} not found or cannot be canceled"}


# -- priority -------------------------------------------------------------------------------------------------------
def test_moving_a_job(server: Server) -> None:
    running = server.sleeper(16)
    server.in_state(running, "running")
    first, second = server.sleeper(16), server.sleeper(16)
    tried = server.patch(f"/queue/{second}/priority?dry_run=true", {"priority": 4}).ok()
    assert (tried["dry_run"], tried["job"]["priority"]) == (True, 4)
    assert server.job(second)["queue_position"] == 2
    moved = server.patch(f"/queue/{second}/priority", {"priority": 4}).ok()
    assert moved["success"] is True
    has(JOB_FIELDS, moved["job"])
    assert moved["job"]["priority"] == 4
    assert [job["id"] for job in server.get("/queue").ok()["queued"]] == [second, first]
    assert server.patch(f"/queue/{running}/priority", {"priority": 4}).status == 404
    assert server.patch("/queue/nothere/priority", {"priority": 4}).status == 404
    for wrong in (0, 5, None, "high", 2**63):
        assert field_of(server.patch(f"/queue/{second}/priority", {"priority": wrong})) == "priority"
    assert server.job(second)["priority"] == 4


# -- who ------------------------------------------------------------------------------------------------------------
def test_with_a_shared_token_the_user_is_a_label(make_server: Callable[..., Server]) -> None:
    server = make_server(env={"RESEARCH_AGENT_USER_AUTH_TOKEN": "a-long-shared-secret"})
    refused = server.post("/queue/submit", BODY)
    assert refused.status == 401
    assert refused.json == {"detail": "Unauthorized - invalid or missing X-Auth-Token"}
    assert server.get("/queue").status == 401
    server.token = "a-long-shared-secret"
    assert server.post("/queue/submit", BODY).ok()["job"]["user"] == "ann"


def test_acknowledged_is_durable(server: Server) -> None:
    """kill -9 between the answers of submits: every job that was acknowledged is there again."""
    server.post("/orchestrator/stop").ok()
    known = [server.submit("true", run_id=f"job {n}") for n in range(20)]
    server.patch(f"/queue/{known[5]}/priority", {"priority": 4}).ok()
    server.delete(f"/queue/{known[6]}").ok()
    server.kill()
    server.start()
    order = [job["id"] for job in server.get("/queue").ok()["queued"]]
    assert order == [known[5], *known[:5], *known[7:]]
    assert server.job(known[6])["state"] == "canceled"


def test_only_a_queued_job_is_moved_here(server: Server) -> None:
    """A run that is only ready has its priority set at the runs door."""
    held = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    assert server.patch(f"/queue/{held}/priority", {"priority": 4}).status == 404
    assert server.patch(f"/runs/{held}/priority", {"priority": 4}).ok()["priority"] == 4


def test_a_dry_run_stands_where_the_job_will_stand(server: Server) -> None:
    """Under fair_share who used little goes first, whatever the priorities say."""
    server.put("/orchestrator/policy", {"scheduling_algorithm": "fair_share"}).ok()
    server.in_state(server.sleeper(16, user="ann"), "running")
    for _ in range(3):
        server.sleeper(16, user="ann", priority=4)
    body = {"run_id": "x", "user": "ben", "command": "true", "gpu_count": 16, "priority": 1}
    dry = server.post("/queue/submit?dry_run=true", body).ok()["queue_position"]
    assert dry == server.post("/queue/submit", body).ok()["queue_position"] == 1
    body["user"] = "ann"
    dry = server.post("/queue/submit?dry_run=true", body).ok()["queue_position"]
    assert dry == server.post("/queue/submit", body).ok()["queue_position"] == 5
