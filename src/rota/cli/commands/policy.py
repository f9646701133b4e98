"""`rota policy`: who is next, and on which terms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

import click

from rota.cli.connect import connect, dry_option, emit, json_option, server_option

AUTO, DEFAULT = "auto", "default"
WIDTH = 50  # of what is said of a knob: beside its name it fits into eighty columns


@click.group(invoke_without_command=True)
@json_option
@server_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, server: str) -> None:
    """How is scheduled, what can be set, and how it would be by default: `rota policy set KEY=VALUE`."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=as_json, server=server)


@command.command()
@json_option
@server_option
def show(as_json: bool, server: str) -> None:
    """The policy as it is."""
    with connect(server) as client:
        found = client.policy()
    emit(found) if as_json else click.echo(_lines(found))


@command.command(name="set")
@dry_option
@json_option
@server_option
@click.argument("pairs", nargs=-1, required=True, metavar="KEY=VALUE...")
def change(pairs: tuple[str, ...], dry_run: bool, as_json: bool, server: str) -> None:
    """Change it. Admins only. A default is the one that this version of the command knows.

    \b
    rota policy set policy=easy
    rota policy set scheduling_algorithm=fair_share max_concurrent_jobs=16
    rota policy set 'limits={"gpus": 4}'
    rota policy set patience=default
    """
    changes = dict(_pair(text) for text in pairs)
    with connect(server) as client:
        known = client.policy()
        for name in changes:
            if name not in known:
                raise click.UsageError(f"{name[:50]!r} is no part of the policy; there are {', '.join(known)}")
        _by_default(known, changes)
        found = client.set_policy(dry_run=dry_run, **changes)
    if as_json:
        emit(found)
    else:
        click.echo(_changes(known, found, dry_run))


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier() or name == "dry_run":
        raise click.UsageError(f"{text[:80]!r}: write KEY=VALUE")
    try:
        read = json.loads(value)  # numbers, true, false, objects
    except (ValueError, RecursionError):
        return name, value
    try:
        json.dumps(read, allow_nan=False)
    except ValueError:
        raise click.UsageError(f"{text[:80]!r}: the number is too large; use at most 1e12") from None
    return name, read


def _by_default(known: Mapping[str, Any], changes: dict[str, Any]) -> None:
    """Put the default where it is asked for: of the policy that there will be then."""
    for name in ("policy", "scheduling_algorithm"):
        if changes.get(name) == DEFAULT:
            changes[name] = AUTO
    then = {**known, **changes}
    if "policy" not in changes and "scheduling_algorithm" in changes:
        then["policy"] = changes["scheduling_algorithm"]
    usual = _usual(then)
    for name in [name for name, value in changes.items() if value == DEFAULT]:
        if name not in usual:
            raise click.UsageError(f"{name}=default: this rota does not know the default of {name}; write a value")
        changes[name] = usual[name]


def _usual(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The default of each part: what the name of the policy stands for."""
    from dataclasses import asdict

    from rota.cli.simulate.server import meant_by
    from rota.core.knobs import FIELDS

    meant = meant_by(policy)
    values = {} if meant is None else asdict(meant)
    return {word: values[field] for word, field in FIELDS.items() if field in values}


def _lines(policy: Mapping[str, Any]) -> str:
    """Each knob with its value, its default where that is another one, and below it what it is for."""
    from rota.cli.simulate.server import called
    from rota.cli.table import facts
    from rota.core.knobs import ABOUT

    usual = _usual(policy)
    shown: list[tuple[str, object]] = [("policy", called(policy))]
    for word, value in policy.items():
        if word != "policy":
            other = "" if usual.get(word, value) == value else f"  (by default {_shown(usual[word])})"
            shown.append((word, "\n".join([f"{_shown(value)}{other}", *wrap(ABOUT.get(word, ""), WIDTH)])))
    return f"{facts(shown)}\n\nto go back: rota policy set KEY=default"


def _changes(before: Mapping[str, Any], after: Mapping[str, Any], dry_run: bool) -> str:
    """Each knob that another value is set to, both values, and below them what it is for."""
    from rota.cli.simulate.server import called
    from rota.cli.table import facts
    from rota.core.knobs import ABOUT

    old, new = ({**policy, "policy": called(policy)} for policy in (before, after))
    changed = [word for word, value in new.items() if old.get(word) != value]
    if not changed:
        return "nothing changes: the policy is like that already"
    rows = [
        (word, "\n".join([f"{_shown(old.get(word))} -> {_shown(new[word])}", *wrap(ABOUT.get(word, ""), WIDTH)]))
        for word in changed
    ]
    return f"{'would change; nothing was done' if dry_run else 'changed'}:\n{facts(rows)}\n\nall of it: rota policy"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
