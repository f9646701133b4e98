"""No request waits for a library to be loaded: that happens on the event loop's thread, and any account that can search
the directory of the library can hold it up there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.app.house import until
from tests.doors.server import Server

STREAMS = re.compile(r"/stream$|^/events$|^/ws")
LOOKS_FOR_ENGINES = "/cluster/detect"  # in a thread of its own, and loads what it finds on this machine


def test_no_request_waits_for_a_library_to_be_loaded(make_server: Callable[..., Server]) -> None:
    server = make_server(env={"PYTHONPROFILEIMPORTTIME": "1"})  # each module that is loaded is named on stderr

    def loaded() -> list[str]:
        lines = [line for line in server.said().splitlines() if line.startswith("import time:")]
        return [line.rsplit("|", 1)[1].strip() for line in lines]

    until(lambda: "prometheus_client.core" in loaded(), "the last of what is loaded after the start")
    document = server.get("/openapi.json").ok()  # is made in a thread
    before, called = len(loaded()), 0
    for path, operations in document["paths"].items():
        if STREAMS.search(path) or path == LOOKS_FOR_ENGINES:
            continue
        for method in operations:
            body: Any = None if method in {"get", "delete"} else {}
            answer = server.call(method.upper(), re.sub(r"\{[^}]*\}", "nothing", path), body)
            assert 200 <= answer.status < 500, (method, path, answer.body)
            called += 1
    assert called > 80, json.dumps(sorted(document["paths"]))
    assert loaded()[before:] == []
