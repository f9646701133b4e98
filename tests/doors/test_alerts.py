"""Alerts: raised on a run, listed newest first, decided by somebody."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.people import ANN, MakeServer, people
from tests.doors.server import Server

FIELDS = {
    *("id", "run_id", "timestamp", "severity", "message", "choices", "status"),
    *("response", "responded_at", "session_id", "auto_session"),
}


def test_raise_and_decide(server: Server) -> None:
    body = {"name": "a", "command": "true", "chat_session_id": "chat-1"}
    first, second = (server.post("/runs", body).ok()["id"] for _ in range(2))
    asked = {"message": "loss is NaN", "choices": ["Ignore", "Stop Job"], "severity": "critical"}
    alert_id = server.post(f"/runs/{first}/alerts", asked).ok()["alert_id"]
    assert len(alert_id) == 32
    later = server.post(f"/runs/{second}/alerts", {"message": "spike", "choices": ["Ignore"]}).ok()["alert_id"]
    listed = server.get("/alerts").ok()
    assert [alert["id"] for alert in listed] == [later, alert_id]
    assert set(listed[0]) >= FIELDS
    assert (listed[0]["severity"], listed[1]["severity"]) == ("warning", "critical")
    assert (listed[1]["status"], listed[1]["response"], listed[1]["responded_at"]) == ("pending", None, None)
    assert (listed[1]["session_id"], listed[1]["auto_session"], listed[1]["run_id"]) == ("chat-1", False, first)

    refused = server.post(f"/alerts/{alert_id}/respond", {"choice": "Panic"})
    assert (refused.status, "'Stop Job'" in refused.json["detail"]) == (400, True)
    tried = server.post(f"/alerts/{alert_id}/respond?dry_run=true", {"choice": "Ignore"}).ok()
    assert tried == {"message": "Response recorded", "dry_run": True}
    assert server.get("/alerts").ok() == listed
    assert server.post(f"/alerts/{alert_id}/respond", {"choice": "Stop Job"}).ok() == {"message": "Response recorded"}
    (resolved,) = server.get("/alerts?status=resolved").ok()
    assert (resolved["id"], resolved["response"]) == (alert_id, "Stop Job")
    assert resolved["responded_at"] >= resolved["timestamp"]
    assert [alert["id"] for alert in server.get(f"/alerts?run_id={second}").ok()] == [later]
    page = server.get("/alerts?limit=1")
    rest = server.get(f"/alerts?limit=1&cursor={page.headers['x-next-cursor']}").ok()
    assert [alert["id"] for alert in [*page.ok(), *rest]] == [later, alert_id]


def test_the_same_key_raises_once(server: Server) -> None:
    path = f"/runs/{server.post('/runs', {'name': 'a', 'command': 'true'}).ok()['id']}/alerts"
    asked = {"message": "m", "choices": ["x"]}
    first = server.post(path, asked, headers=["Idempotency-Key: k"]).ok()
    assert server.post(path, asked, headers=["Idempotency-Key: k"]).ok() == first
    assert server.post(path, {**asked, "message": "n"}, headers=["Idempotency-Key: k"]).status == 409
    assert server.post(f"{path}?dry_run=true", asked).ok()["dry_run"] is True
    assert len(server.get("/alerts").ok()) == 1


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"message": "m", "choices": []}, 400, "choice"),
        ({"message": "m"}, 400, "choice"),
        ({"choices": ["x"]}, 422, "message"),
        ({"message": "m", "choices": [""]}, 422, "choices"),
        ({"message": "m", "choices": ["x"], "severity": "mild"}, 422, "severity"),
        ({"message": "m", "choices": ["x"] * 51}, 422, "choices"),
        ({"message": "x" * 10_001, "choices": ["x"]}, 422, "message"),
        ({"message": 1, "choices": ["x"]}, 422, "message"),
    ],
)
def test_what_is_no_alert(common: Server, body: Any, status: int, word: str) -> None:
    run_id = common.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    answer = common.post(f"/runs/{run_id}/alerts", body)
    assert (answer.status, word in answer.body.decode()) == (status, True)


def test_alerts_of_nothing(common: Server) -> None:
    ask = {"message": "m", "choices": ["x"]}
    assert common.post("/runs/0123456789ab/alerts", ask).json == {"detail": "Run not found"}
    for name in ("f" * 32, "..", "%00", "a%2fb"):
        answer = common.post(f"/alerts/{name}/respond", {"choice": "x"})
        assert answer.status in (404, 405), name


def test_a_persons_answer_stays(make_server: MakeServer) -> None:
    who = people(make_server(), boss="admin", **{ANN: "user"}, bot="agent", other="agent")
    run_id = who[ANN].post("/runs", {"name": "a", "command": "true"}).ok()["id"]

    def alert() -> str:
        made = who["bot"].post(f"/runs/{run_id}/alerts", {"message": "m", "choices": ["Ignore", "Stop", "Ask"]}).ok()
        return f"/alerts/{made['alert_id']}/respond"

    def stands() -> tuple[str, str]:
        newest = who[ANN].get("/alerts").ok()[0]
        return newest["response"], newest["responded_by"]

    path = alert()
    assert who[ANN].post(path, {"choice": "Stop"}).ok() == {"message": "Response recorded"}
    for name, more in (("bot", {}), ("bot", {"seen": "Stop"}), ("boss", {}), ("boss", {"seen": "Ask"})):
        refused = who[name].post(path, {"choice": "Ignore", **more})
        assert refused.status == 409, (name, more)
        assert f"{ANN} has answered this with 'Stop'" in refused.json["detail"]
    for name in (ANN, "bot", "boss"):
        assert who[name].post(path, {"choice": "Stop"}).ok() == {"message": "Response recorded"}
    assert stands() == ("Stop", ANN), "the same answer changes nothing"
    who[ANN].post(path, {"choice": "Ask"}).ok()
    assert who[ANN].post(path, {"choice": "Ignore", "seen": "Stop"}).status == 409, "it is not the one that was seen"
    who["boss"].post(path, {"choice": "Ignore", "seen": "Ask"}).ok()
    assert stands() == ("Ignore", "boss")

    path = alert()
    who["bot"].post(path, {"choice": "Stop"}).ok()
    who["other"].post(path, {"choice": "Ask"}).ok()
    who[ANN].post(path, {"choice": "Ignore"}).ok()
    assert stands() == ("Ignore", ANN), "a person's answer counts for more than an agent's"

    path = alert()
    who["bot"].post(path, {"choice": "Stop"}).ok()
    who[ANN].post(path, {"choice": "Stop"}).ok()
    assert stands() == ("Stop", ANN), "who says the same as an agent has answered as well"
    assert who["bot"].post(path, {"choice": "Ask"}).status == 409
