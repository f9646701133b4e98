"""`rota cancel`: end runs: waiting ones leave the queue, running ones are stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rota.cli import sweeps
from rota.cli.connect import FULL_ID, complete, connect, dry_option, for_each, leave, say, server_option
from rota.cli.render import in_time, plain
from rota.client.errors import BadAnswer, NotFound, Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rota.client.answers import Json
    from rota.client.model.cluster import Job
    from rota.client.sync import Client

FORCED_AFTER_S = 10.5  # the server's 10 s, and what the answer takes
POLL_S = 0.5


@click.command()
@click.option("--sweep", "sweep_ids", multiple=True, metavar="ID", help="All that waits or runs of a sweep or array.")
@click.option("--now", is_flag=True, help="Kill what runs, and all it forked, at once and without a polite signal.")
@click.option(
    "--force",
    is_flag=True,
    help="For admins: as --now; what has not ended 10 s later is ended on record, and its GPUs are given back.",
)
@dry_option
@server_option
@click.argument("run_ids", nargs=-1, metavar="RUN_ID...", shell_complete=complete)
def command(
    run_ids: tuple[str, ...], sweep_ids: tuple[str, ...], now: bool, force: bool, dry_run: bool, server: str
) -> None:
    """End runs: waiting ones leave the queue, running ones are asked to end and killed after their grace (--now: at
    once). The id of a sweep or array stands for all of its runs. What waits goes first, so that none starts in the
    place of another.

    --force is for a run whose processes the kernel does not end (`rota explain RUN` names them). They may still use
    its GPUs, and the next run is started on them: look at nvidia-smi, and drain the node first."""
    if force and sweep_ids:
        raise click.UsageError("--force ends single runs: name each of them, not a sweep")
    if not run_ids and not sweep_ids:
        raise click.UsageError("Missing argument 'RUN_ID...', or --sweep ID")
    withdrawn: dict[str, int] = {}  # by sweep: how many of it left the queue before anything that runs was touched
    with connect(server) as client:

        def one(run_id: str) -> str:
            if force:
                return f"{run_id} {_forced(client, run_id, dry_run)}"
            try:
                answer = client.cancel(run_id, now=now, dry_run=dry_run)
            except NotFound:
                if sweeps.find(client, run_id) is None:
                    raise
                return sweeps.cancel(client, run_id, now=now, dry_run=dry_run, withdrawn=withdrawn.get(run_id, 0))
            return f"{run_id} {'could be stopped' if dry_run else _done(run_id, answer)}"

        def all_of(sweep_id: str) -> str:
            client.sweep(sweep_id)  # one that is not there says so
            return sweeps.cancel(client, sweep_id, now=now, dry_run=dry_run, withdrawn=withdrawn.get(sweep_id, 0))

        several = len(run_ids) + len(sweep_ids) > 1
        waiting, others, running = _by_turn(client, run_ids) if several else ([], list(run_ids), [])
        code = for_each(client, waiting, one)
        if several and not dry_run:
            for text in {*sweep_ids, *others}:
                withdrawn[text] = sweeps.withdraw(client, text) if len(text) == FULL_ID else 0
        code = for_each(client, sweep_ids, all_of) or code
        code = for_each(client, (*others, *running), one) or code
    leave(code)


def _forced(client: Client, run_id: str, dry_run: bool) -> str:
    """Kill the run; where it has not ended some time later, have the server end it on record."""
    answer = client.cancel(run_id, force=True, dry_run=dry_run)
    if dry_run:
        return "could be ended by force"
    if answer.get("stopping"):
        say(f"{run_id} is being killed; if it has not ended in 10 s, its GPUs are given back all the same (see --help)")
        until = time.monotonic() + FORCED_AFTER_S
        while time.monotonic() < until:
            time.sleep(POLL_S)
            if client.job(run_id).ended:
                return "cancelled"
        try:
            answer = client.cancel(run_id, force=True)
        except Refused:
            if client.job(run_id).ended:  # since the last look
                return "cancelled"
            raise
    note = answer.get("note")
    return f"ended by force: {plain(note)}" if answer.get("status") == "stopped" and note else _done(run_id, answer)


def _done(run_id: str, answer: Json) -> str:
    """Say what became of the cancel: a run that holds GPUs is only on its way out."""
    if answer.get("status") == "stopped":
        return "cancelled"
    killed_at = answer.get("kill_at")
    if not isinstance(killed_at, int | float):  # of an earlier version
        return "stopping"
    if killed_at - time.time() < 1.0:
        return "stopping: killed now"
    return f"stopping: killed {in_time(killed_at)} at the latest; at once with: rota cancel --now {run_id}"


def _by_turn(client: Client, ids: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Those that wait their turn, those the queue does not list (held ones, sweeps, what has ended), those that run."""
    try:
        queue = client.queue()
    except BadAnswer:  # too long to be read: then in the order they were given in
        return [], list(ids), []
    queued, active = _listed(queue.queued, ids), _listed(queue.running, ids)
    waiting = [text for text in ids if text in queued]
    running = [text for text in ids if text in active and text not in queued]
    return waiting, [text for text in ids if text not in queued | active], running


def _listed(jobs: Sequence[Job], ids: Sequence[str]) -> set[str]:
    """Which of the ids are of these jobs. A part of an id may be of two, which is said when it is that one's turn."""
    known = {job.id for job in jobs}
    found = set()
    for text in set(ids):
        part = text.strip().lower()
        if part in known or (
            0 < len(part) < FULL_ID and any(one.endswith(part) or one.startswith(part) for one in known)
        ):
            found.add(text)
    return found
