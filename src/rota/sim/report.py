"""A simulation as one page: words, the table, who gains and who loses, pictures. It needs nothing from anywhere else,
and runs no script. Ids and names are data: everything is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from rota.sim.compare import Change, Comparison, Fidelity, difference, summary, trust
from rota.sim.human import span
from rota.sim.picture.album import Album
from rota.sim.picture.svg import svg
from rota.sim.table import Figures, rows, verdict

STYLE = """
body { font: 15px/1.5 system-ui, 'DejaVu Sans', Arial, sans-serif; color: #222; background: #fff;
       max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 2.2rem 0; }
.wide { overflow-x: auto; } .small { color: #666; font-size: .87rem; } svg { max-width: 100%; height: auto; }
"""
DEFINITIONS = (
    ("wait", "completion - submit - duration, so time lost to stops counts"),
    ("GPUs busy when all are wanted", "GPUs doing useful work over all GPUs, while running + waiting jobs ask for all"),
    (
        "fair turn",
        "the work that came before a job and would still be unfinished in strict order of arrival, over all GPUs, plus "
        "the job's own duration or 10 min",
    ),
    ("evenness", "Jain's index over people's mean waits: 1 is the same for all"),
    ("mean (deviation)", "where there were several shakes: submits moved by up to 5 min, durations by up to 5 %"),
)


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    facts: Sequence[str]  # what was simulated, on what, from where
    figures: Sequence[Figures]
    pictures: Album
    live: Figures | None = None  # what happened, where that is known
    comparisons: Sequence[Comparison] = field(default=())
    fidelity: Fidelity | None = None
    unknown: Sequence[str] = field(default=())  # what the simulation does not know of


def html(page: Page) -> str:
    columns = [*page.figures, *([page.live] if page.live else [])]
    parts = [
        f"<h1>{escape(page.title)}</h1>",
        *(f"<p>{escape(text)}</p>" for text in page.facts),
        *(f"<p><strong>{escape(text)}</strong></p>" for text in verdict(page.figures)),
        table(["", *(one.name for one in columns)], rows(columns)),
    ]
    if page.fidelity is not None:  # before what it is about
        parts.append(f"<p><strong>{escape(trust(page.fidelity))}</strong></p>")
    parts += [_comparison(one) for one in page.comparisons]
    if page.unknown:
        parts += [
            "<h2>What it does not know</h2>",
            "<ul>",
            *(f"<li>{escape(one)}</li>" for one in page.unknown),
            "</ul>",
        ]
    parts += [f'<figure class="wide">\n{svg(one)}</figure>' for _, one in page.pictures]
    parts += ["<h2>What the words mean</h2>", '<dl class="small">']
    parts += [f"<dt><strong>{escape(word)}</strong></dt><dd>{escape(text)}</dd>" for word, text in DEFINITIONS]
    parts += ["</dl>"]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(page.title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(parts) + "\n</body>\n</html>\n"


def table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def _comparison(one: Comparison) -> str:
    if one.runs_already:
        return f"<h2>{escape(one.policy)} is what the server runs</h2>\n<p>{escape(summary(one))}</p>"
    parts = [
        f"<h2>What {escape(one.policy)} would have changed</h2>",
        f"<p>{escape(summary(one))}</p>",
        table(PEOPLE, people(one)),
    ]
    for words, some in (("gain", one.gains), ("lose", one.losses)):
        if some:
            parts += [f"<p>The runs that {words} most:</p>", table(RUNS, runs(some))]
    return "\n".join(parts)


PEOPLE = ("person", "runs", "waited", "would have waited", "on average", "their run that changes most")
RUNS = ("run", "person", "GPUs", "waited", "would have waited", "difference")


def people(one: Comparison, most: int | None = None) -> list[list[str]]:
    """Cells of a table; `most`: only so many, from both ends."""
    shown = list(one.people)
    if most is not None and len(shown) > most:
        shown = shown[: most // 2] + shown[-(most - most // 2) :]
    return [
        [
            person.user or "(nobody)",
            f"{person.runs:,}",
            span(person.live_s),
            span(person.would_s),
            difference(person.less_s),
            f"{person.most.job.id}: {span(person.most.live_s)} -> {span(person.most.would_s)}",
        ]
        for person in shown
    ]


def runs(some: Sequence[Change]) -> list[list[str]]:
    return [
        [
            one.job.id,
            one.job.user or "(nobody)",
            str(one.job.gpus),
            span(one.live_s),
            span(one.would_s),
            difference(one.less_s),
        ]
        for one in some
    ]
