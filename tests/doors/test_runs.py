"""The runs door, row by row, with a real server and curl."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner, Result

from rota.cli import story
from rota.cli.main import main
from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, Person, people
from tests.doors.server import Server

FIELDS: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "name": (str,),
    "command": (str,),
    "workdir": (str,),
    "status": (str,),
    "created_at": (float,),
    "is_archived": (bool,),
    "sweep_id": (str, type(None)),
    "parent_run_id": (str, type(None)),
    "origin_alert_id": (str, type(None)),
    "chat_session_id": (str, type(None)),
    "gpuwrap_config": (dict, type(None)),
    "tmux_window": (str, type(None)),
    "run_dir": (str, type(None)),
    "exit_code": (int, type(None)),
    "error": (str, type(None)),
    "wandb_dir": (str, type(None)),
    "user": (str,),
    "gpu_count": (int,),
    "priority": (int,),
    "gpus": (list,),
    "attempts": (list,),
    "retry_count": (int,),
    "max_retries": (int,),
    "simulated": (bool,),
    "tags": (list,),
}


def make(server: Server, command: str = "exec sleep 100000", **more: Any) -> Any:
    return server.post("/runs", {"name": "a run", "command": command, **more}).ok()


def in_status(server: Server, run_id: str, *words: str) -> Any:
    until(lambda: server.get(f"/runs/{run_id}").ok()["status"] in words, f"{run_id} is {words}")
    return server.get(f"/runs/{run_id}").ok()


NO_HINT = "there is no such field here; /openapi.json lists those there are"


def test_a_field_nobody_knows_is_named_and_does_no_harm(server: Server) -> None:
    """Clients of other servers send more than ours reads; a slip of the pen must not pass in silence either."""
    odd = {"gpus": 4, "a" * 300: {"x": [None]}}
    wild = server.post("/sweeps/wild").ok()["id"]
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/runs", {"name": "n", "command": "true"}),
        (f"/sweeps/{wild}/runs", {"name": "n", "command": "true"}),
        ("/sweeps", {"name": "s", "base_command": "true", "parameters": {"x": [1, 2]}}),
        ("/queue/submit", {"run_id": "n", "user": "u", "command": "true", "gpu_count": 1}),
    ]
    for path, body in asked:
        for dry in ("", "?dry_run=true"):
            assert "ignored" not in server.post(path + dry, body).ok(), path
            answer = server.post(path + dry, {**body, **odd}).ok()
            assert answer["ignored"] == [f"{'a' * 100}: {NO_HINT}", "gpus: did you mean gpu_count?"], path
            assert answer.get("dry_run") == (True if dry else None)
    many = {f"field-{number:03}": 0 for number in range(500)}
    assert len(server.post("/runs", {**asked[0][1], **many}).ok()["ignored"]) == 20


def test_a_strict_request_with_a_field_nobody_knows_is_refused(server: Server) -> None:
    wild = server.post("/sweeps/wild?strict=true", {"name": "w"}).ok()["id"]
    run = server.post("/runs?strict=true", {"name": "n", "command": "true"}).ok()["id"]
    job = server.post("/queue/submit?strict=true", {"run_id": "n", "user": "u", "command": "true", "gpu_count": 1}).ok()
    asked: list[tuple[str, dict[str, Any], str]] = [
        ("/runs", {"name": "n", "command": "true"}, "gpu_count"),
        (f"/sweeps/{wild}/runs", {"name": "n", "command": "true"}, "gpu_count"),
        ("/sweeps", {"name": "s", "base_command": "true", "parameters": {"x": [1, 2]}}, "gpu_count"),
        ("/queue/submit", {"run_id": "n", "user": "u", "command": "true", "gpu_count": 1}, "gpu_count"),
        ("/sweeps/wild", {}, ""),
        (f"/runs/{run}/rerun", {}, ""),
        ("/reservations", {"gpus": 1, "for_seconds": 60}, ""),
    ]
    for path, body, meant in asked:
        refused = server.post(f"{path}?strict=true", {**body, "num_gpus": 4, "zzz": None})
        assert refused.status == 422, path
        faults = {tuple(fault["loc"]): fault for fault in refused.json["detail"]}
        assert set(faults) == {("body", "num_gpus"), ("body", "zzz")}, path
        assert all(set(fault) == {"type", "loc", "msg", "input"} for fault in faults.values())
        assert {fault["type"] for fault in faults.values()} == {"extra_forbidden"}
        assert f"did you mean {meant}" in faults["body", "num_gpus"]["msg"] or not meant
        assert NO_HINT in faults["body", "zzz"]["msg"]
    assert server.post("/runs?strict=perhaps", asked[0][1]).json["detail"][0]["loc"] == ["query", "strict"]
    assert server.post("/queue/submit?strict=perhaps", asked[3][1]).json["detail"][0]["loc"] == ["query", "strict"]
    assert {run["id"] for run in server.get("/runs").ok()} == {run, job["job_id"]}, "nothing was made"
    assert [sweep["id"] for sweep in server.get("/sweeps").ok()] == [wild]


@pytest.mark.parametrize(
    ("path", "body", "field", "meant"),
    [
        ("/sweeps", {"name": "s", "base_command": "true", "params": {"x": [1]}}, "parameters", "params"),
        ("/runs", {"name": "n", "comand": "true"}, "command", "comand"),
        ("/queue/submit", {"run_id": "n", "user": "u", "command": "true", "gpus": 1}, "gpu_count", "gpus"),
        ("/reservations", {"gpu_count": 1, "for_seconds": 60}, "gpus", "gpu_count"),
        ("/reservations", {"gpus": 1, "for": 60}, "for_seconds", "for"),
    ],
)
def test_a_field_that_is_missing_is_looked_for_among_those_that_were_sent(
    server: Server, path: str, body: dict[str, Any], field: str, meant: str
) -> None:
    (fault,) = server.post(path, body).json["detail"]
    assert fault["loc"] == ["body", field] and fault["msg"].endswith(f"; did you mean it by {meant}?"), fault


def test_a_dry_run_asked_for_in_the_body_is_not_done_in_earnest(server: Server) -> None:
    for path, body in (
        ("/runs", {"name": "n", "command": "true"}),
        ("/queue/submit", {"run_id": "n", "user": "u", "command": "true", "gpu_count": 1}),
        ("/sweeps", {"name": "s", "base_command": "true", "parameters": {}}),
        ("/sweeps/wild", {}),
    ):
        for word in ("dry_run", "dry-run", "dryRun"):
            refused = server.post(path, {**body, word: True})
            assert refused.status == 422 and "write ?dry_run=true" in refused.json["detail"][0]["msg"], path
    assert server.get("/runs").ok() == [] and server.get("/sweeps").ok() == []


def test_the_same_key_is_the_same_request_whatever_is_ignored(server: Server) -> None:
    sweep = {"name": "s", "base_command": "true", "parameters": {"x": [1, 2]}, "idempotency_key": "k"}
    first, second = server.post("/sweeps", sweep).ok(), server.post("/sweeps", {**sweep, "gpus": 4}).ok()
    assert (first["id"], second["ignored"]) == (second["id"], ["gpus: did you mean gpu_count?"])


def test_the_life_of_a_run(server: Server) -> None:
    made = make(server, "echo hello; exit 3", chat_session_id="wild-1a2b3c4d", tags=["first"], env={"SECRET": "x"})
    assert {name for name, kinds in FIELDS.items() if not isinstance(made[name], kinds)} == set()
    assert len(made["id"]) == 12
    assert (made["status"], made["gpu_count"], made["priority"], made["user"]) == ("ready", 1, 2, "anonymous")
    assert made["chat_session_id"] == "wild-1a2b3c4d"
    assert made["tmux_window"] is made["run_dir"] is made["exit_code"] is made["error"] is None
    assert made["simulated"] is True
    assert not {"queued_at", "launched_at", "started_at", "ended_at", "stopped_at", "archived_at"} & made.keys()

    waiting = server.get(f"/runs/{made['id']}").ok()
    assert [reason["code"] for reason in waiting["reasons"]] == ["held"]
    assert (waiting["position"], waiting["eta"]) == (None, None)
    assert (waiting["env"], waiting["env_names"]) == ({"SECRET": "x"}, ["SECRET"])

    queued = server.post(f"/runs/{made['id']}/queue").ok()
    assert (queued["message"], queued["id"]) == ("Run queued", made["id"])
    ended = in_status(server, made["id"], "failed")
    assert ended["exit_code"] == 3
    assert ended["error"]
    assert ended["created_at"] < ended["queued_at"] <= ended["launched_at"] <= ended["started_at"] <= ended["ended_at"]
    assert "stopped_at" not in ended
    assert ended["gpus"] == []
    (attempt,) = ended["attempts"]
    assert (attempt["id"], attempt["exit_code"], attempt["reason"]) == (f"{made['id']}-1", 3, "exited")
    assert attempt["started"] <= attempt["ended"]
    assert ended["tmux_window"] == attempt["id"]
    assert ended["run_dir"].endswith(made["id"])
    assert ended["attempts"][0]["gpus"] == ["node1:0"]


def test_list_filters_pages_and_hides_what_is_archived(server: Server) -> None:
    ids = [make(server, "true", name=f"run {n}")["id"] for n in range(5)]
    assert [run["id"] for run in server.get("/runs").ok()] == ids[::-1], "a bare list, newest first"
    first = server.get("/runs?limit=2")
    second = server.get(f"/runs?limit=3&cursor={first.headers['x-next-cursor']}")
    assert [run["id"] for run in [*first.ok(), *second.ok()]] == ids[::-1]
    assert "x-next-cursor" not in second.headers

    archived = server.post(f"/runs/{ids[0]}/archive").ok()
    assert (archived["message"], archived["run"]["is_archived"]) == ("Run archived", True)
    assert archived["run"]["archived_at"] > 0
    assert len(server.get("/runs").ok()) == 4
    assert len(server.get("/runs?archived=true").ok()) == 5
    back = server.post(f"/runs/{ids[0]}/unarchive").ok()
    assert (back["message"], back["run"]["is_archived"]) == ("Run unarchived", False)
    assert "archived_at" not in back["run"]

    server.post(f"/runs/{ids[1]}/stop").ok()
    assert [run["id"] for run in server.get("/runs?status=stopped").ok()] == [ids[1]]
    assert len(server.get("/runs?status=ready,stopped").ok()) == 5
    mine = make(server, user="ann")["id"]
    assert [run["id"] for run in server.get("/runs?user=ann").ok()] == [mine]


def test_start_never_starts_too_many(make_server: MakeServer) -> None:
    server = make_server(nodes=1, gpus=2)
    ids = [make(server)["id"] for _ in range(3)]
    for run_id in ids:
        answer = server.post(f"/runs/{run_id}/start").ok()
        assert answer["message"] == "Run started"
        assert answer["tmux_window"] == f"{run_id}-1"
    running = [in_status(server, run_id, "running") for run_id in ids[:2]]
    assert sorted(gpu for run in running for gpu in run["gpus"]) == ["node1:0", "node1:1"]
    assert running[0]["node"] == "node1"
    third = server.get(f"/runs/{ids[2]}").ok()
    assert third["status"] == "queued"
    assert "resources" in [reason["code"] for reason in third["reasons"]]
    assert third["position"] == 1
    assert third["eta"] > third["created_at"]
    assert server.post(f"/runs/{ids[2]}/start").ok()["message"] == "Run started", "again: it is on its way"
    refused = server.post(f"/runs/{ids[0]}/start")
    assert (refused.status, refused.json) == (400, {"detail": "Run cannot be started (status: running)"})

    explained = server.get(f"/runs/{ids[2]}/explain").ok()
    assert explained["status"] == "queued"
    assert set(explained["reasons"][0]) == {"code", "text", "runs", "until"}
    assert set(explained["reasons"][0]["runs"]) <= set(ids[:2])
    assert server.get(f"/runs/{ids[2]}/eta").ok()["seconds"] > 0
    assert server.get(f"/runs/{ids[0]}/eta").ok()["eta"] is None

    server.post(f"/runs/{ids[0]}/stop").ok()
    in_status(server, ids[2], "running")
    stopped = in_status(server, ids[0], "stopped")
    assert stopped["stopped_at"] == stopped["ended_at"]


def test_stop_queue_and_their_refusals(server: Server) -> None:
    ready, queued = make(server)["id"], make(server, gpu_count=16, auto_start=True)["id"]
    behind = make(server, auto_start=True)["id"]
    in_status(server, queued, "running")
    assert server.post(f"/runs/{ready}/stop").ok()["message"] == "Run stopped"
    assert server.post(f"/runs/{behind}/stop").ok()["message"] == "Run stopped"
    again = server.post(f"/runs/{ready}/stop")
    assert (again.status, again.json) == (400, {"detail": "Run is not active (status: stopped)"})
    assert server.post(f"/runs/{ready}/queue").json == {"detail": "Run is not ready (status: stopped)"}
    assert server.post(f"/runs/{ready}/start").json == {"detail": "Run cannot be started (status: stopped)"}
    for method, path in (
        ("GET", ""),
        ("PUT", ""),
        ("POST", "/queue"),
        ("POST", "/start"),
        ("POST", "/stop"),
        ("POST", "/rerun"),
        ("POST", "/archive"),
        ("POST", "/unarchive"),
        ("POST", "/hold"),
        ("POST", "/release"),
        ("GET", "/explain"),
        ("GET", "/eta"),
        ("GET", "/workspace"),
    ):
        answer = server.call(method, f"/runs/0123456789ab{path}", {} if method == "PUT" else None)
        assert (answer.status, answer.json) == (404, {"detail": "Run not found"}), path


def test_put_says_which_fields_it_does_not_change(server: Server) -> None:
    run_id = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    sent = {"name": "better", "gpu_count": 4, "cwd": "/tmp"}
    refused = server.put(f"/runs/{run_id}?strict=true", sent)
    assert refused.status == 422
    assert [fault["loc"] for fault in refused.json["detail"]] == [["body", "cwd"], ["body", "gpu_count"]]
    assert server.get(f"/runs/{run_id}").ok()["name"] == "a", "nothing was changed"
    changed = server.put(f"/runs/{run_id}", sent).ok()
    assert (changed["name"], changed["gpu_count"]) == ("better", 1)
    cwd, gpus = changed["ignored"]
    assert (cwd, gpus.partition(":")[0]) == ("cwd: did you mean workdir?", "gpu_count")
    assert "ignored" not in server.put(f"/runs/{run_id}", {"name": "best"}).ok()


def test_put_changes_what_may_be_changed(server: Server) -> None:
    run_id = make(server)["id"]
    changed = server.put(f"/runs/{run_id}", {"name": "better", "command": "exec sleep 99999", "workdir": "/tmp"}).ok()
    assert (changed["name"], changed["command"], changed["workdir"]) == ("better", "exec sleep 99999", "/tmp")
    for field in ("name", "command", "workdir"):
        refused = server.put(f"/runs/{run_id}", {field: "  "})
        assert (refused.status, field in refused.json["detail"]) == (400, True)
    server.post(f"/runs/{run_id}/start").ok()
    in_status(server, run_id, "running")
    assert server.put(f"/runs/{run_id}", {"command": "true"}).status == 409
    assert server.put(f"/runs/{run_id}", {"name": "even better"}).ok()["name"] == "even better"
    server.post(f"/runs/{run_id}/stop").ok()
    in_status(server, run_id, "stopped")
    assert "replaced" not in server.get(f"/runs/{run_id}").ok()
    assert server.put(f"/runs/{run_id}", {"command": "rm -r x"}).ok()["command"] == "rm -r x"
    shown = server.get(f"/runs/{run_id}").ok()
    assert shown["replaced"] == {"command": "exec sleep 99999", "workdir": "/tmp"}
    assert story._replaced(shown["replaced"]) == "exec sleep 99999 in /tmp"


def test_rerun_keeps_what_belongs_to_it(server: Server) -> None:
    sweep = server.post("/sweeps/wild", {}).ok()["id"]
    made = make(server, "true", sweep_id=sweep, chat_session_id="chat", workdir="/tmp", auto_start=True)
    in_status(server, made["id"], "finished")
    again = server.post(f"/runs/{made['id']}/rerun").ok()
    assert again["name"] == "a run (Rerun)"
    assert again["parent_run_id"] == made["id"]
    assert (again["sweep_id"], again["workdir"], again["chat_session_id"]) == (sweep, "/tmp", "chat")
    assert (again["command"], again["status"], again["origin_alert_id"]) == ("true", "ready", None)
    wrap = {"enabled": True, "retries": -1, "retry_delay_seconds": 0.5}
    body = {"command": "echo again", "auto_start": True, "origin_alert_id": "a" * 32, "gpuwrap_config": wrap}
    other = server.post(f"/runs/{made['id']}/rerun", body).ok()
    assert (other["command"], other["origin_alert_id"], other["gpuwrap_config"]) == ("echo again", "a" * 32, wrap)
    assert in_status(server, other["id"], "finished")["exit_code"] == 0


def test_reports_on_a_run_that_is_carried_elsewhere(server: Server) -> None:
    run_id = make(server)["id"]

    def report(**body: Any) -> Any:
        return server.post(f"/runs/{run_id}/status", body)

    assert report(status="launching", tmux_pane="%3").ok() == {"message": "Status updated"}
    assert report(status="running", wandb_dir="/tmp/wandb").ok()["message"] == "Status updated"
    running = server.get(f"/runs/{run_id}").ok()
    assert (running["status"], running["tmux_pane"], running["wandb_dir"]) == ("running", "%3", "/tmp/wandb")
    assert running["gpus"] == [], "it holds none of ours"
    assert report(status="queued").status == 400
    assert report(status="finished", exit_code=7, error="boom").ok()["message"] == "Status updated"
    ended = server.get(f"/runs/{run_id}").ok()
    assert (ended["status"], ended["exit_code"], ended["error"]) == ("failed", 7, "boom")
    assert report(status="running").status == 400, "what has ended has ended"
    unknown = report(status="exploded")
    assert unknown.status == 400
    assert "launching" in unknown.json["detail"]
    assert server.post("/runs/0123456789ab/status", {"status": "running"}).status == 404
    # what Rota carries itself it sees for itself
    own = make(server, auto_start=True)["id"]
    in_status(server, own, "running")
    assert server.post(f"/runs/{own}/status", {"status": "finished"}).status == 400
    # and the two words before anything runs mean what they say
    ready = make(server)["id"]
    server.post(f"/runs/{ready}/status", {"status": "queued"}).ok()
    in_status(server, ready, "running")


def test_hold_release_and_priority(server: Server) -> None:
    full = make(server, gpu_count=16, auto_start=True)["id"]
    in_status(server, full, "running")
    run_id = make(server, auto_start=True)["id"]
    assert server.post(f"/runs/{run_id}/hold").ok()["status"] == "ready"
    assert server.patch(f"/runs/{run_id}/priority", {"priority": 4}).ok()["priority"] == 4
    assert server.post(f"/runs/{run_id}/release").ok()["status"] == "queued"
    assert server.post(f"/runs/{run_id}/release").status == 409
    assert server.post(f"/runs/{full}/hold").status == 409
    assert server.patch(f"/runs/{run_id}/priority", {"priority": 5}).json["detail"][0]["loc"] == ["body", "priority"]


def test_a_dry_run_says_so_and_does_nothing(server: Server) -> None:
    tried = server.post("/runs?dry_run=true", {"name": "a", "command": "true"}).ok()
    assert tried["dry_run"] is True
    assert tried["status"] == "ready"
    assert server.get("/runs").ok() == []
    run_id = make(server)["id"]
    for path in ("queue", "start", "stop", "archive", "rerun", "release"):
        assert server.post(f"/runs/{run_id}/{path}?dry_run=true").ok()["dry_run"] is True, path
    assert server.post(f"/runs/{run_id}/status?dry_run=true", {"status": "running"}).ok()["dry_run"] is True
    assert server.put(f"/runs/{run_id}?dry_run=true", {"name": "b"}).ok()["name"] == "b"
    left = server.get("/runs?archived=true").ok()
    assert [(run["status"], run["name"]) for run in left] == [("ready", "a run")]


def test_the_same_key_is_the_same_run(server: Server) -> None:
    body = {"name": "a", "command": "true"}
    first = server.post("/runs", body, headers=["Idempotency-Key: k1"]).ok()
    assert server.post("/runs", body, headers=["Idempotency-Key: k1"]).ok()["id"] == first["id"]
    assert server.post("/runs", {**body, "idempotency_key": "k1"}).ok()["id"] == first["id"]
    assert server.post("/runs", {**body, "name": "b"}, headers=["Idempotency-Key: k1"]).status == 409
    again = server.post(f"/runs/{first['id']}/rerun", headers=["Idempotency-Key: k2"]).ok()
    assert server.post(f"/runs/{first['id']}/rerun", headers=["Idempotency-Key: k2"]).ok()["id"] == again["id"]
    assert len(server.get("/runs").ok()) == 2


def test_argv_is_run_as_it_is(server: Server) -> None:
    text = "$(touch hacked); `id` | x"
    made = server.post("/runs", {"name": "argv", "argv": ["printf", "%s", text], "auto_start": True}).ok()
    in_status(server, made["id"], "finished")
    assert server.get(f"/runs/{made['id']}/logs").ok()["content"] == text
    assert server.post("/runs", {"name": "both", "command": "true", "argv": ["true"]}).status == 422
    assert server.post("/runs", {"name": "neither"}).status == 422


def test_one_ledger_behind_all_doors(server: Server) -> None:
    here = make(server, auto_start=True, gpu_count=2)["id"]
    there = server.sleeper(3)
    in_status(server, here, "running")
    in_status(server, there, "running")
    queue = server.get("/queue").ok()
    assert {job["id"] for job in queue["running"]} == {here, there}
    assert {run["id"] for run in server.get("/runs?status=running").ok()} == {here, there}
    assert server.get("/cluster").ok()["run_summary"]["running"] == 2
    assert server.get("/wild/v2/system-health").ok()["running"] == 2
    assert server.get("/gpu/status").ok()["cluster_status"]["allocated_gpus"] == 5
    held = [gpu for run in server.get("/runs").ok() for gpu in run["gpus"]]
    assert len(held) == len(set(held)) == 5
    assert server.delete(f"/queue/{here}").ok()["success"] is True
    in_status(server, here, "stopped")
    assert server.post(f"/runs/{there}/stop").ok()["message"] == "Run stopped"
    until(lambda: server.job(there)["state"] == "canceled", "the queue door sees it stopped")


def test_the_code_a_run_came_from(server: Server) -> None:
    workspace = {"commit": "c" * 40, "branch": "main", "dirty": True, "diff": "+x", "env": {"WANDB_PROJECT": "p"}}
    workspace["left_out"] = ["weights.bin"]
    made = make(server, workspace=workspace)
    kept = server.get(f"/runs/{made['id']}/workspace").ok()
    assert (kept["commit"], kept["branch"], kept["dirty"], kept["diff"]) == ("c" * 40, "main", True, "+x")
    assert (kept["env"], kept["left_out"]) == ({"WANDB_PROJECT": "p"}, ["weights.bin"])
    assert server.get(f"/runs/{make(server)['id']}/workspace").status == 404


def shown_diff(who: Person, run_id: str) -> Result:
    """Call `rota show --diff` as this person."""
    env = {"ROTA_URL": who.server.url, "ROTA_TOKEN": who.token}
    return CliRunner().invoke(main, ["show", "--diff", run_id], env=env)


def test_others_see_a_run_but_not_its_secrets_and_may_not_touch_it(make_server: MakeServer) -> None:
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"}, watcher="viewer", bot="agent")
    ann, ben = who[ANN], who[BEN]
    body: dict[str, Any] = {"name": "a", "command": "true", "env": {"TOKEN": "secret-value"}, "user": "somebody else"}
    body["workspace"] = {"commit": "c0ffee", "dirty": True, "diff": "+secret-value", "env": {"KEY": "secret-value"}}
    made = ann.post("/runs", body).ok()
    assert made["user"] == ANN, "who has a token is who they are"
    path = f"/runs/{made['id']}"
    for name in (BEN, "watcher"):
        seen = who[name].get(path).ok()
        assert seen["env_names"] == ["TOKEN"]
        assert "env" not in seen
        for route in (path, "/runs", f"{path}/workspace", f"{path}/sidecar-logs", "/journey/loop"):
            assert b"secret-value" not in who[name].get(route).body, route
        code = who[name].get(f"{path}/workspace").ok()
        assert (code["commit"], code["dirty"], code["env_names"]) == ("c0ffee", True, ["KEY"])
        assert not code.keys() & {"diff", "env"}
        refused = shown_diff(who[name], made["id"])
        assert (refused.exit_code, refused.stdout) == (77, ""), refused.output
        assert "changes that were not committed are shown to the run's owner and admins only" in refused.stderr
    assert ann.get(path).ok()["env"] == who["boss"].get(path).ok()["env"] == {"TOKEN": "secret-value"}
    for name in (ANN, "boss", "bot"):
        assert who[name].get(f"{path}/workspace").ok()["diff"] == "+secret-value", name
        assert shown_diff(who[name], made["id"]).stdout == "+secret-value", name
    for route in ("queue", "start", "stop", "rerun", "archive", "hold"):
        assert ben.post(f"{path}/{route}").status == 403, route
    assert ben.call("PUT", path, {"name": "mine"}).status == 403
    assert ben.post(f"{path}/status", {"status": "running"}).status == 403
    assert ben.post(f"{path}/metrics", {"rows": [{"loss": 1}]}).status == 403
    assert ben.post(f"{path}/alerts", {"message": "m", "choices": ["x"]}).status == 403
    assert who["watcher"].post("/runs", {"name": "a", "command": "true"}).status == 403
    assert ann.get(path).ok()["status"] == "ready"


def test_an_agent_is_told_how_its_run_counts_without_a_time_limit(make_server: MakeServer) -> None:
    who = people(make_server(), boss="admin", **{ANN: "user"}, bot="agent")
    body = {"name": "a", "command": "true"}
    said = "counts as 4 h at least, as every run of an agent without a time limit; with one it may start sooner"
    assert who["bot"].post("/runs", body).ok()["note"] == said
    assert who["bot"].post("/runs", {**body, "estimated_duration_seconds": 60}).ok()["note"] == said
    assert "note" not in who["bot"].post("/runs", {**body, "time_limit_seconds": 60}).ok()
    assert "note" not in who[ANN].post("/runs", body).ok()


def test_private_hides_other_peoples_runs(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PRIVACY": "private"})
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    ann, ben = who[ANN], who[BEN]
    sweep = ann.post("/sweeps/wild", {}).ok()["id"]
    path = f"/runs/{ann.post('/runs', {'name': 'a', 'command': 'true', 'sweep_id': sweep}).ok()['id']}"
    alert = ann.post(f"{path}/alerts", {"message": "m", "choices": ["x"]}).ok()["alert_id"]
    session = ann.post("/sessions").ok()["id"]
    for route in ("", "/logs", "/logs/stream", "/sidecar-logs", "/artifacts", "/metrics", "/explain", "/eta"):
        answer = ben.get(path + route)
        assert (answer.status, answer.json) == (404, {"detail": "Run not found"}), route
    for route in ("queue", "start", "stop", "rerun", "archive"):
        assert ben.post(f"{path}/{route}").status == 404, route
    for route in ("/runs", "/runs?user=" + ANN, "/sweeps", "/alerts", "/sessions"):
        assert ben.get(route).ok() == [], route
        assert who["boss"].get(route).ok() != [], route
        assert ann.get(route).ok() != [], route
    assert ben.get("/journey/loop").ok()["events"] == []
    assert ben.get(f"/sweeps/{sweep}").status == ben.get(f"/sessions/{session}").status == 404
    assert ben.post(f"/alerts/{alert}/respond", {"choice": "x"}).status == 404
    assert ben.post("/runs", {"name": "b", "command": "true", "sweep_id": sweep}).status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": "true"}, "name"),
        ({"name": "", "command": "true"}, "name"),
        ({"name": "a", "command": "  "}, "command"),
        ({"name": 7, "command": "true"}, "name"),
        ({"name": "a", "command": ["true"]}, "command"),
        ({"name": "a\0", "command": "true"}, "name"),
        ({"name": "a", "command": "echo \0"}, "command"),
        ({"name": "a", "command": "true", "workdir": "  "}, "workdir"),
        ({"name": "a", "command": "true", "gpu_count": -1}, "gpu_count"),
        ({"name": "a", "command": "true", "gpu_count": 2**63}, "gpu_count"),
        ({"name": "a", "command": "true", "gpu_count": 17}, "gpu"),
        ({"name": "a", "command": "true", "gpu_count": 1.5}, "gpu_count"),
        ({"name": "a", "command": "true", "gpu_memory_gb": float("nan")}, "gpu_memory_gb"),
        ({"name": "a", "command": "true", "priority": 0}, "priority"),
        ({"name": "a", "command": "true", "env": {"A=B": "x"}}, "env"),
        ({"name": "a", "command": "true", "env": {"A": 1}}, "env"),
        ({"name": "a", "command": "true", "time_limit_seconds": 0}, "time_limit_seconds"),
        ({"name": "a", "command": "true", "depends_on": ["nothing"]}, "depends_on"),
        ({"name": "a", "command": "true", "auto_start": "perhaps"}, "auto_start"),
        ({"name": "a", "command": "true", "gpuwrap_config": {"retries": -2}}, "retries"),
        ({"name": "a", "command": "true", "gpuwrap_config": {"retry_delay_seconds": 0}}, "retry_delay_seconds"),
        ({"name": "a", "command": "true", "gpuwrap_config": {"retry_delay_seconds": 601}}, "retry_delay_seconds"),
        ({"name": "a", "command": "true", "gpuwrap_config": {"enabled": "maybe"}}, "enabled"),
        ([1, 2], "body"),
        (b"{", "body"),
        (b'{"name": "\xff", "command": "true"}', ""),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(common: Server, body: Any, field: str) -> None:
    answer = common.post("/runs", body)
    assert 400 <= answer.status < 500, answer
    assert field in answer.body.decode(), answer
    assert common.get("/runs").ok() == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "cursor=-1", f"cursor={2**63}", "status=happy"])
def test_a_list_that_makes_no_sense(common: Server, query: str) -> None:
    answer = common.get(f"/runs?{query}")
    assert answer.status == 422
    assert query.partition("=")[0] in str(answer.json["detail"][0]["loc"]), answer.json


def test_a_name_that_tries_to_look_like_another(server: Server) -> None:
    """Texts that are long or hold odd characters come back as they went in, and only as data."""
    for name in ("<script>alert(1)</script>", "é" * 500, "\ud800"[:0] + "🦀"):
        assert make(server, name=name)["name"] == name
    assert server.post("/runs", {"name": "x" * 501, "command": "true"}).status == 422
    assert server.post("/runs", {"name": "x", "command": "true " + "x" * 131_072}).status == 422
    assert server.post("/runs", b'{"name": "' + b"x" * (10 << 20) + b'", "command": "true"}').status == 413
    assert server.post("/runs", {"name": "x", "command": "true", "sweep_id": "nope"}).json == {
        "detail": "Sweep not found: nope"
    }
    odd = server.post("/runs", {"name": "x", "command": "true", "chat_session_id": "no such session; $(id)"}).ok()
    assert odd["chat_session_id"] == "no such session; $(id)"


def test_when_it_got_into_line(server: Server) -> None:
    """The same at every look, and nothing where it never did."""

    def looks(run_id: str) -> tuple[Any, Any]:
        (listed,) = (run for run in server.get("/runs").ok() if run["id"] == run_id)
        return listed.get("queued_at"), server.get(f"/runs/{run_id}").ok().get("queued_at")

    at_once = server.post("/runs", {"name": "a", "command": "sleep 1000", "auto_start": True}).ok()
    assert looks(at_once["id"]) == (at_once["created_at"], at_once["created_at"])
    made = server.post("/runs", {"name": "a", "command": "sleep 1000"}).ok()
    assert looks(made["id"]) == (None, None)
    queued = server.post(f"/runs/{made['id']}/queue").ok()["queued_at"]
    assert queued > made["created_at"]
    assert looks(made["id"]) == (queued, queued)
    never = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    server.post(f"/runs/{never}/stop").ok()
    assert looks(never) == (None, None)
    server.stop()
    server.start()
    assert [looks(run_id)[0] for run_id in (at_once["id"], made["id"], never)] == [at_once["created_at"], queued, None]


def test_a_dependency_is_no_way_to_ask_about_hidden_runs(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PRIVACY": "private"})
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    body = {"name": "a", "command": "false", "gpu_count": 0, "workdir": "/"}
    failed = who[ANN].post("/runs", {**body, "auto_start": True}).ok()["id"]
    until(lambda: who[ANN].get(f"/runs/{failed}").ok()["status"] == "failed", "it has failed")
    live = who[ANN].post("/runs", body).ok()["id"]
    sweep = {"name": "s", "base_command": "true", "parameters": {"x": 1}, "gpu_count": 0}
    job = {"run_id": "j", "user": BEN, "command": "true", "gpu_count": 0}
    for path, asked in (("/runs", body), ("/sweeps", sweep), ("/queue/submit", job)):
        said = []
        for run_id in (failed, live, "0123456789ab"):
            answer = who[BEN].post(path, {**asked, "depends_on": [run_id]})
            assert answer.status == 422
            said.append(answer.body.decode().replace(run_id, "X"))
        assert len(set(said)) == 1, f"{path} tells what is hidden from what is not there"
    assert who[ANN].post("/runs", {**body, "depends_on": [live]}).status == 200
    assert who["boss"].post("/runs", {**body, "depends_on": [live]}).status == 200
