"""Prompt skills: read, searched and rendered by anybody, written by nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rota.api
from rota.api.skillbook import read_skill, read_skills, render, search
from tests.doors.people import MakeServer
from tests.doors.server import Server, curl

NEEDED = ("wild_v2_execution_ops_protocol", "wild_v2_gpu_discovery_parallel_scheduling")
FIELDS = {"id", "name", "description", "template", "variables", "category", "built_in", "internal"}
SKILLS = Path(rota.api.__file__).parent / "skills"


def test_list_get_search_and_render(common: Server) -> None:
    listed = common.get("/prompt-skills").ok()
    assert {*NEEDED} <= {skill["id"] for skill in listed}
    for name in NEEDED:
        skill = common.get(f"/prompt-skills/{name}").ok()
        assert set(skill) == FIELDS
        assert (skill["id"], skill["built_in"], skill["category"], skill["variables"]) == (name, True, "protocol", [])
        assert skill["template"].startswith("# "), "the text begins after the facts"
        assert skill in listed
    found = common.get("/prompt-skills/search?q=gpu%20discovery").ok()
    assert found[0]["id"] == NEEDED[1]
    assert len(common.get("/prompt-skills/search?q=&limit=1").ok()) == 1
    assert common.get("/prompt-skills/search?q=zzzzzz").ok() == []
    missing = common.get("/prompt-skills/nothing")
    assert (missing.status, missing.json) == (404, {"detail": "Prompt skill not found"})

    values = {"goal": "lower loss", "server_url": "http://x", "command": "{{goal}}", "unknown": "y"}
    text = common.post("/prompt-skills/rota_one_experiment/render", values).ok()["rendered"]
    assert "# One experiment: lower loss" in text
    assert "{{goal}}" in text, "what comes in with a value is not filled in again"
    assert "{{chat_session_id}}" in text, "what was not given stays"
    assert common.post(f"/prompt-skills/{NEEDED[0]}/render").ok()["rendered"].startswith("# ")
    assert common.post("/prompt-skills/nothing/render", {}).status == 404


@pytest.mark.parametrize("body", [{"goal": 1}, ["goal"], "goal", {"goal": "x" * 100_001}])
def test_values_that_are_none(common: Server, body: object) -> None:
    assert common.post("/prompt-skills/rota_one_experiment/render", body).status == 422


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2fdoors", "%00", "search%2f..", "SKILL.md", "x" * 300])
def test_names_are_no_paths(common: Server, name: str) -> None:
    answer = curl(f"{common.url}/prompt-skills/{name}", options=["--path-as-is"])
    assert answer.status in (404, 422), answer
    assert b"import" not in answer.body


def test_nobody_writes(common: Server) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert common.call(method, f"/prompt-skills/{NEEDED[0]}", {"template": "obey me"}).status in (404, 405)
        assert common.call(method, "/prompt-skills", {"id": "new", "template": "obey me"}).status in (404, 405)


def test_open_to_those_without_a_token(make_server: MakeServer) -> None:
    server = make_server(env={"RESEARCH_AGENT_USER_AUTH_TOKEN": "common-token-0123456789"})
    for path in ("/prompt-skills", f"/prompt-skills/{NEEDED[0]}", "/prompt-skills/search?q=gpu"):
        assert server.get(path).status == 200
    assert server.post(f"/prompt-skills/{NEEDED[0]}/render", {}).status == 401


def test_what_the_skills_say_exists(common: Server) -> None:
    """A route that a skill names is one of ours."""
    known = set(common.get("/openapi.json").ok()["paths"])
    shapes = {re.sub(r"\{[^}]*\}", "*", path) for path in known} | {"/docs", "/openapi.json"}
    for skill in read_skills(SKILLS).values():
        named = re.findall(r"(?:POST|GET|PUT) (/[\w/{}.-]+)", skill.template)
        named += re.findall(r"SERVER_URL(/[\w/.-]+)", skill.template)
        named += re.findall(r"server_url\}\}(/[\w/$.-]+)", skill.template)
        assert named, skill.id
        for path in named:
            shape = re.sub(r"\{[^}]*\}|SWEEP|\$\w+", "*", path)
            assert shape in shapes or shape in known or re.sub(r"[^/]+$", "*", shape) in shapes, (skill.id, path)


def test_reading_a_skill() -> None:
    facts = "---\nname: n\ndescription: a: b\ncategory: c\nvariables: [x, y_2]\ninternal: true\n---\n"
    skill = read_skill("folder", f"{facts}\nHi {{{{ x }}}} {{{{y_2}}}} {{{{z}}}}\n")
    assert (skill.id, skill.name, skill.description, skill.category) == ("folder", "n", "a: b", "c")
    assert (skill.variables, skill.internal) == (("x", "y_2"), True)
    assert render(skill, {"x": "1", "z": "3"}) == "Hi 1 {{y_2}} {{z}}\n"
    plain = read_skill("plain", "only text")
    assert (plain.name, plain.template, plain.variables) == ("plain", "only text", ())
    assert [found.id for found in search([skill, plain], "text")] == ["plain"]
    assert [found.id for found in search([plain, skill], "")] == ["folder", "plain"]
