"""Writes docs/reference/settings.md from rota.config: `python -m tools.settings_doc [--check]`."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import MISSING, fields
from typing import Any

import click

from rota.cli.commands import serve
from rota.config import NOTICED, SOURCES, Settings
from tools.page import finish, table

HEAD = """\
# Settings

Written from the code by `make docs`. A flag of `rota serve` or `rota up` wins over a variable, that over the default;
of several variables the first that is set counts. A value that makes no sense is refused at the start, by name.
"""
FOOT = """\
Read by clients, not by the server:

| variable | what it says |
|---|---|
| `ROTA_URL`, `RESEARCH_AGENT_SERVER_URL` | `http://host:port`, `https://host` or `unix:///path/to/rota.sock` |
| `ROTA_TOKEN`, `RESEARCH_AGENT_USER_AUTH_TOKEN` | the token to show |
| `ROTA_SERVER_ACCOUNT` | who runs the server here, if not root or oneself; for all: `/etc/rota/server-account` |
| `GPUSCHED_URL` | the lease door, for `srun` and `rota run` |
"""


def rendered() -> str:
    said, given = _comments(), _flags()
    rows = []
    for field in fields(Settings):
        source = next((one for one in SOURCES if one.field == field.name), None)
        variables = ", ".join(f"`{name}`" for name in source.variables) if source else ""
        default = "" if field.default is MISSING else _shown(field.default)
        rows.append((f"`{field.name}`", ", ".join(given.get(field.name, ())), variables, default, said[field.name]))
    noticed = ", ".join(f"`{name}`" for name in NOTICED)
    lines = [HEAD, *table(("setting", "flag", "variable", "default", "what it is"), rows)]
    return "\n".join([*lines, f"Known from older servers and of no effect on this one: {noticed}.", "", FOOT])


def _comments() -> dict[str, str]:
    """What stands behind each field of Settings in its source: said once, there."""
    found = {}
    for line in inspect.getsource(Settings).splitlines():
        match = re.fullmatch(r"    (\w+): [^#]*?(?:  # (.*))?", line)
        if match:
            about = match[2] or _OBVIOUS.get(match[1], "")
            found[match[1]] = about + (f" ({_VALUES[match[1]]})" if match[1] in _VALUES else "")
    return found


_OBVIOUS = {
    "data_dir": "where Rota keeps its things; without the variable `$XDG_DATA_HOME/rota` or `~/.local/share/rota`",
    "probe_every_s": "seconds between two looks at the GPUs",
    "tidy_every_s": "seconds between two rounds of removing what is old",
    "host": "address to listen on; any other than loopback needs a token first",
    "port": "of all doors",
    "ray_address": "of a Ray cluster, for detection",
}
_VALUES = {
    "simulated": "the variable: `2x8`",
    "ordering": "`priority`, `fcfs`, `sjf` or `fair_share`",
    "private": "the variable: `private` or `open`",
    "allowed_hosts": "names with commas",
}


def _flags() -> dict[str, list[str]]:
    found = {
        name: [f"`{flag}`" for flag in option.opts]
        for option in serve.command.params
        if isinstance(option, click.Option) and (name := option.name) is not None
    }
    found["simulated"] = found["nodes"] + found["gpus"]
    return found


def _shown(value: Any) -> str:
    if value in ("", None, ()):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(finish("settings.md", rendered()))
