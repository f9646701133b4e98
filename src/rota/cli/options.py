"""Options that several commands share."""

from __future__ import annotations

import re
from pathlib import Path

import click

from rota.cli.values import Where


def _default_data_dir() -> Path:
    from rota.config import default_data_dir

    return default_data_dir()


data_dir_option = click.option(
    "--data-dir",
    type=Where(file_okay=False, path_type=Path),
    default=_default_data_dir,
    help="Where Rota keeps its things.  [default: $ROTA_DATA_DIR or ~/.local/share/rota]",
)

nodes_option = click.option(
    "--simulate",
    "cluster",
    default="",
    metavar="NxM",
    help="Pretend to have N nodes with M GPUs each. Without it: real GPUs, or a simulated 2x8 where there are none.",
)


def parse_cluster(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,2})", text)
    if match is None or not 1 <= int(match[1]) <= 5000 or not 0 <= int(match[2]) <= 64:
        raise click.BadParameter(f"{text!r} is not nodes x GPUs, such as 2x8 (up to 5000x64)", param_hint="--simulate")
    return int(match[1]), int(match[2])
