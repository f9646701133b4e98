"""The doors' own house on real parts, and a way to call its guard without a socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rota.adapters.accounts import Accounts
from rota.api import serve, tokens
from rota.api.assemble import open_house
from rota.api.gate import Gate
from rota.api.guard import Guard
from rota.api.house import House
from rota.app.authz import Principal, Role
from rota.app.commands import PutRecord
from rota.app.service import Service
from rota.main import open_rota
from tests.app.house import until

ROOT = Principal("root", Role.ADMIN)
HERE = "127.0.0.1"


@contextmanager
def opened(where: Path, **settings: Any) -> Iterator[House]:
    from rota.config import Settings

    given = Settings(where / "data", simulated=(1, 2), host=HERE, workdir=str(where), disk_floor_mb=16)
    given = replace(given, **settings)
    with open_rota(given) as parts:
        yield open_house(
            service=parts.service,
            leases=parts.leases,
            processes=parts.processes,
            samples=parts.samples,
            detector=parts.detector,
            settings=given,
        )


class Clock:
    """Time that goes when it is told to."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


def gate_of(service: Service, now: Callable[[], float] | None = None, **more: Any) -> Gate:
    given = {"shared": "", "secret": b"s" * 32, "server_uid": 4242, "account": Accounts().of, "login_tries": 10, **more}
    return Gate(service, now=now or Clock(), **given)


def issue(service: Service, gate: Gate, user: str = "ann", role: str = "user", **more: Any) -> tuple[str, tokens.Token]:
    """A token as the door makes it: on record, and known to the gate."""
    secret, token = tokens.make(user, role, gate._now(), **more)
    service.do(ROOT, PutRecord(token.draft(), fresh=True))
    until(lambda: gate.token(token.id) is not None, "the gate has heard of the token")
    return secret, token


def revoke(service: Service, gate: Gate, token: tokens.Token) -> None:
    service.do(ROOT, PutRecord(replace(token, revoked_at=gate._now()).draft()))
    until(lambda: not _valid(gate, token.id), "the gate has heard of the revocation")


def _valid(gate: Gate, token_id: str) -> bool:
    token = gate.token(token_id)
    return token is not None and token.valid(gate._now())


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    scope: dict[str, Any] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


App = Callable[..., Awaitable[None]]


@asynccontextmanager
async def serving(app: Any, house: House | None = None) -> AsyncIterator[tuple[tuple[str, int], set[Any]]]:
    """The address of a real server of this application, and its connections, which with a `house` know their peers."""
    listening = socket.create_server((HERE, 0))
    server = serve._Server(serve._config(app, serve.connection_of(house) if house is not None else None))
    task = asyncio.create_task(server.serve([listening]))
    while not server.started:
        await asyncio.sleep(0.005)
    try:
        yield listening.getsockname(), server.server_state.connections
    finally:
        server.should_exit = True
        await task


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body and says how long it was."""
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse

    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        return
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def call(  # noqa: PLR0917 - a request has so many parts
    guard: Guard,
    path: str = "/runs",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: Sequence[bytes] = (),
    client: str = HERE,
    kind: str = "http",
    query: str = "",
) -> Answer:
    return asyncio.run(acall(guard, path, method, headers, body, client, kind, query))


async def acall(  # noqa: PLR0917
    guard: Guard,
    path: str = "/runs",
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: Sequence[bytes] = (),
    client: str = HERE,
    kind: str = "http",
    query: str = "",
    pause: Callable[[int], Awaitable[object]] | None = None,
    whole: int | None = None,
) -> Answer:
    """A header of "-" is not sent. Of a websocket: status 101, or the code it was closed with. `pause` is awaited
    before a part of the body comes, with the number of parts that have come. `whole`: so many bytes of body came along
    with the head, as the connection tells."""
    given = {"host": "127.0.0.1:10000", **(headers or {})}
    raw = [(name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in given.items() if value != "-"]
    scope: dict[str, Any] = {"type": kind, "path": path, "raw_path": path.encode(), "headers": raw}
    scope["query_string"] = query.encode()
    scope |= {"client": (client, 1), "scheme": "http", "server": (HERE, 10000), "root_path": "", "http_version": "1.1"}
    if kind == "http":
        scope["method"] = method
    if whole is not None:
        scope["rota.whole"] = whole
    parts = list(body) or [b""]
    got: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if kind == "websocket":
            return {"type": "websocket.connect"}
        if parts:
            if pause is not None:
                await pause(max(1, len(body)) - len(parts))
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        got.append(dict(message))

    await guard(scope, receive, send)
    if kind == "websocket":
        status = 101 if got[0]["type"] == "websocket.accept" else got[0]["code"]
        return Answer(status, {}, b"", scope)
    names = {name.decode(): value.decode() for name, value in got[0]["headers"]}
    return Answer(got[0]["status"], names, b"".join(part.get("body", b"") for part in got[1:]), scope)
