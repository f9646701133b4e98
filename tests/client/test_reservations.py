"""Reservations from Python: what is sent, and what the answer means."""

from __future__ import annotations

from typing import Any

import pytest

from rota.client import BadAnswer, Client
from tests.client.stub import ok, stub

KEPT: dict[str, Any] = {
    "id": "6af9a5ed5e05",
    "name": "demo",
    "user": "ann",
    "users": ["ben"],
    "state": "upcoming",
    "start": 100.0,
    "end": 200.0,
    "gpus": 3,
    "nodes": {"node1": [0, 1], "node2": [5]},
    "ready_at": 150.0,
    "blocked_by": ["6af9a5ed5e00"],
    "runs": [],
    "run_count": 0,
    "colour": "red",
}


def test_what_is_sent_and_what_comes_back() -> None:
    with stub(lambda asked: ok(KEPT)) as server, Client(server.url) as client:
        made = client.reserve(3, start=100, for_s=100.0, name="demo", users=["ben"], dry_run=True)
        (asked,) = server.asked
    assert (asked.method, asked.target) == ("POST", "/reservations?dry_run=true")
    assert asked.json == {"gpus": 3, "from": 100.0, "for_seconds": 100.0, "name": "demo", "users": ["ben"]}
    assert asked.headers["idempotency-key"]
    assert (made.id, made.users, made.nodes) == ("6af9a5ed5e05", ("ben",), {"node1": (0, 1), "node2": (5,)})
    assert (made.start, made.ready_at, made.blocked_by) == (100.0, 150.0, ("6af9a5ed5e00",))
    assert made.extra == {"colour": "red"}


def test_the_calendar_and_giving_one_up() -> None:
    with stub(lambda asked: ok([KEPT] if asked.method == "GET" else {})) as server, Client(server.url) as client:
        assert [one.id for one in client.reservations(since=5, until=7.5)] == ["6af9a5ed5e05"]
        client.cancel_reservation("a/b")
        assert [asked.target for asked in server.asked] == ["/reservations?from=5.0&until=7.5", "/reservations/a%2Fb"]


def test_a_wrong_kind_of_thing_is_named_before_it_is_sent() -> None:
    with Client("http://127.0.0.1:1") as client:
        for wrong, name in (
            ({"users": "ben"}, "users"),
            ({"start": "now"}, "from"),
            ({"until": None, "for_s": "1h"}, "for"),
        ):
            with pytest.raises(TypeError, match=name):
                client.reserve(1, **wrong)


@pytest.mark.parametrize(
    "wrong", [[], {"id": 5}, {"id": "r", "nodes": [1]}, {"id": "r", "nodes": {"a": 5}}, {"id": "r", "end": "x"}]
)
def test_an_answer_that_makes_no_sense(wrong: Any) -> None:
    with stub(lambda asked: ok(wrong)) as server, Client(server.url) as client, pytest.raises(BadAnswer):
        client.reserve(1, for_s=60)
