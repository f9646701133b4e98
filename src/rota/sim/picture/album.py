"""All pictures of one simulation, each with a name for its file; and several put one below the other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rota.sim.model import Result
from rota.sim.picture.bars import Bar, bars
from rota.sim.picture.canvas import Box, Canvas, Line, Words
from rota.sim.picture.gantt import gantt
from rota.sim.picture.series import panel, spans
from rota.sim.picture.utilisation import utilisation
from rota.sim.picture.waits import wait_distribution
from rota.sim.table import Figures

Album = list[tuple[str, Canvas]]


def album(some: Sequence[Figures], results: Sequence[tuple[str, Result]]) -> Album:
    """`results`: schedules by the name of their policy, of the jobs as they are."""
    end_s = max((result.makespan_s for _, result in results), default=0)
    gpus = max((result.gpus for _, result in results), default=0)
    made = [
        ("mean-wait", _means(some)),
        ("waits", wait_distribution({name: result.waits for name, result in results})),
        ("utilisation", utilisation([panel(name, result, end_s) for name, result in results], gpus, end_s)),
    ]
    for name, result in results:
        made.append((f"gantt-{slug(name)}", gantt(result.gpus_of, spans(result), end_s, f"Who had which GPU: {name}")))
    return made


def _means(some: Sequence[Figures]) -> Canvas:
    groups = []
    for title, field in (
        ("all jobs", "mean_wait_s"),
        ("jobs that declared an hour or less", "short_mean_wait_s"),
        ("jobs that ran longer than 10 min", "long_mean_wait_s"),
    ):
        known = [(one, value) for one in some if (value := one[field]) is not None]
        if known:
            groups.append((title, [Bar(one.name, value, one.deviation.get(field) or 0.0) for one, value in known]))
    shaken = any(one.deviation for one in some)
    return bars(groups, "Mean wait", "" if shaken else "one simulation each")


def slug(name: str) -> str:
    """For a part of a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "policy"


def stacked(pictures: Sequence[Canvas], title: str, gap: int = 16) -> Canvas:
    """One below the other."""
    sheet = Canvas(max(one.width for one in pictures), sum(one.height + gap for one in pictures) - gap, title)
    top = 0
    for one in pictures:
        sheet.marks += [_lowered(mark, top) for mark in one.marks]
        top += one.height + gap
    return sheet


def _lowered(mark: Box | Line | Words, by: float) -> Box | Line | Words:
    if isinstance(mark, Line):
        return replace(mark, points=tuple((x, y + by) for x, y in mark.points))
    return replace(mark, y=mark.y + by)
