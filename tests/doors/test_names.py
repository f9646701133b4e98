"""Names are read by people, in tables and terminals: no door takes one that could move the cursor or turn the text."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.doors.server import Server

HIDDEN = ["a\nb", "a\x1b[2Jb", "a\x7fb", "a\u202eb", "a\u2066b", "a\x9bb", "a\u2028b"]
RUN = {"name": "a", "command": "true"}
SWEEP = {"name": "s", "base_command": "true", "parameters": {"x": 1}}
JOB = {"run_id": "j", "user": "ann", "command": "true", "gpu_count": 0}
WAYS: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", "/runs", RUN, "name"),
    ("POST", "/runs", RUN, "user"),
    ("POST", "/runs", RUN, "chat_session_id"),
    ("PUT", "/runs/{run}", {}, "name"),
    ("POST", "/sweeps", SWEEP, "name"),
    ("POST", "/sweeps", SWEEP, "user"),
    ("POST", "/sweeps/wild", {}, "name"),
    ("PUT", "/sweeps/{sweep}", {}, "name"),
    ("POST", "/sweeps/{sweep}/runs", RUN, "name"),
    ("POST", "/queue/submit", JOB, "run_id"),
    ("POST", "/queue/submit", JOB, "user"),
]


@pytest.fixture(scope="module")
def there(common: Server) -> dict[str, str]:
    """A run and a sweep that stay as they are."""
    made = {"run": common.post("/runs", RUN).ok()["id"], "sweep": common.post("/sweeps/wild", {}).ok()["id"]}
    return made


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[1]} {way[3]}")
def test_a_name_that_hides_something(
    common: Server, there: dict[str, str], way: tuple[str, str, dict[str, Any], str]
) -> None:
    method, path, body, field = way
    for name in HIDDEN:
        answer = common.call(method, path.format(**there), {**body, field: name})
        assert answer.status == 422, f"{name!r}: {answer.body!r}"
        assert field in answer.json["detail"][0]["loc"], answer.body
        assert "visible" in answer.json["detail"][0]["msg"]


def test_nor_do_tags_and_leases_have_one(common: Server) -> None:
    answer = common.post("/runs", {**RUN, "tags": ["ok", "a\u202eb"]})
    assert (answer.status, "tags" in answer.json["detail"][0]["loc"]) == (422, True)
    for lease in (False, True):
        answer = common.post("/acquire", {"pid": os.getpid(), "num_gpus": 0, "name": "a\u202eb"}, lease=lease)
        assert 400 <= answer.status < 500
        assert "name" in answer.json["error"]


def test_letters_of_every_script_are_names(server: Server) -> None:
    for name in ("实验 один تجربة ניסוי", "naïve-café 🚀", "a\u00a0b"):
        made = server.post("/runs", {**RUN, "name": name, "tags": [name]}).ok()
        assert (made["name"], made["tags"]) == (name, [name])
