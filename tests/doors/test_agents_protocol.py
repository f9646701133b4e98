"""The calls that agents' protocols prescribe, word for word as a shell sends them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.app.house import until
from tests.doors.people import MakeServer
from tests.doors.server import Server

TOKEN = "common-token-0123456789"
PREFLIGHT = ("docs", "openapi.json", "prompt-skills/wild_v2_execution_ops_protocol", "wild/v2/system-health")


def shell(server: Server, script: str, token: str = "") -> str:
    env = {"PATH": "/usr/bin:/bin", "SERVER_URL": server.url, "AUTH_TOKEN": token}
    done = subprocess.run(["/bin/sh", "-ec", script], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done
    return done.stdout


def answer(server: Server, script: str, token: str = "") -> Any:
    return json.loads(shell(server, script, token))


@pytest.fixture(params=["", TOKEN], ids=["open", "with a token"])
def token(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def house(make_server: MakeServer, token: str) -> Server:
    return make_server(env={"RESEARCH_AGENT_USER_AUTH_TOKEN": token} if token else {})


def test_preflight_discovery_and_launch(house: Server, token: str) -> None:
    preflight(house)
    discovery(house, token)
    launch(house, token)
    audit(house, token)


def preflight(server: Server) -> None:
    """Without any header, whether the server has tokens or not; agents give up on anything but success."""
    for path in PREFLIGHT:
        assert shell(server, f'curl -sf "$SERVER_URL/{path}" >/dev/null && echo fine') == "fine\n", path


def discovery(server: Server, token: str) -> None:
    detected = answer(server, 'curl -s -X POST "$SERVER_URL/cluster/detect" -H "X-Auth-Token: $AUTH_TOKEN"', token)
    known = answer(server, 'curl -s -X GET "$SERVER_URL/cluster" -H "X-Auth-Token: $AUTH_TOKEN"', token)
    assert detected["cluster"]["type"] == known["cluster"]["type"] == "local_gpu"
    assert known["cluster"]["gpu_count"] == 16
    health = answer(server, 'curl -s -X GET "$SERVER_URL/wild/v2/system-health" -H "X-Auth-Token: $AUTH_TOKEN"', token)
    assert (health["running"], health["queued"]) == (0, 0)


POST = 'curl -sf -X POST "$SERVER_URL{}" -H "X-Auth-Token: $AUTH_TOKEN" -H "Content-Type: application/json" -d \'{}\''


def post(server: Server, token: str, path: str, body: Any) -> Any:
    return answer(server, POST.format(path, json.dumps(body)), token)


def launch(server: Server, token: str) -> None:
    """A sweep, a run for each configuration, some started at once and some later, watched until the end."""
    chat = "wild-0badcafe"
    sweep = post(server, token, "/sweeps/wild", {"name": "grid", "goal": "lower loss", "chat_session_id": chat})
    runs = [
        post(
            server,
            token,
            "/runs",
            {
                "name": f"lr {n}",
                "command": f"echo lr={n} on $CUDA_VISIBLE_DEVICES",
                "sweep_id": sweep["id"],
                "chat_session_id": chat,
                "auto_start": n < 2,
            },
        )
        for n in range(4)
    ]
    assert [run["status"] for run in runs] == ["queued", "queued", "ready", "ready"]
    get = 'curl -sf "$SERVER_URL{}" -H "X-Auth-Token: $AUTH_TOKEN"'

    def capacity() -> int:
        cluster = answer(server, get.format("/cluster"), token)["cluster"]
        health = answer(server, get.format("/wild/v2/system-health"), token)
        listed = answer(server, get.format("/runs"), token)
        q = sum(run["status"] in ("ready", "queued") for run in listed)
        g, r = max(1, int(cluster["gpu_count"] or 1)), int(health["running"])
        return max(0, min(q, g - r))

    until(lambda: capacity() == 2, "the first two are on their way, the others could be")
    for run in runs[2:]:
        started = answer(server, POST.format(f"/runs/{run['id']}/start", ""), token)
        assert started["message"] == "Run started"

    def done() -> bool:
        return all(run["status"] == "finished" for run in answer(server, get.format("/runs"), token))

    until(done, "all have ended")
    health = answer(server, get.format("/wild/v2/system-health"), token)
    assert (health["completed"], health["running"], health["queued"]) == (4, 0, 0)
    shown = answer(server, get.format(f"/sweeps/{sweep['id']}"), token)
    assert (shown["status"], shown["progress"]["completed"], len(shown["run_ids"])) == ("completed", 4, 4)
    log = answer(server, get.format(f"/runs/{runs[0]['id']}/logs"), token)["content"]
    assert log.startswith("lr=0 on "), log
    assert log.strip()[-1].isdigit(), "which GPU is its own, the run is told"


def audit(server: Server, token: str) -> None:
    """Every way of making something takes the session and keeps it."""
    chat = {"chat_session_id": "wild-feedbeef"}
    sweep = post(server, token, "/sweeps", {"name": "s", "base_command": "true", "parameters": {"a": [1, 2]}, **chat})
    wild = post(server, token, "/sweeps/wild", chat)
    alone = post(server, token, "/runs", {"name": "r", "command": "true", **chat})
    within = post(server, token, f"/sweeps/{wild['id']}/runs", {"name": "r", "command": "true", **chat})
    assert {one["chat_session_id"] for one in (sweep, wild, alone, within)} == {"wild-feedbeef"}
    get = 'curl -sf "$SERVER_URL/journey/loop?session_id=wild-feedbeef" -H "X-Auth-Token: $AUTH_TOKEN"'
    assert [event["kind"] for event in answer(server, get, token)["events"]] == ["run_created"] * 4


def test_without_the_token_only_the_preflight(make_server: MakeServer) -> None:
    server = make_server(env={"RESEARCH_AGENT_USER_AUTH_TOKEN": TOKEN})
    preflight(server)
    for method, path in (("POST", "/cluster/detect"), ("GET", "/cluster"), ("POST", "/runs"), ("POST", "/sweeps/wild")):
        refused = server.call(method, path)
        assert refused.status == 401
        assert refused.json == {"detail": "Unauthorized - invalid or missing X-Auth-Token"}


def test_the_queue_documents_calls(server: Server) -> None:
    """The other door's example calls, seen from this one: one thing, two views."""
    script = (
        'curl -sf -X POST "$SERVER_URL/queue/submit" -H "Content-Type: application/json" -d '
        """'{"run_id": "experiment-1", "user": "username", "command": "exec sleep 100000", "gpu_count": 2,"""
        """ "priority": 2}'"""
    )
    job = answer(server, script)["job_id"]
    until(lambda: server.get(f"/runs/{job}").ok()["status"] == "running", "it runs here, too")
    run = server.get(f"/runs/{job}").ok()
    assert (run["user"], run["gpu_count"], run["command"]) == ("username", 2, "exec sleep 100000")
    assert len(run["gpus"]) == 2
    mine = server.post("/runs", {"name": "mine", "command": "exec sleep 100000", "auto_start": True}).ok()["id"]
    until(lambda: mine in [one["id"] for one in server.get("/queue").ok()["running"]], "mine is seen there")
    # and a lease, which the third door gives, is a run as well
    holder = subprocess.Popen(["sleep", "100000"])
    try:
        lease = server.post("/acquire", {"pid": holder.pid, "num_gpus": 3}, lease=True).ok()
        until(lambda: server.get(f"/runs/{lease['job_id']}").ok()["status"] == "running", "it is known to be held")
        seen = server.get(f"/runs/{lease['job_id']}").ok()
        assert (seen["gpu_count"], seen["run_dir"]) == (3, None)
        assert server.get("/cluster").ok()["run_summary"]["running"] == 3
        taken = [gpu for one in server.get("/runs").ok() for gpu in one["gpus"]]
        assert len(taken) == len(set(taken)) == 6
    finally:
        holder.kill()
        holder.wait()
    until(lambda: server.get(f"/runs/{lease['job_id']}").ok()["status"] == "finished", "its holder is gone")
    assert server.get(f"/runs/{lease['job_id']}/logs").ok()["content"] == ""
    assert server.post(f"/runs/{lease['job_id']}/rerun").status == 409
