"""Unit files for systemd, as templates: `@NAME@` is filled in when they are installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files

MARK = "# Written by `rota service install`"


def fill(name: str, values: Mapping[str, str]) -> str:
    """The unit's text. A line that is left empty goes; a value that was not given is a mistake of ours."""
    text = files(__package__).joinpath(name).read_text("utf-8")
    lines = []
    for line in text.splitlines():
        filled = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], line)
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines) + "\n"


def quoted(word: str) -> str:
    """A word of ExecStart, so that systemd reads back exactly this."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[\s\"'\\;$%]", word) else escaped
