"""Bounds on the head of a request, checked while it is parsed.

A head comes before anybody is known. The parser calls Python for each header and each part of the address, and uvicorn
decodes the path and splits `Connection` several times, all on the event loop. So what is too long or too much ends the
parsing at once, before anything of it is kept or decoded: a head never has more than MOST_HEADERS headers in memory.
"""

from __future__ import annotations

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rota.api.connections import Refusal

LONGEST_PATH, LONGEST_QUERY, LONGEST_COOKIES = 8192, 8192, 16384
LONGEST_ADDRESS = LONGEST_PATH + LONGEST_QUERY + 512  # a client may write scheme and host before the path
MOST_HEADERS, LONGEST_VALUE = 200, 8192
LONGEST_NAME = 1024
MOST_DIGITS = 20  # of a Content-Length; Python takes long for thousands, and refuses beyond 4,300
TOO_LONG = f"the address is too long: a path has {LONGEST_PATH} bytes at most, a query {LONGEST_QUERY}"
TOO_MANY_HEADERS = f"a request has {MOST_HEADERS} headers of {LONGEST_VALUE} bytes at most"
NO_LENGTH = f"Content-Length has {MOST_DIGITS} digits at most"
ODD_HANDSHAKE = "A WebSocket handshake has no body, at most 128 headers, and at most 8 KiB in each line."
INVALID = "Invalid HTTP request received."
NO_PROXY = "This server is no proxy: it does not CONNECT."
CONTENT_LENGTH = b"content-length"
NO_NUMBER = 10**MOST_DIGITS


def content_length(value: bytes) -> int:
    """Return the number, and one that is too large for every bound where it has too many digits. What is no number
    counts as 0: the parser refuses it."""
    value = value.strip(b" \t")  # the parser leaves what stands behind it
    if not value.isdigit():
        return 0
    return int(value) if len(value) <= MOST_DIGITS else NO_NUMBER


class BoundedHeads(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._refusal: Refusal | None = None  # why the parsing was ended
        self._length = 0  # of the body, as the head says; 0 where it comes in chunks
        self._upgrade: bytes | None = None  # what the head asks for, once that was looked for

    def data_received(self, data: bytes) -> None:
        """Parse, as uvicorn does; but where a request asks for another protocol than WebSocket, as `curl --http2` does,
        uvicorn drops what has come of its body and parses the rest of it as the next request."""
        self._unset_keepalive_if_required()
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                if not self.is_other_upgrade():
                    self.handle_websocket_upgrade()
                    return
                if self.parser.get_method() == b"CONNECT":
                    self._refusal = Refusal(405, NO_PROXY)
                    self.send_400_response(NO_PROXY)
                    return
                data = self._head_without_upgrade() + data[stopped.args[0] :]
                self._begin_anew()
            except httptools.HttpParserError:
                self.logger.warning(INVALID)
                self.send_400_response(INVALID)
                return

    def is_other_upgrade(self) -> bool:
        """Return whether the parser stops at the end of this head for something else than a WebSocket. Nothing is done
        with such a head: it is parsed once more without its `Upgrade`, which a server may ignore (RFC 9110, 7.8)."""
        if not self.parser.should_upgrade():
            return False
        if self._upgrade is None:
            self._upgrade = self._asked_upgrade() or b""
        return self._upgrade != b"websocket"

    def _begin_anew(self) -> None:
        """Take another parser: one that has seen `Connection: close`, or HTTP/1.0, parses no further head."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def refuse(self, status: int, why: str) -> None:
        """End the parsing: to be called by the callbacks of the parser alone."""
        self._refusal = Refusal(status, why)
        raise self._refusal

    def send_400_response(self, msg: str) -> None:
        if self._refusal is None:
            super().send_400_response(msg)
            return
        self.transport.write(self._refusal.answer())
        self.transport.close()

    def on_message_begin(self) -> None:
        self._length = 0
        self._upgrade = None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > LONGEST_ADDRESS:
            self.refuse(414, TOO_LONG)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(value) > LONGEST_VALUE or len(name) > LONGEST_NAME or len(self.headers) >= MOST_HEADERS:
            if name.lower() == b"cookie" and len(self.headers) < MOST_HEADERS:
                # those of all ports of this host come along: they are nobody's fault, and dropped
                value = value if len(value) <= LONGEST_COOKIES else b""
            else:
                self._refuse_headers()
        if len(name) == len(CONTENT_LENGTH) and name.lower() == CONTENT_LENGTH:
            self._length = content_length(value)
            if self._length == NO_NUMBER:
                self.refuse(400, NO_LENGTH)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) > LONGEST_PATH and len(self.url.partition(b"?")[0]) > LONGEST_PATH + 512:
            self.refuse(414, TOO_LONG)
        super().on_headers_complete()

    def _refuse_headers(self) -> None:
        if self._asked_upgrade() == b"websocket":
            self.refuse(400, ODD_HANDSHAKE)
        self.refuse(431, TOO_MANY_HEADERS)

    def _get_upgrade(self) -> bytes | None:
        """Uvicorn asks several times for a request, and for each piece of its body."""
        return self._upgrade

    def _asked_upgrade(self) -> bytes | None:
        """As uvicorn reads it: the last header of each name counts."""
        named = {name: value for name, value in self.headers if name in (b"connection", b"upgrade")}
        if b"upgrade" not in named or b"connection" not in named:
            return None
        tokens = (token.strip() for token in named[b"connection"].lower().split(b","))
        return named[b"upgrade"].lower() if b"upgrade" in tokens else None
