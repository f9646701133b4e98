"""`rota logs`: what a run wrote."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from rota.cli.connect import connect, full_id, run_argument, say, server_option
from rota.cli.exits import REFUSED
from rota.cli.render import plain, state
from rota.cli.streams import write

if TYPE_CHECKING:
    from rota.client.model.run import LogChunk
    from rota.client.sync import Client

AT_FIRST, AT_MOST = 64_000, 16 << 20  # bytes looked at for the last lines
PATIENCE_S = 24 * 3600.0


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt.  [default: the newest; with -f the first]")
@click.option("-n", "--tail", type=click.IntRange(0), help="Only the last so many lines of what is there.")
@server_option
@run_argument
def command(run_id: str, follow: bool, attempt: int | None, tail: int | None, server: str) -> None:
    """The output of RUN_ID, stdout and stderr together."""
    with connect(server) as client:
        run = client.run(full_id(client, run_id))
        newest = max(1, len(run.attempts))
        if not run.attempts and not run.active and not follow:
            say(f"{run.id} {'never started: it was' if run.ended else 'has not started: it is'} {state(run.status)}")
            return
        if attempt and attempt > newest and (run.ended or not follow):
            say(f"{run.id} has no attempt {attempt}: it made {newest}")
            sys.exit(REFUSED)
        number = attempt or (1 if follow and tail is None else newest)
        if number > 1 and attempt is None:
            say(f"attempt {number} of {run.id}; `rota logs --attempt {number - 1} {run.id}` shows the one before")
        note = client.logs(run.id, 0, limit=1, attempt=number).raw.get("note")
        if note:  # of a lease: Rota has none of its output
            say(f"{run.id}: {plain(note)}")
        offset = 0
        if tail is not None:
            output, offset = _last(client, run.id, number, tail)
            write(output)
        elif not follow:
            for chunk in _pieces(client, run.id, number):
                write(chunk.data)
        if follow:
            for text in client.follow(run.id, attempt=number, offset=offset, patience_s=PATIENCE_S):
                write(text)


def _pieces(client: Client, run_id: str, attempt: int, offset: int = 0) -> Iterator[LogChunk]:
    """What is there, from a byte on: for a terminal as text with no character cut in two, else every byte."""
    raw = not sys.stdout.isatty()
    while True:
        chunk = client.logs(run_id, offset, attempt=attempt, raw=raw)
        if chunk.content:
            yield chunk
        if not chunk.has_more_after or chunk.end <= offset:
            return
        offset = chunk.end


def _last(client: Client, run_id: str, attempt: int, lines: int) -> tuple[bytes, int]:
    """The last lines, and the byte after them."""
    size = client.logs(run_id, 0, limit=1, attempt=attempt).total_size
    look = AT_FIRST
    while True:
        begin = max(0, size - look)
        chunks = list(_pieces(client, run_id, attempt, begin))
        rows = b"".join(chunk.data for chunk in chunks).splitlines(keepends=True)
        if begin == 0 or len(rows) > lines or look >= AT_MOST:
            kept = rows[max(0, len(rows) - lines) :]
            return b"".join(kept), chunks[-1].end if chunks else size
        look *= 4
