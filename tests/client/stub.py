"""A small real HTTP server whose every answer a test writes itself, byte by byte."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DROP = None  # close the connection without an answer


@dataclass
class Asked:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    number: int  # of the request, from 1

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Reply = Callable[[Asked], "bytes | Iterator[bytes] | None"]


@dataclass
class Stub:
    """`reply` says what to send; `asked` is everything that came in; `links` counts connections."""

    reply: Reply
    listener: socket.socket
    url: str
    tls: ssl.SSLContext | None = None
    asked: list[Asked] = field(default_factory=list)
    links: int = 0
    _open: list[socket.socket] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.links += 1
            self._open.append(link)
            threading.Thread(target=self._talk, args=(link,), daemon=True).start()

    def _talk(self, accepted: socket.socket) -> None:
        with suppress(OSError), self._secured(accepted) as link:
            file = link.makefile("rb")
            with file:
                while (asked := self._read(file)) is not None:
                    answer = self.reply(asked)
                    if answer is None:
                        return
                    for piece in [answer] if isinstance(answer, bytes) else answer:
                        link.sendall(piece)
                    if not isinstance(answer, bytes) or b"Connection: close" in answer[:200]:
                        return

    def _secured(self, link: socket.socket) -> socket.socket:
        if self.tls is None:
            return link
        with link:  # the socket passes to the other, or is closed where there is none
            return self.tls.wrap_socket(link, server_side=True)

    def _read(self, file: Any) -> Asked | None:
        line = file.readline().decode()
        if not line:
            return None
        method, target, _ = line.split(" ")
        headers = {}
        while (line := file.readline().decode().strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = file.read(int(headers.get("content-length", 0)))
        with self._lock:
            asked = Asked(method, target, headers, body, len(self.asked) + 1)
            self.asked.append(asked)
        return asked

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for link in self._open:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)


@contextmanager
def stub(reply: Reply, path: Path | None = None, tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        url = f"https://localhost:{port}" if tls is not None else f"http://127.0.0.1:{port}"
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(50)
        url = f"unix://{path}"
    made = Stub(reply, listener, url, tls)
    thread = threading.Thread(target=made.serve, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join(60)


def ok(value: Any, status: str = "200 OK", **headers: str) -> bytes:
    body = json.dumps(value).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


def stream(*events: tuple[str, Any]) -> bytes:
    """The whole of a stream of (id, data), ending with the connection."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    return head + b"".join(f"id: {number}\ndata: {json.dumps(data)}\n\n".encode() for number, data in events)


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        assert isinstance(number, int)
        return number
