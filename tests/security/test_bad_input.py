"""Bad input, from a list: every field of every body, whole bodies, and paths. The answer is a 4xx that names the field,
or the text is kept as the data it is; never a 5xx, never much work, never a file that is not ours to show.

Here nothing is started: the scheduler is paused, since a hostile value may be a command. What happens when such texts
are run with, in all fields but the command, is in test_shell_text.
"""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from rota.api.guard import MAX_BODY
from rota.core.nesting import MAX_ASKED
from tests.app.house import attempts_in
from tests.security.kit import SHARED, Answer, Lab, ask, document
from tests.security.test_matrix import JOB, RUN, TABLE

SLOW_S = 60.0  # on a machine that others use, too; the work itself must be far less
NAN, INF = float("nan"), float("inf")
BIDI, ZERO_WIDTH, HOMOGLYPH = "abc\u202egnp.exe", "a\u200bb\u2060c\ufeff", "аdmin"
VALUES: dict[str, Any] = {
    "null": None, "true": True, "zero": 0, "minus": -1, "half": 0.5, "31 bits": 2**31, "63 bits": 2**63,
    "below 63 bits": -(2**63) - 1, "1000 bits": 2**1000, "tiny": 5e-324, "huge": 1e308, "nan": NAN, "inf": INF,
    "-inf": -INF,
    "empty": "", "blank": " \t\n", "long": "x" * 200_000, "nul": "a\0b", "surrogate": "\ud800", "byte": "\udcff",
    "bidi": BIDI, "zero width": ZERO_WIDTH, "homoglyph": HOMOGLYPH, "emoji": "🦊" * 10,
    "escape": "\x1b]8;;x\x07\x1b[2J",
    "list": [], "object": {}, "nested": [[[]]], "list of null": [None], "list of nan": [NAN],
    "odd keys": {"": {"\0": NAN}},
    "proto": {"__proto__": 1}, "many": list(range(20_000)), "wide": {str(i): i for i in range(20_000)},
    "up": "../../etc/passwd",
    "minus flag": "-rf", "sql": "'; DROP TABLE runs; --", "template": "{{7*7}}${7*7}#{7*7}%s%n",
}  # fmt: skip
NEVER = {"POST /orchestrator/start", "POST /acquire", "POST /login", "POST /gpu/initialize"}  # the last: tried below


def bodies() -> Iterator[tuple[str, str]]:
    """(route, field) of every body in the document."""
    found = document()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {}).get("application/json")
            route = f"{method.upper()} {path}"
            if content is not None and route not in NEVER:
                yield from ((route, field) for field in _fields(found, content["schema"]))


def _fields(found: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    for option in schema.get("anyOf", [schema]):
        if "$ref" in option:
            return list(found["components"]["schemas"][option["$ref"].rpartition("/")[2]]["properties"])
    return []


class Room:
    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        run = lab.ask("POST", "/runs", RUN).ok()["id"]
        sweep = lab.ask("POST", "/sweeps/wild", {}).ok()["id"]
        alert = lab.ask("POST", f"/runs/{run}/alerts", {"message": "m", "choices": ["a"]}).ok()["alert_id"]
        advice = lab.ask("POST", "/journey/recommendations", {"title": "t"}).ok()["id"]
        job = lab.ask("POST", "/queue/submit", JOB).ok()["job_id"]
        node = lab.ask("GET", "/gpu/status").ok()["cluster_status"]["nodes"][0]["node_id"]
        self.names = {"run_id": run, "sweep_id": sweep, "alert_id": alert, "recommendation_id": advice, "job_id": job}
        self.names |= {
            "node_id": node,
            "skill_id": "wild_v2_execution_ops_protocol",
            "session_id": "s",
            "token_id": "t",
        }

    def send(self, route: str, body: Any, **more: Any) -> Answer:
        method, _, path = route.partition(" ")
        began = time.monotonic()
        answer = self.lab.ask(method, path.format(**self.names), body, **more)
        took = time.monotonic() - began
        assert took < SLOW_S, f"{route} took {took:.1f} s"
        assert answer.status < 500, f"{route} {str(body)[:200]}: {answer.status} {answer.body[:500]!r}"
        assert len(answer.body) < 2_000_000
        return answer


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Room]:
    env = {"ROTA_SCHEDULING": "off", "ROTA_QUEUE_CAPACITY": "100000"}
    with Lab(tmp_path_factory.mktemp("bad"), env=env) as lab:
        assert isinstance(lab, Lab)
        yield Room(lab)
        assert not attempts_in(lab.data / "attempts"), "nothing of this was ever run"


FIELDS = list(bodies())


def test_the_document_has_the_fields_this_is_about() -> None:
    assert len(FIELDS) > 150
    assert ("POST /queue/submit", "gpu_count") in FIELDS


@pytest.mark.parametrize("route", sorted({route for route, _ in FIELDS}))
def test_no_value_of_any_field_breaks_anything(room: Room, route: str) -> None:
    for field in (field for known, field in FIELDS if known == route):
        for kind, value in VALUES.items():
            given = TABLE[route][1]
            body = {**(given if isinstance(given, dict) else {}), field: value}
            if route == "POST /release":
                body = {"job_id": "f" * 12, field: value}
            answer = room.send(route, body)
            told = json.loads(answer.body)
            if answer.status == 422:
                assert told["detail"], (field, kind)
                first = json.dumps(told["detail"])
                also = {"gpu_type": "gpu_count", "base_command": "command"}.get(field, field)  # as the run has it
                named = field in first or also in first
                assert named, f"{route} {field}={kind}: the answer does not name it: {first[:300]}"
                assert len(answer.body) < 20_000


@pytest.mark.parametrize("route", sorted({route for route, _ in FIELDS} - {"POST /release"}))  # that one: below
def test_no_field_is_nested_deeper_than_it_can_be_shown(room: Room, route: str) -> None:
    """Kept once, such a value would make every list that shows it fail, for everybody."""
    given = TABLE[route][1]
    for field in ("unknown", *(field for known, field in FIELDS if known == route)):
        for levels in (MAX_ASKED, 260, 500, 930):
            value = json.loads('{"z":' + "[" * (levels - 1) + "]" * (levels - 1) + "}")
            answer = room.send(route, {**(given if isinstance(given, dict) else {}), field: value})
            assert answer.status == 422, (field, levels)
            assert (field in answer.body.decode(), str(MAX_ASKED) in answer.body.decode()) == (True, True), answer.body
    for path in ("/sweeps", "/journey/loop", "/cluster", "/runs"):
        room.lab.ask("GET", path).ok()


@pytest.mark.parametrize("port", ["port", "lease_port"])
def test_nor_is_a_lease_asked_for_so(room: Room, port: str) -> None:
    body = b'{"pid": 1, "num_gpus": 1, "z": ' + b"[" * 500 + b"]" * 500 + b"}"
    for path in ("/acquire", "/release"):
        answer = ask(getattr(room.lab, port), "POST", path, body, token=SHARED)
        assert answer.status in (400, 422)
        assert f"deeper than {MAX_ASKED} levels" in answer.body.decode()


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_numbers_of_a_request_are_numbers_that_make_sense(room: Room, value: Any) -> None:
    """What is let in of these is exactly what a GPU count can be."""
    answer = room.send("POST /queue/submit", {**JOB, "gpu_count": value})
    fits = isinstance(value, int) and 0 <= value <= 16
    if not fits:
        assert answer.status == 422, (value, answer.body[:300])
        whole = value in ("\ud800", "\udcff")  # with which the body is no JSON at all
        assert whole or answer.json["detail"][0]["loc"][-1] == "gpu_count"


@pytest.mark.parametrize("value", [-1, 17, 2**31, 2**63, 2**1000, 100_001, 1e400])
def test_more_than_there_is_names_the_limit(room: Room, value: Any) -> None:
    answer = room.send("POST /queue/submit", {**JOB, "gpu_count": value})
    assert answer.status == 422
    assert "gpu_count" in str(answer.json)


@pytest.mark.parametrize(
    "name", [BIDI, ZERO_WIDTH, HOMOGLYPH, "<script>alert(1)</script>", "🦊", "e\u0301", "İ", "ß", "ﷺ"]
)
def test_odd_names_are_kept_as_they_are_or_refused(room: Room, name: str) -> None:
    for route, body in (("POST /runs", {**RUN, "name": name}), ("POST /queue/submit", {**JOB, "run_id": name})):
        answer = room.send(route, body)
        assert answer.body.isascii(), "what comes back is escaped, whatever reads it"
        if answer.status == 200:
            found = answer.json.get("job", answer.json)
            assert found["name"] == name
        else:
            assert answer.status == 422


class TestBodies:
    POSTS = tuple(route for route in TABLE if route.startswith(("POST", "PUT", "PATCH")) and route not in NEVER)

    @pytest.mark.parametrize("route", POSTS)
    def test_ten_megabytes(self, room: Room, route: str) -> None:
        assert room.send(route, b" " * (10 << 20)).status == 413

    @pytest.mark.parametrize("route", ["POST /runs", "POST /queue/submit", "POST /sweeps", "POST /release"])
    def test_ten_megabytes_in_pieces(self, room: Room, route: str) -> None:
        path = route.partition(" ")[2]
        piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
        headers = {"transfer-encoding": "chunked"}
        answer = ask(room.lab.port, "POST", path, piece * 5 + b"0\r\n\r\n", token=SHARED, headers=headers)
        assert answer.status == 413

    NOT_JSON = (
        b"", b" ", b"{", b"}", b"[]", b"null", b"1", b'"x"', b"{'a':1}", b'{"name":}', b"\xff\xfe{}", b"\x80",
        b'{"name":"\xc3("}',
        "{}".encode("utf-16"), "{}".encode("utf-32"), b"\xef\xbb\xbf{}", b'{"name":"a","command":"b"}{}', b"\0",
        b"a=b&c=d",
        b"[" * 40_000, b'{"name":' * 40_000, b"[" * 40_000 + b"]" * 40_000,
        b'{"a":' * 40_000 + b"1" + b"}" * 40_000,
        b'{"gpu_count":' + b"9" * 100_000 + b"}", b'{"x":' + b"1e" + b"9" * 1000 + b"}", b'{"name":"\\ud800"}',
        b'{"name":"\\u0000"}',
        gzip.compress(b'{"name":"a","command":"b"}', mtime=0), b"<a/>", b"-" * 1_000_000,
    )  # fmt: skip

    @pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: repr(body[:12]))
    def test_what_is_no_request(self, room: Room, body: bytes) -> None:
        for route in (
            "POST /runs",
            "POST /queue/submit",
            "POST /sweeps",
            "PUT /runs/{run_id}",
            "POST /release",
            "POST /cluster",
        ):
            answer = room.send(route, body)
            assert answer.status in (200, 400, 404, 422), (route, answer.status)
            assert answer.header("content-type") == "application/json"
            if answer.status == 200:
                assert route in ("PUT /runs/{run_id}", "POST /cluster"), "an object in which nothing is asked for"

    def test_values_any_field_may_hold_are_numbers_json_can_carry(self, room: Room) -> None:
        """Free objects are kept and shown again: what cannot be written as JSON must not get in."""
        for bad in (NAN, INF, -INF, 2**1000, "\ud800", {"a": [NAN]}, {"\ud800": 1}):
            for route, body in (
                ("POST /cluster", {"details": {"x": bad}}),
                ("POST /journey/events", {"kind": "note", "metadata": {"x": bad}}),
                ("POST /sweeps", {**TABLE["POST /sweeps"][1], "ui_config": {"x": bad}}),
                ("POST /sweeps", {**TABLE["POST /sweeps"][1], "parameters": {"x": [bad]}}),
                ("POST /runs/{run_id}/metrics", {"rows": [{"x": bad}]}),
            ):
                room.send(route, body)
        for path in (
            "/cluster",
            "/journey/loop",
            "/sweeps",
            "/runs",
            f"/runs/{room.names['run_id']}/metrics",
            "/events?after=0",
        ):
            assert room.lab.ask("GET", path).status == 200, path

    def test_a_bomb_is_not_unpacked(self, room: Room) -> None:
        bomb = gzip.compress(b'{"name":"' + b"a" * (50 << 20) + b'"}', 1)
        assert len(bomb) < MAX_BODY
        for coding in ("gzip", "deflate", "br"):
            answer = room.send("POST /runs", bomb, headers={"content-encoding": coding})
            assert answer.status in (400, 415, 422)

    def test_the_last_of_two_keys_counts(self, room: Room) -> None:
        body = b'{"run_id":"a","user":"u","command":"true","gpu_count":99,"gpu_count":1}'
        assert room.send("POST /queue/submit", body).ok()["job"]["gpu_count"] == 1

    @pytest.mark.parametrize(
        "parameters",
        [
            {name: list(range(100)) for name in "abc"}, {name: list(range(10)) for name in "abcdef"},
            {"a": list(range(1_000_000 // 8))}, {str(i): [0, 1] for i in range(1000)}, {"x": list(range(2000)),
            "y": list(range(500))},
        ],
    )  # fmt: skip
    def test_a_sweep_of_a_million_cells(self, room: Room, parameters: Any) -> None:
        body = {"name": "s", "base_command": "true", "parameters": parameters}
        for most in (10, 10**6, 2**63, -1, 0):
            answer = room.send("POST /sweeps", {**body, "max_runs": most})
            if most == 10:
                assert answer.status in (200, 413, 422)
            else:
                assert answer.status in (413, 422)

    def test_a_cluster_of_any_size(self, room: Room) -> None:
        for nodes, gpus in ((0, 8), (-1, 8), (2**63, 1), (5001, 64), (1.5, 8), ("2", "x"), (NAN, 1), (None, None)):
            route = "POST /gpu/initialize"
            method, path = route.split()
            answer = room.lab.ask(method, path + "?dry_run=true", {"node_count": nodes, "gpus_per_node": gpus})
            assert answer.status in ((409, 200) if nodes is None else (422,))

    def test_heads_without_end(self, room: Room) -> None:
        for start in (b"GET /", b"GET / HTTP/1.1\r\nhost: localhost\r\nx: ", b"GET / HTTP/1.1\r\nhost: localhost\r\n"):
            with socket.create_connection(("127.0.0.1", room.lab.port), timeout=SLOW_S) as one:
                one.sendall(start)
                filler = b"a" * 1000 if b"\r\n" not in start or start.endswith(b": ") else b"x: " + b"a" * 995 + b"\r\n"
                assert _cut_off(one, filler, 2_000), "megabytes of head were taken"
        assert room.lab.ask("GET", "/health").status == 200


def _cut_off(one: socket.socket, filler: bytes, times: int) -> bool:
    """Send it again and again, and tell whether the server refused to take so much. Where the server is slow, all of it
    lies in the buffers of the kernel before anything is read: then its answer tells."""
    said = b""
    try:
        for _ in range(times):
            one.sendall(filler)
        while piece := one.recv(65536):
            said += piece
    except TimeoutError:
        return False  # it takes what comes, or waits for more
    except OSError:
        return True
    return said.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 414 ", b"HTTP/1.1 431 "))


class TestParameters:
    @pytest.mark.parametrize(
        ("path", "names"),
        [
            ("/runs", ("limit", "archived", "status", "sweep_id", "user", "cursor")),
            ("/sweeps", ("limit",)), ("/alerts", ("limit", "cursor", "status", "run_id")), ("/usage", ("since",
            "until")),
            ("/journey/loop", ("run_id", "session_id", "limit")), ("/prompt-skills/search", ("q", "limit")),
            ("/runs/{run_id}/logs", ("offset", "limit", "attempt")), ("/runs/{run_id}/sidecar-logs", ("offset",
            "limit")),
            ("/sessions", ("limit",)), ("/journey/recommendations", ("run_id", "session_id", "limit", "cursor")),
        ],
    )  # fmt: skip
    def test_in_the_query(self, room: Room, path: str, names: tuple[str, ...]) -> None:
        odd = [
            "",
            "x",
            "-1",
            "0",
            "1e9",
            "nan",
            "inf",
            str(2**63),
            str(2**1000),
            "9" * 5000,
            "%00",
            "%ff",
            "..%2f",
            "'",
            "true",
            "[]",
        ]
        for name in names:
            for value in odd:
                answer = room.lab.ask("GET", f"{path.format(**room.names)}?{name}={value}")
                assert answer.status in (200, 400, 404, 422), (path, name, value, answer.status, answer.body[:300])

    def test_in_headers(self, room: Room) -> None:
        for value in ("", "x" * 600, "é", "\x7f", "a" * 60_000):
            for name in (
                "idempotency-key",
                "last-event-id",
                "accept",
                "content-type",
                "x-auth-token",
                "cookie",
                "range",
            ):
                answer = ask(room.lab.port, "POST", "/queue/submit", JOB, headers={"x-auth-token": SHARED, name: value})
                assert answer.status < 500, (name, value[:20], answer.body[:300])


# -- paths: nothing outside is ever read ------------------------------------------------------------------------------
UP = (
    "..",
    "%2e%2e",
    "%252e%252e",
    "..%2f..",
    "..%5c..",
    "%2e%2e%2f",
    "..;",
    "..%00",
    "....//",
    "%c0%ae%c0%ae",
    "..%ef%bc%8f",
)
GOALS = ("outside.txt", "etc/passwd", "etc%2fpasswd", "rota.db", "session.key", "server.py", "house/data/session.key")


def hostile_paths(run_id: str) -> Iterator[str]:
    before = (
        "/static",
        "/prompt-skills",
        "/runs",
        f"/runs/{run_id}/logs",
        f"/runs/{run_id}/artifacts",
        f"/runs/{run_id}/sidecar-logs",
    )
    for root in before:
        for goal in GOALS:
            for up in UP:
                for depth in (1, 3, 8):
                    yield f"{root}/{'/'.join([up] * depth)}/{goal}"
            for lead in ("/", "%2f", "//", "file:%2f%2f%2f", "%23", "%3f", "\\", "c:%5c", "~", "%00"):
                yield f"{root}/{lead}{goal}"
            yield f"{root}/{goal}%00.css"
            yield f"{root}/reference.css/../../{goal}"
            yield f"{root}/%23/../../{goal}"
    for name in ("attempt", "offset", "limit"):
        yield f"/runs/{run_id}/logs?{name}=../../outside.txt"


def test_no_path_leads_outside(room: Room) -> None:
    secret = b"canary-outside-7f31"
    (room.lab.where / "outside.txt").write_bytes(secret)
    (room.lab.data / "outside.txt").write_bytes(secret)
    key = (room.lab.data / "session.key").read_bytes()
    tried = 0
    for path in hostile_paths(room.names["run_id"]):
        answer = room.lab.ask("GET", path)
        tried += 1
        assert answer.status in (200, 400, 404, 405, 422), (path, answer.status, answer.body[:200])
        for leak in (secret, b"root:x:0", b"SQLite format", key, b"def make_app"):
            assert leak not in answer.body, path
        if answer.status == 200:
            assert answer.header("content-type").startswith(("application/json", "text/css")), path
    print(f"paths: {tried} tried")
    assert tried >= 1500


def test_a_link_in_the_place_of_a_log_is_not_followed(make_lab: Any) -> None:
    lab = make_lab(nodes=1, gpus=1)
    outside = lab.where / "outside.txt"
    outside.write_text("canary-outside-7f31")
    jobs = {name: lab.submit("echo hello", gpus=0) for name in ("log", "dropped", "exit")}
    for name, job in jobs.items():
        lab.in_state(job, "completed")
        (directory,) = (lab.data / "attempts").glob(f"{job}*")
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(outside)
        checkpoints = Path(lab.ask("GET", f"/runs/{job}").ok()["run_dir"])
        checkpoints.mkdir(parents=True, exist_ok=True)
        (checkpoints / "linked").symlink_to(outside)
        for path in ("logs", "logs?offset=0&limit=100000", "artifacts", "sidecar-logs", "metrics"):
            answer = lab.ask("GET", f"/runs/{job}/{path}")
            assert answer.status == 200, answer.body
            assert b"canary-outside" not in answer.body
        kinds = {found["name"]: found["type"] for found in lab.ask("GET", f"/runs/{job}/artifacts").ok()}
        assert kinds["linked"] == "link"


def test_an_asked_for_directory_is_only_a_name(room: Room) -> None:
    """Where a run is to work is looked at when it starts, by the job's own account, not when it is asked for."""
    for workdir in ("/nowhere", "../../..", "a\nb", "/proc/self/fd/0", "~", quote("/etc"), "-", "/" + "x" * 5000):
        answer = room.send("POST /runs", {**RUN, "workdir": workdir})
        assert answer.status in (200, 422)
        assert b"No such file" not in answer.body
