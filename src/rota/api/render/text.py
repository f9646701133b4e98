"""Bytes of a log as text, no character cut in two where that can be helped; or as they are, in base64."""

from __future__ import annotations

import base64

from rota.app.ports import LogChunk


def page(chunk: LogChunk, complete: bool) -> dict[str, object]:
    """`complete`: nothing will follow what there is, so half a character at its end is all there will ever be."""
    content, offset = chunk.content, chunk.offset
    cut = _continuation(content) if offset > 0 else 0
    content, offset = content[cut:], offset + cut
    end = offset + len(content)
    if end < chunk.size or not complete:
        half = _unfinished(content)
        if half < len(content):  # or whoever asks for single bytes would never get on
            content = content[: len(content) - half]
    return {"content": content.decode("utf-8", "replace"), **_place(offset, len(content), chunk.size)}


def raw_page(chunk: LogChunk) -> dict[str, object]:
    """Every byte, whatever it is."""
    content = base64.b64encode(chunk.content).decode()
    return {"content": content, "encoding": "base64", **_place(chunk.offset, len(chunk.content), chunk.size)}


def _place(offset: int, length: int, size: int) -> dict[str, object]:
    return {
        "offset": offset,
        "total_size": size,
        "has_more_before": offset > 0,
        "has_more_after": offset + length < size,
        "next_offset": offset + length,  # the content alone does not tell where bytes had to be replaced
    }


def _continuation(content: bytes) -> int:
    """How many bytes at the front belong to a character that began before."""
    for count, byte in enumerate(content[:3]):
        if byte & 0xC0 != 0x80:
            return count
    return 0


def _unfinished(content: bytes) -> int:
    """How many bytes at the end are the beginning of a character whose rest is not here."""
    for count in range(1, min(4, len(content)) + 1):
        byte = content[-count]
        if byte & 0xC0 == 0x80:
            continue
        needs = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return count if needs > count else 0
    return 0
