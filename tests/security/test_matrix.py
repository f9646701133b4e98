"""Every route of the server against every sort of caller. The routes come from the application itself: one that is not
in the table below fails the test by its name, so none can be forgotten.

Changes are asked for with `dry_run=true`, which goes through the same authorisation and leaves nothing behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rota.api.guard import OPEN, OPEN_BELOW, OPEN_TO_READ
from tests.app.house import until
from tests.security.kit import Answer, Lab, ask, the_app

# sorts of routes: who is let through. "ann" owns what is asked about, "ben" is somebody else, "bot" acts for ann, "eve"
# may only look. The rest are turned away with 403; those the server does not know, with 401.
EVERYBODY = {"nobody", "bad", "old", "gone", "ann", "ben", "bot", "eve", "root"}
KNOWN = {"ann", "ben", "bot", "eve", "root"}
DOERS = {"ann", "ben", "bot", "root"}
OWNER = {"ann", "bot", "root"}
PERSON = {"ann", "root"}
PEOPLE = {"ann", "ben", "root"}
ADMIN = {"root"}

RUN = {"name": "a", "command": "true"}
JOB = {"run_id": "label", "user": "ann", "command": "true", "gpu_count": 1}

# "METHOD path" -> (who may, body). {run} is held, {job} is queued; both are ann's.
TABLE: dict[str, tuple[set[str], Any]] = {
    "GET /": (EVERYBODY, None),
    "GET /health": (EVERYBODY, None),
    "GET /healthz": (EVERYBODY, None),
    "GET /readyz": (EVERYBODY, None),
    "GET /docs": (EVERYBODY, None),
    "GET /openapi.json": (EVERYBODY, None),
    "GET /wild/v2/system-health": (EVERYBODY, None),
    "GET /prompt-skills": (EVERYBODY, None),
    "GET /prompt-skills/search": (EVERYBODY, None),
    "GET /prompt-skills/{skill_id}": (EVERYBODY, None),
    "GET /static/{name}": (EVERYBODY, None),
    "POST /prompt-skills/{skill_id}/render": (KNOWN, {}),
    "GET /whoami": (KNOWN, None),
    "POST /logout": (KNOWN, None),
    "GET /metrics": (KNOWN, None),
    "GET /events": (KNOWN, None),
    "GET /usage": (KNOWN, None),
    "GET /capacity": (KNOWN, None),
    "GET /nodes": (KNOWN, None),
    "GET /gpus": (KNOWN, None),
    "GET /status": (KNOWN, None),
    "GET /jobs": (KNOWN, None),
    "POST /acquire": (DOERS, {"pid": 0, "num_gpus": 0}),
    "POST /release": (OWNER, {"job_id": "{lease}"}),
    "GET /tokens": (ADMIN, None),
    "POST /tokens": (ADMIN, {"user": "carl"}),
    "DELETE /tokens/{token_id}": (ADMIN, None),
    "POST /tokens/{token_id}/link": (ADMIN, None),
    "GET /queue": (KNOWN, None),
    "POST /queue/submit": (DOERS, JOB),
    "GET /queue/{job_id}": (KNOWN, None),
    "DELETE /queue/{job_id}": (OWNER, None),
    "PATCH /queue/{job_id}/priority": (PERSON, {"priority": 3}),
    "GET /gpu/status": (KNOWN, None),
    "POST /gpu/initialize": (ADMIN, {}),
    "GET /orchestrator/status": (KNOWN, None),
    "POST /orchestrator/start": (ADMIN, None),
    "POST /orchestrator/stop": (ADMIN, None),
    "PUT /orchestrator/policy": (ADMIN, {"max_concurrent_jobs": 5}),
    "POST /nodes/{node_id}/drain": (ADMIN, {}),
    "POST /nodes/{node_id}/undrain": (ADMIN, None),
    "GET /reservations": (KNOWN, None),
    "POST /reservations": (DOERS, {"gpus": 1, "for_seconds": 60}),
    "DELETE /reservations/{reservation_id}": (OWNER, None),
    "GET /runs": (KNOWN, None),
    "POST /runs": (DOERS, RUN),
    "GET /runs/{run_id}": (KNOWN, None),
    "PUT /runs/{run_id}": (OWNER, {"name": "b"}),
    "POST /runs/{run_id}/queue": (OWNER, None),
    "POST /runs/{run_id}/start": (OWNER, None),
    "POST /runs/{run_id}/stop": (OWNER, None),
    "POST /runs/{run_id}/rerun": (OWNER, {}),
    "POST /runs/{run_id}/archive": (OWNER, None),
    "POST /runs/{run_id}/unarchive": (OWNER, None),
    "POST /runs/{run_id}/hold": (OWNER, None),
    "POST /runs/{run_id}/release": (OWNER, None),
    "PATCH /runs/{run_id}/priority": (PERSON, {"priority": 3}),
    "POST /runs/{run_id}/status": (OWNER, {"status": "running"}),
    "POST /runs/{run_id}/metrics": (OWNER, {"rows": [{"loss": 1.0}]}),
    "POST /runs/{run_id}/alerts": (OWNER, {"message": "m", "choices": ["a"]}),
    "POST /runs/{run_id}/add-to-sweep": (OWNER, None),
    "GET /runs/{run_id}/explain": (KNOWN, None),
    "GET /runs/{run_id}/eta": (KNOWN, None),
    "GET /runs/{run_id}/workspace": (KNOWN, None),
    "GET /calibration": (KNOWN, None),
    "GET /runs/{run_id}/logs": (KNOWN, None),
    "GET /runs/{run_id}/logs/stream": (KNOWN, None),
    "GET /runs/{run_id}/sidecar-logs": (KNOWN, None),
    "GET /runs/{run_id}/sidecar-logs/stream": (KNOWN, None),
    "GET /runs/{run_id}/artifacts": (KNOWN, None),
    "GET /runs/{run_id}/metrics": (KNOWN, None),
    "GET /alerts": (KNOWN, None),
    "POST /alerts/{alert_id}/respond": (OWNER, {"choice": "a"}),
    "POST /sweeps/wild": (DOERS, {}),
    "POST /sweeps": (DOERS, {"name": "s", "base_command": "true", "parameters": {"x": [1]}}),
    "GET /sweeps": (KNOWN, None),
    "GET /sweeps/{sweep_id}": (KNOWN, None),
    "PUT /sweeps/{sweep_id}": (OWNER, {"name": "t"}),
    "POST /sweeps/{sweep_id}/runs": (OWNER, RUN),
    "POST /sweeps/{sweep_id}/start": (OWNER, None),
    "POST /sweeps/{sweep_id}/stop": (OWNER, None),
    "GET /cluster": (KNOWN, None),
    "POST /cluster": (PEOPLE, {"type": "slurm"}),
    "POST /cluster/detect": (DOERS, {}),
    "POST /sessions": (DOERS, {}),
    "GET /sessions": (KNOWN, None),
    "GET /sessions/{session_id}": (KNOWN, None),
    "GET /journey/loop": (KNOWN, None),
    "GET /journey/recommendations": (KNOWN, None),
    "POST /journey/events": (DOERS, {"kind": "note"}),
    "POST /journey/recommendations": (DOERS, {"title": "t"}),
    "POST /journey/recommendations/{recommendation_id}/respond": (PERSON, {"status": "accepted"}),
    "POST /journey/decisions": (DOERS, {"title": "t"}),
    "WS /ws": (KNOWN, None),
}
# a login is for those who are not known yet: tried in TestLogin below
APART = {"GET /login", "POST /login"}
QUEUED = ("/queue/{job_id}", "/runs/{run_id}/hold", "/runs/{run_id}/priority")


def routes() -> Iterator[str]:
    yield from _walk(the_app().routes, "")


def _walk(found: Any, before: str) -> Iterator[str]:
    for declared in found:
        route = getattr(declared, "made", declared)  # most are made by the first request for them
        inner = getattr(route, "original_router", None)
        if inner is not None:
            yield from _walk(inner.routes, before)
            continue
        kind, path = type(route).__name__, before + route.path
        if kind == "Mount":
            yield f"GET {path}"
        elif "WebSocket" in kind:
            yield f"WS {path}"
        else:
            yield from (f"{method} {path}" for method in route.methods if method != "HEAD")


def test_every_route_is_in_the_table_and_nothing_else() -> None:
    there = set(routes())
    assert len(there) > 80
    assert there - set(TABLE) - APART == set(), "routes without a word about who may call them"
    assert set(TABLE) | APART == there, "words about routes that are not there"


def test_open_routes_are_exactly_those_agents_need() -> None:
    """What a preflight without a token calls, the login, and what a browser shows before it."""
    paths = {name.partition(" ")[2] for name, (who, _) in TABLE.items() if "nobody" in who}
    below = {"/prompt-skills/search", "/prompt-skills/{skill_id}", "/static/{name}"}
    assert paths | {"/login"} == OPEN | OPEN_TO_READ | below
    assert OPEN_BELOW == ("/prompt-skills/", "/static/")


class Cast:
    """A lab in which ann has one of everything."""

    def __init__(self, lab: Lab, holder: int) -> None:
        self.lab, self.holder = lab, holder
        run = lab.ask("POST", "/runs", {**RUN, "env": {"SECRET": "canary-env"}}, by="ann").ok()["id"]
        waiting = {**JOB, "depends_on": [run]}  # which is held, so it stays queued
        job = lab.ask("POST", "/queue/submit", waiting, by="ann").ok()["job_id"]
        sweep = lab.ask("POST", "/sweeps", TABLE["POST /sweeps"][1], by="ann").ok()["id"]
        alert = lab.ask("POST", f"/runs/{run}/alerts", {"message": "m", "choices": ["a"]}, by="ann").ok()["alert_id"]
        session = lab.ask("POST", "/sessions", {}, by="ann").ok()["id"]
        advice = lab.ask("POST", "/journey/recommendations", {"title": "t"}, by="ann").ok()["id"]
        lease = lab.ask("POST", "/acquire", {"pid": holder, "num_gpus": 0}, by="ann").ok()["job_id"]
        kept = lab.ask("POST", "/reservations", {"gpus": 1, "for_seconds": 3600}, by="ann").ok()["id"]
        node = lab.ask("GET", "/gpu/status").ok()["cluster_status"]["nodes"][0]["node_id"]
        zoe = lab.ask("POST", "/tokens", {"user": "zoe"}).ok()["id"]  # who does not call: one's own is another matter
        self.names = {
            "name": "reference.css",
            "run_id": run, "job_id": job, "sweep_id": sweep, "alert_id": alert, "session_id": session,
            "recommendation_id": advice, "lease": lease, "node_id": node, "token_id": zoe,
            "skill_id": "wild_v2_execution_ops_protocol", "reservation_id": kept,
        }  # fmt: skip

    def call(self, route: str, by: str) -> Answer:
        method, _, path = route.partition(" ")
        names = dict(self.names)
        if path.startswith(QUEUED):
            names["run_id"] = names["job_id"]
        where = path.format(**names)
        body = TABLE[route][1]
        if route == "POST /acquire":
            body = {"pid": self.holder, "num_gpus": 0}
        elif route == "POST /release":
            body = {"job_id": self.names["lease"]}
        if route.endswith("/add-to-sweep"):
            where += f"?sweep_id={names['sweep_id']}&dry_run=true"
        elif method not in ("GET", "WS"):
            where += "?dry_run=true"
        if method == "WS":
            return self._knock(where, by)
        return self.lab.ask(method, where, body, by=by)

    def _knock(self, where: str, by: str) -> Answer:
        shake = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        return self.lab.ask("GET", where, by=by, headers={**shake, "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA=="})


@pytest.fixture(scope="module")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cast]:
    """Whoever has no account on this machine runs as nobody, should the server be root."""
    env = {"ROTA_RUN_AS": "nobody", "ROTA_LOGIN_TRIES": "100000"}
    with Lab(tmp_path_factory.mktemp("matrix"), env=env) as lab:
        assert isinstance(lab, Lab)
        with subprocess.Popen(["sleep", "1000"]) as holder:  # of all leases
            yield Cast(lab, holder.pid)
            holder.kill()


@pytest.mark.parametrize("route", TABLE)
def test_who_may(cast: Cast, route: str) -> None:
    allowed = TABLE[route][0]
    for by in sorted(EVERYBODY):
        answer = cast.call(route, by)
        told = f"{route} by {by}: {answer.status} {answer.body[:300]!r}"
        assert answer.status < 500, told
        if by in allowed:
            assert answer.status not in (401, 403), told
        else:
            turned = {403} if by in KNOWN or route.startswith("WS") else {401}
            assert answer.status in turned, told
        assert b"canary-env" not in answer.body or by in OWNER, told


def test_a_method_a_route_does_not_have_is_no_way_in(cast: Cast) -> None:
    for route in TABLE:
        method, _, path = route.partition(" ")
        if method == "WS" or "nobody" in TABLE[route][0]:
            continue
        where = path.format(**cast.names)
        for other in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"):
            open_to_read = where.startswith("/prompt-skills/") and other in ("HEAD", "OPTIONS")
            assert cast.lab.ask(other, where, by="nobody").status == (405 if open_to_read else 401), (other, where)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path + "/", lambda path: "/" + path, lambda path: path.upper(), lambda path: path + "%00",
        lambda path: "/static/.." + path, lambda path: "/docs/.." + path, lambda path: path + "?x=/docs",
        lambda path: path + ";/docs", lambda path: "/prompt-skills/../" + path[1:], lambda path: path.replace("/",
        "/./"),
        lambda path: "/%2e%2e" + path, lambda path: path + "%2f..%2fdocs", lambda path: "http://127.0.0.1" + path,
    ],
)  # fmt: skip
def test_another_spelling_of_a_path_is_no_way_in(cast: Cast, change: Any) -> None:
    """Whatever is made of it, it is not answered with what is behind it."""
    for path in ("/runs", "/tokens", "/metrics", "/gpu/status", f"/runs/{cast.names['run_id']}"):
        answer = cast.lab.ask("GET", change(path), by="nobody")
        assert answer.status in (400, 401, 404), (change(path), answer.status, answer.body[:200])
        assert cast.names["run_id"].encode() not in answer.body


def test_an_id_is_matched_whole(cast: Cast) -> None:
    run = cast.names["run_id"]
    tricks = [
        run[:-1],
        run + "0",
        run.upper(),
        run[:6],
        "%25",
        "*",
        "_" * 12,
        f"{run}%20",
        f"%20{run}",
        f"{run}.1",
        "%00",
    ]
    for trick in tricks:
        for suffix in ("", "/logs", "/explain", "/artifacts", "/metrics"):
            if trick + suffix == run:
                continue
            answer = cast.lab.ask("GET", f"/runs/{trick}{suffix}", by="ann")
            assert answer.status in (404, 422), (trick, suffix, answer.status)
        assert cast.lab.ask("DELETE", f"/queue/{trick}", by="ann").status in (404, 422)


class TestLogin:
    def test_a_code_a_cookie_and_its_end(self, cast: Cast) -> None:
        lab = cast.lab
        path = lab.ask("POST", f"/tokens/{lab.ids['ann']}/link", by="root").ok()["path"]
        answer = lab.ask("GET", path, by="nobody")
        assert answer.status == 303
        set_cookie = answer.header("set-cookie")
        assert "HttpOnly" in set_cookie
        assert "SameSite=strict" in set_cookie
        jar = {"cookie": set_cookie.partition(";")[0]}
        me = lab.ask("GET", "/whoami", by="nobody", headers=jar).ok()
        assert (me["name"], me["known_by"]) == ("ann", "cookie")
        assert lab.ask("GET", path, by="nobody").status == 401, "once"
        ours = {"origin": f"http://127.0.0.1:{lab.port}"}
        assert lab.ask("POST", "/runs?dry_run=true", RUN, by="nobody", headers=jar).status == 403
        assert lab.ask("POST", "/runs?dry_run=true", RUN, by="nobody", headers={**jar, **ours}).status == 200
        ended = lab.ask("POST", "/logout", by="nobody", headers={**jar, **ours})
        assert 'rota_session=""' in ended.header("set-cookie")
        assert lab.ask("GET", "/whoami", by="nobody", headers=jar).status == 401, "also where the cookie was kept"

    def test_a_token_logs_in_and_others_do_not(self, cast: Cast) -> None:
        lab = cast.lab
        for by in ("bad", "old", "gone"):
            code = lab.tokens.get(by, "nonsense")
            assert lab.ask("POST", "/login", {"code": code}, by="nobody").status == 401
        assert lab.ask("POST", "/login", {"code": lab.tokens["ben"]}, by="nobody").status == 200

    def test_nobody_grants_more_than_an_admin_does(self, cast: Cast) -> None:
        lab = cast.lab
        for by in ("ann", "ben", "bot", "eve"):
            for role in ("viewer", "user", "agent", "admin"):
                assert lab.ask("POST", "/tokens", {"user": by, "role": role, "acts_for": ""}, by=by).status == 403
            assert lab.ask("POST", f"/tokens/{lab.ids['root']}/link", by=by).status == 403
            assert lab.ask("DELETE", f"/tokens/{lab.ids['root']}", by=by).status == 403


class TestWhoRunsAsWhom:
    def test_a_name_in_a_body_counts_for_nothing_with_a_token(self, cast: Cast) -> None:
        for body in ({**RUN, "user": "ann"}, {**RUN, "user": "root"}):
            assert cast.lab.ask("POST", "/runs?dry_run=true", body, by="ben").ok()["user"] == "ben"
        assert cast.lab.ask("POST", "/queue/submit?dry_run=true", JOB, by="ben").ok()["job"]["user"] == "ben"
        assert cast.lab.ask("POST", "/runs?dry_run=true", {**RUN, "user": "ann"}, by="bot").ok()["user"] == "ann"

    def test_another_account_is_for_admins(self, cast: Cast) -> None:
        for account in ("root", "daemon", "nobody2", "\0", "../root"):
            for by in ("ann", "bot"):
                answer = cast.lab.ask("POST", "/runs?dry_run=true", {**RUN, "account": account}, by=by)
                assert answer.status in (403, 422), (account, by, answer.body)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root chooses accounts")
    def test_a_run_an_admin_made_for_somebody_lends_nobody_its_account(self, cast: Cast) -> None:
        """It runs as root; its owner may stop it, but not give it or a copy of it another command."""
        lab = cast.lab
        run = lab.ask("POST", "/runs", {**RUN, "user": "ann"}).ok()["id"]
        assert lab.ask("GET", f"/runs/{run}", by="ann").ok()["user"] == "ann"
        assert lab.ask("POST", f"/runs/{run}/rerun", {"command": "id"}, by="ann").status == 403
        assert lab.ask("PUT", f"/runs/{run}", {"command": "id"}, by="ann").status == 403
        assert lab.ask("PUT", f"/runs/{run}", {"workdir": "/tmp"}, by="bot").status == 403
        assert lab.ask("PUT", f"/runs/{run}", {"name": "mine"}, by="ann").status == 200
        assert lab.ask("POST", f"/runs/{run}/stop", by="ann").status == 200

    @pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root chooses accounts")
    def test_a_person_called_root_is_not_root(self, cast: Cast) -> None:
        token = cast.lab.ask("POST", "/tokens", {"user": "root", "role": "user"}).ok()["token"]
        run = ask(cast.lab.port, "POST", "/queue/submit", {**JOB, "command": "id -u", "gpu_count": 0}, token=token)
        job = cast.lab.in_state(run.ok()["job_id"], "completed", "failed")
        log = cast.lab.ask("GET", f"/runs/{job['id']}/logs").ok()["content"]
        assert log.strip() != "0"


def test_environments_are_for_their_owner(cast: Cast) -> None:
    """Others of the team see that there is a variable, not what it says."""
    run = cast.names["run_id"]
    for by in ("ben", "eve", "ann", "root"):
        seen = any(b"canary-env" in cast.call(route, by).body for route in TABLE if route.startswith("GET /"))
        assert not seen or by in OWNER, by
    body = {**RUN, "env": {"K": "canary-env"}, "workspace": {"commit": "c", "env": {"W": "canary-env"}}}
    made = cast.lab.ask("POST", "/runs", body, by="ann").ok()["id"]
    for path in (f"/runs/{made}", f"/runs/{made}/workspace", f"/queue/{made}", f"/runs/{run}"):
        assert b"canary-env" not in cast.lab.ask("GET", path, by="ben").body
        assert b"canary-env" not in cast.lab.ask("GET", path, by="eve").body
    assert b"canary-env" in cast.lab.ask("GET", f"/runs/{made}/workspace", by="ann").body


def test_the_lease_port_needs_no_token_and_gives_no_other_route(cast: Cast) -> None:
    port = cast.lab.lease_port
    assert ask(port, "GET", "/status").status == 200
    assert ask(port, "GET", "/jobs").status == 200
    for path in (
        "/runs",
        "/tokens",
        "/docs",
        "/openapi.json",
        "/queue",
        "/metrics",
        "/ws",
        "/",
        "/static/reference.css",
    ):
        assert ask(port, "GET", path).status == 404
    assert ask(port, "POST", "/acquire", {"pid": cast.holder, "num_gpus": 0}, token="wrong").status == 401


def test_on_the_unix_socket_the_kernel_says_who(cast: Cast) -> None:
    me = cast.lab.on_socket("GET", "/whoami").json
    assert (me["role"], me["known_by"]) == ("admin", "socket")


KNOCK = """
import os, socket, sys
def knock(token):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    one.sendall(f"GET /whoami HTTP/1.1\\r\\nhost: x\\r\\n{token}connection: close\\r\\n\\r\\n".encode())
    print(one.makefile().read().partition("\\n")[0].split()[1], flush=True)
knock("")
knock(f"x-auth-token: {sys.argv[2]}\\r\\n")
if os.fork() == 0:  # a child of nobody's any more, in a session of its own, with nothing in its environment
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-I", "-c", sys.argv[3], sys.argv[1], sys.argv[2], ""], {})
    os._exit(0)
elif sys.argv[3]:
    os.wait()
    import time
    time.sleep(100000)
"""


def test_a_job_is_not_its_account_on_the_unix_socket(cast: Cast) -> None:
    """Else every agent could become its person, and every job of a server that is not root an admin. This one has the
    server's own account."""
    lab, token = cast.lab, cast.lab.tokens["bot"]
    argv = [sys.executable, "-I", "-c", KNOCK, str(lab.data / "rota.sock"), token, KNOCK]
    run = lab.ask("POST", "/runs", {"name": "knock", "argv": argv, "gpu_count": 0, "auto_start": True}).ok()
    path = f"/runs/{run['id']}/logs"
    said = until(lambda: (log := lab.ask("GET", path).ok()["content"]).count("\n") >= 4 and log, "all have knocked")
    lab.ask("POST", f"/runs/{run['id']}/stop?grace_seconds=0").ok()
    assert said.split() == ["401", "200", "401", "200"], "without a token, with one, and both again from a grandchild"


def test_a_dry_run_of_a_lease_leaves_nothing_behind(cast: Cast) -> None:
    def there() -> set[str]:  # by their ids: what another test began may still be ending
        return {job["id"] for job in cast.lab.ask("GET", "/jobs").ok()}

    before = there()
    assert cast.call("POST /acquire", "ben").ok()["dry_run"] is True
    assert there() == before
