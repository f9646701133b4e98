"""`rota shims`: srun, sbatch, squeue, scancel, sinfo and sacct on the PATH, as small files that call Rota."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

import click

from rota.cli.exits import REFUSED
from rota.cli.values import Where
from rota.core.clusters import SHIM_MARK as MARK

NAMES = ("srun", "sbatch", "squeue", "scancel", "sinfo", "sacct")

_dir = click.option(
    "--dir",
    "where",
    type=Where(file_okay=False, path_type=Path),
    default=lambda: Path("~/.local/bin").expanduser(),
    help="Where they go.  [default: ~/.local/bin]",
)


@click.group()
def command() -> None:
    """Slurm's words for Rota."""


@command.command()
@_dir
@click.option("--force", is_flag=True, help="Also where a real Slurm is on the PATH, or a file of that name is there.")
def install(where: Path, force: bool) -> None:
    """Write the shims. They hide a real Slurm only with --force."""
    where = where.expanduser().absolute()
    for name in () if force else NAMES:
        there = where / name
        if os.path.lexists(there) and not is_shim(there):
            _refuse(f"{there} is there already and is not Rota's; --force replaces it")
        real = find(name)
        if real is not None:
            _refuse(f"{real} is a real Slurm's; jobs typed with its words would go to Rota. --force if that is meant")
    try:
        where.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            _write(where / name, name)
    except OSError as error:
        _refuse(f"cannot write to {where}: {error.strerror}")
    click.echo(f"{' '.join(NAMES)} are in {where}")
    if str(where) not in os.environ.get("PATH", "").split(os.pathsep):
        click.echo(f"that is not on the PATH yet: export PATH={shlex.quote(str(where))}:$PATH")


@command.command()
@_dir
def remove(where: Path) -> None:
    """Take them away, and only them."""
    where = where.expanduser().absolute()
    ours = [where / name for name in NAMES if is_shim(where / name)]
    try:
        for path in ours:
            path.unlink()
    except OSError as error:
        _refuse(f"cannot remove {error.filename}: {error.strerror}")
    click.echo(f"removed {len(ours)} from {where}" if ours else f"there are none in {where}")


@command.command("list")
@_dir
def list_shims(where: Path) -> None:
    """Which are there, and what a shell would run for each name."""
    where = where.expanduser().absolute()
    for name in NAMES:
        state = "installed" if is_shim(where / name) else "not installed"
        first = next(iter(_on_path(name)), None)
        click.echo(f"{name:8} {state:14} {first or 'not on the PATH'}")


def is_shim(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return MARK.encode() in file.read(500)
    except OSError:
        return False


def find(name: str) -> Path | None:
    """A program of this name on the PATH that is not ours."""
    return next((path for path in _on_path(name) if not is_shim(path)), None)


def _on_path(name: str) -> list[Path]:
    places = [Path(place) / name for place in os.environ.get("PATH", "").split(os.pathsep) if place]
    return [place for place in places if place.is_file() and os.access(place, os.X_OK)]


def _write(path: Path, name: str) -> None:
    """`-P`: a file of the user's own directory must not be taken for a part of Rota."""
    text = f'#!/bin/sh\n{MARK}\nexec {shlex.quote(sys.executable)} -P -m rota.cli.slurm.{name} "$@"\n'
    draft = path.with_name(f".{name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(path)


def _refuse(why: str) -> NoReturn:
    click.echo(f"rota: {why}", err=True)
    sys.exit(REFUSED)
