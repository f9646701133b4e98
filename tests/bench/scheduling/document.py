"""docs/SCHEDULING.md: its prose is written by hand, and every number in it stands in a block that is made here.

A block lies between `<!-- made: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap

from rota.core.knobs import FIELDS
from rota.core.policy import Policy
from rota.sim.human import digits, percent, span
from rota.sim.picture.svg import svg
from tests.bench.scheduling import goals, synthetic, tables
from tests.bench.scheduling.pictures import pictures
from tests.bench.scheduling.results import Results
from tests.bench.scheduling.tables import exact, names, table, times, two
from tests.bench.scheduling.variants import AUTO, AUTO_SLOPPY, EASY, HALF, NO_STOPS, ORACLE, SJF, SRTF, SRTF_SLOPPY

DOCS = Path(__file__).parents[3] / "docs"
DOC = DOCS / "SCHEDULING.md"
WIDE = 120


def record(results: Results) -> list[Path]:
    """The files that were written."""
    text = DOC.read_text()
    for name, block in BLOCKS.items():
        begin, end = f"<!-- made: {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise SystemExit(f"{DOC.name}: needs one {begin} and one {end}")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{wrapped(block(results))}\n{end}{rest.split(end)[1]}"
    unknown = set(re.findall(r"<!-- made: (\S+) -->", text)) - set(BLOCKS)
    if unknown:
        raise SystemExit(f"{DOC.name}: nothing makes {', '.join(sorted(unknown))}")
    drawn = {DOCS / "img" / f"{name}.svg": svg(canvas) for name, canvas in pictures(results).items()}
    for path, picture in drawn.items():
        path.write_text(picture)
    DOC.write_text(text)
    return [DOC, *drawn]


def wrapped(text: str) -> str:
    """Lines as long as those written by hand; tables and code stay as they are."""
    lines = []
    for line in text.splitlines():
        plain = len(line) > WIDE and not line.startswith(("|", "!", "rota "))
        indent = "  " if line.startswith("- ") else ""
        lines += wrap(line, WIDE, subsequent_indent=indent, break_on_hyphens=False) if plain else [line]
    return "\n".join(lines)


def caption(results: Results, place: str) -> str:
    facts, count = results.facts[place], results.count(place, AUTO)
    runs = f"{count} shakes"
    if "0" in results.runs[place][AUTO]:
        runs = "one run of the jobs as they are, and of what has a deviation as many shakes as fit into the time"
    return f"{place}: {facts['jobs']:,} jobs on {facts['nodes']}, offered load {facts['load']:.2f}, {runs}"


def made(results: Results) -> str:
    of = results.made
    shakes = max(results.count(place, AUTO) for place in names(results))
    args = f"ARGS='--shakes {shakes} --record'" if shakes != 20 else "ARGS=--record"
    policies = "--policy easy --policy auto"
    same = f"rota simulate DIR/team16_week.csv --nodes 2x8 --shakes {shakes} --seed {of['seed']} {policies}"
    return (
        f"Made {of['date']} with Python {of['python']} by `make bench-scheduling TRACES=DIR {args}`: {shakes} shakes "
        f"of each team's trace. Numbers in brackets behind a mean are standard deviations over the "
        f"shakes. The same numbers come out of\n\n```sh\n{same}\n```"
    )


def headline(results: Results) -> str:
    lines = []
    for place in names(results):
        mine, theirs = (results.mean(place, one, "mean_wait_s") for one in (AUTO, EASY))
        lines.append(
            f"- **{place}**: jobs wait {span(mine)} on average instead of {span(theirs)} under EASY backfill "
            f"({times(results.ratio(place, AUTO, EASY, 'mean_wait_s'))}); jobs that declared an hour or less wait "
            f"{span(results.mean(place, AUTO, 'short_mean_wait_s'))} instead of "
            f"{span(results.mean(place, EASY, 'short_mean_wait_s'))}. Where nothing may be stopped: "
            f"{span(results.mean(place, NO_STOPS, 'mean_wait_s'))} "
            f"({times(results.ratio(place, NO_STOPS, EASY, 'mean_wait_s'))}). Nobody waits longer than "
            f"{digits(results.worst(place, AUTO, 'fluid'))} times their fair turn (EASY: "
            f"{digits(results.worst(place, EASY, 'fluid'))})."
        )
    return "\n".join(lines)


def traces(results: Results) -> str:
    head = (
        "trace",
        "jobs",
        "users",
        "nodes x GPUs",
        "offered load",
        "jobs <= 10 min",
        "jobs of 8+ GPUs",
        "95 % of work",
    )
    rows = []
    for place in names(results):
        facts = results.facts[place]
        cells = [place, f"{facts['jobs']:,}", str(facts["users"]), str(facts["nodes"]), two(facts["load"])]
        rows.append([*cells, percent(facts["short"]), f"{facts['wide']:,}", f"in {facts['heavy']:,} jobs"])
    return table(head, rows)


def all_tables(results: Results) -> str:
    parts = []
    for place in names(results):
        picture = f"![How long jobs waited under each policy](img/scheduling-waits-{place}.svg)"
        parts += [f"### {place}", f"{caption(results, place).split(': ', 1)[1]}."]
        parts += [
            table(tables.WAITS, tables.waits(results, place)),
            table(tables.OTHERS, tables.others(results, place)),
        ]
        parts.append(picture)
    return "\n\n".join(parts)


def all_goals(results: Results) -> str:
    some = goals.goals(results)
    reached = sum(one.reached for one in some)
    return f"{reached} of {len(some)} are reached.\n\n{table(goals.HEAD, goals.rows(some))}"


def unseen(results: Results) -> str:
    kinds = [kind for kind in synthetic.KINDS if results.has(kind.name, AUTO)]
    if not kinds:
        return "Not in this run."
    lines = [
        f"- **{kind.name}**: {kind.about}; {kind.jobs:,} jobs of {kind.users} users on {kind.nodes}, offered load "
        f"{kind.load:.2f}"
        for kind in kinds
    ]
    count = results.count(kinds[0].name, AUTO)
    parts = ["\n".join(lines), f"{count} traces of each kind, each made from another number; classes declared."]
    parts += [table(tables.UNSEEN, tables.unseen(results))]
    parts += [table(goals.HEAD, goals.rows(goals.on_unseen(results)))]
    return "\n\n".join(parts)


def patience(results: Results) -> str:
    rows = tables.patience(results)
    if not rows:
        return "Not in this run."
    parts = [table(tables.PATIENCE, rows)]
    default = Policy().patience
    for place, points in tables.curve(results).items():
        best = min(points, key=lambda point: results.mean(place, point[1], "mean_wait_s"))
        kind = min(points, key=lambda point: results.mean(place, point[1], "wide_p99_wait_s"))
        parts.append(
            f"On {place} the mean is lowest at {best[0]:g} and wide gangs wait least at {kind[0]:g}. The default, "
            f"{default:g}, has {exact(results.ratio(place, AUTO, best[1], 'mean_wait_s'))} the lowest mean and "
            f"{exact(results.ratio(place, AUTO, kind[1], 'wide_p99_wait_s'))} the lowest p99 of wide gangs; beside "
            f"EASY its gangs' p99 is {exact(results.ratio(place, AUTO, EASY, 'wide_p99_wait_s'))}, beside SRTF "
            f"{exact(results.ratio(place, AUTO, SRTF, 'wide_p99_wait_s'))}."
        )
    return "\n\n".join([*parts, reason(results)])


def reason(results: Results) -> str:
    """Why the default is what it is, as far as these numbers bear it out."""
    for place, points in tables.curve(results).items():
        goal = goals.MEAN_S[place]
        within = [value for value, name in points if results.mean(place, name, "mean_wait_s") <= goal]
        if within and min(within) == Policy().patience:
            return (
                f"The default, {Policy().patience:g}, is the least of these with which the mean of {place} stays "
                f"within its goal of {goal:,} s."
            )
    return "The default is a middle: no value is best for both."


def mixed(results: Results) -> str:
    parts = []
    for place in names(results):
        if len(tables.shares(results, place)) > 1:
            parts += [f"{place}:", table(tables.MIX, tables.mixed(results, place))]
    return "\n\n".join(parts)


def half(results: Results) -> str:
    """How much of what stopping brings is left where half of the jobs may be stopped."""
    lines = []
    for place in (one for one in names(results) if results.has(one, HALF)):
        none, some, all_ = (results.mean(place, one, "mean_wait_s") for one in (NO_STOPS, HALF, AUTO))
        left = (none - some) / (none - all_) if none > all_ else 1.0
        lines.append(f"{percent(max(0.0, left))} on {place}")
    return f"With half of the jobs preemptible, of what stopping brings there is left: {', '.join(lines)}."


def sloppy(results: Results) -> str:
    lines = [
        f"- {place}: auto {exact(results.ratio(place, AUTO_SLOPPY, ORACLE, 'mean_wait_s'))} the oracle's mean wait, "
        f"SRTF {exact(results.ratio(place, SRTF_SLOPPY, ORACLE, 'mean_wait_s'))}"
        for place in names(results)
        if results.has(place, AUTO_SLOPPY) and results.has(place, ORACLE)
    ]
    return "\n".join(lines)


def without(results: Results) -> str:
    lines = [
        f"- {place}: {exact(results.ratio(place, NO_STOPS, SJF, 'mean_wait_s'))} SJF's mean wait; longest wait over "
        f"fair turn {digits(results.worst(place, NO_STOPS, 'fluid'))} in the worst shake where SJF has "
        f"{digits(results.worst(place, SJF, 'fluid'))}"
        for place in names(results)
    ]
    return "\n".join(lines)


def worse(results: Results) -> str:
    """Where auto loses: found by looking, not by remembering."""
    lines = []
    asked: tuple[tuple[str, str, bool, Callable[[float], str]], ...] = (
        ("wide_p99_wait_s", "99 % of wide gangs wait up to {} (EASY: {})", True, span),
        ("worst_user_over_mean", "the worst-off user waits {} times the mean (EASY: {})", True, two),
        ("jain", "Jain's index over users is {} (EASY: {})", False, two),
        ("busy_when_full", "GPUs are {} busy when full (EASY: {})", False, percent),
        ("fluid", "the longest wait over fair turn is {} on average (EASY: {})", True, digits),
    )
    for place in names(results):
        said = []
        for what, words, more_is_worse, show in asked:
            mine, theirs = results.mean(place, AUTO, what), results.mean(place, EASY, what)
            if (mine > theirs if more_is_worse else mine < theirs) and show(mine) != show(theirs):
                said.append(words.format(show(mine), show(theirs)))
        beside = results.ratio(place, AUTO, SRTF, "mean_wait_s")
        if beside > 1.005:
            said.append(f"its mean wait is {exact(beside)} SRTF's")
        lines.append(f"- {place}: {'; '.join(said) if said else 'nowhere in these tables'}.")
    lines += [_missed(results)]
    return "\n".join(lines)


def _missed(results: Results) -> str:
    missed = [f"{one.what} on {one.place} ({one.value})" for one in goals.goals(results) if not one.reached]
    return f"- Goals that are not reached: {'; '.join(missed) if missed else 'none'}."


KNOBS = (
    ("patience", "after waiting this share of its declared time a run is twice as urgent; less = wide and "
     "long runs come sooner, and the mean suffers"),
    ("express", "this times the square root of all GPUs are left to runs of at most 4 h by longer ones that "
     "nobody can stop; 0 = none"),
    ("margin", "how many times more urgent one must be to stop another; more = fewer stops"),
    ("min_run_seconds", "nobody is stopped sooner after a start, longer after every stop; for a higher priority "
     "only once it was stopped before, and 5 min at most. Set it to a few times what your jobs need to load "
     "their data"),
    ("restart_cost_seconds", "GPU time believed to be lost with every stop"),
    ("half_life_seconds", "what a person used counts half after this long, in the share of auto and "
     "under fair_share"),
    ("enable_preemption", "false: nothing is stopped for its turn (fillers still yield)"),
    ("enable_correction", "false: what was declared is believed as it is"),
)  # fmt: skip
LIMITS = (
    "runs, GPUs and waiting runs of one person. They hold under every policy, and cost waiting: GPUs may stand free "
    "beside somebody at their limit"
)


def knobs(_: Results) -> str:
    default, rows = Policy(), []
    for word, words in KNOBS:
        value = getattr(default, FIELDS[word])
        rows.append([f"`{word}`", str(value).lower() if isinstance(value, bool) else f"{value:g}", words])
    rows.append(["`limits`, `user_limits`", "none", LIMITS])
    return table(("", "default", ""), rows)


BLOCKS: Mapping[str, Callable[[Results], str]] = {
    "made": made,
    "headline": headline,
    "goals": all_goals,
    "traces": traces,
    "tables": all_tables,
    "without": without,
    "sloppy": sloppy,
    "patience": patience,
    "mixed": mixed,
    "half": half,
    "unseen": unseen,
    "knobs": knobs,
    "worse": worse,
}
