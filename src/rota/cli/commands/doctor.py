"""`rota doctor`: what is well here, what is not, and what to do about it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from rota.cli.connect import emit, json_option, server_option
from rota.cli.options import data_dir_option


@click.command()
@json_option
@data_dir_option
@server_option
def command(as_json: bool, data_dir: Path, server: str) -> None:
    """Look at Python, SQLite, the data directory, the token, the server, clocks and GPUs. Exits with 1 if one fails."""
    from rota.cli.checkup import FAIL, findings
    from rota.cli.table import table

    found = list(findings(server, data_dir))
    if as_json:
        emit([{"about": f.about, "level": f.level, "text": f.text, "next_step": f.next_step} for f in found])
    else:
        rows = [(f.level, f.about, f.text + (f"; next: {f.next_step}" if f.next_step else "")) for f in found]
        click.echo(table(("", "ABOUT", "FOUND"), rows))
    sys.exit(1 if any(f.level == FAIL for f in found) else 0)
