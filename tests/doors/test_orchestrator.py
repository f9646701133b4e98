"""The orchestrator door: scheduling on and off, and by which policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.app.house import until
from tests.doors.server import Server
from tests.doors.test_queue import STATISTICS, field_of, has

POLICY: dict[str, tuple[type, ...]] = {
    "scheduling_algorithm": (str,),
    "max_concurrent_jobs": (int,),
    "enable_auto_retry": (bool,),
    "enable_preemption": (bool,),
    "backfill": (str,),
}
STATS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("jobs_scheduled", "jobs_failed", "jobs_completed", "scheduling_cycles"), (int,)),
    "last_cycle_time": (float, type(None)),
}


def test_the_status(server: Server) -> None:
    status = server.get("/orchestrator/status").ok()
    assert status["running"] is True, "scheduling runs from the server's start"
    has(POLICY, status["policy"])
    has(STATS, status["stats"])
    has(STATISTICS, status["queue_summary"])
    assert status["policy"]["scheduling_algorithm"] == "auto"
    assert status["resource_summary"] == {"total_gpus": 16, "available_gpus": 16, "allocated_gpus": 0}

    good, bad = server.submit("true"), server.submit("false")
    server.in_state(good, "completed")
    server.in_state(bad, "failed")

    def counted() -> bool:
        stats = server.get("/orchestrator/status").ok()["stats"]
        return (stats["jobs_scheduled"], stats["jobs_completed"], stats["jobs_failed"]) == (2, 1, 1)

    until(counted, "both are counted")
    stats = server.get("/orchestrator/status").ok()["stats"]
    assert stats["scheduling_cycles"] > 0
    assert stats["last_cycle_time"] > server.job(good)["submitted_at"] - 1


def test_stop_and_start_may_be_repeated(server: Server) -> None:
    running = server.sleeper()
    server.in_state(running, "running")
    for _ in range(2):
        answer = server.post("/orchestrator/stop").ok()
        assert (answer["success"], answer["message"]) == (True, "Orchestration agent stopped")
        assert server.get("/orchestrator/status").ok()["running"] is False
    waiting = server.sleeper()
    assert server.job(running)["state"] == "running", "what runs runs on"
    assert server.job(waiting)["state"] == "queued"
    tried = server.post("/orchestrator/start?dry_run=true").ok()
    assert (tried["dry_run"], tried["status"]["running"]) == (True, True)
    assert server.get("/orchestrator/status").ok()["running"] is False
    for _ in range(2):
        answer = server.post("/orchestrator/start").ok()
        assert (answer["success"], answer["message"]) == (True, "Orchestration agent started")
        assert answer["status"]["running"] is True
    server.in_state(waiting, "running")


def test_a_pause_outlives_a_restart(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    server.kill()
    server.start()
    assert server.get("/orchestrator/status").ok()["running"] is False


def test_started_with_scheduling_off(make_server: Callable[..., Server]) -> None:
    env = {"RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED": "false", "RESEARCH_AGENT_SCHEDULING_POLICY": "fcfs"}
    server = make_server(nodes=1, gpus=1, env=env)
    status = server.get("/orchestrator/status").ok()
    assert (status["running"], status["policy"]["scheduling_algorithm"]) == (False, "fcfs")
    job = server.submit("true")
    assert server.job(job)["state"] == "queued"
    server.post("/orchestrator/start").ok()
    server.in_state(job, "completed")


# -- the policy -----------------------------------------------------------------------------------------------------
def test_a_change_leaves_the_rest_as_it_was(server: Server) -> None:
    answer = server.put("/orchestrator/policy", {"max_concurrent_jobs": 10, "enable_auto_retry": False}).ok()
    assert answer["success"] is True
    has(POLICY, answer["policy"])
    answer = server.put(
        "/orchestrator/policy",
        {
            "scheduling_algorithm": "fair_share",
            "enable_preemption": True,
            "backfill": "none",
            "aging_seconds": 60,
            "limits": {"gpus": 4},
            "user_limits": {"ann": {"running": 2}},
        },
    ).ok()
    policy = server.get("/orchestrator/status").ok()["policy"]
    assert policy == answer["policy"]
    assert (policy["max_concurrent_jobs"], policy["enable_auto_retry"]) == (10, False)
    assert (policy["scheduling_algorithm"], policy["enable_preemption"]) == ("fair_share", True)
    assert policy["limits"] == {"running": 0, "gpus": 4, "queued": 0}
    assert policy["user_limits"] == {"ann": {"running": 2, "gpus": 0, "queued": 0}}
    assert server.put("/orchestrator/policy", {}).ok()["policy"] == policy


def test_the_order_follows_the_algorithm(server: Server) -> None:
    server.post("/orchestrator/stop").ok()
    long = server.submit("true", priority=2, estimated_duration_seconds=5000)
    urgent = server.submit("true", priority=4, estimated_duration_seconds=4000)
    short = server.submit("true", priority=1, estimated_duration_seconds=10)
    orders = {"fcfs": [long, urgent, short], "sjf": [short, urgent, long], "priority": [urgent, long, short]}
    for algorithm, order in orders.items():
        server.put("/orchestrator/policy", {"scheduling_algorithm": algorithm}).ok()
        assert [job["id"] for job in server.get("/queue").ok()["queued"]] == order, algorithm


def test_no_more_at_a_time_than_the_policy_lets(server: Server) -> None:
    server.put("/orchestrator/policy", {"max_concurrent_jobs": 2}).ok()
    jobs = [server.sleeper() for _ in range(3)]
    for job in jobs[:2]:
        server.in_state(job, "running")
    assert server.job(jobs[2])["state"] == "queued"
    server.delete(f"/queue/{jobs[0]}").ok()
    server.in_state(jobs[2], "running")


def test_a_dry_run_of_a_policy(common: Server) -> None:
    tried = common.put("/orchestrator/policy?dry_run=true", {"max_concurrent_jobs": 7}).ok()
    assert (tried["dry_run"], tried["policy"]["max_concurrent_jobs"]) == (True, 7)
    assert common.get("/orchestrator/status").ok()["policy"]["max_concurrent_jobs"] == 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_concurrent_jobs": -1}, "max_concurrent_jobs"),
        ({"max_concurrent_jobs": 2**63}, "max_concurrent_jobs"),
        ({"max_concurrent_jobs": "ten"}, "max_concurrent_jobs"),
        ({"enable_auto_retry": "perhaps"}, "enable_auto_retry"),
        ({"backfill": "sometimes"}, "backfill"),
        ({"aging_seconds": 0}, "aging_seconds"),
        ({"aging_seconds": float("nan")}, "aging_seconds"),
        ({"half_life_seconds": -5}, "half_life_seconds"),
        ({"max_queue": 0}, "max_queue"),
        ({"limits": {"gpus": -1}}, "gpus"),
        ({"limits": 3}, "limits"),
        ({"patience": True}, "patience"),
        ({"express": 4.1}, "express"),
        ({"policy": "easy", "scheduling_algorithm": "auto"}, "scheduling_algorithm"),
        ({"policy": "easy", "backfill": "none"}, "backfill"),
    ],
)
def test_nonsense_is_refused_and_named(common: Server, change: dict[str, Any], field: str) -> None:
    before = common.get("/orchestrator/status").ok()["policy"]
    assert field_of(common.put("/orchestrator/policy", change)) == field
    assert common.get("/orchestrator/status").ok()["policy"] == before


def test_a_misspelt_field_is_told_the_right_one(common: Server) -> None:
    answer = common.put("/orchestrator/policy", {"max_concurent_jobs": 3})
    assert (answer.status, field_of(answer)) == (422, "max_concurent_jobs")
    assert answer.json["detail"][0]["msg"] == "no such field: did you mean max_concurrent_jobs?"


def test_an_unknown_algorithm_is_told_the_right_ones(common: Server) -> None:
    answer = common.put("/orchestrator/policy", {"scheduling_algorithm": "lottery"})
    assert field_of(answer) == "scheduling_algorithm"
    said = answer.json["detail"][0]["msg"]
    assert all(name in said for name in ("priority", "fcfs", "sjf", "fair_share"))


def test_only_an_admin_may_turn_the_wheel(make_server: Callable[..., Server]) -> None:
    server = make_server(nodes=1, gpus=1, env={"ROTA_SHARED_TOKEN": "shared-secret"})
    server.token = "shared-secret"
    server.token = server.post("/tokens", {"user": "ann", "role": "user"}).ok()["token"]
    for method, path, body in (
        ("POST", "/orchestrator/stop", None),
        ("POST", "/orchestrator/start", None),
        ("PUT", "/orchestrator/policy", {"max_concurrent_jobs": 1}),
        ("POST", "/gpu/initialize", {"node_count": 1}),
    ):
        assert server.call(method, path, body).status == 403, path
    assert server.get("/orchestrator/status").ok()["running"] is True


def test_nobody_is_called_nothing(common: Server) -> None:
    refused = common.put("/orchestrator/policy", {"user_limits": {"": {"gpus": 8}}})
    assert refused.status == 422 and refused.json["detail"][0]["loc"][:2] == ["body", "user_limits"]


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"limits": {"gpu": 4}}, ["body", "limits", "gpu"]),
        ({"user_limits": {"ann": {"gups": 8}}}, ["body", "user_limits", "ann", "gups"]),
        ({"limitz": {"gpus": 4}}, ["body", "limitz"]),
    ],
)
def test_a_limit_that_is_misspelt_is_not_taken_for_none(
    common: Server, change: dict[str, Any], where: list[str]
) -> None:
    before = common.get("/orchestrator/status").ok()["policy"]
    refused = common.put("/orchestrator/policy", change)
    assert refused.status == 422 and refused.json["detail"][0]["loc"] == where
    said = refused.json["detail"][0]["msg"]
    assert "misspelt" in said or "did you mean limits?" in said
    assert common.get("/orchestrator/status").ok()["policy"] == before


def test_while_it_is_paused_nobody_is_told_a_time(server: Server) -> None:
    assert server.get("/queue").ok()["paused"] is False
    server.post("/orchestrator/stop").ok()
    job = {"run_id": "n", "user": "ann", "command": "true", "gpu_count": 1}
    job_id = server.post("/queue/submit", job).ok()["job_id"]
    assert server.get("/queue").ok()["paused"] is True
    assert server.get(f"/runs/{job_id}/eta").ok()["eta"] is None
    run = server.get(f"/runs/{job_id}").ok()
    assert run["eta"] is None and "paused" in {reason["code"] for reason in run["reasons"]}


def test_a_whole_policy_goes_by_its_name(server: Server) -> None:
    for name, ordering, backfill in (("easy", "fcfs", "easy"), ("srtf", "srtf", "skip"), ("auto", "auto", "easy")):
        policy = server.put("/orchestrator/policy", {"policy": name}).ok()["policy"]
        assert (policy["policy"], policy["scheduling_algorithm"], policy["backfill"]) == (name, ordering, backfill)
    changed = server.put("/orchestrator/policy", {"policy": "auto", "patience": 0.25, "min_run_seconds": 300}).ok()
    assert (changed["policy"]["patience"], changed["policy"]["min_run_seconds"]) == (0.25, 300)
    beside = {"policy": "easy", "scheduling_algorithm": "fcfs", "enable_preemption": True}
    changed = server.put("/orchestrator/policy", beside).ok()
    assert changed["policy"]["enable_preemption"] is True, "what agrees, and what may be had beside a name"
    assert (changed["policy"]["patience"], changed["policy"]["min_run_seconds"]) == (0.25, 300), "a name keeps knobs"
    refused = server.put("/orchestrator/policy", {"policy": "easy", "scheduling_algorithm": "auto"})
    said = refused.json["detail"][0]["msg"]
    assert said.startswith("scheduling_algorithm: auto contradicts policy easy, which stands for")
    assert server.put("/orchestrator/policy", {"policy": "lottery"}).status == 422
    assert server.put("/orchestrator/policy", {"patience": 0}).status == 422
    (fault,) = server.put("/orchestrator/policy", {"express": 99999999}).json["detail"]
    assert "less than or equal to 4" in fault["msg"]
    (fault,) = server.put("/orchestrator/policy", {"limits": 4}).json["detail"]
    assert 'give them by name, such as {"gpus": 4}' in fault["msg"]
