"""A real server with tokens for everybody, and a client that sends exactly the bytes a test wants."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rota.api.server import make_app
from tests.app.house import PATIENCE_S
from tests.doors.server import Server

SHARED = "shared-canary-0b5d1f7c"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Sequence[tuple[str, str]]  # names in small letters
    body: bytes

    def header(self, name: str) -> str:
        return next((value for known, value in self.headers if known == name), "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self) -> Any:
        assert self.status == 200, f"{self.status}: {self.body[:1000]!r}"
        return self.json


def ask(
    port: int,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = PATIENCE_S,
) -> Answer:
    """`body`: bytes as they are, anything else as JSON. A path goes out as it is. Of a stream: its head alone."""
    given = {"host": f"127.0.0.1:{port}"}
    if token is not None:
        given["x-auth-token"] = token
    content: bytes | None = None
    if body is not None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given["content-type"] = "application/json"
    given |= {name.lower(): value for name, value in (headers or {}).items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        # by hand: http.client would refuse some of the paths that a hostile client can send
        connection.connect()
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        if content is not None and not {"content-length", "transfer-encoding"} & set(given):
            head.append(f"content-length: {len(content)}")
        assert connection.sock is not None
        connection.sock.sendall("\r\n".join(head).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + (content or b""))
        response = http.client.HTTPResponse(connection.sock, method=method)
        response.begin()
        names = [(name.lower(), value) for name, value in response.getheaders()]
        stream = response.getheader("content-type", "").startswith("text/event-stream")
        return Answer(response.status, names, b"" if stream and response.status == 200 else response.read())
    finally:
        connection.close()


class Lab(Server):
    """Closed by a shared token; `tokens` has one for each sort of caller."""

    def __init__(self, where: Path, **more: Any) -> None:
        env = {"RESEARCH_AGENT_USER_AUTH_TOKEN": SHARED, **more.pop("env", {})}
        super().__init__(where, env=env, **more)
        self.token = SHARED
        self.tokens: dict[str, str] = {}
        self.ids: dict[str, str] = {}

    def start(self) -> Lab:
        super().start()
        if not self.tokens:
            self._issue()
        return self

    def _issue(self) -> None:
        for name, role, more in (
            ("ann", "user", {}),
            ("ben", "user", {}),
            ("eve", "viewer", {}),
            ("bot", "agent", {"acts_for": "ann"}),
            ("root", "admin", {}),
            ("old", "admin", {"expires_seconds": 0.001}),
            ("gone", "admin", {}),
        ):
            made = self.ask("POST", "/tokens", {"user": name, "role": role, **more}).ok()
            self.tokens[name], self.ids[name] = made["token"], made["id"]
        self.ask("DELETE", f"/tokens/{self.ids['gone']}").ok()

    def ask(self, method: str, path: str, body: Any = None, *, by: str = "", **more: Any) -> Answer:
        """`by`: a name of `tokens`; "" = the shared token; "nobody" = none."""
        token = {"": SHARED, "nobody": None, "bad": "rota_" + "x" * 43}.get(by, self.tokens.get(by))
        return ask(self.port, method, path, body, token=token, **more)

    def on_socket(self, method: str, path: str, body: Any = None) -> Answer:
        """Through the unix socket, as this very account."""
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(PATIENCE_S)
            one.connect(str(self.data / "rota.sock"))
            content = b"" if body is None else json.dumps(body).encode()
            head = f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            one.sendall(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            response = http.client.HTTPResponse(one, method=method)
            response.begin()
            return Answer(response.status, response.getheaders(), response.read())


def document() -> dict[str, Any]:
    """The API document, as the server would serve it."""
    found: dict[str, Any] = the_app().openapi()
    return found


def the_app() -> Any:
    """The application alone, to look at its routes: nothing behind it answers."""
    return make_app(cast(Any, SimpleNamespace(version="0")))


def processes() -> dict[int, bytes]:
    """Command lines of all processes of this machine that can be seen."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
    return found
