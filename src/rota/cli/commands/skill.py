"""`rota skill`: what a coding agent should know about Rota."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from rota.cli.exits import REFUSED
from rota.cli.values import Where


@click.command()
@click.option(
    "--install",
    "where",
    type=Where(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Write it as DIR/rota/SKILL.md, where DIR is the folder from which your agent loads skills.",
)
def command(where: Path | None) -> None:
    """Print the skill text for coding agents, or install it."""
    from rota.cli.skill import text

    if where is None:
        click.echo(text(), nl=False)
        return
    target = where.expanduser() / "rota" / "SKILL.md"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".SKILL.md.{os.getpid()}")
        draft.write_text(text(), encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        click.echo(f"rota: cannot write {target}: {error.strerror}", err=True)
        sys.exit(REFUSED)
    click.echo(f"wrote {target}")
