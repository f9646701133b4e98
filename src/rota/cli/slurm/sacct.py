"""`sacct`: what ran. Rota keeps no job steps, so each job is one line, as with sacct -X."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rota.cli.render import plain
from rota.cli.slurm import clock, jobs
from rota.cli.slurm.jobs import Job
from rota.cli.slurm.options import Option, Parsed, Takes, UsageError, parse
from rota.cli.slurm.say import guarded, notes
from rota.cli.slurm.values import moment
from rota.client.errors import NotFound
from rota.client.sync import Client

DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"
MOST = 100_000  # runs that are looked through
HELP = """\
usage: sacct [-j IDS] [-u USERS | -a] [-S TIME] [-E TIME] [-s STATES] [--name=NAMES] [-X] [-P|-p] [-n] [-o FORMAT]

Without -j: yours, from 00:00 today on. Times: 2026-11-05, 2026-11-05T14:00, 14:00, now-2days.
FORMAT is names with commas, as JobID,State%20,Elapsed; --helpformat lists them."""
TABLE = (
    Option("help", "h", Takes.NOTHING),
    Option("helpformat", "e", Takes.NOTHING),
    Option("jobs", "j"),
    Option("user", "u"),
    Option("uid", ""),
    Option("allusers", "a", Takes.NOTHING),
    Option("starttime", "S"),
    Option("endtime", "E"),
    Option("state", "s"),
    Option("name", ""),
    Option("allocations", "X", Takes.NOTHING),
    Option("parsable2", "P", Takes.NOTHING),
    Option("parsable", "p", Takes.NOTHING),
    Option("delimiter", ""),
    Option("noheader", "n", Takes.NOTHING),
    Option("format", "o"),
    Option("long", "l", Takes.NOTHING),
    Option("brief", "b", Takes.NOTHING),
    Option("duplicates", "D", Takes.NOTHING),
    Option("truncate", "T", Takes.NOTHING),
    Option("allclusters", "L", Takes.NOTHING),
    Option("units", "", note="memory use is not recorded"),
    Option("partition", "r", note="Rota has one queue"),
    Option("accounts", "A", note="Rota has one queue"),
    Option("qos", "q", note="Rota has one queue"),
    Option("json", "", Takes.PERHAPS, refusal="use: rota history --json"),
)


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    width: int
    value: Callable[[Job], str]


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("sacct", _sacct, sys.argv[1:] if argv is None else argv)


def _sacct(argv: Sequence[str]) -> int:
    parsed = parse(argv, TABLE, interspersed=True)
    if parsed.has("help"):
        sys.stdout.write(HELP + "\n")
        return 0
    now = time.time()
    known = columns(now)
    if parsed.has("helpformat"):
        sys.stdout.write(" ".join(column.name for column in known) + "\n")
        return 0
    if parsed.rest:
        raise UsageError(f"Unknown arguments: {' '.join(parsed.rest)}")
    form = parsed.last("format") or ("JobID,State,ExitCode" if parsed.has("brief") else DEFAULT)
    chosen = _columns(form, known)
    notes("sacct", parsed.notes)
    with Client.from_env() as client:
        found = list(_chosen(client, parsed, now))
    for line in _lines(parsed, chosen, found):
        sys.stdout.write(line + "\n")
    sys.stdout.flush()
    return 0


def _lines(parsed: Parsed, chosen: Sequence[Column], found: Sequence[Job]) -> Iterable[str]:
    heading = not parsed.has("noheader")
    if parsed.has("parsable2") or parsed.has("parsable"):
        mark = parsed.last("delimiter") or "|"
        end = mark if parsed.has("parsable") else ""
        if heading:
            yield mark.join(column.name for column in chosen) + end
        for job in found:
            yield mark.join(plain(column.value(job)) for column in chosen) + end
        return
    if heading:
        yield " ".join(_cell(column.name, column.width) for column in chosen)
        yield " ".join("-" * abs(column.width) for column in chosen)
    for job in found:
        yield " ".join(_cell(plain(column.value(job)), column.width) for column in chosen)


def _cell(text: str, width: int) -> str:
    """A negative width is left-justified; what is cut ends in `+`."""
    size = abs(width)
    text = text if len(text) <= size else text[: size - 1] + "+"
    return f"{text:{'<' if width < 0 else '>'}{size}}"


def _columns(form: str, known: Sequence[Column]) -> list[Column]:
    by_name = {column.name.lower(): column for column in known}
    found = []
    for item in form.split(","):
        name, percent, width = item.strip().partition("%")
        column = by_name.get(name.lower())
        if column is None:
            raise UsageError(f"Invalid field requested: {name!r}; there are {' '.join(c.name for c in known)}")
        if percent:
            if not width.removeprefix("-").isdigit() or not 1 <= abs(int(width)) <= 1000:
                raise UsageError(f"--format: {item!r} has no width such as %20")
            column = Column(column.name, int(width), column.value)
        found.append(column)
    return found


def _chosen(client: Client, parsed: Parsed, now: float) -> Iterable[Job]:
    since = moment("starttime", parsed.last("starttime") or "midnight", now)
    until = moment("endtime", parsed.last("endtime") or "now", now)
    if parsed.has("starttime") and since > until:
        raise UsageError("Start time (-S) requested is after End time (-E).")
    ids = parsed.last("jobs")
    users = _users(client, parsed, by_id=ids is not None)
    wanted = jobs.states(parsed.last("state") or "all")
    names = set((parsed.last("name") or "").split(",")) if parsed.has("name") else None
    for job in _of_ids(client, ids) if ids else _oldest_first(client):
        run = job.run
        when = parsed.has("starttime") or not ids
        overlaps = (run.created_at or now) <= until and (run.ended_at is None or run.ended_at >= since)
        named = (users is None or run.user in users) and (names is None or run.name in names)
        if (overlaps or not when) and named and job.state in wanted:
            yield job


def _users(client: Client, parsed: Parsed, *, by_id: bool) -> set[str] | None:
    """Without a word about users: one's own, or whose ever the named jobs are."""
    given = parsed.last("user") or parsed.last("uid")
    if given:
        return set(given.split(","))
    return None if parsed.has("allusers") or by_id else {client.whoami().name}


def _of_ids(client: Client, text: str) -> Iterable[Job]:
    for one in text.split(","):
        try:
            yield from jobs.find(client, one.removesuffix(".batch"))
        except NotFound:
            continue  # sacct shows what it knows and says nothing of the rest


def _oldest_first(client: Client) -> Iterable[Job]:
    found = [*client.runs(limit=MOST), *client.runs(archived=True, limit=MOST)]
    unique = {run.id: run for run in found}
    return map(Job, sorted(unique.values(), key=lambda run: run.created_at or 0.0))


def columns(now: float) -> tuple[Column, ...]:
    def gpus(job: Job) -> str:
        return f"billing={job.cpus},cpu={job.cpus},gres/gpu={job.run.gpu_count},node={job.node_count}"

    return (
        Column("JobID", -17, lambda job: job.id),
        Column("JobIDRaw", -12, lambda job: job.run.id),
        Column("JobName", 10, lambda job: job.run.name),
        Column("Partition", 10, lambda job: job.partition),
        Column("Account", 10, lambda job: job.account),
        Column("User", 9, lambda job: job.run.user),
        Column("AllocCPUS", 10, lambda job: str(job.cpus if job.started is not None else 0)),
        Column("NCPUS", 10, lambda job: str(job.cpus if job.started is not None else 0)),
        Column("ReqCPUS", 8, lambda job: str(job.cpus)),
        Column("AllocTRES", 10, lambda job: gpus(job) if job.started is not None else ""),
        Column("ReqTRES", 10, gpus),
        Column("NNodes", 8, lambda job: str(job.node_count)),
        Column("AllocNodes", 10, lambda job: str(job.node_count if job.started is not None else 0)),
        Column("NodeList", 15, lambda job: jobs.compressed(job.nodes) or "None assigned"),
        Column("State", 10, lambda job: job.state),
        Column("ExitCode", 8, lambda job: job.exit),
        Column("Reason", 22, lambda job: job.reason),
        Column("Priority", 10, lambda job: str(job.run.priority)),
        Column("Submit", 19, lambda job: clock.stamp(job.run.created_at, "Unknown")),
        Column("Eligible", 19, lambda job: clock.stamp(job.run.queued_at, "Unknown")),
        Column("Start", 19, lambda job: clock.stamp(job.started, "Unknown")),
        Column("End", 19, lambda job: clock.stamp(job.run.ended_at, "Unknown")),
        Column("Elapsed", 10, lambda job: clock.duration(job.elapsed(now), always_hours=True)),
        Column("ElapsedRaw", 10, lambda job: str(int(job.elapsed(now)))),
        Column("Timelimit", 10, lambda job: clock.limit(job.time_limit_s)),
        Column("WorkDir", 20, lambda job: job.run.workdir),
        Column("SubmitLine", 20, lambda job: job.run.command),
        Column("Restarts", 8, lambda job: str(job.run.retry_count)),
    )


if __name__ == "__main__":
    sys.exit(main())
