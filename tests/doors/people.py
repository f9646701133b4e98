"""People with a token each, for tests of who may see and do what."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.doors.server import Answer, Server

MakeServer = Callable[..., Server]
ANN, BEN = "daemon", "nobody"  # accounts of every machine: a server of root's runs a person's jobs as that person


@dataclass(frozen=True)
class Person:
    server: Server
    token: str

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        return self.server.call(method, path, body, headers=[f"X-Auth-Token: {self.token}"])

    def get(self, path: str) -> Answer:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Answer:
        return self.call("POST", path, body)


def people(server: Server, **roles: str) -> dict[str, Person]:
    """`people(server, boss="admin", daemon="user")`: the first must be an admin; an agent acts for ANN."""
    found: dict[str, Person] = {}
    admin: list[str] = []
    for name, role in roles.items():
        body = {"user": name, "role": role, "acts_for": ANN if role == "agent" else ""}
        made = server.call("POST", "/tokens", body, headers=admin).ok()
        found[name] = Person(server, made["token"])
        admin = admin or [f"X-Auth-Token: {made['token']}"]
    return found


def stream(body: bytes) -> list[Any]:
    """The messages of server-sent events."""
    return [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
