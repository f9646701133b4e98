"""The files that pages of ours load: read once, and answered from memory.

An answer that is read from its file would keep the file open until the client has taken it, and then a connection costs
two descriptors, where it counts as one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

STATIC = Path(__file__).with_name("static")
TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    media_type: str
    tag: str
    modified: str

    @classmethod
    def read(cls, path: Path) -> StaticFile:
        body = path.read_bytes()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        return cls(body, TYPES[path.suffix], tag, formatdate(path.stat().st_mtime, usegmt=True))

    def answer(self, request: Request, headers: Mapping[str, str] | None = None) -> Response:
        """Return the whole file, or 304 to a client that has it. A Range is ignored, which RFC 9110 (14.2) allows."""
        given = {**(headers or {}), "ETag": self.tag, "Last-Modified": self.modified}
        if self._is_known(request.headers):
            return Response(status_code=304, headers=given)
        return Response(self.body, headers=given, media_type=self.media_type)

    def _is_known(self, headers: Headers) -> bool:
        tags = headers.get("if-none-match")
        if tags is not None:
            return tags.strip() == "*" or self.tag in (tag.strip().removeprefix("W/") for tag in tags.split(","))
        since, modified = parsedate(headers.get("if-modified-since")), parsedate(self.modified)
        return since is not None and modified is not None and since >= modified


def read_all() -> dict[str, StaticFile]:
    """Return the files by their names; what else lies there, such as an editor's backup, is left out."""
    return {path.name: StaticFile.read(path) for path in STATIC.iterdir() if path.suffix in TYPES and path.is_file()}
