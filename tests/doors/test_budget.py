"""What one person may take of the server, over HTTP. A refusal names what is used, what is allowed, what frees it."""

from __future__ import annotations

import pytest

from tests.app.house import until
from tests.doors.people import ANN, BEN, MakeServer, people
from tests.doors.server import Server


@pytest.mark.parametrize(
    ("sweep", "field"),
    [
        ({"base_command": "true #" + "x" * 120_000, "parameters": {"n": list(range(4200))}}, "base_command"),
        ({"base_command": "true", "parameters": {"text": ["x" * 60_000], "n": list(range(4200))}}, "parameters"),
        (
            {"base_command": "true", "parameters": {"n": list(range(4200))}, "workdir": "/x" * 2040},
            "workdir",
        ),
    ],
    ids=["the command", "a parameter", "the directory"],
)
def test_a_small_request_does_not_become_a_large_sweep(server: Server, sweep: dict[str, object], field: str) -> None:
    """127 KiB of request were 525 MB of database."""
    answer = server.post("/sweeps", {"name": "bomb", "max_runs": 10_000, **sweep})
    assert answer.status == 422, answer.body[:500]
    fault = answer.json["detail"][0]
    assert fault["loc"] == ["body", field]
    assert "4,200 runs of" in fault["msg"] and "one request may take 16.0 MiB" in fault["msg"]
    assert server.get("/sweeps").ok() == [] and server.get("/runs").ok() == []
    small = {"name": "fine", "base_command": "true", "parameters": {"n": list(range(500))}, "max_runs": 500}
    assert len(server.post("/sweeps", small).ok()["run_ids"]) == 500


def test_a_persons_live_runs_are_bounded_in_bytes(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PERSON_LIVE_MB": "1"})
    who = people(server, boss="admin", daemon="user", nobody="user")
    ann, ben = who[ANN], who[BEN]
    body = {"name": "long", "command": "true #" + "x" * 120_000}
    made = [ann.post("/runs", body).ok()["id"] for _ in range(8)]
    for path, more in (("/runs", body), ("/queue/submit", {**body, "run_id": "l", "user": ANN, "gpu_count": 1})):
        refused = ann.post(path, more)
        assert refused.status == 429
        assert f"{ANN}'s runs that have not ended take 9" in refused.json["detail"]
        assert "the limit is 1.0 MiB a person" in refused.json["detail"]
    sweep = {"name": "s", "base_command": body["command"], "parameters": {"n": [1, 2, 3]}}
    assert ann.post("/sweeps", sweep).status == 429
    assert ann.get("/sweeps").ok() == []
    ben.post("/runs", body).ok()
    ann.post(f"/runs/{made[0]}/stop").ok()
    ann.post("/runs", body).ok()


def test_an_environment_is_stored_once_however_many_runs_have_it(server: Server) -> None:
    """200 KiB x 500 runs, in the log and in a row each, would be 200 MB."""
    sweep = {"name": "s", "base_command": "true", "parameters": {"n": list(range(500))}, "max_runs": 500}
    env = {"BIG": "x" * 100_000, "BIGGER": "y" * 100_000}
    made = server.post("/sweeps", {**sweep, "env": env}).ok()
    assert len(made["run_ids"]) == 500
    assert server.get(f"/runs/{made['run_ids'][-1]}").ok()["env"] == env
    files = (path for path in server.data.iterdir() if path.name.startswith("rota.db"))
    assert sum(path.stat().st_size for path in files) < 20 << 20


def test_a_persons_metrics_are_bounded_in_total(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PERSON_METRICS_MB": "1"})
    who = people(server, boss="admin", daemon="user", nobody="user")
    ann, ben = who[ANN], who[BEN]
    rows = {"rows": [{"step": n, "note": "x" * 900} for n in range(300)]}
    made = [ann.post("/runs", {"name": "r", "command": "true"}).ok()["id"] for _ in range(5)]
    for run_id in made[:4]:
        ann.post(f"/runs/{run_id}/metrics", rows).ok()
    refused = ann.post(f"/runs/{made[4]}/metrics", rows)
    assert refused.status == 429
    assert f"{ANN}'s metrics take 1." in refused.json["detail"]
    assert "the limit is 1.0 MiB a person; old ones go with their runs" in refused.json["detail"]
    assert ann.post(f"/runs/{made[4]}/metrics?dry_run=true", rows).status == 429
    other = ben.post("/runs", {"name": "r", "command": "true"}).ok()["id"]
    ben.post(f"/runs/{other}/metrics", rows).ok()
    server.stop()
    server.start()
    until(lambda: ann.post(f"/runs/{made[4]}/metrics", rows).status == 429, "measured again at the start")


def test_who_has_too_many_checkpoints_submits_no_more(make_server: MakeServer) -> None:
    server = make_server(env={"ROTA_PERSON_CHECKPOINTS_MB": "1"})
    who = people(server, boss="admin", daemon="user", nobody="user")
    ann, ben = who[ANN], who[BEN]
    body = {"name": "r", "command": "true", "gpu_count": 0, "workdir": "/"}
    first = ann.post("/runs", body).ok()["id"]
    folder = server.data / "checkpoints" / first
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_bytes(b"x" * (2 << 20))
    server.stop()
    server.start()  # it is measured at the start, and every few minutes
    until(lambda: ann.post("/runs?dry_run=true", body).status == 429, "it was measured")
    refused = ann.post("/runs", body)
    assert refused.status == 429 and f"{ANN}'s checkpoints take 2." in refused.json["detail"]
    assert "remove what is not needed" in refused.json["detail"]
    ben.post("/runs", body).ok()
    who["boss"].post("/runs", body).ok()
    assert (folder / "weights").exists(), "nothing is deleted for a quota"
