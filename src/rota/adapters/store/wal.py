"""Has a write-ahead log lost commits that were acknowledged?

SQLite takes the WAL up to the first frame whose checksum is wrong and forgets the rest without a word. That is right
for the torn end that a power cut leaves, and a silent loss when something damaged the middle. The two can be told
apart: each commit is synced before the next begins, so a power cut can tear the last one only.

The format is https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = 32
_FRAME_HEADER = 24
_MX_FRAME_AT = 16  # in the -shm file, in the machine's byte order


def lost_commits(database: Path) -> str | None:
    """What is wrong, or None. To be asked while a connection is open that has read: it has filled the -shm file."""
    wal = database.with_name(f"{database.name}-wal")
    index = database.with_name(f"{database.name}-shm")
    with wal.open("rb") as file:
        header = file.read(_HEADER)
        size = wal.stat().st_size
        if size <= _HEADER:
            return None
        if not _header_is_whole(header):
            return "the header of its write-ahead log is damaged"
        page_size = int.from_bytes(header[8:12], "big")
        with index.open("rb") as shm:
            (taken,) = struct.unpack_from("=I", shm.read(_MX_FRAME_AT + 4), _MX_FRAME_AT)
        commits = 0
        for at in range(_HEADER + taken * (_FRAME_HEADER + page_size), size, _FRAME_HEADER + page_size):
            file.seek(at)
            frame = file.read(16)
            # frames of this round of the log carry its salts; a commit frame says how long the database is after it
            commits += frame[8:16] == header[16:24] and frame[4:8] != bytes(4)
    if commits > 1:
        return f"its write-ahead log is damaged after frame {taken}: {commits} later commits cannot be read"
    return None


def _header_is_whole(header: bytes) -> bool:
    magic = int.from_bytes(header[:4], "big")
    if magic not in (0x377F0682, 0x377F0683):
        return False
    words = struct.unpack("<6I" if magic == 0x377F0682 else ">6I", header[:24])
    a = b = 0
    for n in range(0, 6, 2):
        a = (a + words[n] + b) & 0xFFFFFFFF
        b = (b + words[n + 1] + a) & 0xFFFFFFFF
    return (a, b) == struct.unpack(">2I", header[24:32])
