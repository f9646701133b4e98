"""A simulation in words and tables for a terminal, and as one JSON value."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rota.cli.render import plain
from rota.cli.table import table

if TYPE_CHECKING:
    from rota.sim.compare import Change, Comparison, Fidelity
    from rota.sim.table import Figures

WIDTH = 100
MOST_PEOPLE = 20


def drawn(some: Sequence[Figures], live: Figures | None) -> str:
    """A column a policy, in as many blocks as the width asks for; then what it says."""
    from rota.sim.table import RATIO_ROWS, RATIOS, rows, verdict

    columns = [*some, *([live] if live else [])]
    cells = rows(columns)
    heads = ["", *(one.name for one in columns)]
    sizes = [max(len(row[i]) for row in [heads, *cells]) for i in range(len(heads))]
    parts = []
    for block in _blocks(sizes[1:], WIDTH - sizes[0]):
        which = [0, *(i + 1 for i in block)]
        named = [heads[i] for i in which]
        parts.append(table(named, [[row[i] for i in which] for row in cells], right=named[1:]))
    legend = [RATIOS] if any(row[0] in RATIO_ROWS for row in cells) else []
    return "\n\n".join([*parts, *map(paragraph, [*legend, *verdict(some)])])


def _blocks(sizes: Sequence[int], room: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    left = room
    for i, size in enumerate(sizes):
        if found[-1] and left < size + 2:
            found.append([])
            left = room
        found[-1].append(i)
        left -= size + 2
    return found


def compared(comparisons: Sequence[Comparison], fidelity: Fidelity | None) -> str:
    from rota.sim.compare import summary, trust
    from rota.sim.report import PEOPLE, RUNS, people, runs

    parts = [paragraph(trust(fidelity))] if fidelity is not None else []  # before what it is about
    for one in comparisons:
        parts.append(paragraph(summary(one)))
        if one.runs_already:
            continue
        parts.append(table(_heads(PEOPLE), people(one, MOST_PEOPLE), right=_heads(PEOPLE)[1:5]))
        if len(one.people) > MOST_PEOPLE:
            parts.append(f"({len(one.people) - MOST_PEOPLE:,} people between these are left out; --json has all)")
        for words, some in (("gain", one.gains), ("lose", one.losses)):
            if some:
                lines = table(_heads(RUNS), runs(some), right=_heads(RUNS)[2:])
                parts.append(f"The runs that {words} most under {plain(one.policy)}:\n{lines}")
    return "\n\n".join(parts)


def _heads(words: Sequence[str]) -> list[str]:
    return [word.upper() if word != "GPUs" else "GPUS" for word in words]


def paragraph(text: str) -> str:
    width = min(WIDTH, max(40, shutil.get_terminal_size((WIDTH, 24)).columns))
    return textwrap.fill(plain(text), width, break_long_words=False, break_on_hyphens=False)


# -- for programs -----------------------------------------------------------------------------------------------------
def figures_json(one: Figures) -> dict[str, Any]:
    return {
        "name": one.name,
        "measures": dict(one.mean),
        "deviations": dict(one.deviation) or None,
        "user_mean_wait_s": dict(one.user_mean_wait_s),
    }


def comparison_json(one: Comparison) -> dict[str, Any]:
    return {
        "policy": one.policy,
        "runs_already": one.runs_already,
        "runs": one.runs,
        "live_mean_wait_s": one.live_s,
        "mean_wait_s": one.would_s,
        "runs_waiting_less": one.less,
        "runs_waiting_more": one.more,
        "people": [
            {
                "user": person.user,
                "runs": person.runs,
                "live_mean_wait_s": person.live_s,
                "mean_wait_s": person.would_s,
                "less_s": person.less_s,
                "most": change_json(person.most),
            }
            for person in one.people
        ],
        "gains": [change_json(change) for change in one.gains],
        "losses": [change_json(change) for change in one.losses],
    }


def change_json(one: Change) -> dict[str, Any]:
    return {
        "run": one.job.id,
        "user": one.job.user,
        "gpus": one.job.gpus,
        "live_wait_s": one.live_s,
        "wait_s": one.would_s,
        "less_s": one.less_s,
    }


def fidelity_json(one: Fidelity) -> dict[str, Any]:
    found = asdict(one)
    return {
        "policy": found["policy"],
        "live_mean_wait_s": found["live_s"],
        "simulated_mean_wait_s": found["simulated_s"],
        "median_error_s": found["middle_error_s"],
        "believable": one.believable,
    }
