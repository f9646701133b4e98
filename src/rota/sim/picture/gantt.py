"""Who had which GPU when: a row a GPU, a colour a person."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rota.sim.picture import font, ticks
from rota.sim.picture.canvas import FAINT, GRID, INK, OTHERS, PALETTE, Canvas
from rota.sim.picture.frame import RIGHT, WIDTH, heading, legend, rows_of_legend, short

MOST_ROWS = 640
MOST_BOXES = 4000
TALL = 400  # what the rows are stretched to, where they are few
NOBODY = "(no name)"


@dataclass(frozen=True, slots=True)
class Span:
    """One job on neighbouring rows of one node."""

    row: int  # the first, from 0 over all nodes
    rows: int
    start_s: float
    end_s: float
    who: str
    hint: str = ""


def gantt(nodes: Sequence[tuple[str, int]], spans: Sequence[Span], end_s: float, title: str) -> Canvas:
    """`nodes`: names and how many GPUs each has, in the order of their rows. Where there are too many rows the first
    nodes are shown; what is thinner than a pixel is drawn together with its neighbours."""
    shown, rows = _that_fit(nodes)
    seen = [span for span in spans if span.row + span.rows <= rows]
    colours = _colours(seen)
    left = 24 + max((font.width(short(name, 16), 11) for name, _ in shown), default=0.0)
    high = max(1, min(16, TALL // max(1, rows)))
    gap = 6 if high > 2 else 2
    top = 66 + 18 * rows_of_legend(WIDTH, list(colours), left)
    canvas = Canvas(WIDTH, round(top + rows * high + len(shown) * gap + 40), title)
    note = f"the first {len(shown):,} of {len(nodes):,} nodes; " if len(shown) < len(nodes) else ""
    heading(canvas, title, f"{note}a row is a GPU, a colour a person")
    legend(canvas, 70, [(name, colour, False) for name, colour in colours.items()], x=left, boxes=True)
    sheet = _Sheet(canvas, left, top, high, gap, end_s)
    sheet.lay(shown)
    sheet.fill(seen, colours)
    canvas.words((left + WIDTH - RIGHT) / 2, canvas.height - 8, "time", 11, colour=FAINT, anchor="middle")
    return canvas


def _that_fit(nodes: Sequence[tuple[str, int]]) -> tuple[list[tuple[str, int]], int]:
    shown: list[tuple[str, int]] = []
    rows = 0
    for name, gpus in nodes:
        if rows + gpus > MOST_ROWS and shown:
            break
        shown.append((name, gpus))
        rows += gpus
    return shown, rows


def _colours(spans: Sequence[Span]) -> dict[str, str]:
    """The people with most GPU time have a colour each, the rest share one."""
    used: Counter[str] = Counter()
    for span in spans:
        used[span.who] += round(span.rows * (span.end_s - span.start_s))
    ranked = [who for who, _ in used.most_common()]
    found = {who or NOBODY: colour for who, colour in zip(ranked, PALETTE, strict=False)}
    return {**found, "all others": OTHERS} if len(ranked) > len(PALETTE) else found


@dataclass(slots=True)
class _Sheet:
    """The field of rows."""

    canvas: Canvas
    left: float
    top: float
    high: int  # of a row
    gap: int  # between nodes
    end_s: float
    tops: list[float] = field(default_factory=list)  # where each row begins

    def across(self, at_s: float) -> float:
        """From the field's left edge."""
        return (WIDTH - self.left - RIGHT) * (at_s / self.end_s if self.end_s else 0.0)

    def lay(self, nodes: Sequence[tuple[str, int]]) -> None:
        """The empty field, with names and marks of time."""
        y = self.top
        for name, gpus in nodes:
            self.canvas.box(self.left, y, WIDTH - self.left - RIGHT, gpus * self.high, "#f4f4f4")
            tall = gpus * self.high + self.gap
            if tall >= 9:
                size = 11 if tall >= 14 else 8
                middle = y + gpus * self.high / 2 + size / 3
                self.canvas.words(self.left - 8, middle, short(name, 16), size, anchor="end")
            self.tops += [y + i * self.high for i in range(gpus)]
            y += gpus * self.high + self.gap
        bottom = y - self.gap
        for at, word in ticks.times(self.end_s):
            x = self.left + self.across(at)
            self.canvas.line([(x, self.top), (x, bottom)], GRID)
            self.canvas.words(x, bottom + 17, word, 11, colour=FAINT, anchor="middle")
        self.canvas.line([(self.left, self.top), (self.left, bottom), (WIDTH - RIGHT, bottom)], INK)

    def fill(self, spans: Sequence[Span], colours: Mapping[str, str]) -> None:
        """Coarser and coarser until there are few enough boxes."""
        pixel = 0.5
        while len(boxes := _boxes(spans, self.across(1.0), pixel)) > MOST_BOXES and pixel < WIDTH:
            pixel *= 2
        for row, rows, start, end, who, hint in boxes:
            tall = self.tops[row + rows - 1] - self.tops[row] + self.high
            edge = 0.5 if self.high > 2 and end - start > 2 else 0.0  # neighbours of one colour can be told apart
            colour = colours.get(who or NOBODY, OTHERS)
            self.canvas.box(self.left + start, self.tops[row], end - start - edge, tall - edge, colour, hint=hint)


Drawn = tuple[int, int, float, float, str, str]


def _boxes(spans: Sequence[Span], points_per_s: float, pixel: float) -> list[Drawn]:
    """What is wide enough as it is; thinner things of one person that touch on the same rows as one."""
    boxes: list[Drawn] = []
    open_: dict[tuple[int, int, str], Drawn] = {}
    for span in sorted(spans, key=lambda one: one.start_s):
        start, end = span.start_s * points_per_s, span.end_s * points_per_s
        if end - start >= 2 * pixel:
            boxes.append((span.row, span.rows, start, end, span.who, span.hint))
            continue
        key = (span.row, span.rows, span.who)
        before = open_.get(key)
        if before is not None and start - before[3] <= pixel:
            open_[key] = (*before[:3], max(before[3], end), span.who, "several short jobs")
        else:
            if before is not None:
                boxes.append(before)
            open_[key] = (span.row, span.rows, start, max(end, start + pixel), span.who, span.hint)
    return boxes + list(open_.values())
