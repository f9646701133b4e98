"""Reading an attempt's log by byte offset, hole or no hole.

The next offset to ask for is always `chunk.offset + len(chunk.content)`. Bytes taken out by the log cap are shown
once as a marker line that stands for the *last* bytes of the hole, so that this sum stays true: a read that begins in
the hole answers with the marker and what follows the hole; one that begins before it stops at its edge.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from rota.adapters.backends import records
from rota.adapters.files import open_regular
from rota.app.ports import FileBusy, LogChunk

MAX_CHUNK = 8 << 20
NO_LOG = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # not there, or not a file of ours
LEASED = "the log is held by a file lease (fcntl F_SETLEASE) of another process; ask again"


def read_log(root: str, attempt_id: str, offset: int, limit: int) -> LogChunk:
    directory = records.attempt_dir(root, attempt_id)
    try:
        fd = open_regular(f"{directory}/log")
    except BlockingIOError:
        raise FileBusy(LEASED) from None
    except OSError as error:
        if error.errno in NO_LOG:
            return LogChunk(b"", 0, 0)
        raise
    try:
        return _read(fd, directory, offset, max(0, min(limit, MAX_CHUNK)))
    finally:
        os.close(fd)


def _read(fd: int, directory: str, offset: int, limit: int) -> LogChunk:
    hole = _hole(directory)
    while True:
        chunk = _read_around(fd, hole, offset, limit)
        # A hole is recorded before it is made: unchanged after the reading, it had not grown into what was read.
        if (now := _hole(directory)) == hole:
            return chunk
        hole = now


def _read_around(fd: int, hole: tuple[int, int], offset: int, limit: int) -> LogChunk:
    size = os.fstat(fd).st_size
    begin, end = (min(edge, size) for edge in hole)  # the log may have been cut since
    start = max(0, size + offset) if offset < 0 else min(offset, size)
    if start >= end:
        return LogChunk(os.pread(fd, limit, start), start, size)
    if start < begin:
        return LogChunk(os.pread(fd, min(limit, begin - start), start), start, size)
    if offset < 0:
        return LogChunk(os.pread(fd, limit, end), end, size)  # who asks for the newest wants no marker
    marker = b"\n[... %d bytes dropped by the log cap ...]\n" % (end - start)
    marker = marker[:limit]
    return LogChunk(marker + os.pread(fd, limit - len(marker), end), end - len(marker), size)


def _hole(directory: str) -> tuple[int, int]:
    dropped = records.read(f"{directory}/dropped") or {}
    edges: list[Any] = [dropped.get("start"), dropped.get("end")]
    return (int(edges[0]), int(edges[1])) if all(map(records.is_whole_number, edges)) else (0, 0)
