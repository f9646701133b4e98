"""`squeue`: what waits and what runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from rota.cli.slurm import clock, jobs
from rota.cli.slurm.columns import Field, Table
from rota.cli.slurm.jobs import Job
from rota.cli.slurm.options import Option, Parsed, Takes, UsageError, parse
from rota.cli.slurm.say import guarded, notes
from rota.client.errors import NotFound
from rota.client.sync import Client

DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %.20Y %R"
HELP = """\
usage: squeue [-u USERS | --me] [-j IDS] [-t STATES] [-n NAMES] [-h] [-l] [-o FORMAT] [--start]

  -u --me     of these users, of me            -t     PD, R, ... or all; without it what waits and runs
  -j          these jobs; an array by its id   -o     fields such as "%.18i %.9P %j %u %t %M %D %R"
  -h          no heading                       -l     long
  --start     when waiting jobs will start"""
_ONE = "Rota has one queue"
TABLE = (
    Option("help", "", Takes.NOTHING),
    Option("user", "u"),
    Option("me", "", Takes.NOTHING),
    Option("jobs", "j", Takes.PERHAPS),
    Option("job", "", Takes.VALUE),
    Option("states", "t"),
    Option("name", "n"),
    Option("noheader", "h", Takes.NOTHING),
    Option("long", "l", Takes.NOTHING),
    Option("format", "o"),
    Option("start", "", Takes.NOTHING),
    Option("array", "r", Takes.NOTHING),
    Option("all", "a", Takes.NOTHING),
    Option("verbose", "v", Takes.NOTHING),
    Option("partition", "p", note=_ONE),
    Option("account", "A", note=_ONE),
    Option("qos", "q", note=_ONE),
    Option("sort", "S", note="waiting jobs come in the order in which they will start"),
    Option("iterate", "i", refusal="use: rota top, or rota queue --watch"),
    Option("Format", "O", refusal="use -o with %-fields"),
    Option("json", "", Takes.PERHAPS, refusal="use: rota queue --json"),
)
_STATUSES = (("CONFIGURING", "launching"), ("RUNNING", "running"), ("COMPLETED", "finished"), ("CANCELLED", "stopped"))
EXPLAINED = 20
_LIVE = ("PENDING", "CONFIGURING", "RUNNING")


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("squeue", _squeue, sys.argv[1:] if argv is None else argv)


def _squeue(argv: Sequence[str]) -> int:
    parsed = parse(_joined(argv), TABLE, interspersed=True)
    if parsed.has("help"):
        sys.stdout.write(HELP + "\n")
        return 0
    if parsed.rest:
        raise UsageError(f"Unrecognized option: {parsed.rest[0]}")
    now = time.time()
    form = START if parsed.has("start") else LONG if parsed.has("long") else DEFAULT
    table = Table(parsed.last("format") or form, fields(now))
    notes("squeue", parsed.notes)
    with Client.from_env() as client:
        found = list(_chosen(client, parsed))
        if parsed.has("start"):
            found = [job for job in found if job.waiting]
        found = _explained(client, found, EXPLAINED * (10 if parsed.has("start") else 1))
    lines = [] if parsed.has("noheader") else [table.heading()]
    lines += [table.row(job) for job in found]
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()
    return 0


def _explained(client: Client, found: list[Job], most: int) -> list[Job]:
    """A list of runs says nothing of reasons and expected starts: the first so many that wait are asked for one by one.
    Those behind them wait, before all else, for their turn."""
    made = []
    for job in found:
        if job.run.status == "queued" and most > 0 and not job.run.reasons:
            most -= 1
            with suppress(NotFound):
                job = Job(client.run(job.run.id))  # noqa: PLW2901 - the same job, with more known
        made.append(job)
    return made


def fields(now: float) -> dict[str, Field[Job]]:
    return {
        "i": Field("JOBID", lambda job: job.id),
        "A": Field("JOBID", lambda job: job.run.id),
        "F": Field("ARRAY_JOB_ID", lambda job: job.run.sweep_id or job.run.id),
        "K": Field("ARRAY_TASK_ID", lambda job: _text(jobs.task_of(job.run))),
        "P": Field("PARTITION", lambda job: job.partition),
        "j": Field("NAME", lambda job: job.run.name),
        "u": Field("USER", lambda job: job.run.user),
        "a": Field("ACCOUNT", lambda job: job.account),
        "t": Field("ST", lambda job: job.code),
        "T": Field("STATE", lambda job: job.state),
        "M": Field("TIME", lambda job: clock.duration(job.elapsed(now))),
        "l": Field("TIME_LIMIT", lambda job: clock.limit(job.time_limit_s)),
        "L": Field("TIME_LEFT", lambda job: clock.limit(_left_s(job, now))),
        "D": Field("NODES", lambda job: str(job.node_count)),
        "C": Field("CPUS", lambda job: str(job.cpus)),
        "b": Field("TRES_PER_NODE", lambda job: f"gres/gpu:{job.run.gpu_count}" if job.run.gpu_count else "N/A"),
        "Q": Field("PRIORITY", lambda job: str(job.run.priority)),
        "r": Field("REASON", lambda job: job.reason),
        "R": Field("NODELIST(REASON)", lambda job: job.where),
        "N": Field("NODELIST", lambda job: jobs.compressed(job.nodes)),
        "S": Field("START_TIME", lambda job: clock.stamp(job.started if job.started is not None else job.run.eta)),
        "V": Field("SUBMIT_TIME", lambda job: clock.stamp(job.run.created_at)),
        "e": Field("END_TIME", lambda job: clock.stamp(job.run.ended_at)),
        "o": Field("COMMAND", lambda job: job.run.command),
        "Z": Field("WORK_DIR", lambda job: job.run.workdir),
        "Y": Field("SCHEDNODES", lambda job: "(null)"),
    }


def _chosen(client: Client, parsed: Parsed) -> Iterable[Job]:
    users = _users(client, parsed)
    names = _set(parsed.last("name"))
    wanted = jobs.states(parsed.last("states") or ",".join(_LIVE))
    ids = parsed.last("jobs") or parsed.last("job")
    for job in _of_ids(client, ids) if ids else _of_states(client, wanted):
        if (
            (job.state in wanted or (ids and not parsed.has("states")))
            and (users is None or job.run.user in users)
            and (names is None or job.run.name in names)
        ):
            yield job


def _of_ids(client: Client, text: str) -> Iterable[Job]:
    """One id that is not known is an error, as Slurm has it; of several the others are shown."""
    ids = text.split(",")
    for one in ids:
        try:
            yield from jobs.find(client, one)
        except NotFound:
            if len(ids) == 1:
                raise NotFound(404, "Invalid job id specified") from None


def _of_states(client: Client, wanted: frozenset[str]) -> Iterable[Job]:
    """Waiting ones in the order of the queue, then running ones, then what has ended, newest first."""
    if "PENDING" in wanted:
        place = {job.id: number for number, job in enumerate(client.queue().queued)}
        waiting = [*client.runs(status="queued"), *client.runs(status="ready")]
        yield from map(Job, sorted(waiting, key=lambda run: place.get(run.id, len(place))))
    statuses = [
        ("CONFIGURING", "launching"),
        ("RUNNING", "running"),
        ("COMPLETED", "finished"),
        ("CANCELLED", "stopped"),
    ]
    for word, status in statuses:
        if word in wanted:
            yield from map(Job, client.runs(status=status))
    if wanted - {"PENDING", *(word for word, _ in _STATUSES)}:
        yield from map(Job, client.runs(status="failed"))


def _users(client: Client, parsed: Parsed) -> set[str] | None:
    if parsed.has("me"):
        return {client.whoami().name}
    return _set(parsed.last("user"))


def _set(text: str | None) -> set[str] | None:
    return None if text is None else set(text.split(","))


def _left_s(job: Job, now: float) -> float | None:
    limit = job.time_limit_s
    return None if limit is None else max(0.0, limit - job.elapsed(now))


def _text(value: int | None) -> str:
    return "N/A" if value is None else str(value)


def _joined(argv: Sequence[str]) -> list[str]:
    """`-j 1,2` beside `-j1,2`: Slurm takes the next word where it looks like ids."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] in ("-j", "--jobs") and not word.startswith("-"):
            words[-1] = f"--jobs={word}"
        else:
            words.append(word)
    return words


if __name__ == "__main__":
    sys.exit(main())
