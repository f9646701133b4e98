"""The lease door as its callers see it: where it is, and one exchange with it whose answer may take hours.

Until the answer comes this process must still draw its progress line, keep its timeout and notice that the server went
away, so the socket itself is what is waited on.
"""

from __future__ import annotations

import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from rota.client import wire
from rota.client.address import Address, find_token, find_url
from rota.client.errors import BadAnswer, Unreachable
from rota.client.sync import READ, Sockets, lost
from rota.client.trust import must_be_trusted

DEFAULT_URL = "http://127.0.0.1:9123"
CONNECT_S = 5.0
ANSWER_S = 30.0  # for an answer that has begun, or that needs no waiting


class Door:
    """An address and what to show there."""

    __slots__ = ("_find_token", "address", "is_main", "token")

    def __init__(
        self, url: str, token: str = "", *, find_token: Callable[[], str] | None = None, is_main: bool = False
    ) -> None:
        self.address = Address(url.rstrip("/"))
        self.token = token
        self.is_main = is_main  # the port that all other commands use, too, and as they do
        self._find_token = find_token  # for a server that asks for one; a token file is not read before

    def show_token(self) -> bool:
        """After a 401: show the token from now on. False = it was shown, or there is none."""
        if self.token or self._find_token is None:
            return False
        self.token = self._find_token()
        return bool(self.token)

    def call(self, method: str, path: str, *, timeout_s: float = ANSWER_S) -> tuple[int, Any]:
        """One exchange that is answered at once: status and value."""
        status, value = self._call(method, path, timeout_s)
        return self._call(method, path, timeout_s) if status == 401 and self.show_token() else (status, value)

    def _call(self, method: str, path: str, timeout_s: float) -> tuple[int, Any]:
        exchange = Exchange(self, method, path)
        try:
            if not exchange.ready(timeout_s):
                raise Unreachable(f"{self.address} did not answer within {timeout_s:g} s", sent=True)
            return exchange.answer()
        finally:
            exchange.close()


def find_door(env: Mapping[str, str] | None = None) -> Door:
    """GPUSCHED_URL wins; then the server that the other commands use, where one is named or has a socket here; then
    the lease door's own port, which asks for no token. At a unix socket most servers know the caller by the account,
    and only those that do not are shown the token."""
    env = os.environ if env is None else env
    if env.get("GPUSCHED_URL"):
        return Door(env["GPUSCHED_URL"], find_token(env)[0])
    url, origin = find_url(env)
    if origin == "default":
        return Door(DEFAULT_URL)
    if url.startswith("unix:"):
        return Door(url, find_token=lambda: find_token(env)[0])
    return Door(url, find_token(env)[0], is_main=True)


class Exchange:
    """A request that was sent. Closing it before the answer is how a waiter says that it left."""

    def __init__(
        self, door: Door, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        self._address = door.address
        self._early: bytes | None = None  # of the answer, read while it was waited for
        wanted = {"Host": door.address.authority, "Connection": "close", "Accept": "application/json"}
        content = b""
        if body is not None:
            content = json.dumps(body).encode()
            wanted["Content-Type"] = "application/json"
        if door.token:
            wanted["X-Auth-Token"] = door.token
        data = wire.request(method, door.address.prefix + path, {**wanted, **(headers or {})}, content)
        self._io = Sockets()
        self._socket = self._io.connect(door.address, CONNECT_S)
        try:
            if door.token or door.is_main:
                must_be_trusted(door.address, self._socket)
            if not door.address.socket:  # a server whose machine vanished is noticed too
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._io.write(self._socket, data, ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ready(self, timeout_s: float) -> bool:
        """Whether the answer, or the end of the connection, came within the time."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._socket], [], [], left_s)[0]:
                return False
            if not self._address.tls or self._first_bytes():
                return True

    def _first_bytes(self) -> bool:
        """Under TLS what can be read may be about the encryption alone, and nothing of the answer."""
        import ssl

        try:
            self._socket.settimeout(0.0)
            self._early = self._socket.recv(READ)
        except ssl.SSLWantReadError:
            return False
        except OSError as error:
            raise lost(error) from error
        return True

    def answer(self) -> tuple[int, Any]:
        answer = wire.Answer()
        deadline = time.monotonic() + ANSWER_S
        while not answer.done:
            data, self._early = self._early, None
            if data is None:
                data = self._io.read(self._socket, max(0.01, deadline - time.monotonic()))
            if not data and not answer.status:
                raise Unreachable(f"{self._address} hung up without an answer", sent=True)
            answer.feed(data)
        try:
            return answer.status, json.loads(answer.take())
        except ValueError:
            raise BadAnswer(f"what answers at {self._address} is no lease door: it sent no JSON") from None

    def close(self) -> None:
        self._socket.close()
