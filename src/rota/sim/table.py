"""The measures of several policies side by side: a column a policy, a row a question that people ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, stdev

from rota.sim.human import digits, many, percent, span
from rota.sim.many import Answer
from rota.sim.measure import Measures

Show = Callable[[float], str]


def times(number: float) -> str:
    return f"{digits(number)}x"


ROWS: tuple[tuple[str, str, Show], ...] = (
    ("mean wait", "mean_wait_s", span),
    ("half wait at most (p50)", "p50_wait_s", span),
    ("95 % wait at most (p95)", "p95_wait_s", span),
    ("longest wait", "max_wait_s", span),
    ("jobs that wait > 5 min", "share_over_5min", percent),
    ("mean wait, declared <= 1 h", "short_mean_wait_s", span),
    ("mean wait, ran > 10 min", "long_mean_wait_s", span),
    ("submit to end, mean (JCT)", "mean_jct_s", span),
    ("GPUs busy when all are wanted", "busy_when_full", percent),
    ("GPUs busy over the whole time", "utilisation", percent),
    ("times a job was stopped", "preemptions", digits),
    ("8+ GPUs: 99 % wait at most", "wide_p99_wait_s", span),
    ("worst-off person / mean wait", "worst_user_over_mean", times),
    ("evenness over people (Jain)", "jain", lambda number: f"{number:.2f}"),
    ("longest wait / fair turn", "starvation", times),
)
RATIO_ROWS = ("worst-off person / mean wait", "longest wait / fair turn")
RATIOS = (
    "Rows with x are ratios: the longest mean wait of a person over the mean wait of all jobs; and of all jobs the "
    "longest wait over the job's own fair turn, which is its duration (10 min at least) and the work that came before "
    "it, spread over all GPUs: far above 1x somebody starves."
)
NUMBERS = tuple(one.name for one in fields(Measures) if one.name not in ("user_mean_wait_s", "starved_job"))


@dataclass(frozen=True, slots=True)
class Figures:
    """What is known of one policy. None = there is nothing to say it of; no deviations = it was measured once."""

    name: str
    mean: Mapping[str, float | None]
    deviation: Mapping[str, float | None]
    user_mean_wait_s: Mapping[str, float]  # of the jobs as they are

    def __getitem__(self, field: str) -> float | None:
        return self.mean[field]


def figures(name: str, runs: Sequence[Measures], as_is: Measures | None = None) -> Figures:
    """Of one simulation, or the mean and the standard deviation of several."""
    mean: dict[str, float | None] = {}
    deviation: dict[str, float | None] = {}
    for field in NUMBERS:
        known = [value for value in (getattr(run, field) for run in runs) if value is not None]
        mean[field] = fmean(known) if len(known) > 1 else next(iter(known), None)
        if len(runs) > 1:
            deviation[field] = stdev(known) if len(known) > 1 else None
    return Figures(name, mean, deviation, (as_is or runs[0]).user_mean_wait_s)


def figures_of(answer: Answer) -> Figures:
    return figures(answer.name, answer.runs, answer.measured)


def rows(some: Sequence[Figures]) -> list[list[str]]:
    """A row for each question that any of them can answer: its words, then a cell a policy."""
    made = []
    for label, field, show in ROWS:
        if any(one[field] is not None for one in some):
            made.append([label, *(cell(one, field, show) for one in some)])
    return made


def cell(one: Figures, field: str, show: Show) -> str:
    """`37 min`, or with its standard deviation `37 min (1.7 min)`."""
    value, deviation = one[field], one.deviation.get(field)
    if value is None:
        return "-"
    return show(value) if deviation is None else f"{show(value)} ({show(deviation)})"


def verdict(some: Sequence[Figures]) -> list[str]:
    """In words what the table says of the first: beside what people know best, and shortly beside the others."""
    first, *others = some
    if not others:
        said = [_alone(first)]
    else:
        known = next((other for other in others if other.name == KNOWN), others[0])
        said = [_beside(first, known)]
        ratios = [_ratio(first, other) for other in others if other is not known]
        said += [f"The mean wait of {first.name} is {', '.join(ratios)}."] if any(ratios) else []
    return said + few(first) + ([] if first.deviation else [ONCE])


def few(one: Figures) -> list[str]:
    """Which rows are made by a handful of jobs."""
    jobs, wide = round(one["jobs"] or 0), round(one["wide_jobs"] or 0)
    said = []
    if jobs < ENOUGH / 0.05:
        said.append(f"p95 is made by the {_longest(jobs, 0.05)} of {many(jobs, 'job')}")
    if 0 < wide < ENOUGH / 0.01:
        wider = many(wide, "job with 8 or more GPUs", "jobs with 8 or more GPUs")
        said.append(f"the 99 % row by the {_longest(wide, 0.01)} of {wider}")
    return [f"Too few to mean much: {', '.join(said)}. The mean says more."] if said else []


def _longest(count: int, share: float) -> str:
    beyond = count - -(-count * round(1000 * (1 - share)) // 1000) + 1  # as measure.quantile counts
    return "longest wait" if beyond < 2 else f"{beyond} longest waits"


ENOUGH = 5  # jobs beyond a quantile: with fewer it is the fate of single ones
KNOWN = "easy"  # what Slurm does: most people have stood in such a line
ONCE = "This is one simulation, and single ones mislead: --shakes 20 shows what of it is luck."


def _alone(one: Figures) -> str:
    return f"Under {one.name} jobs wait {span(one['mean_wait_s'] or 0.0)} on average{_rest(one)}."


def _beside(one: Figures, other: Figures) -> str:
    mine, theirs = one["mean_wait_s"] or 0.0, other["mean_wait_s"] or 0.0
    means = f"{span(mine)} instead of {span(theirs)} on average"
    if not theirs:
        said = f"Under {other.name} nobody waits; under {one.name} jobs wait {span(mine)} on average"
    else:
        said = f"{one.name} lets jobs wait {times(mine / theirs)} as long as {other.name} ({means})"
    return f"{said}{_rest(one, other)}."


def _ratio(one: Figures, other: Figures) -> str:
    """0.17x that of fcfs-skip."""
    mine, theirs = one["mean_wait_s"] or 0.0, other["mean_wait_s"] or 0.0
    return f"{times(mine / theirs)} that of {other.name}" if theirs else f"{span(mine)} where {other.name} has none"


def _rest(one: Figures, other: Figures | None = None) -> str:
    """; 3.1 % wait more than 5 min (easy: 24 %); ..."""
    parts = (
        ("share_over_5min", "{} of the jobs wait more than 5 min", percent),
        ("busy_when_full", "GPUs are {} busy while all are wanted", percent),
        ("wide_p99_wait_s", "99 % of the jobs with 8 or more GPUs wait at most {}", span),
        ("starvation", "nobody waits longer than {} their fair turn in order of arrival", times),
    )
    said = ""
    for field, words, show in parts:
        value, theirs = one[field], None if other is None else other[field]
        if value is not None and (value or field != "starvation"):  # where nobody waits the rest has said so
            beside = f" ({other.name}: {show(theirs)})" if other is not None and theirs is not None else ""
            said += f"; {words.format(show(value))}{beside}"
    return said
