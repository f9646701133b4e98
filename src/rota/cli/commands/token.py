"""`rota token`: tokens of people and agents, made by an admin."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from rota.cli.connect import connect, emit, json_option, say, server_option
from rota.cli.exits import REFUSED
from rota.cli.nearby import server_of
from rota.cli.options import data_dir_option
from rota.cli.render import plain
from rota.cli.values import Duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

ROLES = ("admin", "user", "agent", "viewer")


class Book(Protocol):
    """Where tokens are kept: behind a running server, or in a data directory that no server has open."""

    @property
    def create(self) -> Callable[..., Mapping[str, Any]]: ...
    def list(self) -> Sequence[Mapping[str, Any]]: ...
    def revoke(self, token_id: str) -> Mapping[str, Any]: ...


@click.group()
def command() -> None:
    """Tokens say who somebody is. A server asks for one as soon as any exists."""


@command.command()
@click.option("--user", required=True, help="Whose it is.")
@click.option("--role", type=click.Choice(ROLES), default="user", show_default=True)
@click.option("--expires", "expires_s", type=Duration(), help="After 12h, 30d, ...  [default: never]")
@click.option("--for", "acts_for", default="", help="With --role agent: the person for whom the agent acts.")
@click.option("--note", default="", help="What it is for.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the token.")
@json_option
@data_dir_option
@server_option
def create(quiet: bool, as_json: bool, data_dir: Path, server: str, **wanted: Any) -> None:
    """Make a token and print it, this once."""
    if (wanted["role"] == "agent") != bool(wanted["acts_for"]):
        raise click.UsageError("--role agent and --for PERSON go together: an agent acts for a person; add the other")
    with _book(server, data_dir) as book:
        made = book.create(**wanted)
    if as_json:
        emit(made)
    elif quiet:
        click.echo(made["token"])
    else:
        click.echo(made["token"])
        if made.get("warning"):
            say(f"note: {plain(made['warning'])}")
        say(f"token {made['id']} of {made['user']} ({made['role']}); it is not shown again. Use it with: rota login")


@command.command(name="list")
@json_option
@data_dir_option
@server_option
def listed(as_json: bool, data_dir: Path, server: str) -> None:
    """All tokens, without their secrets."""
    from rota.cli.render import clock
    from rota.cli.table import table

    with _book(server, data_dir) as book:
        found = book.list()
    if as_json:
        emit(found)
        return
    rows = [
        (one["id"], one["user"], one["role"], one.get("acts_for") or "-", clock(one["created_at"]),
         clock(one["expires_at"]), _state(one), one["note"])
        for one in found
    ]  # fmt: skip
    click.echo(table(("TOKEN", "USER", "ROLE", "FOR", "MADE", "EXPIRES", "STATE", "NOTE"), rows))


@command.command()
@json_option
@data_dir_option
@server_option
@click.argument("token_id")
def revoke(token_id: str, as_json: bool, data_dir: Path, server: str) -> None:
    """Let a token count no longer."""
    with _book(server, data_dir) as book:
        gone = book.revoke(token_id)
    emit(gone) if as_json else click.echo(f"token {token_id} counts no longer")


def _state(one: Mapping[str, Any]) -> str:
    if one["revoked_at"]:
        return "revoked"
    return "expired" if one["expires_at"] and one["expires_at"] <= time.time() else ""


class _Server:
    def __init__(self, client: Any) -> None:
        self._client = client

    def create(self, **wanted: Any) -> Mapping[str, Any]:
        made: Mapping[str, Any] = self._client.create_token(**wanted).raw
        return made

    def list(self) -> list[Mapping[str, Any]]:
        return [one.raw for one in self._client.tokens()]

    def revoke(self, token_id: str) -> Mapping[str, Any]:
        gone: Mapping[str, Any] = self._client.revoke_token(token_id)
        return gone


@contextmanager
def _book(server: str, data_dir: Path) -> Iterator[Book]:
    """The running server's; without one, the data directory's own."""
    url = server_of(server, data_dir)
    if url:
        with connect(url) as client:
            yield _Server(client)
    else:
        with _offline(data_dir) as book:
            yield book


@contextmanager
def _offline(data_dir: Path) -> Iterator[Book]:
    from rota.app.errors import CannotStart, Refused
    from rota.config import BadSetting, read_settings
    from rota.main import offline_tokens

    try:
        # The settings of the server itself: its store may be behind a URL.
        settings, _ = read_settings({"data_dir": data_dir})
        with offline_tokens(settings) as book:
            yield book
    except (BadSetting, CannotStart, Refused) as error:
        say(str(error))
        sys.exit(REFUSED)
