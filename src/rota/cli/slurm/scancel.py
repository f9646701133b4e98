"""`scancel`: end jobs, waiting or running."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable, Sequence

from rota.app import signals
from rota.cli.slurm import jobs
from rota.cli.slurm.jobs import Job
from rota.cli.slurm.options import Option, Parsed, Takes, UsageError, parse
from rota.cli.slurm.say import error, guarded, notes, say
from rota.client.errors import NotFound, Refused, Unauthorised
from rota.client.sync import Client

HELP = """\
usage: scancel [ID | ID_INDEX | ID_[1-3] ...] [-u USER | --me] [-n NAME] [-t PENDING|RUNNING] [-s KILL] [-v] [-Q]

Several conditions must all hold. An array's id ends all of its tasks. -s KILL kills running jobs
at once; without it they get SIGTERM first."""
_LATER = "a cancel sends SIGTERM, and SIGKILL after the job's grace time"
TABLE = (
    Option("help", "", Takes.NOTHING),
    Option("user", "u"),
    Option("me", "", Takes.NOTHING),
    Option("name", "n"),
    Option("jobname", ""),
    Option("state", "t"),
    Option("verbose", "v", Takes.NOTHING),
    Option("quiet", "Q", Takes.NOTHING),
    Option("full", "f", Takes.NOTHING),
    Option("batch", "b", Takes.NOTHING, note=_LATER),
    Option("partition", "p", note="Rota has one queue"),
    Option("account", "A", refusal="choose by -u, -n or -t"),
    Option("signal", "s"),
    Option("interactive", "i", Takes.NOTHING, refusal="look with squeue first"),
)
_LIVE = ("PENDING", "RUNNING", "CONFIGURING")


def main(argv: Sequence[str] | None = None) -> int:
    return guarded("scancel", _scancel, sys.argv[1:] if argv is None else argv)


def _scancel(argv: Sequence[str]) -> int:
    parsed = parse(argv, TABLE, interspersed=True)
    if parsed.has("help"):
        sys.stdout.write(HELP + "\n")
        return 0
    conditions = [name for name in ("user", "me", "name", "jobname", "state") if parsed.has(name)]
    if not parsed.rest and not conditions:
        raise UsageError("No job identification provided")
    if parsed.has("signal"):
        _must_kill(parsed.last("signal") or "")
    if not parsed.has("quiet"):
        notes("scancel", parsed.notes)
    worst = 0
    with Client.from_env() as client:
        wanted = jobs.states(parsed.last("state") or ",".join(_LIVE))
        users = {client.whoami().name} if parsed.has("me") else {parsed.last("user")} if parsed.has("user") else None
        name = parsed.last("name") or parsed.last("jobname")
        found, worst = _named(client, parsed) if parsed.rest else (list(_live(client)), 0)
        if not conditions and _cancel_array(client, found, parsed):
            return worst
        # what waits goes first: else it would start, for a moment, in the place of what was ended before it
        for job in sorted(found, key=lambda job: not job.waiting):
            fits = job.state in wanted and (users is None or job.run.user in users) and name in (None, job.run.name)
            if fits:
                worst = max(worst, _cancel(client, job, quiet=bool(conditions) and not parsed.rest, parsed=parsed))
            elif parsed.has("verbose") and parsed.rest:
                say("scancel", f"{job.id} is {job.state}: left alone")
    return worst


def _must_kill(text: str) -> None:
    """Of all signals only KILL ends a job whatever it is; another one it might survive, and a cancel is no mail."""
    try:
        number = signals.number(text)
    except ValueError as problem:
        raise UsageError(f"--signal: {problem}") from None
    if number != signal.SIGKILL:
        raise UsageError(f"--signal: {_LATER}; besides that only KILL can be sent, which ends a job at once")


def _named(client: Client, parsed: Parsed) -> tuple[list[Job], int]:
    found, worst = [], 0
    for text in (one for word in parsed.rest for one in _split(word)):
        try:
            found += jobs.find(client, text)
        except NotFound:
            if not parsed.has("quiet"):
                error("scancel", f"Kill job error on job id {text}: Invalid job id specified")
            worst = 1
    return found, worst


def _split(word: str) -> list[str]:
    return [word] if "[" in word else word.split(",")


def _live(client: Client) -> Iterable[Job]:
    for status in ("ready", "queued", "launching", "running"):
        yield from map(Job, client.runs(status=status))


def _cancel_array(client: Client, found: Sequence[Job], parsed: Parsed) -> bool:
    """End all tasks of an array by one call, where it alone was named; False = they have to be ended one by one."""
    whole = parsed.rest[0]
    if len(parsed.rest) > 1 or len(found) < 2 or any(job.run.sweep_id != whole for job in found):
        return False
    try:
        done = client.cancel_sweep(whole, now=parsed.has("signal"))
    except Refused:  # told of at the task that it is about; an older server knows no such call
        return False
    if done["refused_count"]:
        return False
    if parsed.has("verbose"):
        for job in sorted(found, key=lambda job: not job.waiting):
            if job.state in _LIVE:
                say("scancel", f"Terminating job {job.id}")
            else:
                say("scancel", f"{job.id} is {job.state}: left alone")
    return True


def _cancel(client: Client, job: Job, *, quiet: bool, parsed: Parsed) -> int:
    """Of jobs that were chosen by a condition, other people's are passed over in silence, as Slurm does."""
    if parsed.has("verbose"):
        say("scancel", f"Terminating job {job.id}")
    try:
        client.cancel(job.run.id, now=parsed.has("signal"))
    except Unauthorised as problem:
        return (
            0 if quiet else error("scancel", f"Kill job error on job id {job.id}: Access/permission denied: {problem}")
        )
    except Refused as problem:
        if problem.status in (400, 404, 409):  # it ended meanwhile: what was wanted is so
            return 0
        return error("scancel", f"Kill job error on job id {job.id}: {problem}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
