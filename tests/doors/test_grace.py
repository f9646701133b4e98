"""A run that ignores TERM, seen over HTTP: what a cancel answers, what ends it at once, and who is told of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, Person, people
from tests.doors.server import Server

DEAF = "trap '' TERM INT HUP; echo ready; while :; do sleep 1000; done"


def deaf(asker: Server | Person, gpus: int = 1, command: str = DEAF, **more: Any) -> str:
    body = {"name": "deaf", "command": command, "workdir": "/", "gpu_count": gpus, "auto_start": True, **more}
    run_id: str = asker.post("/runs", body).ok()["id"]
    until(lambda: "ready" in asker.get(f"/runs/{run_id}/logs").ok()["content"], "it ignores the signals")
    until(lambda: status(asker, run_id) == "running", "its start is recorded")
    return run_id


def status(asker: Server | Person, run_id: str) -> str:
    word: str = asker.get(f"/runs/{run_id}").ok()["status"]
    return word


# -- what a cancel answers --------------------------------------------------------------------------------------------
def test_a_cancel_says_until_when_the_run_may_live_and_now_ends_it_with_all_it_forked(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=2)
    run_id = deaf(
        server, command=f"(trap '' TERM; exec setsid sleep 100000) & echo child $!; {DEAF}", grace_seconds=300
    )
    pid = int(server.get(f"/runs/{run_id}/logs").ok()["content"].split("child ")[1].split()[0])
    assert Path(f"/proc/{pid}").exists()

    asked = server.post(f"/runs/{run_id}/stop").ok()
    assert (asked["message"], asked["stopping"]) == ("Run stopped", True)
    assert time.time() < asked["kill_at"] <= time.time() + 301
    assert f"rota cancel --now {run_id}" in asked["note"]
    again = server.delete(f"/queue/{run_id}").ok()
    assert (again["success"], again["message"]) == (True, f"Job {run_id} canceled")
    assert (again["stopping"], again["kill_at"]) == (True, asked["kill_at"]), "asked again it ends no later"
    assert status(server, run_id) == "running", "and until then it holds its GPUs"

    killed = server.post(f"/runs/{run_id}/stop?now=true").ok()
    assert killed["stopping"] and killed["kill_at"] <= time.time()
    server.in_state(run_id, "canceled")
    assert not Path(f"/proc/{pid}").exists(), "nor does what it forked live on"


def test_a_stop_refuses_in_its_body_what_belongs_in_the_query(server: Server) -> None:
    """Else the run would be stopped, but not in the way that was asked for."""
    run_id = server.post("/runs", {"name": "waits", "command": "true"}).ok()["id"]
    for path, names in (
        (f"/runs/{run_id}/stop", ("now", "force", "grace_seconds", "dry_run")),
        ("/sweeps/none/stop", ("now", "waiting_only", "dry_run")),
    ):
        for name in names:
            refused = server.post(path, {name: True})
            assert refused.status == 422
            assert f"?{name}=" in refused.json["detail"][0]["msg"]
    assert status(server, run_id) == "ready"
    assert server.post(f"/runs/{run_id}/stop", {"reason": "a field that means nothing is let pass"}).status == 200


def test_now_works_on_the_queue_api_and_contradicts_a_grace(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=1)
    run_id = deaf(server, grace_seconds=300)
    refused = server.post(f"/runs/{run_id}/stop?now=true&grace_seconds=5")
    assert (refused.status, refused.json["detail"][0]["loc"][-1]) == (422, "now")
    assert server.delete(f"/queue/{run_id}?now=true").ok()["success"]
    server.in_state(run_id, "canceled")
    waiting = server.post("/runs", {"name": "w", "command": "true"}).ok()["id"]
    gone = server.post(f"/runs/{waiting}/stop").ok()
    assert (gone["status"], gone["stopping"], gone["kill_at"], gone["note"]) == ("stopped", False, None, "")


# -- who may ask for how much -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", ["/runs", "/queue/submit", "/sweeps"])
def test_a_grace_above_the_cap_is_refused_by_every_submit(make_server: MakeServer, path: str) -> None:
    server = make_server(nodes=1, gpus=1)
    known = people(server, boss="admin", **{ANN: "user"})
    body: dict[str, Any] = {"command": "true", "grace_seconds": 86400, "gpu_count": 1}
    body |= {"name": "a"} if path == "/runs" else {"run_id": "a", "user": ANN}
    if path == "/sweeps":
        body = {"name": "a", "base_command": "true", "parameters": {"x": [1]}, "grace_seconds": 86400}
    refused = known[ANN].post(path, body)
    assert refused.status == 422
    (fault,) = refused.json["detail"]
    assert fault["loc"][-1] == "grace_seconds"
    assert "is above 5 min, the most here (policy max_grace_seconds)" in fault["msg"]
    known["boss"].post(path, body).ok()


def test_what_was_found_from_outside(make_server: MakeServer) -> None:
    """A run with a limit of a few seconds that ignores TERM; an admin's cancel; somebody urgent who waits behind."""
    server = make_server(nodes=1, gpus=2)
    known = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    ann, ben, boss = known[ANN], known[BEN], known["boss"]
    low = deaf(ann, 2, priority=1, preemptible=True, grace_seconds=300)
    boss.call("PUT", "/orchestrator/policy", {"enable_preemption": True, "max_grace_seconds": 1}).ok()
    urgent = ben.post(
        "/runs", {"name": "u", "command": "true", "workdir": "/", "gpu_count": 2, "auto_start": True, "priority": 4}
    )
    until(lambda: status(ben, urgent.ok()["id"]) == "finished", "the urgent run did not wait for the whole grace")
    until(lambda: status(ann, low) == "running", "and the other one goes on")
    boss.post(f"/runs/{low}/stop").ok()
    until(lambda: status(boss, low) == "stopped", "an admin's cancel is done after the capped grace")


# -- overdue runs are named -------------------------------------------------------------------------------------------
def test_a_reservation_names_who_is_past_its_limit_and_so_do_explain_and_eta(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=2)
    run_id = deaf(server, 2, grace_seconds=300, time_limit_seconds=8)
    began = server.get(f"/runs/{run_id}").ok()["started_at"]
    until(lambda: time.time() > began + 8.5, "its limit is over")
    made = server.post("/reservations", {"gpus": 2, "for_seconds": 3600, "user": "ben"}).ok()
    (one,) = server.get("/reservations").ok()
    assert (one["id"], one["blocked_by"]) == (made["id"], [run_id])
    (held,) = one["overdue"]
    assert held["run_id"] == run_id
    assert held["since"] == pytest.approx(began + 8, abs=1.0)
    assert held["until"] == pytest.approx(began + 308, abs=1.0) == one["ready_at"]
    assert "is past its time limit" in held["text"] and f"rota cancel --now {run_id}" in held["text"]

    body = {"name": "w", "command": "true", "gpu_count": 1, "auto_start": True, "user": "ben"}
    waiting = server.post("/runs", {**body, "reservation": made["id"]}).ok()["id"]
    reasons = server.get(f"/runs/{waiting}/explain").ok()["reasons"]
    (reason,) = [each for each in reasons if each["code"] == "overdue"]
    assert (reason["runs"], reason["until"]) == ([run_id], held["until"])
    told = server.get(f"/runs/{waiting}/eta").ok()
    assert [each["run_id"] for each in told["overdue"]] == [run_id]
    server.post(f"/runs/{run_id}/stop?now=true").ok()
    until(lambda: status(server, waiting) == "finished", "what was reserved is free")
    assert server.get("/reservations").ok()[0]["overdue"] == []


def test_explain_names_a_stopped_supervisor_and_that_its_run_is_overdue(make_server: MakeServer) -> None:
    """A job of the server's own account stops its supervisor, and would hold its GPU without a word."""
    server = make_server(nodes=1, gpus=1)
    body = {"name": "stopper", "command": "kill -STOP $PPID; exec sleep 1000", "gpu_count": 1, "auto_start": True}
    run_id = server.post("/runs", {**body, "time_limit_seconds": 1, "grace_seconds": 300}).ok()["id"]

    def reasons() -> dict[str, str]:
        return {each["code"]: each["text"] for each in server.get(f"/runs/{run_id}/explain").ok()["reasons"]}

    until(lambda: {"stalled", "overdue"} <= reasons().keys(), "it is told")
    assert "is stopped (state T)" in reasons()["stalled"]
    assert "is past its time limit" in reasons()["overdue"]
    server.post(f"/runs/{run_id}/stop?now=true").ok()
    server.in_state(run_id, "canceled")
    assert reasons() == {}


def test_what_is_hidden_stays_hidden_also_when_it_is_overdue(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=1, env={"ROTA_PRIVACY": "private"})
    known = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    run_id = deaf(known[ANN], grace_seconds=300)
    known[ANN].post(f"/runs/{run_id}/stop").ok()
    waiting = known[BEN].post("/runs", {"name": "w", "command": "true", "gpu_count": 1, "auto_start": True}).ok()["id"]
    told = until(lambda: known[BEN].get(f"/runs/{waiting}/eta").ok()["overdue"], "somebody is in the way")
    explained = known[BEN].get(f"/runs/{waiting}/explain").ok()
    assert "overdue" in {reason["code"] for reason in explained["reasons"]}
    for shown in (told, explained):
        assert run_id not in str(shown) and ANN not in str(shown)
    known["boss"].post(f"/runs/{run_id}/stop?now=true").ok()


def test_only_an_admin_forces_an_end(make_server: MakeServer) -> None:
    server = make_server()
    known = people(server, boss="admin", **{ANN: "user"}, robot="agent", watcher="viewer")
    run_id = known[ANN].post("/runs", {"name": "a", "command": "sleep 1000", "workdir": "/"}).ok()["id"]
    for name in (ANN, "robot", "watcher"):
        refused = known[name].post(f"/runs/{run_id}/stop?force=true")
        assert refused.status == 403, refused.body
        assert "may not" in refused.json["detail"]
    assert known["boss"].post(f"/runs/{run_id}/stop?force=true&grace_seconds=5").status == 422
    done = known["boss"].post(f"/runs/{run_id}/stop?force=true").ok()
    assert (done["status"], done["stopping"], done["note"]) == ("stopped", False, ""), "it only waited"
