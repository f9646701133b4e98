"""A sheet of pixels that boxes, lines and words can be drawn on. Edges of lines and letters are smoothed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from math import ceil, floor, hypot

from rota.sim.picture import font
from rota.sim.picture.canvas import Box, Line, Point, Words

Cover = Mapping[tuple[int, int], float]  # pixel -> how much of it is covered
DASH, SPACE = 4.0, 3.0  # in widths of the line


class Pixels:
    """Three bytes each, rows from above, all white at first."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.data = bytearray(b"\xff") * (width * height * 3)

    def box(self, box: Box, scale: int) -> None:
        """At least one pixel wide and high: what is there is seen."""
        left, top = round(box.x * scale), round(box.y * scale)
        right = max(left + 1, round((box.x + box.width) * scale))
        bottom = max(top + 1, round((box.y + box.height) * scale))
        left, top = max(0, left), max(0, top)
        right, bottom = min(self.width, right), min(self.height, bottom)
        if right <= left or box.width <= 0 or box.height <= 0:
            return
        row = bytes(_rgb(box.fill)) * (right - left)
        for y in range(top, bottom):
            at = (y * self.width + left) * 3
            self.data[at : at + len(row)] = row

    def line(self, line: Line, scale: int) -> None:
        thick = max(1.0, line.width * scale)
        points = [(x * scale, y * scale) for x, y in line.points]
        covered: dict[tuple[int, int], float] = {}
        for a, b in _dashes(points, thick) if line.dashed else pairwise(points):
            if a[0] == b[0] or a[1] == b[1]:
                self._straight(a, b, thick, line.colour)
            else:
                _along(covered, a, b, thick / 2)
        self._blend(covered, 0, 0, line.colour)

    def words(self, words: Words, scale: int) -> None:
        text = font.plain(words.text)
        unit = words.size * scale * font.SIZE_OF_CAP / font.CAP
        long = sum(font.advance(char, words.bold) for char in text) - font.GAP if text else 0.0
        back = {"start": 0.0, "middle": long / 2, "end": long}[words.anchor]
        pen = unit * (1.25 if words.bold else 0.82)
        along = -back * unit
        for char in text:
            x, y = words.x * scale, words.y * scale
            at = (x, y - along) if words.upright else (x + along, y)
            cover = _glyph(char, unit, pen, words.upright)
            self._blend(cover, round(at[0]), round(at[1]), words.colour)
            along += font.advance(char, words.bold) * unit

    def _straight(self, a: Point, b: Point, thick: float, colour: str) -> None:
        """Level or upright: as sharp as a box."""
        left, right = sorted((a[0], b[0]))
        top, bottom = sorted((a[1], b[1]))
        if top == bottom:
            top, bottom = top - thick / 2, top + thick / 2
        else:
            left, right = left - thick / 2, left + thick / 2
        whole = max(1, round(thick))
        wide = max(whole, round(right - left))
        high = max(whole, round(bottom - top))
        self.box(Box(round(left), round(top), wide, high, colour), 1)

    def _blend(self, cover: Cover, dx: int, dy: int, colour: str) -> None:
        ink = _rgb(colour)
        for (px, py), share in cover.items():
            x, y = px + dx, py + dy
            if 0 <= x < self.width and 0 <= y < self.height:
                at = (y * self.width + x) * 3
                for i in range(3):
                    paper = self.data[at + i]
                    self.data[at + i] = round(paper + (ink[i] - paper) * share)


@cache
def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


@lru_cache(2000)
def _glyph(char: str, unit: float, pen: float, upright: bool) -> Cover:
    """The pixels of a glyph whose baseline begins at (0, 0)."""
    covered: dict[tuple[int, int], float] = {}
    for stroke in font.strokes(char):
        points = [(x * unit, -y * unit) for x, y in stroke]
        if upright:
            points = [(y, -x) for x, y in points]
        for a, b in pairwise(points):
            _along(covered, a, b, pen / 2)
    return covered


def _along(covered: dict[tuple[int, int], float], a: Point, b: Point, radius: float) -> None:
    """What a round pen covers on its way from a to b; where two ways meet a pixel is covered once."""
    reach = radius + 1
    for y in range(floor(min(a[1], b[1]) - reach), ceil(max(a[1], b[1]) + reach) + 1):
        for x in range(floor(min(a[0], b[0]) - reach), ceil(max(a[0], b[0]) + reach) + 1):
            share = radius + 0.5 - _distance(x + 0.5, y + 0.5, a, b)
            if share > 0 and share > covered.get((x, y), 0.0):
                covered[x, y] = min(1.0, share)


def _distance(x: float, y: float, a: Point, b: Point) -> float:
    """From a point to the straight way from a to b."""
    dx, dy = b[0] - a[0], b[1] - a[1]
    long = dx * dx + dy * dy
    part = 0.0 if long == 0 else min(1.0, max(0.0, ((x - a[0]) * dx + (y - a[1]) * dy) / long))
    return hypot(x - a[0] - part * dx, y - a[1] - part * dy)


def _dashes(points: list[Point], thick: float) -> Iterator[tuple[Point, Point]]:
    """The drawn pieces of a dashed line; the pattern goes on around corners."""
    drawn, left = True, DASH * thick
    for a, b in pairwise(points):
        long, done = hypot(b[0] - a[0], b[1] - a[1]), 0.0
        while done < long:
            step = min(left, long - done)
            if drawn:
                yield _part(a, b, done / long), _part(a, b, (done + step) / long)
            done, left = done + step, left - step
            if left <= 0:
                drawn = not drawn
                left = (DASH if drawn else SPACE) * thick


def _part(a: Point, b: Point, share: float) -> Point:
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share
