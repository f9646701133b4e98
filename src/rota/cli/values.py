"""What people write for times, priorities and parameters; and the surroundings of a run as options choose them."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from rota.cli import environment
from rota.core.sizes import size_gb
from rota.core.times import seconds

PRIORITY_WORDS = {"low": 1, "normal": 2, "high": 3, "critical": 4}
MAX_RANGE = 10_000


class Where(click.Path):
    """A path that says something: an empty one would be taken for the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("is empty; name a file or a directory, or leave it out", param, ctx)
        if "\0" in str(value):
            self.fail("holds a NUL, which no path can", param, ctx)
        return super().convert(value, param, ctx)


class Duration(click.ParamType):  # type: ignore[type-arg] # not every click knows it as a generic
    name = "time"

    def __init__(self, *, least: float | None = None) -> None:
        self._least = least  # None = above 0

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return value if isinstance(value, float) else seconds(str(value), least=self._least)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Signal(click.ParamType):  # type: ignore[type-arg]
    """One that a program can hear."""

    name = "signal"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from rota.app.signals import number, unheard
        from rota.core.warning import DEADLY

        try:
            found = value if isinstance(value, int) else number(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if found in DEADLY:
            self.fail(unheard(found), param, ctx)
        return found


class Amount(click.ParamType):  # type: ignore[type-arg]
    """A size in GB: a number, or a number with its unit as Slurm's users write it."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = size_gb(str(value), "G")
        if found is None:
            self.fail(f"{str(value)[:50]!r} is not a size; write GB as 4, or a unit as in 4G or 512M", param, ctx)
        return found


class Priority(click.ParamType):  # type: ignore[type-arg]
    name = "priority"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        word = str(value).lower()
        number = PRIORITY_WORDS.get(word) or (int(word) if word in ("1", "2", "3", "4") else 0)
        if not number:
            self.fail(f"{word[:50]!r} is not a priority; use low, normal, high, critical or 1 to 4", param, ctx)
        return number


export_option = click.option(
    "--export",
    default="ALL",
    metavar="ALL|NONE|NAMES",
    show_default=True,
    help="Which of your variables; never a token of Rota's own.",
)


def surroundings(chdir: str | None, pairs: tuple[str, ...] = (), export: str = "ALL") -> tuple[str, dict[str, str]]:
    """Directory and variables of a run, from -C, -e and --export."""
    try:
        where = environment.directory(chdir)
    except FileNotFoundError:
        raise click.UsageError("the current directory is gone; change to one that is there") from None
    try:
        chosen = environment.exported(export, os.environ, pairs)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--env or --export") from None
    absent = environment.unset(export, os.environ, pairs)
    if absent:
        names = f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'}"
        click.echo(f"rota: note: {names} not set here, so the run gets no such variable", err=True)
    return where, chosen


def parameter(text: str) -> tuple[str, list[object]]:
    """lr=0.1,0.01 or seed=1..5: a name and its values."""
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise click.BadParameter(f"{text[:80]!r}: write NAME=VALUE,VALUE or NAME=1..5", param_hint="-p")
    found: list[object] = []
    for word in values.split(","):
        ends = re.fullmatch(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})", word)
        if ends is None:
            _must_be_no_range(word)
            found.append(_value(word))
            continue
        first, last = int(ends[1]), int(ends[2])
        if not 0 <= last - first < MAX_RANGE:
            raise click.BadParameter(f"{word!r} is no range of 1 to {MAX_RANGE} numbers", param_hint="-p")
        found += range(first, last + 1)
    return name, found


def _must_be_no_range(word: str) -> None:
    """0.1..0.5 as one value is what nobody means; ../data is a value like any other."""
    first, dots, last = word.partition("..")
    try:
        float(first), float(last)
    except ValueError:
        return
    if dots:
        raise click.BadParameter(
            f"{word[:80]!r}: a range is of whole numbers, such as 1..5; write others one by one, such as 0.1,0.2",
            param_hint="-p",
        )


def _value(word: str) -> object:
    """A number where it is one, so that the server's record shows one; 1e-3 and 007 stay as they are written."""
    if re.fullmatch(r"-?(0|[1-9][0-9]{0,15})", word):
        return int(word)
    return word
