"""HTTP/1.1 as bytes, without any I/O: a request becomes bytes, bytes become a response.

Both transports feed `Answer`. Everything that comes from the other side is bounded, and whatever is not HTTP is a
BadAnswer. The standard library's http.client is not used: importing it costs more than a whole call.
"""

from __future__ import annotations

from rota.client.errors import BadAnswer, TooLong, Unreachable

MAX_HEAD = 64 * 1024
MAX_BODY = 256 * 1024 * 1024  # a long queue is one answer: people have 64 MiB of waiting commands each
MAX_LINE = 1024  # of a chunk's size
MAX_INTERIM = 10  # 1xx answers before the real one

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_NO_BODY = (204, 304)


def quote(text: str) -> str:
    """One segment of a path, or one value of a query."""
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in raw)


def target(path: str, query: dict[str, str] | None = None) -> str:
    return path + ("?" + "&".join(f"{quote(k)}={quote(v)}" for k, v in query.items()) if query else "")


def request(method: str, where: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """The bytes of a request. A header that would break out of its line is refused."""
    lines = [f"{method} {where} HTTP/1.1"]
    if body or method in ("POST", "PUT", "PATCH"):
        headers = {**headers, "Content-Length": str(len(body))}
    lines += [f"{name}: {value}" for name, value in headers.items()]
    for line in lines:
        if not line.isascii() or not line.isprintable():
            raise ValueError(f"{line.partition(':')[0]}: only printable ASCII may stand in the head of a request")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii") + body


class Answer:
    """One response, as its bytes come in. After `feed`, look at `status`, `take()` the body so far, and `done`."""

    def __init__(self, *, max_body: int | None = MAX_BODY) -> None:
        self.status = 0  # 0 = the head is not complete yet
        self.headers: dict[str, str] = {}  # by lower-case name; the last one of a kind
        self.done = False
        self.keep_alive = False
        self.left_over = b""  # after the end of the answer: a server that does this is not to be trusted further
        self._max_body = max_body
        self._raw = bytearray()
        self._body = bytearray()
        self._seen = 0
        self._interim = 0
        self._need: int | None = None  # bytes of body still to come; None = until the connection ends
        self._chunked = False
        self._chunk_end = False
        self._trailer = False

    def feed(self, data: bytes) -> None:
        """More bytes; b"" is the end of the connection."""
        if not data:
            self._end()
            return
        self._raw += data
        while not self.done and self._step():
            pass
        if self.done and self._raw:
            self.left_over = bytes(self._raw[:100])
            self.keep_alive = False
            self._raw.clear()

    def take(self) -> bytes:
        """The part of the body that has come in and was not taken yet."""
        body = bytes(self._body)
        self._body.clear()
        return body

    def _end(self) -> None:
        self.keep_alive = False
        if self.done:
            return
        if self.status and self._need is None and not self._chunked:
            self.done = True
            return
        raise Unreachable("the answer was cut off", sent=True)

    def _step(self) -> bool:
        """Move on by one piece; False = more bytes are needed."""
        if not self.status:
            return self._head()
        if self._chunked and self._need is None:
            return self._chunk_line()
        return self._data()

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n", 0, MAX_HEAD + 4)
        if end < 0:
            if len(self._raw) > MAX_HEAD:
                raise BadAnswer(f"the head of the answer is longer than {MAX_HEAD} bytes")
            if not b"HTTP/1.".startswith(self._raw[:7]):
                raise BadAnswer("what answers there does not speak HTTP")
            return False
        lines = bytes(self._raw[:end]).decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        status, version = _status_line(lines[0])
        self.headers = {}
        lengths = set()
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise BadAnswer("a header of the answer is malformed")
            self.headers[name.lower()] = value.strip(" \t")
            if name.lower() == "content-length":
                lengths.add(value.strip(" \t"))
        if 100 <= status < 200:
            self._interim += 1
            if status == 101 or self._interim > MAX_INTERIM:
                raise BadAnswer(f"the answer {status} makes no sense here")
            return True
        self.status = status
        self._framing(lengths, version)
        return True

    def _framing(self, lengths: set[str], version: str) -> None:
        """How long the body will be: RFC 9112, section 6.3."""
        wish = self.headers.get("connection", "").lower()
        self.keep_alive = version == "1" and "close" not in wish
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise BadAnswer("the answer is compressed, which nobody asked for")
        coding = self.headers.get("transfer-encoding", "").lower()
        if coding:
            if coding != "chunked" or lengths:
                raise BadAnswer("the length of the answer is not clear")
            self._chunked = True
        elif self.status in _NO_BODY:
            self.done = True
        elif lengths:
            (length,) = lengths if len(lengths) == 1 else ("",)
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise BadAnswer("the length of the answer is not a number")
            self._need = int(length)
            self._bound(self._need)
            self.done = self._need == 0
        else:
            self.keep_alive = False

    def _data(self) -> bool:
        take = len(self._raw) if self._need is None else min(self._need, len(self._raw))
        if not take:
            return False
        if not self._chunked and self._need is not None:
            self._seen += take  # its whole length was judged with the head
        else:
            self._bound(take)
        self._body += self._raw[:take]
        del self._raw[:take]
        if self._need is not None:
            self._need -= take
            if self._need == 0:
                if self._chunked:
                    self._need, self._chunk_end = None, True
                else:
                    self.done = True
        return True

    def _chunk_line(self) -> bool:
        end = self._raw.find(b"\r\n", 0, MAX_LINE + 2)
        if end < 0:
            if len(self._raw) > MAX_LINE:
                raise BadAnswer("a chunk of the answer is malformed")
            return False
        line = bytes(self._raw[:end])
        del self._raw[: end + 2]
        if self._chunk_end:  # the line end behind a chunk's data
            if line:
                raise BadAnswer("a chunk of the answer is longer than it said")
            self._chunk_end = False
        elif self._trailer:
            self.done = not line
            self._bound(len(line) + 2)  # trailers count, so that they cannot go on for ever
        else:
            size = line.partition(b";")[0].strip()
            if not size or len(size) > 15 or any(byte not in b"0123456789abcdefABCDEF" for byte in size):
                raise BadAnswer("a chunk of the answer has no size")
            self._need = int(size, 16) or None
            self._trailer = self._need is None
        return True

    def _bound(self, more: int) -> None:
        self._seen += more
        if self._max_body is not None and self._seen > self._max_body:
            raise TooLong(f"the answer is larger than {self._max_body} bytes")


def _status_line(line: str) -> tuple[int, str]:
    version, _, rest = line.partition(" ")
    code = rest[:3]
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (code.isascii() and code.isdigit()) or rest[3:4] not in ("", " "):
        raise BadAnswer("what answers there does not speak HTTP")
    status = int(code)
    if not 100 <= status <= 599:
        raise BadAnswer(f"the server answered with the status {status}")
    return status, version[-1]
