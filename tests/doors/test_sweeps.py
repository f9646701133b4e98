"""Sweeps: grids made at once, runs added one by one, a cap that stands, a status told anew at every look."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from rota.api import grid
from rota.api.house import House
from rota.api.newsweep import AUTHOR, ChangedSweep, NewSweep, change_sweep, make_sweep
from rota.api.render.sweep import progress_of, status_of
from rota.api.shelf import Shelf
from rota.app.authz import Principal, Role
from rota.app.commands import Draft, PutRecord
from rota.app.errors import Invalid, Refused
from rota.core.run import RunState
from tests.api.kit import opened
from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, Person, people
from tests.doors.server import Answer, Server

S = RunState
FIELDS = {
    *("id", "name", "base_command", "workdir", "parameters", "run_ids", "status", "created_at", "goal", "is_wild"),
    *("chat_session_id", "ui_config", "creation_context", "progress"),
}
PROGRESS = {"total", "completed", "failed", "running", "launching", "ready", "queued", "canceled"}
LONG = {"name": "s", "base_command": "exec sleep 100000 #", "parameters": {"n": [1, 2, 3, 4, 5]}}


def progress(server: Server, sweep_id: str) -> Any:
    return server.get(f"/sweeps/{sweep_id}").ok()["progress"]


def test_a_wild_sweep_filled_run_by_run(server: Server) -> None:
    bodies: tuple[dict[str, str] | None, ...] = (None, {})
    for body in bodies:
        sweep = server.post("/sweeps/wild", body).ok()
        assert set(sweep) >= FIELDS
        assert set(sweep["progress"]) == PROGRESS
        assert (sweep["name"], sweep["goal"], sweep["is_wild"]) == ("Wild Loop Sweep", "", True)
        assert (sweep["status"], sweep["run_ids"], len(sweep["id"])) == ("pending", [], 12)
    asked = {"name": "mine", "goal": "better", "chat_session_id": "wild-00000000"}
    sweep = server.post("/sweeps/wild", asked).ok()
    assert {name: sweep[name] for name in asked} == asked
    path = f"/sweeps/{sweep['id']}"
    first = server.post(f"{path}/runs", {"name": "one", "command": "true"}).ok()
    assert (first["sweep_id"], first["chat_session_id"]) == (sweep["id"], "wild-00000000"), "the sweep's own"
    second = server.post(
        "/runs", {"name": "two", "command": "exit 1", "sweep_id": sweep["id"], "chat_session_id": "other"}
    ).ok()
    assert second["chat_session_id"] == "other"
    assert server.get(path).ok()["run_ids"] == [first["id"], second["id"]]
    assert server.get(path).ok()["status"] == "pending"
    server.post(f"/runs/{first['id']}/start").ok()
    until(lambda: progress(server, sweep["id"])["completed"] == 1, "the first has ended")
    assert server.get(path).ok()["status"] == "pending", "one is still ready"
    server.post(f"/runs/{second['id']}/start").ok()
    until(lambda: server.get(path).ok()["status"] == "failed", "the second failed")
    assert [one["id"] for one in server.get(f"/runs?sweep_id={sweep['id']}").ok()] == [second["id"], first["id"]]
    assert [one["id"] for one in server.get("/sweeps?limit=1").ok()] == [sweep["id"]], "newest first"
    assert len(server.get("/sweeps").ok()) == 3
    rerun = server.post(f"/runs/{second['id']}/rerun", {"command": "true", "auto_start": True}).ok()
    until(lambda: progress(server, sweep["id"])["completed"] == 2, "the rerun belongs to it as well")
    assert server.get(path).ok()["run_ids"][-1] == rerun["id"]


def test_a_grid_in_the_order_of_its_keys(server: Server) -> None:
    body = {
        "name": "grid",
        "base_command": "printf '%s\\n'",
        "parameters": {"lr": [0.1, 0.01], "name": ["a b", "$(id); 'x'"], "seed": 7},
        "max_runs": 3,
        "auto_start": True,
        "chat_session_id": "chat",
        "ui_config": {"colour": "blue"},
        "goal": "know more",
        "gpu_count": 0,
    }
    sweep = server.post("/sweeps", body).ok()
    assert len(sweep["run_ids"]) == 3
    assert (sweep["ui_config"], sweep["goal"], sweep["is_wild"]) == ({"colour": "blue"}, "know more", False)
    assert sweep["parameters"] == body["parameters"]
    runs = [server.get(f"/runs/{run_id}").ok() for run_id in sweep["run_ids"]]
    assert [run["name"] for run in runs] == ["grid #1", "grid #2", "grid #3"]
    assert runs[0]["command"] == "printf '%s\\n' --lr=0.1 --name='a b' --seed=7"
    assert [run["sweep_params"] for run in runs] == [
        {"lr": 0.1, "name": "a b", "seed": 7},
        {"lr": 0.1, "name": "$(id); 'x'", "seed": 7},
        {"lr": 0.01, "name": "a b", "seed": 7},
    ]
    assert {(run["chat_session_id"], run["sweep_id"], run["gpu_count"]) for run in runs} == {("chat", sweep["id"], 0)}
    until(lambda: server.get(f"/sweeps/{sweep['id']}").ok()["status"] == "completed", "all have ended")
    told = server.get(f"/runs/{sweep['run_ids'][1]}/logs").ok()["content"]
    assert told == "--lr=0.1\n--name=$(id); 'x'\n--seed=7\n", "a value is a value, whatever it looks like"


def test_parallel_is_a_cap_that_stands(server: Server) -> None:
    sweep = server.post("/sweeps", LONG).ok()
    assert sweep["progress"]["ready"] == 5
    path = f"/sweeps/{sweep['id']}"
    started = server.post(f"{path}/start?parallel=2").ok()
    assert started == {"message": "Started 2/5 runs", "sweep_id": sweep["id"]}
    until(lambda: progress(server, sweep["id"])["running"] == 2, "two run")
    now = server.get(path).ok()
    assert (now["status"], now["progress"]["queued"], now["parallel"]) == ("running", 3, 2)
    waiting = next(run for run in server.get(f"/runs?sweep_id={sweep['id']}&status=queued").ok())
    assert "group" in [reason["code"] for reason in server.get(f"/runs/{waiting['id']}/explain").ok()["reasons"]]
    running = server.get(f"/runs?sweep_id={sweep['id']}&status=running").ok()
    server.post(f"/runs/{running[0]['id']}/stop").ok()
    until(lambda: progress(server, sweep["id"])["canceled"] == 1, "one was stopped")
    until(lambda: progress(server, sweep["id"])["running"] == 2, "and another took its place")
    assert server.post(f"{path}/start?parallel=4").ok()["message"] == "Started 2/2 runs"
    until(lambda: progress(server, sweep["id"])["running"] == 4, "the cap was raised")
    assert server.post(f"{path}/start?parallel=0").ok()["message"] == "Started 0/0 runs"
    assert server.get(path).ok()["parallel"] is None, "the cap was lifted"
    for run in server.get(f"/runs?sweep_id={sweep['id']}").ok():
        server.post(f"/runs/{run['id']}/stop")
    until(lambda: server.get(path).ok()["status"] == "canceled", "all were stopped")


def test_a_draft_becomes_a_sweep(server: Server) -> None:
    sweep = server.post("/sweeps", {**LONG, "status": "draft", "gpu_count": 2, "env": {"A": "secret-value"}}).ok()
    path = f"/sweeps/{sweep['id']}"
    assert (sweep["status"], sweep["run_ids"]) == ("draft", [])
    refused = server.post(f"{path}/start")
    assert (refused.status, "draft" in refused.json["detail"]) == (400, True)
    changed = server.put(path, {"parameters": {"n": [1, 2]}, "max_runs": 5, "name": "t", "goal": "g"}).ok()
    assert (changed["status"], changed["parameters"], changed["name"], changed["goal"]) == (
        "draft",
        {"n": [1, 2]},
        "t",
        "g",
    )
    tried = server.put(f"{path}?dry_run=true", {"status": "running"}).ok()
    assert (tried["dry_run"], len(tried["run_ids"])) == (True, 2)
    assert server.get(path).ok()["run_ids"] == []
    made = server.put(path, {"status": "pending"}).ok()
    assert (made["status"], made["progress"]["ready"]) == ("pending", 2)
    runs = [server.get(f"/runs/{run_id}").ok() for run_id in made["run_ids"]]
    assert {(run["gpu_count"], run["env"]["A"]) for run in runs} == {(2, "secret-value")}
    assert b"secret-value" not in server.get(path).body
    for body in ({"parameters": {"n": [9]}}, {"max_runs": 7}, {"status": "draft"}):
        assert server.put(path, body).status == 409, body
    same = server.put(path, {"parameters": {"n": [1, 2]}, "max_runs": 5, "name": "u"}).ok()
    assert same["name"] == "u"
    assert server.put("/sweeps/0123456789ab", {}).json == {"detail": "Sweep not found"}


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_draft_that_is_started_twice_at_once_has_its_runs_once(server: Server, status: str) -> None:
    """As by a double click, or by a client that asks again after a timeout."""
    sweep = server.post("/sweeps", {**LONG, "status": "draft", "gpu_count": 0}).ok()
    path, together = f"/sweeps/{sweep['id']}", Barrier(8)

    def start(_: int) -> Answer:
        together.wait()
        return server.put(path, {"status": status, "goal": "to be sure"})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(start, range(8)))
    assert {answer.status for answer in answers} <= {200, 409}
    made = [answer.json["run_ids"] for answer in answers if answer.status == 200]
    assert {len(run_ids) for run_ids in made} == {5}
    until(lambda: server.get(path).ok()["run_ids"] == made[0], "the sweep has these runs")
    assert server.get(path).ok()["goal"] == "to be sure"
    for run_id in made[0]:
        server.post(f"/runs/{run_id}/stop")


def own_account(person: str) -> str:
    """As whom the jobs of a person run here."""
    return person if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


WHO_AM_I: dict[str, Any] = {
    "name": "who",
    "base_command": "id -un #",
    "parameters": {"n": [1]},
    "workdir": "/",
    "gpu_count": 0,
    "status": "draft",
}


def account_of_its_run(starter: Person, sweep_id: str) -> str:
    """Start a draft, and tell as whom its run ran, by the run's own word."""
    (run_id,) = starter.call("PUT", f"/sweeps/{sweep_id}", {"status": "running"}).ok()["run_ids"]
    until(lambda: starter.get(f"/runs/{run_id}").ok().get("ended_at"), "the run has ended")
    return str(starter.get(f"/runs/{run_id}/logs").ok()["content"]).strip()


def test_a_draft_runs_as_its_author_whoever_starts_it(make_server: MakeServer) -> None:
    them = people(make_server(), boss="admin", **{ANN: "user"}, robot="agent")
    for author in (ANN, "robot"):
        for starter in (ANN, "boss"):
            draft = them[author].post("/sweeps", WHO_AM_I).ok()
            assert draft["user"] == ANN
            assert account_of_its_run(them[starter], draft["id"]) == own_account(ANN), (author, starter)


def test_a_draft_that_an_agent_has_changed_is_no_longer_an_admins(make_server: MakeServer) -> None:
    """Daemon is an admin, so what daemon wrote runs as the server's own account; what its agent wrote does not."""
    them = people(make_server(), **{ANN: "admin"}, robot="agent")
    mine = them[ANN].post("/sweeps", WHO_AM_I).ok()
    assert account_of_its_run(them[ANN], mine["id"]) == pwd.getpwuid(os.geteuid()).pw_name
    changed = them[ANN].post("/sweeps", WHO_AM_I).ok()
    path = f"/sweeps/{changed['id']}"
    them["robot"].call("PUT", path, {"base_command": "echo changed; id -un #"}).ok()
    them[ANN].call("PUT", path, {"base_command": "id -un #"}).ok()
    assert account_of_its_run(them[ANN], changed["id"]) == own_account(ANN)
    urgent = them[ANN].post("/sweeps", {**WHO_AM_I, "priority": 4}).ok()
    refused = them["robot"].call("PUT", f"/sweeps/{urgent['id']}", {"base_command": "id"})
    assert (refused.status, b"priority: 4 is above" in refused.body) == (422, True)


def test_nor_one_to_which_the_agent_has_added_a_run_first(make_server: MakeServer) -> None:
    """A draft is one until it is started, whatever runs are in it."""
    them = people(make_server(), **{ANN: "admin"}, robot="agent")
    urgent = them[ANN].post("/sweeps", {**WHO_AM_I, "priority": 4}).ok()["id"]
    mine = them[ANN].post("/sweeps", {**WHO_AM_I, "parameters": {"n": [1, 2]}}).ok()["id"]
    elsewhere = them["robot"].post("/sweeps/wild", {}).ok()["id"]
    run = {"name": "b", "command": "true", "gpu_count": 0, "workdir": "/"}
    added = {}
    for draft in (urgent, mine):
        added[draft] = them[ANN].post("/runs", run).ok()["id"]
        them["robot"].post(f"/runs/{added[draft]}/add-to-sweep?sweep_id={draft}").ok()
    refused = them["robot"].call("PUT", f"/sweeps/{urgent}", {"base_command": "id"})
    assert (refused.status, b"priority: 4 is above" in refused.body) == (422, True)
    assert (
        them["robot"].call("PUT", f"/sweeps/{mine}", {"base_command": "echo changed; id -un #"}).ok()["name"] == "who"
    )
    them["robot"].post(f"/runs/{added[urgent]}/add-to-sweep?sweep_id={elsewhere}").ok()
    assert them[ANN].call("PUT", f"/sweeps/{mine}", {"parameters": {"n": [1]}}).ok()["parameters"] == {"n": [1]}
    them[ANN].call("PUT", f"/sweeps/{mine}", {"status": "running"}).ok()
    until(lambda: len(them[ANN].get(f"/sweeps/{mine}").ok()["run_ids"]) == 2, "the added run and the one of its grid")
    (made,) = {*them[ANN].get(f"/sweeps/{mine}").ok()["run_ids"]} - {added[mine]}
    until(lambda: them[ANN].get(f"/runs/{made}").ok().get("ended_at"), "the run has ended")
    assert str(them[ANN].get(f"/runs/{made}/logs").ok()["content"]).split() == ["changed", own_account(ANN)]
    assert them[ANN].call("PUT", f"/sweeps/{mine}", {"parameters": {"n": [3]}}).status == 409, "it has begun"


def test_a_draft_asks_for_no_more_than_its_author_may(make_server: MakeServer) -> None:
    them = people(make_server(), boss="admin", **{ANN: "user", BEN: "user"}, robot="agent")
    kept_for_ben = them[BEN].post("/reservations", {"gpus": 1, "for_seconds": 3600}).ok()["id"]
    for author, status, asked in (
        ("robot", 422, {"priority": 4}),
        (ANN, 422, {"grace_seconds": 80_000}),
        (ANN, 403, {"account": "root"}),
        (ANN, 403, {"reservation": kept_for_ben, "gpu_count": 1}),
    ):
        refused = them[author].post("/sweeps", {**WHO_AM_I, **asked})
        assert refused.status == status, (asked, refused.body)
    draft = them["boss"].post("/sweeps", {**WHO_AM_I, "grace_seconds": 80_000}).ok()
    (run_id,) = them["boss"].call("PUT", f"/sweeps/{draft['id']}", {"status": "pending"}).ok()["run_ids"]
    assert them["boss"].get(f"/runs/{run_id}").ok()["grace_seconds"] == 80_000, "an admin's own is as it was"


def test_a_draft_of_an_earlier_version_is_an_admins_only_for_the_admin_who_made_it(tmp_path: Path) -> None:
    """It does not tell who has written it."""
    boss, chief = Principal("boss", Role.ADMIN), Principal("chief", Role.ADMIN)
    long_grace = NewSweep(**WHO_AM_I, grace_seconds=80_000)

    async def started(house: House, starter: Principal) -> int:
        record, _ = await make_sweep(house, boss, "token", long_grace, key=None, dry_run=False)
        body = {name: value for name, value in record.body.items() if name != AUTHOR}
        house.service.do(boss, PutRecord(Draft("sweep", record.id, json.dumps(body))))
        old = house.service.record("sweep", record.id)
        assert old is not None
        _, states = await change_sweep(house, starter, old, {}, ChangedSweep(status="pending"), dry_run=False)
        return len(states)

    with opened(tmp_path) as house:
        assert asyncio.run(started(house, boss)) == 1
        with pytest.raises(Refused):
            asyncio.run(started(house, chief))


def test_a_draft_is_taken_although_the_queue_is_full(make_server: MakeServer) -> None:
    server = make_server()
    server.put("/orchestrator/policy", {"max_queue": 1}).ok()
    server.post("/sweeps", {**LONG, "max_runs": 1}).ok()
    server.post("/sweeps", {**LONG, "status": "draft"}).ok()


def test_a_page_of_large_sweeps_is_a_short_one(make_server: MakeServer) -> None:
    """Whatever somebody keeps with their sweeps, nobody's list of them takes the server's memory."""
    server = make_server()
    large = {**LONG, "status": "draft", "ui_config": {"text": "x" * 900_000}}
    made = [server.post("/sweeps", large).ok()["id"] for _ in range(6)]
    first = server.get("/sweeps")
    ids = [sweep["id"] for sweep in first.ok()]
    assert 0 < len(ids) < 6
    rest = server.get(f"/sweeps?cursor={first.headers['x-next-cursor']}")
    assert ids + [sweep["id"] for sweep in rest.ok()] == made[::-1]


def test_no_more_sweeps_are_read_than_were_asked_for(tmp_path: Path) -> None:
    """Each may have a megabyte of text, and thirty in memory."""
    who = Principal("ann", Role.USER)
    with opened(tmp_path) as house, pytest.MonkeyPatch.context() as patched:
        for number in range(30):
            house.service.do(who, PutRecord(Draft("sweep", f"s{number}", '{"user":"ann"}')))
        read: list[int] = []
        records = house.service.records

        def counting(kind: str, **how: Any) -> Any:
            found = records(kind, **how)
            read.append(len(found))
            return found

        patched.setattr(house.service, "records", counting)
        found, cursor = Shelf(house, who).page("sweep", 1)
        assert (found[0].id, cursor, read) == ("s29", found[0].seq, [2])
        rest, end = Shelf(house, who).page("sweep", 100, cursor)
        assert (len(rest), end) == (29, None)
        odd, end = Shelf(house, who).page("sweep", 20, wanted=lambda record: int(record.id[1:]) % 2 == 1)
        assert (len(odd), end) == (15, None)


@pytest.mark.parametrize("member", ["[],", '{"a":{}},', "1,"])
def test_what_a_client_keeps_with_a_sweep_has_so_many_members(common: Server, member: str) -> None:
    """In memory they are many times their text, and every list of sweeps has them."""
    kept = json.loads(f"[{member * 26_000}1]")
    refused = common.post("/sweeps", {**LONG, "status": "draft", "ui_config": {"kept": kept}})
    assert (refused.status in (413, 422), b"members" in refused.body) == (True, True)


def test_changes_of_a_sweep_at_the_same_time_are_all_kept(server: Server) -> None:
    sweep = server.post("/sweeps", {**LONG, "status": "draft"}).ok()
    changes: list[dict[str, Any]] = [{"name": "n"}, {"goal": "g"}, {"chat_session_id": "c"}, {"max_runs": 3}]
    together = Barrier(len(changes))

    def change(body: dict[str, Any]) -> int:
        together.wait()
        return server.put(f"/sweeps/{sweep['id']}", body).status

    with ThreadPoolExecutor(len(changes)) as threads:
        assert set(threads.map(change, changes)) == {200}
    made = server.put(f"/sweeps/{sweep['id']}", {"status": "pending"}).ok()
    assert (made["name"], made["goal"], made["chat_session_id"], len(made["run_ids"])) == ("n", "g", "c", 3)


def test_add_to_sweep(server: Server) -> None:
    one, two = (server.post("/sweeps/wild").ok()["id"] for _ in range(2))
    run_id = server.post("/runs", {"name": "a", "command": "exec sleep 100000"}).ok()["id"]
    assert server.get(f"/sweeps/{one}").ok()["run_ids"] == server.get(f"/sweeps/{two}").ok()["run_ids"] == []
    assert "message" in server.post(f"/runs/{run_id}/add-to-sweep?sweep_id={one}").ok()
    assert server.get(f"/sweeps/{one}").ok()["run_ids"] == [run_id]
    assert "message" in server.post(f"/runs/{run_id}/add-to-sweep?sweep_id={two}").ok()
    assert server.get(f"/sweeps/{one}").ok()["run_ids"] == []
    assert server.get(f"/sweeps/{two}").ok()["run_ids"] == [run_id]
    server.post(f"/runs/{run_id}/start").ok()
    until(lambda: progress(server, two)["running"] == 1, "it runs")
    assert server.post(f"/runs/{run_id}/add-to-sweep?sweep_id={one}").status == 409
    assert server.post(f"/runs/{run_id}/add-to-sweep?sweep_id={two}").status == 200
    assert server.post(f"/runs/{run_id}/add-to-sweep?sweep_id=nope").json == {"detail": "Sweep not found: nope"}
    assert server.post(f"/runs/{run_id}/add-to-sweep").json["detail"][0]["loc"] == ["query", "sweep_id"]


def test_all_or_none_once_and_dry(server: Server) -> None:
    tried = server.post("/sweeps?dry_run=true", LONG).ok()
    assert (tried["dry_run"], len(tried["run_ids"])) == (True, 5)
    assert server.post("/sweeps/wild?dry_run=true").ok()["dry_run"] is True
    impossible = server.post("/sweeps", {**LONG, "gpu_count": 17})
    assert impossible.status == 422
    assert server.get("/sweeps").ok() == server.get("/runs").ok() == []
    for route, body in (("/sweeps", LONG), ("/sweeps/wild", {"name": "w"}), ("/sweeps", {**LONG, "status": "draft"})):
        key = [f"Idempotency-Key: {route}{len(body)}"]
        first = server.post(route, body, headers=key).ok()
        again = server.post(route, body, headers=key).ok()
        assert (again["id"], again["run_ids"]) == (first["id"], first["run_ids"])
        assert server.post(route, {**body, "name": "x"}, headers=key).status == 409
    assert len(server.get("/sweeps").ok()) == 3
    assert len(server.get("/runs").ok()) == 5


def test_a_million_cells_cost_no_more_than_those_that_are_wanted(server: Server) -> None:
    body = {**LONG, "parameters": {name: list(range(100)) for name in "abc"}, "max_runs": 20}
    assert len(server.post("/sweeps", body).ok()["run_ids"]) == 20
    refused = server.post("/sweeps", {**body, "max_runs": 10_001})
    assert (refused.status, refused.json["detail"][0]["loc"]) == (422, ["body", "max_runs"])
    wide = {**LONG, "parameters": {f"p{n}": list(range(10)) for n in range(100)}, "max_runs": 1}
    assert len(server.post("/sweeps", wide).ok()["run_ids"]) == 1


def test_many_runs_are_counted_right_while_they_change(server: Server) -> None:
    """The counts are kept by listening; they must agree with the runs themselves, also after another start."""
    body = {"name": "s", "base_command": "true", "parameters": {"n": list(range(60))}, "max_runs": 60}
    sweep = server.post("/sweeps", {**body, "auto_start": True, "gpu_count": 1}).ok()["id"]
    while server.get(f"/sweeps/{sweep}").ok()["status"] != "completed":
        assert progress(server, sweep)["total"] == 60
    assert progress(server, sweep)["completed"] == 60
    server.stop()
    server.start()
    words = Counter(run["status"] for run in server.get(f"/runs?sweep_id={sweep}").ok())
    assert words == {"finished": 60}
    again = server.get(f"/sweeps/{sweep}").ok()
    assert (again["status"], again["progress"]["completed"]) == ("completed", 60)


def test_a_sweep_belongs_to_somebody(make_server: MakeServer) -> None:
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"}, robot="agent")
    sweep = who["robot"].post("/sweeps", {**LONG, "max_runs": 1}).ok()
    assert sweep["user"] == ANN, "an agent's things are its person's"
    path = f"/sweeps/{sweep['id']}"
    assert who[BEN].get(path).ok()["name"] == "s"
    run = {"name": "a", "command": "true"}
    assert who[BEN].post(f"{path}/runs", run).status == 403
    assert who[BEN].post("/runs", {**run, "sweep_id": sweep["id"]}).status == 403
    assert who[BEN].post(f"{path}/start").status == who[BEN].call("PUT", path, {"name": "x"}).status == 403
    assert who[ANN].post(f"{path}/runs", run).ok()["user"] == ANN
    assert who["boss"].call("PUT", path, {"name": "x"}).ok()["name"] == "x"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": None}, "name"),
        ({"base_command": " "}, "base_command"),
        ({"base_command": 1}, "base_command"),
        ({"parameters": [1]}, "parameters"),
        ({"parameters": {"a": []}}, "parameters"),
        ({"parameters": {"a": {"b": 1}}}, "parameters"),
        ({"parameters": {"a": [[1]]}}, "parameters"),
        ({"parameters": {"a": [float("nan")]}}, "parameters"),
        ({"parameters": {"a; rm -rf /": [1]}}, "parameters"),
        ({"parameters": {"": [1]}}, "parameters"),
        ({"parameters": {"a": ["\0"]}}, "command"),
        ({"max_runs": 0}, "max_runs"),
        ({"max_runs": -1}, "max_runs"),
        ({"max_runs": 2**63}, "max_runs"),
        ({"status": "completed"}, "status"),
        ({"ui_config": "x"}, "ui_config"),
        ({"gpu_count": -1}, "gpu_count"),
        ({"argv": ["true"]}, "command"),
        ({"parameters": {f"p{n}": 1 for n in range(101)}}, "parameters"),
    ],
)
def test_what_is_no_sweep(common: Server, change: dict[str, Any], field: str) -> None:
    answer = common.post("/sweeps", {**LONG, **change})
    assert (answer.status, field in str(answer.json["detail"][0]["loc"])) == (422, True), answer.body
    assert common.get("/sweeps").ok() == []


@pytest.mark.parametrize("query", ["parallel=-1", "parallel=x", f"parallel={2**63}"])
def test_a_start_that_makes_no_sense(common: Server, query: str) -> None:
    answer = common.post(f"/sweeps/0123456789ab/start?{query}")
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["query", "parallel"])
    assert common.post("/sweeps/0123456789ab/start").json == {"detail": "Sweep not found"}
    assert common.get("/sweeps/..%2fetc").status == common.get("/sweeps/%00").status == 404


@pytest.mark.parametrize(
    ("states", "draft", "status"),
    [
        ([], True, "draft"),
        ([], False, "pending"),
        ([S.HELD, S.SUCCEEDED], False, "pending"),
        ([S.QUEUED, S.FAILED], False, "pending"),
        ([S.STARTING, S.QUEUED, S.FAILED], False, "running"),
        ([S.RUNNING, S.HELD], True, "running"),
        ([S.SUCCEEDED, S.FAILED], False, "failed"),
        ([S.SUCCEEDED, S.LOST, S.CANCELLED], False, "failed"),
        ([S.SUCCEEDED, S.CANCELLED], False, "completed"),
        ([S.CANCELLED], False, "canceled"),
    ],
)
def test_a_status_is_told_from_the_runs(states: list[RunState], draft: bool, status: str) -> None:
    assert status_of(states, draft) == status
    assert progress_of(states)["total"] == len(states) == sum(progress_of(states).values()) - len(states)


def test_grid() -> None:
    assert grid.cells({}, 10) == [{}], "without parameters there is one thing to run"
    assert grid.cells({"a": [1, 2], "b": "x"}, 10) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert len(grid.cells({name: list(range(1000)) for name in "abcdef"}, 7)) == 7
    assert grid.size({"a": [1, 2], "b": "x", "c": [1, 2, 3]}) == 6
    line = grid.command_for("printf %s,", {"flag": True, "none": None, "text": "it's; $HOME `id` \n*", "n": -0.5})
    said = subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=True).stdout
    assert said == "--flag=True,--none=None,--text=it's; $HOME `id` \n*,--n=-0.5,"
    with pytest.raises(Invalid, match="can not be the name of an option"):
        grid.cells({"a b": 1}, 1)


def test_a_sweep_without_a_directory_has_the_servers(server: Server) -> None:
    assert server.post("/sweeps", LONG).ok()["workdir"] == str(server.where)


def test_a_sweep_starts_whole_or_not_at_all(make_server: MakeServer) -> None:
    """One of its runs is another person's: nothing is let go, and no cap is set."""
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    sweep = who[ANN].post("/sweeps", {**LONG, "gpu_count": 0, "workdir": "/"}).ok()["id"]
    other = who[BEN].post("/runs", {"name": "b", "command": "true", "gpu_count": 0, "workdir": "/"}).ok()["id"]
    who["boss"].post(f"/runs/{other}/add-to-sweep?sweep_id={sweep}").ok()
    refused = who[ANN].post(f"/sweeps/{sweep}/start?parallel=2")
    assert (refused.status, BEN in refused.json["detail"]) == (403, False)
    assert "may not release 1 held run of the sweep, which belongs to others; ask an admin" in refused.json["detail"]
    shown = who[ANN].get(f"/sweeps/{sweep}").ok()
    assert (shown["progress"]["ready"], shown["parallel"]) == (6, None)
    begun = who["boss"].post(f"/sweeps/{sweep}/start?parallel=2&dry_run=true").ok()
    assert (begun["message"], begun["dry_run"]) == ("Started 2/6 runs", True)
    assert who[ANN].get(f"/sweeps/{sweep}").ok()["progress"]["ready"] == 6
    assert who["boss"].post(f"/sweeps/{sweep}/start?parallel=2").ok()["message"] == "Started 2/6 runs"
    assert who[ANN].get(f"/sweeps/{sweep}").ok()["parallel"] == 2


def test_a_rerun_stays_in_a_sweep_only_where_its_maker_may_add_to_it(make_server: MakeServer) -> None:
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"}, bot="agent")
    sweep = who[ANN].post("/sweeps", {**LONG, "gpu_count": 0, "workdir": "/"}).ok()["id"]
    run = {"name": "b", "command": "true", "gpu_count": 0, "workdir": "/"}
    bens, anns = (who[name].post("/runs", run).ok()["id"] for name in (BEN, ANN))

    def once() -> Any:
        headers = [f"X-Auth-Token: {who[BEN].token}", "Idempotency-Key: k"]
        return server.call("POST", f"/runs/{bens}/rerun", headers=headers).ok()

    before = once()
    for run_id in (bens, anns):
        who["boss"].post(f"/runs/{run_id}/add-to-sweep?sweep_id={sweep}").ok()
    assert once() == before, "what is asked for again is what was made"
    assert who[BEN].post(f"/runs/{bens}/rerun").ok()["sweep_id"] is None
    assert who["boss"].post(f"/runs/{bens}/rerun").ok()["sweep_id"] == sweep
    for name in (ANN, "bot"):
        assert who[name].post(f"/runs/{anns}/rerun").ok()["sweep_id"] == sweep


def test_a_sweep_is_stopped_whole_by_one_call(server: Server) -> None:
    sweep = server.post("/sweeps", LONG).ok()
    path = f"/sweeps/{sweep['id']}"
    server.post(f"{path}/start?parallel=2").ok()
    until(lambda: progress(server, sweep["id"])["running"] == 2, "two run")
    tried = server.post(f"{path}/stop?dry_run=true").ok()
    assert (tried["dry_run"], tried["cancelled"], tried["stopping"]) == (True, 3, 2)
    withdrawn = server.post(f"{path}/stop?waiting_only=true").ok()
    assert (withdrawn["cancelled"], withdrawn["stopping"], withdrawn["kill_at"]) == (3, 0, None)
    assert progress(server, sweep["id"])["running"] == 2, "those were left alone"
    wrong = server.post(f"{path}/stop?grace_seconds=5&now=true")
    assert (wrong.status, wrong.json["detail"][0]["loc"][-1]) == (422, "now")
    done = server.post(f"{path}/stop").ok()
    assert (done["cancelled"], done["stopping"], done["refused"]) == (0, 2, []) and done["kill_at"] > 0
    until(lambda: server.get(path).ok()["status"] == "canceled", "all have ended")
    again = server.post(f"{path}/stop").ok()
    assert (again["cancelled"], again["stopping"]) == (0, 0)
    assert server.post("/sweeps/0123456789ab/stop").json == {"detail": "Sweep not found"}


def test_a_run_that_depends_on_another_of_the_sweep_ends_with_it(server: Server) -> None:
    sweep = server.post("/sweeps/wild", {"name": "chain"}).ok()
    body = {"name": "r", "command": "true", "sweep_id": sweep["id"]}
    first = server.post("/runs", body).ok()["id"]
    server.post("/runs", {**body, "depends_on": [first], "auto_start": True}).ok()
    assert server.post(f"/sweeps/{sweep['id']}/stop").ok()["cancelled"] == 2


def test_runs_of_others_in_a_sweep_are_left_alone_and_named(make_server: MakeServer) -> None:
    server = make_server()
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"})
    sweep = who[ANN].post("/sweeps", {**LONG, "workdir": "/"}).ok()["id"]
    other = who[BEN].post("/runs", {"name": "b", "command": "true", "workdir": "/"}).ok()["id"]
    who["boss"].post(f"/runs/{other}/add-to-sweep?sweep_id={sweep}").ok()
    assert who[BEN].post(f"/sweeps/{sweep}/stop").status == 403, "it is another's sweep"
    done = who[ANN].post(f"/sweeps/{sweep}/stop").ok()
    assert (done["cancelled"], done["refused_count"]) == (5, 1)
    assert done["refused"][0].startswith(f"{other}: {ANN} may not cancel what belongs to {BEN}")
    refused = who[ANN].post(f"/sweeps/{sweep}/stop")
    assert refused.status == 403 and "may not cancel" in refused.json["detail"], "nothing else is left of it"
    assert who["boss"].post(f"/sweeps/{sweep}/stop").ok()["cancelled"] == 1
