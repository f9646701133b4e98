"""A canvas as SVG: sharp at any size, and its boxes answer when somebody points at them."""

from __future__ import annotations

from html import escape

from rota.sim.picture.canvas import PAPER, Box, Canvas, Line, Words

FONT = "font-family=\"system-ui, 'DejaVu Sans', Arial, sans-serif\""


def svg(canvas: Canvas) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{canvas.width}" height="{canvas.height}" '
        f'viewBox="0 0 {canvas.width} {canvas.height}" role="img" {FONT}>'
    )
    marks = [_mark(mark) for mark in canvas.marks]
    sharp = "<style>rect { shape-rendering: crispEdges }</style>"  # else hairlines show between neighbours
    paper = f'<rect width="100%" height="100%" fill="{PAPER}"/>'
    return "\n".join([head, f"<title>{_safe(canvas.title)}</title>", sharp, paper, *marks, "</svg>"]) + "\n"


def _mark(mark: Box | Line | Words) -> str:
    if isinstance(mark, Box):
        return _box(mark)
    return _line(mark) if isinstance(mark, Line) else _words(mark)


def _box(box: Box) -> str:
    place = f'x="{box.x:.6g}" y="{box.y:.6g}" width="{max(0.0, box.width):.6g}" height="{max(0.0, box.height):.6g}"'
    if not box.hint:
        return f'<rect {place} fill="{box.fill}"/>'
    return f'<rect {place} fill="{box.fill}"><title>{_safe(box.hint)}</title></rect>'


def _line(line: Line) -> str:
    points = " ".join(f"{x:.6g},{y:.6g}" for x, y in line.points)
    dashes = f' stroke-dasharray="{4 * line.width:g} {3 * line.width:g}"' if line.dashed else ""
    style = f'fill="none" stroke="{line.colour}" stroke-width="{line.width:g}" stroke-linejoin="round"{dashes}'
    return f'<polyline points="{points}" {style}/>'


def _words(words: Words) -> str:
    turn = f' transform="rotate(-90 {words.x:.6g} {words.y:.6g})"' if words.upright else ""
    weight = ' font-weight="600"' if words.bold else ""
    anchor = f' text-anchor="{words.anchor}"' if words.anchor != "start" else ""
    place = f'x="{words.x:.6g}" y="{words.y:.6g}"'
    style = f'font-size="{words.size:g}" fill="{words.colour}"'
    return f"<text {place} {style}{anchor}{weight}{turn}>{_safe(words.text)}</text>"


def _safe(text: str) -> str:
    """Names are data: they open no tag, and what XML cannot hold at all is shown as such."""
    return escape("".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text))
