"""`privacy=private`: other people's runs are not there, through no door; only that a GPU is taken can be seen."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from websockets.sync.client import connect

from rota.cli.main import main
from tests.app.house import until
from tests.security.kit import Lab, ask
from tests.security.test_matrix import TABLE

CANARIES = ("zebedee", "canary-name", "canary-line", "canary-tag", "canary-note", "canary-alert", "canary-chat")


class Secretive:
    """Zebedee has one of everything; ben looks."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.token = lab.ask("POST", "/tokens", {"user": "zebedee"}).ok()["token"]
        body = {
            "name": "canary-name",
            "command": "echo canary-line; sleep 1000",
            "workdir": "/",
            "tags": ["canary-tag"],
        }
        body |= {"chat_session_id": "canary-chat"}
        self.run = self.do("POST", "/runs", {**body, "auto_start": True, "gpu_count": 1})["id"]
        until(lambda: self.do("GET", f"/runs/{self.run}")["status"] == "running", "zebedee's run runs")
        self.held = self.do("POST", "/runs", body)["id"]
        job = {"run_id": "canary-name", "user": "zebedee", "command": "canary-line", "gpu_count": 16}
        self.job = self.do("POST", "/queue/submit", job)["job_id"]
        sweep = {"name": "canary-name", "base_command": "canary-line", "parameters": {"x": [1, 2]}}
        self.sweep = self.do("POST", "/sweeps", sweep)["id"]
        alert = {"message": "canary-alert", "choices": ["a"]}
        self.alert = self.do("POST", f"/runs/{self.run}/alerts", alert)["alert_id"]
        self.do("POST", f"/runs/{self.run}/metrics", {"rows": [{"loss": 1.0}]})
        self.session = self.do("POST", "/sessions", {"title": "canary-name"})["id"]
        self.do("POST", "/journey/events", {"kind": "note", "note": "canary-note", "run_id": self.run})
        self.advice = self.do("POST", "/journey/recommendations", {"title": "canary-note", "run_id": self.run})["id"]
        soon = {"gpus": 1, "from": time.time() + 86400, "for_seconds": 600, "name": "canary-name"}
        self.kept = self.do("POST", "/reservations", soon)["id"]
        given_up = self.do("POST", "/reservations", {**soon, "users": ["zoe"]})["id"]
        self.do("DELETE", f"/reservations/{given_up}")
        self.ids = [self.run, self.held, self.job, self.sweep, self.alert, self.session, self.advice]
        self.ids += [self.kept, given_up]

    def do(self, method: str, path: str, body: object = None) -> dict[str, str]:
        answer: dict[str, str] = ask(self.lab.port, method, path, body, token=self.token).ok()
        return answer

    def seen_in(self, text: bytes) -> list[str]:
        return [one for one in (*CANARIES, *self.ids) if one.encode() in text]


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secretive]:
    env = {"ROTA_PRIVACY": "private", "ROTA_RUN_AS": "nobody"}
    with Lab(tmp_path_factory.mktemp("private"), env=env) as lab:
        assert isinstance(lab, Lab)
        yield Secretive(lab)


@pytest.mark.parametrize(
    "route", [route for route in TABLE if "{" in route and "skill" not in route and "static" not in route]
)
def test_what_is_hidden_looks_like_what_is_not_there(hidden: Secretive, route: str) -> None:
    method, _, path = route.partition(" ")
    if "{token_id}" in path or "{node_id}" in path:
        return
    names = {"run_id": hidden.run, "job_id": hidden.job, "sweep_id": hidden.sweep, "alert_id": hidden.alert}
    names |= {"session_id": hidden.session, "recommendation_id": hidden.advice, "reservation_id": hidden.kept}
    query = f"?sweep_id={hidden.sweep}" if path.endswith("add-to-sweep") else ""
    answer = hidden.lab.ask(method, path.format(**names) + query, TABLE[route][1], by="ben")
    other = dict.fromkeys(names, "f" * 12)
    missing = hidden.lab.ask(method, path.format(**other) + query, TABLE[route][1], by="ben")
    assert answer.status == 404, answer.body
    assert missing.status == 404, missing.body
    told = answer.body
    for name, value in names.items():
        told = told.replace(value.encode(), other[name].encode())
    assert told == missing.body, "the two must not be told apart"


@pytest.mark.parametrize("by", ["ben", "eve"])
def test_nor_by_giving_back_what_is_no_lease_of_ones_own(hidden: Secretive, by: str) -> None:
    ids = (hidden.run, hidden.held, hidden.job, "f" * 12)
    answers = [hidden.lab.ask("POST", "/release", {"job_id": one}, by=by) for one in ids]
    assert {(answer.status, answer.body) for answer in answers} == {(404, answers[-1].body)}


def test_nor_at_the_port_that_needs_no_token(hidden: Secretive) -> None:
    ids = (hidden.run, hidden.held, hidden.job, "f" * 12)
    answers = {one: ask(hidden.lab.lease_port, "POST", "/release", {"job_id": one}) for one in ids}
    assert {answer.status for answer in answers.values()} == {404}
    told = {answer.body.replace(one.encode(), b"f" * 12) for one, answer in answers.items()}
    assert len(told) == 1, "they must not be told apart"


@pytest.mark.parametrize("route", [route for route in TABLE if route.startswith("GET /") and "{" not in route])
@pytest.mark.parametrize("by", ["ben", "eve", "bot"])
def test_no_list_and_no_sum_names_it(hidden: Secretive, route: str, by: str) -> None:
    path = route.partition(" ")[2]
    if path == "/events":
        return
    answer = hidden.lab.ask("GET", path + ("?limit=1000" if path == "/runs" else ""), by=by)
    assert answer.status in (200, 403)
    assert hidden.seen_in(answer.body) == []


@pytest.mark.parametrize(("by", "shown"), [("ben", ["ben"]), ("bot", ["ann"]), ("root", ["ann", "ben"])])
def test_limits_of_others_are_not_shown(hidden: Secretive, by: str, shown: list[str]) -> None:
    hidden.lab.ask("PUT", "/orchestrator/policy", {"user_limits": {who: {"gpus": 9} for who in ("ann", "ben")}}).ok()
    try:
        status = hidden.lab.ask("GET", "/orchestrator/status", by=by).ok()
        assert sorted(status["policy"]["user_limits"]) == shown
    finally:
        hidden.lab.ask("PUT", "/orchestrator/policy", {"user_limits": {}}).ok()


def test_its_gpu_is_taken_all_the_same(hidden: Secretive) -> None:
    status = hidden.lab.ask("GET", "/gpu/status", by="ben").ok()["cluster_status"]
    assert status["allocated_gpus"] == 1
    assert hidden.lab.ask("GET", "/status", by="ben").ok()["gpus_total"] == 16


def test_asking_why_one_waits_does_not_tell_for_whom(hidden: Secretive) -> None:
    body = {"name": "mine", "command": "true", "gpu_count": 16, "auto_start": True, "workdir": "/"}
    mine = hidden.lab.ask("POST", "/runs", body, by="ben").ok()["id"]
    for path in (f"/runs/{mine}", f"/runs/{mine}/explain", f"/runs/{mine}/eta", f"/queue/{mine}"):
        answer = hidden.lab.ask("GET", path, by="ben")
        assert answer.status == 200
        assert hidden.seen_in(answer.body) == [], path
    hidden.lab.ask("POST", f"/runs/{mine}/stop", by="ben").ok()


def test_who_watches_does_not_hear_of_it(hidden: Secretive) -> None:
    """From the ring and from the store, by either door; the owner hears everything."""
    lab = hidden.lab
    mine = lab.ask("POST", "/runs", {"name": "mark", "command": "true"}, by="ben").ok()["id"]
    for token, whole in ((lab.tokens["ben"], False), (hidden.token, True)):
        stop = mine if not whole else hidden.run
        told = _sse(lab.port, token, stop)
        assert (hidden.seen_in(told) == []) is not whole
        with connect(
            f"ws://127.0.0.1:{lab.port}/ws?after=0", open_timeout=60, additional_headers={"X-Auth-Token": token}
        ) as watch:
            got = b""
            while stop.encode() not in got:
                message = watch.recv(timeout=60)
                got += message.encode() if isinstance(message, str) else message
        assert (hidden.seen_in(got) == []) is not whole


def _sse(port: int, token: str, until_seen: str, path: str = "/events?after=0") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stream:
        head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nx-auth-token: {token}\r\n\r\n"
        stream.sendall(head.encode())
        got = b""
        while until_seen.encode() not in got:
            piece = stream.recv(65536)
            assert piece, "the stream ended"
            got += piece
        return got


def test_its_owner_and_admins_see_it(hidden: Secretive) -> None:
    for answer in (
        hidden.lab.ask("GET", f"/runs/{hidden.run}", by="root"),
        hidden.lab.ask("GET", f"/runs/{hidden.run}"),
    ):
        assert answer.ok()["name"] == "canary-name"
    assert [run["id"] for run in hidden.do("GET", "/runs")][-1:] == [hidden.run]  # type: ignore[index]
    assert json.dumps(hidden.do("GET", "/queue")).count("canary-line") >= 1


def test_who_sees_only_their_own_runs_is_told_that_they_cannot_simulate_all(hidden: Secretive) -> None:
    assert hidden.lab.ask("GET", "/whoami", by="root").ok()["sees_all"] is True
    for by in ("ben", "eve", "bot"):
        assert hidden.lab.ask("GET", "/whoami", by=by).ok()["sees_all"] is False
    env = {"ROTA_URL": hidden.lab.url, "ROTA_TOKEN": hidden.lab.tokens["ben"]}
    done = CliRunner().invoke(main, ["simulate", "--since", "30d"], env=env)
    assert done.exit_code == 77
    assert "only your own runs are shown to you" in done.stderr


class Preempted:
    """Ben's run was preempted for zebedee's; the GPU that is left is kept for zebedee's reservation, so ben's waits."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        token = lab.ask("POST", "/tokens", {"user": "zebedee"}).ok()["token"]
        lab.ask("PUT", "/orchestrator/policy", {"enable_preemption": True}).ok()
        body = {"name": "mine", "command": "exec sleep 1000", "workdir": "/", "auto_start": True}
        first = {**body, "gpu_count": 2, "preemptible": True, "priority": 1}
        self.run = lab.ask("POST", "/runs", first, by="ben").ok()["id"]
        until(lambda: self.of(self.run)["status"] == "running", "ben's run runs")
        urgent = {**body, "name": "canary-name", "gpu_count": 1, "priority": 4}
        other = ask(lab.port, "POST", "/runs", urgent, token=token).ok()["id"]
        until(lambda: self.of(self.run)["status"] == "queued", "ben's run was preempted")
        soon = {"gpus": 1, "from": time.time() + 3600, "for_seconds": 86400, "name": "canary-name"}
        kept = ask(lab.port, "POST", "/reservations", soon, token=token).ok()["id"]
        self.waiting = lab.ask("POST", "/runs", {**body, "gpu_count": 1}, by="ben").ok()["id"]
        self.names = ("zebedee", "canary-name", other, kept)
        self.other, self.kept = other, kept

    def of(self, run_id: str) -> dict[str, str]:
        found: dict[str, str] = self.lab.ask("GET", f"/runs/{run_id}", by="ben").ok()
        return found

    def seen_in(self, text: bytes) -> list[str]:
        return [one for one in self.names if one.encode() in text]


@pytest.fixture(scope="module")
def preempted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preempted]:
    env = {"ROTA_PRIVACY": "private", "ROTA_RUN_AS": "nobody"}
    with Lab(tmp_path_factory.mktemp("preempted"), nodes=1, gpus=2, env=env) as lab:
        assert isinstance(lab, Lab)
        yield Preempted(lab)


def test_no_route_tells_the_owner_of_a_preempted_run_for_whom(preempted: Preempted) -> None:
    lab = preempted.lab
    for route in (route for route in TABLE if route.startswith("GET ")):
        path = route.partition(" ")[2]
        if path == "/events" or path.endswith("/stream"):
            continue
        if "{" in path and "{run_id}" not in path and "{job_id}" not in path:
            continue
        for run in (preempted.run, preempted.waiting):
            answer = lab.ask("GET", path.format(run_id=run, job_id=run), by="ben")
            assert answer.status in (200, 403, 404), path
            assert preempted.seen_in(answer.body) == [], path
    changes: tuple[tuple[str, str, dict[str, object] | None], ...] = (
        ("PUT", f"/runs/{preempted.run}", {"name": "mine"}),
        ("POST", f"/runs/{preempted.run}/hold?dry_run=true", {}),
        ("POST", f"/runs/{preempted.run}/stop?dry_run=true", {}),
        ("DELETE", f"/queue/{preempted.run}?dry_run=true", None),
        ("PATCH", f"/queue/{preempted.run}/priority?dry_run=true", {"priority": 1}),
        ("POST", f"/runs/{preempted.run}/archive?dry_run=true", {}),
    )
    for method, path, body in changes:
        answer = lab.ask(method, path, body, by="ben")
        assert answer.status in (200, 409), (path, answer.body)
        assert preempted.seen_in(answer.body) == [], path


def test_nor_does_a_stream(preempted: Preempted) -> None:
    lab, story = preempted.lab, f"/runs/{preempted.run}/sidecar-logs/stream"
    assert preempted.seen_in(_sse(lab.port, lab.tokens["ben"], "preempted for another run", story)) == []
    assert preempted.seen_in(_sse(lab.port, lab.tokens["ben"], preempted.waiting)) == []
    head = {"X-Auth-Token": lab.tokens["ben"]}
    with connect(f"ws://127.0.0.1:{lab.port}/ws?after=0", open_timeout=60, additional_headers=head) as watch:
        got = ""
        while preempted.waiting not in got:
            got += str(watch.recv(timeout=60))
    assert preempted.seen_in(got.encode()) == []
    assert "preempted for another run" in got


def test_the_wording_stays_and_admins_read_the_ids(preempted: Preempted) -> None:
    lab = preempted.lab
    assert preempted.of(preempted.run)["why"] == "preempted for another run"
    assert lab.ask("GET", f"/runs/{preempted.run}", by="root").ok()["why"] == f"preempted for {preempted.other}"
    (mine,) = lab.ask("GET", f"/runs/{preempted.waiting}/explain", by="ben").ok()["reasons"][:1]
    assert (mine["code"], "a reservation (hidden)" in mine["text"]) == ("reserved", True), mine
    assert preempted.kept in lab.ask("GET", f"/runs/{preempted.waiting}/explain", by="root").body.decode()
    for path in ("/events?after=0", f"/runs/{preempted.run}/sidecar-logs/stream"):
        assert _sse(lab.port, lab.tokens["root"], f"preempted for {preempted.other}", path)
