"""The calendar over HTTP: what is reserved, making one and giving it up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rota.client import Client
from tests.doors.people import ANN, BEN, MakeServer, people
from tests.doors.server import Server
from tests.doors.test_queue import field_of, has

HOUR, DAY = 3600.0, 86400.0
SHAPE: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "name": (str,),
    "user": (str,),
    "users": (list,),
    "state": (str,),
    "start": (float,),
    "end": (float,),
    "made_at": (float,),
    "gpus": (int,),
    "nodes": (dict,),
    "out_of_service": (list,),
    "ready_at": (float,),
    "blocked_by": (list,),
    "overdue": (list,),
    "never_ready": (int,),
    "runs": (list,),
    "run_count": (int,),
    "why": (str,),
}


@pytest.fixture
def office(common: Server) -> Iterator[Server]:
    """A server that is used in turn: nothing is left of what a test reserved, submitted or drained."""
    yield common
    for one in common.get("/reservations").ok():
        common.delete(f"/reservations/{one['id']}").ok()
    for run in common.get("/runs?status=ready,queued,launching,running").ok():
        common.post(f"/runs/{run['id']}/stop?grace_seconds=0").ok()
        common.in_state(run["id"], "canceled")
    for node in common.get("/nodes").ok():
        common.post(f"/nodes/{node['node_id']}/undrain").ok()


def reserve(server: Server, gpus: int = 2, in_s: float = HOUR, **more: Any) -> Any:
    body = {"gpus": gpus, "from": time.time() + in_s, "for_seconds": HOUR, **more}
    return server.post("/reservations", body).ok()


def ids(server: Server, query: str = "") -> list[str]:
    return [one["id"] for one in server.get(f"/reservations{query}").ok()]


def test_the_life_of_one(server: Server) -> None:
    assert ids(server) == []
    body = {"gpus": 4, "for_seconds": HOUR, "name": "demo", "user": "ann", "users": ["ben"], "colour": "red"}
    tried = server.post("/reservations?dry_run=true", body).ok()
    assert (tried["dry_run"], tried["gpus"], ids(server)) == (True, 4, [])
    made = server.post("/reservations", body).ok()
    has(SHAPE, made)
    assert made["ignored"] == ["colour: there is no such field here; /openapi.json lists those there are"]
    assert (made["user"], made["users"], made["name"], made["state"]) == ("ann", ["ben"], "demo", "active")
    assert (made["gpus"], made["nodes"]) == (4, {"node1": [0, 1, 2, 3]})
    assert made["end"] - made["start"] == HOUR and made["ready_at"] == made["start"]
    later = reserve(server, 2, in_s=DAY, nodes=2, gpu_type="h100")
    assert (later["state"], later["nodes"]) == ("upcoming", {"node1": [0], "node2": [0]})
    assert ids(server) == [made["id"], later["id"]]
    then = later["start"] - 1
    assert ids(server, f"?until={then}") == [made["id"]]
    assert ids(server, f"?from={then}") == [later["id"]]
    assert ids(server, f"?from={made['end']}&until={later['start']}") == []

    server.kill()
    server.start()
    assert ids(server) == [made["id"], later["id"]], "it was on disk before it was answered"
    assert server.delete(f"/reservations/{made['id']}?dry_run=true").ok()["dry_run"] is True
    gone = server.delete(f"/reservations/{made['id']}").ok()
    assert gone["message"] == f"Reservation {made['id']} cancelled"
    has(SHAPE, gone["reservation"])
    assert server.delete(f"/reservations/{made['id']}").status == 404
    assert ids(server) == [later["id"]]
    told = list(_told(server))
    assert [line["type"] for line in told] == ["ReservationMade", "ReservationMade", "ReservationEnded"]
    assert told[0]["data"]["gpus"] == [f"node1:{number}" for number in range(4)]
    assert told[2]["data"] == {"reservation_id": made["id"], "why": "cancelled by anonymous"}


def _told(server: Server) -> Iterator[Any]:
    """What watchers hear of reservations, up to the end of one."""
    with Client(server.url) as client:
        for event in client.events(0):
            if event["type"].startswith("Reservation"):
                yield event
            if event["type"] == "ReservationEnded":
                return


def test_a_key_makes_one_only(office: Server) -> None:
    body = {"gpus": 2, "from": time.time() + HOUR, "for_seconds": HOUR}
    header = ["Idempotency-Key: k1"]
    first = office.post("/reservations", body, headers=header).ok()
    assert office.post("/reservations", body, headers=header).ok()["id"] == first["id"]
    assert office.post("/reservations", {**body, "gpus": 3}, headers=header).status == 409
    assert ids(office) == [first["id"]]


def test_the_times_may_be_named_as_in_the_answer(office: Server) -> None:
    begin = float(int(time.time() + DAY))
    body = {"gpus": 1, "start": begin, "end": begin + HOUR}
    made = office.post("/reservations?strict=true", body).ok()
    assert (made["state"], made["start"], made["end"], "ignored" in made) == ("upcoming", begin, begin + HOUR, False)
    same = office.post("/reservations?dry_run=true", {**body, "from": begin, "until": begin + HOUR}).ok()
    assert (same["start"], same["end"]) == (begin, begin + HOUR)
    assert field_of(office.post("/reservations", {**body, "from": begin + 60})) == "start"
    assert field_of(office.post("/reservations", {**body, "until": begin + 60})) == "end"
    assert ids(office) == [made["id"]]


def test_a_hint_names_a_field_as_it_is_sent(common: Server) -> None:
    body = {"gpus": 1, "for_seconds": HOUR, "form": 1}
    assert common.post("/reservations?dry_run=true", body).ok()["ignored"] == ["form: did you mean from?"]
    assert "did you mean from?" in common.post("/reservations?strict=true", body).json["detail"][0]["msg"]


def test_where_there_is_no_room(office: Server) -> None:
    first = reserve(office, 16)
    answer = office.post("/reservations", {"gpus": 1, "from": first["start"] + 60, "for_seconds": HOUR})
    assert answer.status == 409
    assert "there is room for as long from" in answer.json["detail"]
    assert office.post("/reservations", {"gpus": 1, "from": first["end"], "for_seconds": HOUR}).status == 200


def test_who_stands_in_its_way_and_what_is_out_of_service(office: Server) -> None:
    job = office.sleeper(16, estimated_duration_seconds=2 * HOUR)
    holder = office.in_state(job, "running")
    made = reserve(office, 8)
    assert made["blocked_by"] == [job]
    assert holder["started_at"] + 2 * HOUR - 60 < made["ready_at"] < time.time() + 2 * HOUR + 60
    (node,) = made["nodes"]
    office.post(f"/nodes/{node}/drain").ok()
    (shown,) = office.get("/reservations").ok()
    assert shown["out_of_service"] == [f"{node}:{number}" for number in range(8)]


def test_runs_that_use_it(office: Server) -> None:
    made = reserve(office, 2)
    body = {"name": "a", "command": "true", "gpu_count": 2, "reservation": made["id"]}
    run = office.post("/runs", {**body, "time_limit_seconds": 600}).ok()
    assert (run["reservation"], "note" in run) == (made["id"], False)
    long = office.post("/runs", {**body, "time_limit_seconds": 2 * HOUR}).ok()
    assert f"may run on after reservation {made['id']} is over" in long["note"]
    assert "note" in office.get(f"/runs/{long['id']}").ok()
    (shown,) = office.get("/reservations").ok()
    assert (shown["runs"], shown["run_count"]) == ([run["id"], long["id"]], 2)
    assert field_of(office.post("/runs", {**body, "reservation": "nope"})) == "reservation"
    assert field_of(office.post("/runs", {**body, "gpu_count": 3})) == "gpu_count"
    job = {"run_id": "x", "user": "ann", "command": "true", "gpu_count": 1, "reservation": "nope"}
    assert field_of(office.post("/queue/submit", job)) == "reservation"
    office.delete(f"/reservations/{made['id']}").ok()
    assert office.get(f"/runs/{run['id']}").ok()["reservation"] == made["id"], "what was asked for stays to be seen"


WRONG = [
    ("gpus", {"gpus": 0}),
    ("gpus", {"gpus": "many"}),
    ("gpus", {"gpus": 1.5}),
    ("gpus", {"gpus": 17}),
    ("gpus", {"gpus": 3, "nodes": 2}),
    ("nodes", {"nodes": 3, "gpus": 3}),
    ("gpu_type", {"gpu_type": "A100"}),
    ("from", {"from": 1000}),
    ("from", {"from": "tomorrow"}),
    ("from", {"from": 1e11}),
    ("from", {"from": 1e12}),
    ("from", {"from": -1}),
    ("start", {"start": 1000}),
    ("start", {"start": "tomorrow"}),
    ("for_seconds", {"for_seconds": None}),
    ("for_seconds", {"for_seconds": 1}),
    ("for_seconds", {"for_seconds": 1e9}),
    ("for_seconds", {"until": 2e9}),
    ("until", {"for_seconds": None, "until": 5}),
    ("until", {"for_seconds": None, "until": 1e11}),
    ("until", {"for_seconds": None, "until": "now"}),
    ("end", {"for_seconds": None, "end": 5}),
    ("for_seconds", {"end": 2e9}),
    ("name", {"name": "a\nb"}),
    ("name", {"name": 5}),
    ("users", {"users": "ben"}),
    ("users", {"users": ["a\x00b"]}),
    ("users", {"users": ["u"] * 101}),
]


@pytest.mark.parametrize(("field", "wrong"), WRONG, ids=[str(wrong)[:40] for _, wrong in WRONG])
def test_a_wrong_field_is_named(common: Server, field: str, wrong: dict[str, Any]) -> None:
    answer = common.post("/reservations", {"gpus": 1, "for_seconds": HOUR, **wrong})
    named = answer.json["detail"][0]["loc"][1] if answer.status == 422 else answer.body
    assert named == field, answer.body
    assert ids(common) == []


def test_what_is_no_number_in_a_body_or_a_query(common: Server) -> None:
    for text in (b'{"gpus":1,"for_seconds":NaN}', b'{"gpus":1,"for_seconds":60,"from":Infinity}', b"[]", b"{", b""):
        assert common.post("/reservations", text).status == 422
    for query in ("from=nan", "from=x", "until=-1", "until=1e12", "from=inf"):
        assert common.get(f"/reservations?{query}").status == 422
    assert common.delete("/reservations/nope").status == 404


def test_in_private_another_sees_when_and_how_much_and_not_whose(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PRIVACY": "private"})
    who = people(server, boss="admin", **{ANN: "user", BEN: "user"}, cid="user")
    body = {"gpus": 2, "from": time.time() + HOUR, "for_seconds": HOUR, "name": "secret", "users": [BEN]}
    made = who[ANN].post("/reservations", body).ok()
    for name in (ANN, BEN, "boss"):
        (shown,) = who[name].get("/reservations").ok()
        assert (shown["id"], shown["user"], shown["name"], shown["users"]) == (made["id"], ANN, "secret", [BEN])
    (shown,) = who["cid"].get("/reservations").ok()
    assert (shown["id"], shown["user"], shown["name"], shown["users"]) == ("hidden", "hidden", "hidden", [])
    assert (shown["start"], shown["gpus"], shown["nodes"]) == (made["start"], 2, made["nodes"])
    soon_over = {"from": time.time(), "for_seconds": HOUR / 2}  # before the other begins, however long this test took
    now = who[ANN].post("/reservations", {**body, **soon_over, "gpus": 1, "name": "now"}).ok()
    kept = {name: who[name].get("/gpu/status").ok()["cluster_status"]["nodes"][0]["gpus"][0] for name in (BEN, "cid")}
    assert kept[BEN]["reserved"] == {
        "reservation_id": now["id"], "name": "now", "user": ANN, "users": [BEN], "until": now["end"],
    }  # fmt: skip
    hidden = dict.fromkeys(("reservation_id", "name", "user"), "hidden")
    assert kept["cid"]["reserved"] == {**hidden, "users": [], "until": now["end"]}
    path = f"/reservations/{made['id']}"
    run = {"name": "a", "command": "true", "reservation": made["id"]}
    assert who["cid"].call("DELETE", path).status == 404
    assert who["cid"].post("/runs", run).status == 422, "as one that is not there"
    assert who[BEN].call("DELETE", path).status == 403
    assert who[BEN].post("/runs?dry_run=true", run).status == 200
    assert who["boss"].call("DELETE", path).status == 200
