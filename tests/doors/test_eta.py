"""When it will start, how sure that is, what would be sooner, and how such predictions did."""

from __future__ import annotations

from typing import Any

from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, people
from tests.doors.server import Server

FIELDS = {
    "run_id", "status", "eta", "seconds", "p50", "p90", "latest", "scenarios", "confidence", "from", "why",
    "alternatives", "overdue",
}  # fmt: skip


def make(server: Server, command: str = "sleep 1000", gpus: int = 8, **more: Any) -> Any:
    body = {"name": "t", "command": command, "auto_start": True, "gpu_count": gpus, **more}
    return server.post("/runs", body).ok()


def test_a_start_is_told_with_how_sure_it_is_and_what_would_be_sooner(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=8)
    running = make(server, gpus=6, estimated_duration_seconds=3600)["id"]
    waiting = make(server, gpus=4, estimated_duration_seconds=600)["id"]
    told = server.get(f"/runs/{waiting}/eta").ok()
    assert set(told) == FIELDS
    assert told["p50"] <= told["p90"]
    assert told["seconds"] > 3000
    assert told["latest"] is None, "who has no limit may go on for ever"
    assert (told["scenarios"], told["why"]) == (16, "")
    assert told["confidence"] in ("good", "fair", "rough")
    assert told["from"] == "how long 1 run will take: 1 by an estimate"
    now = [one for one in told["alternatives"] if one["now"]]
    assert [one["change"] for one in now] == ["with 2 GPUs"]
    assert now[0]["sooner_seconds"] > 3000

    smaller = make(server, gpus=2, estimated_duration_seconds=600)["id"]
    until(lambda: server.get(f"/runs/{smaller}").ok()["status"] == "running", "what was promised holds")

    done = server.get(f"/runs/{running}/eta").ok()
    assert set(done) == FIELDS
    assert (done["eta"], done["p50"], done["why"], done["alternatives"]) == (None, None, "", [])

    figures = server.get("/calibration").ok()
    assert (figures["pending"], figures["starts"][0]["count"]) == (1, 0)
    server.post(f"/runs/{running}/stop?grace_seconds=0").ok()
    server.post(f"/runs/{smaller}/stop?grace_seconds=0").ok()
    until(lambda: server.get(f"/runs/{waiting}").ok()["status"] == "running", "it starts")
    figures = server.get("/calibration").ok()
    every = figures["starts"][0]
    assert (figures["pending"], every["count"], every["by_p50"], every["by_p90"]) == (0, 1, 1.0, 1.0)
    assert every["error_s"] > 0
    assert [row["horizon"] for row in figures["starts"]] == ["all", "< 10 min", "< 1 h", "< 6 h", "more"]
    server.stop()
    server.start()
    assert server.get("/calibration").ok()["starts"][0] == every, "and the next server knows it, too"


def test_where_nothing_can_be_told_it_says_why(server: Server) -> None:
    held = server.post("/runs", {"name": "t", "command": "true", "gpu_count": 1}).ok()["id"]
    told = server.get(f"/runs/{held}/eta").ok()
    assert (told["p50"], told["confidence"], told["alternatives"]) == (None, "", [])
    assert told["why"].startswith("held")
    queued = make(server, gpus=16)["id"]
    behind = make(server, gpus=16, depends_on=[queued])["id"]
    assert server.get(f"/runs/{behind}/eta").ok()["p50"] is not None, "an end can be foretold"
    on_held = make(server, gpus=1, depends_on=[held])["id"]
    assert held in server.get(f"/runs/{on_held}/eta").ok()["why"]
    server.post("/orchestrator/stop").ok()
    # a start that was just worked out is told again for some times as long as that took
    until(lambda: "paused" in server.get(f"/runs/{behind}/eta").ok()["why"], "it is told anew")


def test_nobody_learns_of_others_runs_from_it(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PRIVACY": "private"})
    people(server)
    server.token = ANN
    hidden = server.post("/runs", {"name": "t", "command": "true", "gpu_count": 1}).ok()["id"]
    theirs = make(server, gpus=16)["id"]
    server.token = BEN
    mine = make(server, gpus=16)["id"]
    told = server.get(f"/runs/{mine}/eta").ok()
    assert told["p50"] is not None
    assert not any(run_id in str(told) for run_id in (hidden, theirs))
    assert server.get("/calibration").status == 200


def test_a_limit_is_suggested_when_the_command_has_shown_itself(server: Server) -> None:
    first = [make(server, "true", gpus=1) for _ in range(6)]
    assert "suggestion" not in first[0]
    for run in first:
        until(lambda: server.get(f"/runs/{run['id']}").ok()["status"] == "finished", "it ends")  # noqa: B023
    said = make(server, "true", gpus=1)
    assert said["suggested_time_limit_seconds"] == 60
    assert said["suggestion"].startswith("95 % of your runs like this end by 1 min")
    assert "suggestion" not in make(server, "true", gpus=1, time_limit_seconds=120), "near enough"
    assert make(server, "true", gpus=1, time_limit_seconds=86400)["suggested_time_limit_seconds"] == 60
    assert "suggestion" not in make(server, "echo something else", gpus=1)
    runtimes = server.get("/calibration").ok()["runtimes"]
    assert runtimes[0]["count"] >= 6
