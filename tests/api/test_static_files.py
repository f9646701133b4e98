"""The files of the dashboard, as browsers and caches ask for them."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate, parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from rota.api import static_files
from rota.api.house import House
from rota.api.server import guarded
from rota.api.static_files import STATIC, TYPES
from tests.api.kit import Answer, call

HTML = {"accept": "text/html"}
DAY_S = 86_400


@pytest.fixture
def ask(house: House) -> Callable[..., Answer]:
    guard = guarded(house)

    def ask(path: str, method: str = "GET", **headers: str) -> Answer:
        return call(guard, path, method, {name.replace("_", "-"): value for name, value in headers.items()})

    return ask


@pytest.mark.parametrize("path", sorted(STATIC.iterdir()), ids=lambda path: path.name)
def test_each_file_is_served_whole(ask: Any, path: Any) -> None:
    answer = ask(f"/static/{path.name}")
    assert (answer.status, answer.body) == (200, path.read_bytes())
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.headers["content-type"].partition(";")[0] == TYPES[path.suffix]
    assert answer.headers["last-modified"] == formatdate(path.stat().st_mtime, usegmt=True)
    assert answer.headers["cache-control"] == "no-store"
    assert ask(f"/static/{path.name}", "HEAD").headers == answer.headers


def test_the_dashboard_is_one_of_them(ask: Any) -> None:
    page = ask("/", **HTML)
    assert (page.status, page.body) == (200, (STATIC / "index.html").read_bytes())
    assert (page.headers["content-type"], page.headers["vary"]) == ("text/html; charset=utf-8", "Accept")
    again = ask("/", **HTML, if_none_match=page.headers["etag"])
    assert (again.status, again.body, again.headers["vary"]) == (304, b"", "Accept")


def test_what_a_client_has_is_not_sent_again(ask: Any) -> None:
    first = ask("/static/app.js")
    tag, modified = first.headers["etag"], first.headers["last-modified"]
    later, earlier = (formatdate(parsedate_to_datetime(modified).timestamp() + s, usegmt=True) for s in (DAY_S, -DAY_S))
    for known in (tag, "*", f'"x", {tag}', f"W/{tag}"):
        again = ask("/static/app.js", if_none_match=known)
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag), known
        assert "content-length" not in again.headers
    assert ask("/static/app.js", "HEAD", if_none_match=tag).status == 304
    assert ask("/static/app.js", if_none_match='"x"').body == first.body
    assert ask("/static/app.js", if_none_match='"x"', if_modified_since=later).status == 200, "the tag decides"
    for since, status in ((modified, 304), (later, 304), (earlier, 200), ("yesterday", 200), ("", 200)):
        assert ask("/static/app.js", if_modified_since=since).status == status, since
    assert ask("/static/style.css", if_none_match=tag).status == 200


@pytest.mark.parametrize("wanted", ["bytes=0-0", "bytes=0-0,2-2", "bytes=-1", "bytes=99999-"])
def test_no_part_of_a_file_is_served(ask: Any, wanted: str) -> None:
    whole = (STATIC / "app.js").read_bytes()
    answer = ask("/static/app.js", range=wanted)
    assert (answer.status, answer.body) == (200, whole)
    assert "accept-ranges" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/static/", "/static/nothing", "/static/../server.py", "/static//etc/passwd", "/static/app.js/x"]
)
def test_nothing_else_is_there(ask: Any, path: str) -> None:
    assert ask(path).status == 404


def test_they_are_only_read(ask: Any) -> None:
    answer = ask("/static/app.js", "PUT", content_length="0")
    assert (answer.status, {*answer.headers["allow"].split(", ")}) == (405, {"GET", "HEAD"})


def test_what_else_lies_beside_them_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "app.js").write_bytes(b"1")
    (tmp_path / "app.js~").write_bytes(b"0")
    (tmp_path / ".app.js.swp").write_bytes(b"0")
    (tmp_path / "more.js").mkdir()
    monkeypatch.setattr(static_files, "STATIC", tmp_path)
    assert list(static_files.read_all()) == ["app.js"]
