"""What a picture is made of: boxes, lines and words, in points from the upper left corner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Anchor = Literal["start", "middle", "end"]
Point = tuple[float, float]

INK, FAINT, GRID, PAPER = "#222222", "#666666", "#dddddd", "#ffffff"
# Okabe and Ito's colours, told apart by people with any common colour blindness; the light yellow last
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
OTHERS = "#999999"


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str  # "#rrggbb", as every colour here
    hint: str = ""  # shown when somebody points at it, where the format can do that


@dataclass(frozen=True, slots=True)
class Line:
    points: tuple[Point, ...]
    colour: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    x: float
    y: float  # of the baseline
    text: str
    size: float = 12.0
    colour: str = INK
    anchor: Anchor = "start"
    bold: bool = False
    upright: bool = False  # turned to be read from below, for the name of a vertical axis


@dataclass(slots=True)
class Canvas:
    width: int
    height: int
    title: str = ""
    marks: list[Box | Line | Words] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, fill: str, *, hint: str = "") -> None:
        self.marks.append(Box(x, y, width, height, fill, hint))

    def line(self, points: Sequence[Point], colour: str, width: float = 1.0, *, dashed: bool = False) -> None:
        self.marks.append(Line(tuple(points), colour, width, dashed))

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: float = 12.0,
        *,
        colour: str = INK,
        anchor: Anchor = "start",
        bold: bool = False,
        upright: bool = False,
    ) -> None:
        self.marks.append(Words(x, y, text, size, colour, anchor, bold, upright))


def colour_of(index: int) -> tuple[str, bool]:
    """The colour of the n-th curve, and whether it is dashed: where the colours are used up they come again so."""
    usable = len(PALETTE) - 1  # yellow lines are not seen on white
    return PALETTE[index % usable], index // usable % 2 == 1


def lighter(colour: str, share: float) -> str:
    """Mixed with white; 1 is white."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02x}" for part in parts)
