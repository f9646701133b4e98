"""Metric rows in, charts out."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rota.api.render.series import charts
from tests.doors.server import Server


@pytest.fixture(scope="module")
def run_id(common: Server) -> str:
    made: str = common.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    return made


def test_rows_become_charts(server: Server) -> None:
    path = f"/runs/{server.post('/runs', {'name': 'a', 'command': 'true'}).ok()['id']}"
    assert server.get(f"{path}/metrics").ok() == {}
    assert "metrics" not in server.get(path).ok()
    rows: list[dict[str, Any]] = [{"step": n, "loss": 1 / n, "lr": 0.1, "note": "text"} for n in range(1, 1001)]
    rows[-1] |= {"val_loss": 0.5, "accuracy": 0.75}
    assert server.post(f"{path}/metrics", {"rows": rows}).ok() == {"appended": 1000}
    found = server.get(f"{path}/metrics").ok()
    assert {"loss", "lr", "accuracy"} <= set(found["metricKeys"])
    assert "note" not in found["metricKeys"]
    loss = found["metricSeries"]["loss"]
    assert len(loss) == 400
    assert (loss[0], loss[-1]) == ({"step": 1, "value": 1.0}, {"step": 1000, "value": 0.001})
    assert found["lossHistory"][-1] == {"step": 1000, "trainLoss": 0.001, "valLoss": 0.5}
    assert found["metrics"] == {"loss": 0.001, "accuracy": 75.0, "epoch": 1000}
    whole = server.get(path).ok()
    assert {name: whole[name] for name in found} == found
    assert "metricSeries" not in server.get("/runs").ok()[0], "a list stays light"
    assert server.post(f"{path}/metrics?dry_run=true", {"rows": rows}).ok() == {"appended": 1000, "dry_run": True}
    assert server.get(f"{path}/metrics").ok() == found


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"rows": []}, 400),
        ({}, 400),
        ({"rows": "many"}, 422),
        ({"rows": [1, 2]}, 422),
        ({"rows": [{}] * 10_001}, 422),
        ([], 422),
        (b"{", 422),
    ],
)
def test_what_is_no_row(common: Server, run_id: str, body: Any, status: int) -> None:
    answer = common.post(f"/runs/{run_id}/metrics", body)
    assert answer.status == status
    if body not in (b"{", []):
        assert "rows" in answer.body.decode()


def test_numbers_that_are_none_do_no_harm(common: Server, run_id: str) -> None:
    raw = (
        b'{"rows": [{"step": 1, "loss": NaN, "big": 1e999, "huge": ' + b"9" * 400 + b', "fine": 2, "deep": {"a": []}}]}'
    )
    assert common.post(f"/runs/{run_id}/metrics", raw).ok() == {"appended": 1}
    assert common.get(f"/runs/{run_id}/metrics").ok()["metricKeys"] == ["step", "fine"]
    assert common.post("/runs/0123456789ab/metrics", {"rows": [{"loss": 1}]}).status == 404


def test_charts_of_odd_series() -> None:
    assert charts({}) == {}
    assert charts({"loss": [(0.0, math.nan)], "x": [(math.inf, 1.0)]}) == {}
    only = charts({"reward": [(0.5, 3.0)]})
    assert only["metricSeries"] == {"reward": [{"step": 0.5, "value": 3.0}]}
    assert "lossHistory" not in only
    assert only["metrics"] == {"loss": None, "accuracy": None, "epoch": None}
    named = charts({"train/loss": [(1.0, 2.0)], "epoch": [(1.0, 7.0)], "acc": [(1.0, 88.0)]})
    assert named["metrics"] == {"loss": 2.0, "accuracy": 88.0, "epoch": 7.0}
