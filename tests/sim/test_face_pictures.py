"""Pictures: valid files, true to their data, bounded, and harmless whatever the names in them are."""

from __future__ import annotations

import random
import struct
import zlib
from itertools import combinations
from xml.etree import ElementTree

import pytest

from rota.sim.model import Job, Result, Segment
from rota.sim.picture import font, ticks
from rota.sim.picture.album import stacked
from rota.sim.picture.bars import Bar, bars
from rota.sim.picture.canvas import Box, Canvas, Line, Words
from rota.sim.picture.gantt import MOST_BOXES, MOST_ROWS, Span, gantt
from rota.sim.picture.png import SIGNATURE, png
from rota.sim.picture.series import means, panel, spans
from rota.sim.picture.svg import svg
from rota.sim.picture.utilisation import utilisation
from rota.sim.picture.waits import wait_distribution

HOSTILE = "</title><script>alert(1)</script>&\x00\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}\"'"
SVG = "{http://www.w3.org/2000/svg}"


def pixels(data: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and rows of a PNG, read as its standard says; every checksum must be right."""
    assert data.startswith(SIGNATURE)
    at, head, body, kinds = len(SIGNATURE), b"", b"", []
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, content = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert crc == zlib.crc32(kind + content), kind
        kinds.append(kind)
        head, body = (content, body) if kind == b"IHDR" else (head, body + content if kind == b"IDAT" else body)
        at += 12 + length
    assert (kinds[0], kinds[-1]) == (b"IHDR", b"IEND")
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", head)
    assert (depth, colour, rest) == (8, 2, [0, 0, 0])
    raw = zlib.decompress(body)
    stride = 1 + 3 * width
    assert len(raw) == height * stride
    rows = [raw[y * stride : (y + 1) * stride] for y in range(height)]
    assert all(row[0] == 0 for row in rows)
    return width, height, [row[1:] for row in rows]


def at(rows: list[bytes], x: int, y: int) -> str:
    return "#" + rows[y][3 * x : 3 * x + 3].hex()


def parsed(drawn: str) -> ElementTree.Element:
    return ElementTree.fromstring(drawn)  # noqa: S314 - it is our own


def texts(drawn: str) -> list[str]:
    return [one.text or "" for one in parsed(drawn).iter(f"{SVG}text")]


# -- the two formats --------------------------------------------------------------------------------------------------
def test_a_png_is_as_large_as_it_says_and_a_box_is_where_it_was_put():
    canvas = Canvas(40, 20)
    canvas.box(10, 5, 8, 4, "#0072b2")
    canvas.box(30, 15, 100, 100, "#d55e00")  # reaches beyond the edge, and ends there
    canvas.box(0, 0, 0.01, 1, "#009e73")  # thinner than a pixel: still seen
    width, height, rows = pixels(png(canvas))
    assert (width, height) == (80, 40)
    for x, y, colour in ((20, 10, "#0072b2"), (35, 17, "#0072b2"), (36, 10, "#ffffff"), (20, 18, "#ffffff")):
        assert at(rows, x, y) == colour, (x, y)
    assert (at(rows, 79, 39), at(rows, 0, 0), at(rows, 1, 0)) == ("#d55e00", "#009e73", "#ffffff")
    assert pixels(png(canvas, scale=1))[:2] == (40, 20)


def test_lines_are_drawn_whichever_way_they_go():
    canvas = Canvas(60, 60)
    canvas.line([(5, 5), (55, 5), (55, 55)], "#000000", 2)
    canvas.line([(5, 10), (50, 55)], "#d55e00", 2)
    canvas.line([(2, 30), (2, 58)], "#0072b2", 1, dashed=True)
    _, _, rows = pixels(png(canvas, 1))
    assert at(rows, 30, 5) == at(rows, 55, 30) == "#000000"
    assert at(rows, 27, 32) == "#d55e00"
    down = [at(rows, 2, y) for y in range(30, 58)]
    assert {"#0072b2", "#ffffff"} <= set(down), "dashes and gaps"


def test_every_letter_is_drawn_and_no_two_alike():
    assert all(font.strokes(char) for char in map(chr, range(33, 127)))
    looks = {font.strokes(char): char for char in map(chr, range(33, 127))}
    assert len(looks) == 94
    assert font.plain("Jürgen’s 50 – 60…") == "Jurgen's 50 – 60..."
    assert font.plain("中") == "中"
    assert font.strokes("中") == font.strokes("文") != font.strokes("0"), "a frame says that something is there"


@pytest.mark.parametrize("upright", [False, True])
@pytest.mark.parametrize("anchor", ["start", "middle", "end"])
def test_words_stand_where_they_are_anchored(anchor, upright):
    canvas = Canvas(100, 100)
    canvas.words(50, 50, "wait", 12, anchor=anchor, upright=upright)
    _, _, rows = pixels(png(canvas, 1))
    inked = [(x, y) for y in range(100) for x in range(100) if at(rows, x, y) != "#ffffff"]
    low, high = (min(p[upright] for p in inked), max(p[upright] for p in inked))
    if upright:  # read from below: it begins at the bottom
        low, high = 100 - high, 100 - low
    wanted = {"start": (50, 71), "middle": (39, 61), "end": (29, 50)}[anchor]
    assert abs(low - wanted[0]) <= 4
    assert abs(high - wanted[1]) <= 4


def test_an_svg_is_xml_whatever_is_written_in_it():
    canvas = Canvas(200, 100, HOSTILE)
    canvas.words(10, 10, HOSTILE)
    canvas.box(0, 0, 10, 10, "#0072b2", hint=HOSTILE)
    canvas.line([(0, 0), (1, 1)], "#000000", dashed=True)
    drawn = svg(canvas)
    root = parsed(drawn)
    assert root.get("width") == "200"
    assert "<script" not in drawn
    assert "\x00" not in drawn and "\x1b" not in drawn and "\N{RIGHT-TO-LEFT OVERRIDE}" not in drawn
    assert "<script>" in texts(drawn)[0], "it is shown as it is written"
    assert {child.tag for child in root} <= {f"{SVG}{tag}" for tag in ("title", "style", "rect", "text", "polyline")}


def test_pictures_one_below_the_other():
    first, second = Canvas(100, 50), Canvas(80, 30)
    first.box(1, 2, 3, 4, "#000000")
    second.box(1, 2, 3, 4, "#000000")
    second.line([(0, 1), (2, 3)], "#000000")
    second.words(5, 6, "x")
    sheet = stacked([first, second], "both", gap=10)
    assert (sheet.width, sheet.height) == (100, 90)
    assert sheet.marks[:2] == [Box(1, 2, 3, 4, "#000000"), Box(1, 62, 3, 4, "#000000")]
    assert sheet.marks[2] == Line(((0, 61), (2, 63)), "#000000")
    assert isinstance(sheet.marks[3], Words) and sheet.marks[3].y == 66


# -- the charts -------------------------------------------------------------------------------------------------------
def day(jobs: int = 300, seed: int = 1) -> Result:
    """Jobs that start at once, where there is room: the lowest node first."""
    busy: dict[str, list[tuple[int, int]]] = {"node1": [], "node2": []}
    chance, made, ends, segments = random.Random(seed), [], [], []
    for number in range(jobs):
        submit_s = number * 200
        job = Job(f"j{number}", submit_s, chance.randint(1, 2000), chance.choice((1, 1, 2, 4)), chance.choice("abc"))
        start_s = submit_s
        while True:
            free = [n for n, held in busy.items() if 8 - sum(g for e, g in held if e > start_s) >= job.gpus]
            if free:
                break
            start_s += 1
        busy[free[0]].append((start_s + job.duration_s, job.gpus))
        made.append(job)
        ends.append(start_s + job.duration_s)
        segments.append(Segment(number, 1, start_s, ends[-1], ((free[0], job.gpus),)))
    segments.sort(key=lambda one: one.end_s)
    return Result(tuple(made), 16, tuple(segments), tuple(ends), (0,) * jobs, 60, (("node1", 8), ("node2", 8)))


def test_means_over_bins_are_exact():
    assert means([(0, 10, 2)], 10, 5) == [2.0] * 5
    assert means([(1, 3, 4), (8, 10, 1)], 10, 5) == [2.0, 2.0, 0.0, 0.0, 1.0]
    assert means([(3, 3, 9)], 10, 5) == [0.0] * 5
    assert means([(5, 5, 9)], 0, 3) == [0.0] * 3
    chance = random.Random(7)
    holds = [
        (a, a + chance.uniform(0, 400), chance.randint(1, 8)) for a in (chance.uniform(0, 600) for _ in range(200))
    ]
    found = means(holds, 1000, 37)
    assert sum(found) * 1000 / 37 == pytest.approx(sum((b - a) * n for a, b, n in holds))


def test_no_gpu_has_two_jobs_at_once():
    result = day()
    drawn = spans(result)
    held = sum(one.rows * (one.end_s - one.start_s) for one in drawn)
    assert held == sum(one.gpus * (one.end_s - one.start_s) for one in result.segments)
    for a, b in combinations(drawn, 2):
        apart_in_time = a.end_s <= b.start_s or b.end_s <= a.start_s
        assert apart_in_time or a.row + a.rows <= b.row or b.row + b.rows <= a.row, (a, b)


def test_a_gantt_has_a_bounded_number_of_boxes():
    chance = random.Random(3)
    many = [Span(chance.randrange(16), 1, at, at + chance.random() * 20, f"u{at % 40}") for at in range(30_000)]
    canvas = gantt((("node1", 8), ("node2", 8)), many, 30_000, "crowded")
    boxes = [mark for mark in canvas.marks if isinstance(mark, Box)]
    assert 100 < len(boxes) <= MOST_BOXES + 50
    assert any("all others" in text for text in texts(svg(canvas)))


def test_a_gantt_of_a_large_cluster_shows_a_part_and_says_so():
    nodes = [(f"n{number}", 8) for number in range(1296)]
    canvas = gantt(nodes, [Span(8 * 1295, 8, 0, 10, "ann"), Span(0, 8, 0, 10, "ben")], 10, "large")
    assert canvas.height < MOST_ROWS + 400
    shown = texts(svg(canvas))
    assert any(text.startswith("the first 80 of 1,296 nodes") for text in shown)
    assert "ben" in shown and "ann" not in shown


def test_the_share_of_jobs_that_waited_grows_to_all_of_them():
    result = day()
    canvas = wait_distribution({"auto": result.waits, "easy": [0, 0, 0], "none": []})
    curves = [mark for mark in canvas.marks if isinstance(mark, Line) and mark.width == 2.0]
    assert len(curves) == 3
    for curve in curves[:2]:
        heights = [y for _, y in curve.points]
        assert heights == sorted(heights, reverse=True)
        assert heights[-1] == curves[1].points[0][1], "everybody, in the end"
    shown = texts(svg(canvas))
    assert {"auto", "easy", "none", "100 %", "1 min", "share of jobs", "wait"} <= set(shown)


def test_work_and_demand_are_drawn_for_each_policy():
    result = day()
    end_s = result.makespan_s
    drawn = [panel("auto", result, end_s), panel(HOSTILE, result, end_s)]
    assert max(drawn[0].useful) <= 16
    assert sum(drawn[0].useful) * end_s / len(drawn[0].useful) == pytest.approx(
        sum(job.gpus * job.duration_s for job in result.jobs), rel=1e-6
    )
    shown = texts(svg(utilisation(drawn, 16, end_s)))
    assert {"auto", "useful work", "wanted", "GPUs", "time"} <= set(shown)


def test_bars_carry_their_values_and_deviations():
    canvas = bars([("week", [Bar("auto", 120, 12), Bar("easy", 1200)]), ("nothing", [Bar("auto", 0)])], "Mean wait")
    shown = texts(svg(canvas))
    assert "120 s ± 12 s" not in shown and "2 min ± 12 s" in shown
    assert "20 min" in shown and "0 s" in shown
    wide = [mark.width for mark in canvas.marks if isinstance(mark, Box)]
    assert wide[0] == pytest.approx(wide[1] / 10)


def test_nothing_to_draw_is_drawn_as_nothing():
    empty = Result((), 16, (), (), (), 60, (("node1", 8),))
    for canvas in (
        utilisation([panel("auto", empty, 0)], 16, 0),
        wait_distribution({"auto": empty.waits}),
        gantt(empty.gpus_of, spans(empty), 0, "empty"),
        bars([], "none"),
    ):
        parsed(svg(canvas))
        assert pixels(png(canvas, 1))[0] == canvas.width


@pytest.mark.parametrize("end_s", [1, 59, 3600, 86_400, 7 * 86_400, 90 * 86_400, 40 * 365 * 86_400, 10**11])
def test_marks_of_time_are_few_round_and_in_order(end_s):
    marks = ticks.times(end_s)
    assert 1 <= len(marks) <= 11
    assert marks[0][1] == "0" and marks[-1][0] <= end_s
    words = [word for _, word in marks]
    assert len(set(words)) == len(words)
    assert ticks.waits(end_s)[-1][0] >= min(end_s, 3650 * 86_400)
