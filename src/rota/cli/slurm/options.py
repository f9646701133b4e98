"""Options as Slurm's tools read them, that is as GNU getopt_long does.

`-N2`, `-N 2`, `--nodes=2`, `--nodes 2`, `-hl`, and long names cut short while they stay unambiguous. Reading stops at
the first word that is no option, so that everything from there on is the user's own command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class UsageError(Exception):
    """Something on the command line or in a #SBATCH line; its text is what to print."""


class Takes(Enum):
    NOTHING = "nothing"
    VALUE = "a value"
    PERHAPS = "a value, written with ="


@dataclass(frozen=True, slots=True)
class Option:
    long: str
    short: str = ""
    takes: Takes = Takes.VALUE
    note: str = ""  # why it is ignored; "" = it is not
    refusal: str = ""  # why it cannot be had, and what to do instead


@dataclass(frozen=True, slots=True)
class Given:
    """An option as somebody gave it; `value` is "" where there was none."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Parsed:
    given: tuple[Given, ...]
    rest: tuple[str, ...]
    notes: tuple[str, ...]  # about options that were ignored

    def last(self, name: str) -> str | None:
        """The value that counts: the one given last."""
        values = [given.value for given in self.given if given.name == name]
        return values[-1] if values else None

    def has(self, name: str) -> bool:
        return any(given.name == name for given in self.given)


def parse(argv: Sequence[str], table: Sequence[Option], *, interspersed: bool = False) -> Parsed:
    """`interspersed`: options may also follow other words (squeue, scancel: they carry no command of the user's)."""
    longs = {option.long: option for option in table}
    shorts = {option.short: option for option in table if option.short}
    given: list[Given] = []
    notes: list[str] = []
    rest: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if word == "--":
            rest += words
            break
        if not word.startswith("-") or word == "-":
            rest.append(word)
            if interspersed:
                continue
            rest += words
            break
        found = _long(word, longs, words) if word.startswith("--") else _shorts(word, shorts, words)
        for option, value in found:
            if option.refusal:
                raise UsageError(f"--{option.long}: {option.refusal}")
            if option.note:
                notes.append(f"--{option.long} is ignored: {option.note}")
            else:
                given.append(Given(option.long, value))
    return Parsed(tuple(given), tuple(rest), tuple(notes))


def _long(word: str, longs: dict[str, Option], words: list[str]) -> list[tuple[Option, str]]:
    name, equals, value = word[2:].partition("=")
    option = longs.get(name)
    if option is None:
        fitting = [longs[long] for long in longs if long.startswith(name)] if name else []
        if len(fitting) > 1:
            names = " ".join(f"'--{fit.long}'" for fit in fitting)
            raise UsageError(f"option '--{name}' is ambiguous; possibilities: {names}")
        if not fitting:
            raise UsageError(f"unrecognized option '--{name}'")
        option = fitting[0]
    if option.takes is Takes.NOTHING and equals:
        raise UsageError(f"option '--{option.long}' doesn't allow an argument")
    if option.takes is Takes.VALUE and not equals:
        if not words:
            raise UsageError(f"option '--{option.long}' requires an argument")
        value = words.pop(0)
    return [(option, value)]


def _shorts(word: str, shorts: dict[str, Option], words: list[str]) -> list[tuple[Option, str]]:
    """A word such as `-hN2`: several letters, the last of which may take the rest or the next word."""
    found: list[tuple[Option, str]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        option = shorts.get(letter)
        if option is None:
            raise UsageError(f"invalid option -- '{letter}'")
        if option.takes is Takes.NOTHING:
            found.append((option, ""))
            continue
        if option.takes is Takes.VALUE and not letters:
            if not words:
                raise UsageError(f"option requires an argument -- '{letter}'")
            letters = words.pop(0)
        found.append((option, letters.removeprefix("=") if option.takes is Takes.PERHAPS else letters))
        break
    return found
