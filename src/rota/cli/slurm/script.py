"""A batch script: its #SBATCH lines, its interpreter, and the argv that carries its text.

Rota keeps no copy of the file: the text itself travels as the argument of the interpreter's `-c`, so that what was
submitted is what runs, whatever happens to the file in between.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from rota.cli.slurm.options import UsageError

MAX_TEXT = 120 * 1024  # one argument of a process may have 128 KiB on Linux
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_PYTHON = re.compile(r"(python|pypy)[0-9.]*")


@dataclass(frozen=True, slots=True)
class Script:
    name: str  # of the file, without its directory
    interpreter: tuple[str, ...]
    text: str
    options: tuple[str, ...]  # of its #SBATCH lines, as words

    def argv(self, args: Sequence[str]) -> tuple[str, ...]:
        """With a shell `$0` is the script's name; python's `-c` takes no such word."""
        own = () if _PYTHON.fullmatch(_program(self.interpreter)) else (self.name,)
        return (*self.interpreter, "-c", self.text, *own, *args)


def read(name: str, data: bytes) -> Script:
    """A script from its bytes. UsageError says what Slurm would refuse, and what only Rota does."""
    if not data.strip():
        raise UsageError("Batch script is empty!")
    if b"\0" in data:
        raise UsageError("Batch script contains NULL character.")
    if not data.startswith(b"#!"):
        raise UsageError(
            "This does not look like a batch script.  The first line must start with #! followed by the path to an "
            "interpreter.  For instance: #!/bin/sh"
        )
    if b"\r\n" in data:
        raise UsageError("Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n).")
    if len(data) > MAX_TEXT:
        raise UsageError(f"{name} has {len(data)} bytes; at most {MAX_TEXT} can travel. Keep it small and call a file.")
    text = data.decode("utf-8", "surrogateescape")
    return Script(name, _interpreter(text), text, tuple(_options(text)))


def _interpreter(text: str) -> tuple[str, ...]:
    """As the kernel reads it: the path, and all the rest as one word; `env -S` and `bash -l -e` in parts, as meant."""
    words = tuple(text.split("\n", 1)[0][2:].split())
    if words[:2] == ("/usr/bin/env", "-S"):
        words = (words[0], *words[2:])
    if not words or not words[0].startswith("/"):
        raise UsageError("the first line must start with #! followed by the whole path of an interpreter, as #!/bin/sh")
    program = _program(words)
    if program not in _SHELLS and not _PYTHON.fullmatch(program):
        raise UsageError(
            f"{program or words[0]} cannot take a script's text; use #!/bin/sh, #!/bin/bash or #!/usr/bin/env python3, "
            f"or: sbatch --wrap '{program or words[0]} your-file'"
        )
    return words


def _program(words: Sequence[str]) -> str:
    """The interpreter's bare name, also behind /usr/bin/env."""
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    if names[:1] == ["env"]:
        names = [name for name in names[1:] if "=" not in name]
    return names[0] if names else ""


def _options(text: str) -> list[str]:
    """The words of the #SBATCH lines, up to the first line that is neither blank nor a comment."""
    found: list[str] = []
    for count, line in enumerate(text.split("\n"), 1):
        if line.startswith("#SBATCH") and line[7:8] in ("", " ", "\t"):
            try:
                found += shlex.split(line[7:], comments=True)
            except ValueError as error:
                raise UsageError(f"line {count}: {line.strip()!r}: {error}") from error
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found
