"""A canvas as PNG, two pixels to a point: for mails, slides and wherever no SVG is shown."""

from __future__ import annotations

import struct
import zlib

from rota.sim.picture.canvas import Box, Canvas, Line
from rota.sim.picture.pixels import Pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXELS_PER_METRE = 5669  # 144 dots per inch: shown at the size it was drawn for


def png(canvas: Canvas, scale: int = 2) -> bytes:
    sheet = Pixels(canvas.width * scale, canvas.height * scale)
    for mark in canvas.marks:
        if isinstance(mark, Box):
            sheet.box(mark, scale)
        elif isinstance(mark, Line):
            sheet.line(mark, scale)
        else:
            sheet.words(mark, scale)
    return encode(sheet.width, sheet.height, sheet.data)


def encode(width: int, height: int, rgb: bytes | bytearray) -> bytes:
    """Rows of 8-bit red, green, blue."""
    stride = width * 3
    rows = b"".join(b"\0" + rgb[y * stride : (y + 1) * stride] for y in range(height))  # 0: no filter
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"".join(
        (
            SIGNATURE,
            _chunk(b"IHDR", head),
            _chunk(b"pHYs", struct.pack(">IIB", PIXELS_PER_METRE, PIXELS_PER_METRE, 1)),
            _chunk(b"IDAT", zlib.compress(rows, 6)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
