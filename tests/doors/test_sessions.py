"""Sessions: opened, listed, found again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doors.server import Server

FIELDS = {"id", "title", "created_at", "message_count", "model_provider", "model_id", "status"}


def test_open_and_find(server: Server) -> None:
    plain = server.post("/sessions").ok()
    assert set(plain) >= FIELDS
    assert (plain["title"], plain["model_id"]) == ("New Chat", None)
    asked = {"title": "lr search", "model_provider": "p", "model_id": "m"}
    named = server.post("/sessions", asked).ok()
    assert {name: named[name] for name in asked} == asked
    assert [one["id"] for one in server.get("/sessions").ok()] == [named["id"], plain["id"]]
    page = server.get("/sessions?limit=1")
    assert page.ok()[0]["id"] == named["id"]
    assert server.get(f"/sessions?cursor={page.headers['x-next-cursor']}").ok()[0]["id"] == plain["id"]
    assert server.get(f"/sessions/{named['id']}").ok()["messages"] == []
    missing = server.get("/sessions/0123456789ab")
    assert (missing.status, missing.json) == (404, {"detail": "Session not found"})
    assert server.get("/sessions/%00").status == server.get("/sessions/..%2fx").status == 404
    assert server.post("/sessions?dry_run=true", asked).ok()["dry_run"] is True
    key = ["Idempotency-Key: k"]
    assert (
        server.post("/sessions", asked, headers=key).ok()["id"]
        == server.post("/sessions", asked, headers=key).ok()["id"]
    )
    assert server.post("/sessions", {}, headers=key).status == 409
    assert len(server.get("/sessions").ok()) == 3
    server.kill()
    server.start()
    assert len(server.get("/sessions").ok()) == 3, "what was acknowledged stays"


@pytest.mark.parametrize("body", [{"title": 1}, {"title": "x" * 501}, [], {"model_id": {}}])
def test_what_is_no_session(common: Server, body: Any) -> None:
    assert common.post("/sessions", body).status == 422
    assert common.get("/sessions").ok() == []
