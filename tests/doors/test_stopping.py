"""How a run is warned and stopped, asked for and told of through the doors; with a real server and curl."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.house import until
from tests.doors.people import MakeServer
from tests.doors.server import Server

SAVES = "trap 'exit 0' USR1; echo ready; while :; do sleep 0.01; done"


def make(server: Server, **more: Any) -> Any:
    return server.post("/runs", {"name": "a", "command": "true", **more}).ok()


def test_times_and_signals_are_numbers_or_words(common: Server) -> None:
    said = {"time_limit_seconds": "4h", "checkpoint_signal": "USR1", "grace_seconds": "2m", "preemptible": True}
    run = make(common, **said)
    assert (run["time_limit_seconds"], run["checkpoint_signal"], run["grace_seconds"]) == (14400.0, 10, 120.0)
    assert (run["warn_signal"], run["warn_seconds"]) == (10, 60.0), "asked to save before its limit as well"
    assert run["saves"] and not make(common, preemptible=True)["saves"], "who names its signal says that it saves"
    plain = make(common, time_limit_seconds=60)
    assert (plain["warn_signal"], plain["warn_seconds"], plain["preemptible"]) == (None, None, False)
    week = make(common, time_limit_seconds="1w", warn_signal="sigusr2", warn_seconds="5m")
    assert (week["time_limit_seconds"], week["warn_signal"], week["warn_seconds"]) == (604800.0, 12, 300.0)


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({"time_limit_seconds": "soon"}, "time_limit_seconds", "is not a time; write 90"),
        ({"time_limit_seconds": "0h"}, "time_limit_seconds", "greater than 0"),
        ({"checkpoint_signal": "HELLO"}, "checkpoint_signal", "is no signal; write a name such as USR2"),
        ({"checkpoint_signal": 64}, "checkpoint_signal", "less than or equal to 31"),
        ({"checkpoint_signal": "KILL"}, "checkpoint_signal", "no program can hear SIGKILL, so it could not save; use"),
        ({"checkpoint_signal": 19, "preemptible": True}, "checkpoint_signal", "no program can hear SIGSTOP"),
        ({"warn_signal": "KILL", "time_limit_seconds": 60}, "warn_signal", "no program can hear SIGKILL"),
        ({"warn_seconds": 90, "warn_signal": 10, "time_limit_seconds": 60}, "warn_seconds", "before the start"),
        ({"warn_signal": 10}, "warn_signal", "there is no time limit"),
        ({"filler": True}, "filler", "at most 1 h"),
        ({"filler": True, "time_limit_seconds": "2h"}, "filler", "this one says 2 h"),
        ({"filler": True, "time_limit_seconds": 60, "grace_seconds": 60}, "grace_seconds", "killed at once"),
        ({"filler": True, "time_limit_seconds": 60, "checkpoint_signal": 10}, "checkpoint_signal", "killed at once"),
    ],
)
def test_nonsense_is_named(common: Server, said: dict[str, Any], field: str, words: str) -> None:
    must_name(common, "/runs", {"name": "a", "command": "true", **said}, field, words)


def test_and_at_every_door(common: Server) -> None:
    job = {"run_id": "a", "user": "ann", "command": "true", "gpu_count": 1}
    sweep = {"name": "a", "base_command": "true", "parameters": {"x": [1]}}
    for path, body in (("/queue/submit", job), ("/sweeps", sweep)):
        must_name(common, path, {**body, "filler": True}, "filler", "at most 1 h")
        must_name(common, path, {**body, "time_limit_seconds": "soon"}, "time_limit_seconds", "is not a time")


def must_name(server: Server, path: str, body: dict[str, Any], field: str, words: str) -> None:
    answer = server.post(path, body)
    assert answer.status == 422
    (fault,) = answer.json["detail"]
    assert field in fault["loc"]
    assert words in fault["msg"]


def test_a_filler_is_marked_as_one_everywhere(common: Server) -> None:
    run = make(common, filler=True, time_limit_seconds="20m")
    assert (run["filler"], run["preemptible"], run["grace_seconds"], run["warn_signal"]) == (True, True, 0.0, None)
    job = common.get(f"/queue/{run['id']}").ok()
    assert (job["filler"], job["preemptible"]) == (True, True)
    assert make(common)["filler"] is False


def test_making_way_is_told_with_what_it_cost(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=1)
    server.put("/orchestrator/policy", {"enable_preemption": True}).ok()
    first = make(server, command=SAVES, auto_start=True, priority=1, preemptible=True, checkpoint_signal="USR1")
    until(lambda: "ready" in server.get(f"/runs/{first['id']}/logs").ok()["content"], "its handler")
    second = make(server, command="exec sleep 100000", auto_start=True, priority=4)
    until(lambda: server.get(f"/runs/{first['id']}").ok()["preemptions"], "it has made way")
    told = server.get(f"/runs/{first['id']}").ok()
    assert (told["status"], told["why"]) == ("queued", f"preempted for {second['id']}")
    assert (told["preemptions"], told["attempts"][0]["killed"], told["attempts"][0]["warned"]) == (1, False, False)
    assert told["preemption_gpu_seconds"] >= 0
    until(
        lambda: server.get(f"/runs/{first['id']}").ok()["suspended_seconds"] > told["suspended_seconds"], "it waits on"
    )
    server.post(f"/runs/{first['id']}/stop").ok()
    stood = server.get(f"/runs/{first['id']}").ok()["suspended_seconds"]
    assert server.get(f"/runs/{first['id']}").ok()["suspended_seconds"] == stood, "and no longer, once it has ended"
