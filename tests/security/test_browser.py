"""What a page of another site can make a browser send, and what our own pages let it run. No browser is needed: the
requests are those that browsers make, header for header."""

from __future__ import annotations

import html.parser
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from rota.api.guard import HEADERS
from tests.doors.server import Server
from tests.security.kit import SHARED, Answer, Lab, ask
from tests.security.test_matrix import JOB, RUN, TABLE

EVIL = "https://evil.example"
HTTP = [route for route in TABLE if not route.startswith("WS")] + [
    "GET /login",
    "POST /login",
    "GET /nowhere",
    "POST /",
]


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Without any token: here a page of another site would need none, either."""
    with Server(tmp_path_factory.mktemp("open")) as made:
        yield made


def named(route: str) -> tuple[str, str]:
    method, _, path = route.partition(" ")
    for name in (
        "run_id",
        "job_id",
        "sweep_id",
        "alert_id",
        "session_id",
        "recommendation_id",
        "token_id",
        "node_id",
        "skill_id",
        "name",
    ):
        path = path.replace("{" + name + "}", "f" * 12)
    return method, path


# as forms and scripts of a foreign page send it; the first four need no preflight
CROSS_SITE: dict[str, dict[str, str]] = {
    "form": {"origin": EVIL, "content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "cross-site"},
    "text": {"origin": EVIL, "content-type": "text/plain"},
    "multipart": {"origin": EVIL, "content-type": "multipart/form-data; boundary=x"},
    "sandboxed": {"origin": "null", "content-type": "text/plain"},
    "json": {"origin": EVIL, "content-type": "application/json"},
    "neighbour port": {"origin": "http://127.0.0.1:1", "content-type": "text/plain", "sec-fetch-site": "same-site"},
    "no origin": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "content-type": "text/plain"},
    "navigation": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "content-type": "text/plain"},
    "rebound name": {"host": "evil.example", "origin": "http://evil.example", "content-type": "application/json"},
}


@pytest.mark.parametrize("way", CROSS_SITE)
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_foreign_page_changes_nothing_here(open_server: Server, way: str, method: str) -> None:
    for route in HTTP:
        known, path = named(route)
        if known == method:
            body = {"/queue/submit": JOB, "/runs": RUN}.get(path, {})
            answer = ask(open_server.port, method, path, body, headers=CROSS_SITE[way])
            assert answer.status == (421 if way == "rebound name" else 403), (path, answer.body)
    for path in ("/acquire", "/release"):
        lease = ask(open_server.lease_port, "POST", path, {"pid": 1}, headers=CROSS_SITE[way])
        assert lease.status in (403, 421)
    assert ask(open_server.port, "GET", "/runs").ok() == []


@pytest.mark.parametrize("way", [way for way in CROSS_SITE if way != "navigation"])
def test_nor_does_it_read_anything(open_server: Server, way: str) -> None:
    for route in HTTP:
        method, path = named(route)
        if method == "GET":
            headers = {name: value for name, value in CROSS_SITE[way].items() if name != "content-type"}
            assert ask(open_server.port, "GET", path, headers=headers).status in (403, 421), path
    preflight = ask(
        open_server.port, "OPTIONS", "/runs", headers={"access-control-request-method": "POST", "origin": EVIL}
    )
    assert preflight.status == 403
    assert not [name for name, _ in preflight.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.nip.io", "localhost.evil.example:10000", "", "xn--80ak6aa92e.com"]
)
def test_a_name_that_was_made_to_point_here(lab: Lab, host: str) -> None:
    for route in HTTP:
        method, path = named(route)
        answer = lab.ask(method, path, headers={"host": host})
        assert answer.status == 421, (route, answer.status)
        secure(answer)
    assert ask(lab.lease_port, "GET", "/status", headers={"host": host}).status == 421


@pytest.mark.parametrize("origin", [EVIL, "null", "http://127.0.0.1:1", "http://localhost"])
def test_a_websocket_of_a_foreign_page_is_refused_at_the_handshake(lab: Lab, origin: Any) -> None:
    with pytest.raises(InvalidStatus) as caught:
        connect(
            f"ws://127.0.0.1:{lab.port}/ws", open_timeout=60, origin=origin, additional_headers={"X-Auth-Token": SHARED}
        )
    assert caught.value.response.status_code == 403


def test_a_websocket_of_our_own_page_is_not(lab: Lab) -> None:
    ours: Any = f"http://127.0.0.1:{lab.port}"
    with connect(
        f"ws://127.0.0.1:{lab.port}/ws", open_timeout=60, origin=ours, additional_headers={"X-Auth-Token": SHARED}
    ):
        pass


def secure(answer: Answer) -> None:
    for name, value in HEADERS:
        assert answer.header(name.decode()) == value.decode(), name
    assert answer.header("server") == "", "which software this is concerns nobody"
    assert not [name for name, _ in answer.headers if name.startswith("access-control")]


def test_security_headers_are_on_every_answer(lab: Lab) -> None:
    seen: set[int] = set()
    for route in HTTP:
        method, path = named(route)
        if route == "POST /acquire":
            continue
        where = f"{path}?dry_run=true" if method != "GET" else path
        for by, body, headers in (
            ("", TABLE.get(route, (None, None))[1], {}),
            ("nobody", None, {}),
            ("", b"{", {}),
            ("", {}, {"content-length": "99999999"}),
            ("", None, {"origin": EVIL}),
        ):
            if method == "GET" and body is not None:
                continue
            answer = lab.ask(method, where, body, by=by, headers=headers)
            secure(answer)
            seen.add(answer.status)
    assert {200, 401, 403, 404, 405, 413, 422} <= seen
    for path in ("/static/app.js", "/static/style.css", "/static/nothing"):
        secure(lab.ask("GET", path))


class Page(html.parser.HTMLParser):
    """What of a page could run, or call elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.foreign: list[str] = []
        self._script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._script = tag == "script" and "src" not in given
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        for name in ("src", "href", "action", "formaction", "data", "poster"):
            target = given.get(name) or ""
            if target.lower().startswith(("javascript:", "data:text", "vbscript:")):
                self.inline.append(f"{tag} {name}")
            if "//" in target and tag != "a":
                self.foreign.append(target)

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data[:80])

    def handle_endtag(self, tag: str) -> None:
        self._script = False


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_our_pages_hold_no_inline_script_and_load_nothing_from_elsewhere(lab: Lab, path: str) -> None:
    answer = lab.ask("GET", path, by="nobody", headers={"accept": "text/html"})
    assert answer.status == 200
    assert answer.header("content-type").startswith("text/html")
    page = Page()
    page.feed(answer.body.decode())
    assert (page.inline, page.foreign) == ([], [])


def logged_in(lab: Lab, code: str) -> dict[str, str]:
    """The headers of a page of ours, after a login."""
    ours = {"origin": f"http://127.0.0.1:{lab.port}"}
    answer = ask(lab.port, "POST", "/login", {"code": code}, headers=ours)
    assert answer.status == 200, answer.body
    kept = answer.header("set-cookie")
    assert all(word in kept for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    return {**ours, "cookie": kept.partition(";")[0]}


def test_the_shared_token_logs_a_browser_in(lab: Lab) -> None:
    page = logged_in(lab, SHARED)
    me = ask(lab.port, "GET", "/whoami", headers=page).ok()
    assert (me["name"], me["role"], me["known_by"], me["token_id"]) == ("shared", "admin", "cookie", "shared")
    assert ask(lab.port, "GET", "/queue", headers=page).status == 200
    assert SHARED not in page["cookie"]


def test_a_link_is_for_oneself_or_by_an_admin(lab: Lab) -> None:
    own = lab.ask("GET", "/whoami", by="ann").ok()["token_id"]
    assert own == lab.ids["ann"]
    made = lab.ask("POST", f"/tokens/{own}/link", by="ann").ok()
    assert made["url"] == f"http://127.0.0.1:{lab.port}{made['path']}"
    assert lab.ask("POST", f"/tokens/{own}/link", by="ben").status == 403
    assert lab.ask("POST", "/tokens/shared/link", by="ben").status == 403
    for by, token_id, name in (("root", own, "ann"), ("", "shared", "shared"), ("eve", lab.ids["eve"], "eve")):
        code = lab.ask("POST", f"/tokens/{token_id}/link", by=by).ok()["path"].partition("code=")[2]
        assert ask(lab.port, "GET", "/whoami", headers=logged_in(lab, code)).ok()["name"] == name


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("by", ["link", "token"])
def test_another_site_logs_nobody_in(lab: Lab, site: str, by: str) -> None:
    """With a link of its own maker's: what its visitor submits would be that one's."""
    code = lab.tokens["ben"]
    if by == "link":
        made = lab.ask("POST", f"/tokens/{lab.ids['ben']}/link", by="ben").ok()["path"]
        code = made.partition("code=")[2]
    link = {"accept": "text/html", "sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    for _ in range(2):
        answer = ask(lab.port, "GET", f"/login?code={code}", headers=link)
        assert (answer.status, answer.header("set-cookie")) == (200, "")
        assert answer.header("content-type").startswith("text/html")
        assert b"Log in as ben" in answer.body
        assert code.encode() not in answer.body
        page = Page()
        page.feed(answer.body.decode())
        assert (page.inline, page.foreign) == ([], [])
        secure(answer)
    assert ask(lab.port, "GET", "/whoami", headers=logged_in(lab, code)).ok()["name"] == "ben", "its button posts this"
    again = ask(lab.port, "GET", f"/login?code={code}", headers=link)
    assert again.status == (401 if by == "link" else 200)
    assert again.header("set-cookie") == ""


@pytest.mark.parametrize("site", [{}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}])
def test_a_link_that_a_person_opens_logs_in_at_once(lab: Lab, site: dict[str, str]) -> None:
    path = lab.ask("POST", f"/tokens/{lab.ids['ben']}/link", by="ben").ok()["path"]
    answer = ask(lab.port, "GET", path, headers={"accept": "text/html", **site})
    assert (answer.status, answer.header("location")) == (303, "/")
    assert "rota_session=" in answer.header("set-cookie")


def test_a_wrong_code_from_another_site_is_refused_like_any_other(lab: Lab) -> None:
    link = {"accept": "text/html", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = ask(lab.port, "GET", "/login?code=guess", headers=link)
    assert answer.status == 401
    assert b"Not logged in" in answer.body


def test_a_session_does_not_make_itself_last(lab: Lab) -> None:
    page = logged_in(lab, lab.tokens["ann"])
    assert ask(lab.port, "POST", f"/tokens/{lab.ids['ann']}/link", headers=page).status == 403


def test_nobody_gets_an_agents_name(lab: Lab) -> None:
    """Under one name they would share what was promised to a key."""
    for body in (
        {"user": "ann", "role": "agent", "acts_for": "ben"},
        {"user": "bot"},
        {"user": "carl", "role": "agent", "acts_for": "carl"},
    ):
        answer = lab.ask("POST", "/tokens", body)
        assert answer.status == 409, answer.body
        assert repr(body["user"]) in answer.json["detail"]
        assert lab.ask("POST", "/tokens?dry_run=true", body).status == 409


MARKUP = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "javascript:alert(1)",
    "</script><script>alert(1)</script>", "<!--", "\x1b]8;;http://evil.example\x07click\x1b]8;;\x07", "{{constructor}}",
)  # fmt: skip


def test_markup_in_what_people_write_comes_back_as_data(lab: Lab) -> None:
    """Everything that holds it is JSON, in which `<` cannot start anything, or plain text that may not be sniffed."""
    for text in MARKUP:
        made = lab.ask(
            "POST", "/runs", {**RUN, "name": text, "command": f"echo '{text}'", "gpu_count": 0, "auto_start": True}
        )
        if made.status == 200:
            lab.in_state(made.json["id"], "completed", "failed")
        names = {"run_id": made.json["id"] if made.status == 200 else "x"}
        lab.ask("POST", "/sessions", {"title": text})
        lab.ask("POST", "/sweeps/wild", {"name": text, "goal": text})
        for route in TABLE:
            method, path = route.split()
            if method != "GET" or path == "/events" or path.endswith("/stream") or "{" in path.replace("{run_id}", ""):
                continue
            answer = lab.ask("GET", path.format(**names), headers={"accept": "text/html"})
            kind = answer.header("content-type")
            if text.encode() in answer.body:
                assert kind == "application/json", (path, kind)
            if "html" in kind:
                assert b"alert(1)" not in answer.body, path
        for path in (f"/runs/{text}", f"/queue/{text}", f"/prompt-skills/{text}", f"/static/{text}", f"/{text}"):
            quoted = path.replace(" ", "%20").replace("\x1b", "%1b").replace("\x07", "%07")
            answer = lab.ask("GET", quoted, headers={"accept": "text/html"})
            assert "html" not in answer.header("content-type"), path
            assert answer.header("x-content-type-options") == "nosniff"
