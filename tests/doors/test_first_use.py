"""Routes and their models are made when they are first used, in a real server: nothing of that shows in its log."""

from __future__ import annotations

import re

from tests.doors.server import Server
from tests.security.kit import document


def test_the_first_use_of_a_route_warns_of_nothing(server: Server) -> None:
    posts = [path for path, methods in document()["paths"].items() if "post" in methods]
    families = {path.split("/")[1] for path in posts}
    assert len(families) > 10
    for path in posts:
        answer = server.post(re.sub(r"\{\w+\}", "x", path), {})
        assert answer.status < 500, (path, answer.body)
    assert server.get("/openapi.json").status == 200
    said = server.said()
    assert "Warning" not in said, said
