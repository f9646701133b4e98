"""Writes docs/reference/cli.md from the commands themselves: `python -m tools.cli_doc [--check]`."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator

import click

from rota.cli.main import COMMANDS, SECTIONS, main
from tools.page import finish, table

SHIMS = ("srun", "sbatch", "squeue", "scancel", "sinfo", "sacct")
HEAD = """\
# Command reference

Written from the commands by `make docs`. `rota COMMAND --help` says the same at the terminal.

Where the server is: `ROTA_URL`, else the unix socket in the data directory, else `http://127.0.0.1:10000`. Who you are:
`ROTA_TOKEN`, else the file that `rota login` wrote, else, on the unix socket, your account.

| exit code | means |
|---|---|
| 0 | done; of `rota run` and `rota local`: the command's own code, 128+N for a signal |
| 2 | the command line makes no sense |
| 69 | no server answers |
| 75 | refused, or not within the time |
| 77 | not authorised |
"""


def commands() -> dict[str, click.Command]:
    """Every command under its full name, groups before their members."""
    found: dict[str, click.Command] = {}
    context = click.Context(main, info_name="rota")
    assert isinstance(main, click.Group)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found |= dict(_family(f"rota {name}", command))
    return found


def _family(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for member in command.list_commands(context):
            child = command.get_command(context, member)
            assert child is not None
            yield from _family(f"{name} {member}", child)


def flags(command: click.Command) -> set[str]:
    return {flag for param in command.params if isinstance(param, click.Option) for flag in _spellings(param)}


def rendered() -> str:
    every = commands()
    lines = [HEAD]
    for section, members in SECTIONS.items():
        rows = [(_link(f"rota {name}"), text) for name, (_, text) in members.items()]
        lines += table((section, ""), rows)
    for name, command in every.items():
        lines += _section(name, command, "##" if name.count(" ") == 1 else "###")
    lines += [
        "## Slurm's names",
        "",
        "`rota shims install` puts these on the PATH; see [From Slurm](../from-slurm.md).",
        "",
    ]
    for name in SHIMS:
        text = importlib.import_module(f"rota.cli.slurm.{name}").HELP
        lines += [f"### {name}", "", "```text", text.rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(name: str, command: click.Command, mark: str) -> list[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"{mark} {name}", "", "```text", usage, "```", "", *_help(command.help or "")]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return lines + table(("option", ""), [(_names(p, context), _about(p, context)) for p in options])


def _help(text: str) -> list[str]:
    """Paragraphs as they are; what click leaves unwrapped (after a \\b) is shown as typed."""
    lines: list[str] = []
    for block in inspect.cleandoc(text).split("\f")[0].split("\n\n"):
        if block.startswith("\b"):
            lines += ["```sh", *block.removeprefix("\b").strip("\n").splitlines(), "```", ""]
        else:
            lines += [*block.splitlines(), ""]
    return lines


def _spellings(option: click.Option) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def _names(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(f"`{name}`" for name in option.secondary_opts)
    if option.is_flag or option.count:
        return names
    return f"{names} {option.make_metavar(context).removesuffix(' RANGE')}"


def _about(option: click.Option, context: click.Context) -> str:
    about = option.help or ""
    default = option.default
    if option.show_default and default is not None and not callable(default):
        about += f" [default: {default}]"
    return about + (" (may be given several times)" if option.multiple else "")


def _link(name: str) -> str:
    return f"[{name}](#{name.replace(' ', '-')})"


if __name__ == "__main__":
    sys.exit(finish("cli.md", rendered()))
