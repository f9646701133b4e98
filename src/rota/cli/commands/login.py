"""`rota login`: keep a token for this account, where nobody else can read it; or get a link that logs a browser in."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import click

from rota.cli.connect import connect, say, server_option
from rota.cli.exits import NOT_AUTHORISED, REFUSED, USAGE

if TYPE_CHECKING:
    from rota.client.sync import Client

MAX_TOKEN = 4096
LONGEST_NAME = 200


@click.command()
@click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the token from stdin, so that it is in no argument list."
)
@click.option("--no-check", is_flag=True, help="Do not ask the server whether it knows the token.")
@click.option("--link", "as_link", is_flag=True, help="Print a link that logs a browser in, once, within an hour.")
@click.option(
    "--server-account",
    default="",
    metavar="NAME",
    help="The account that runs the server on this machine, where that is neither root nor you; kept for later calls.",
)
@click.option("--token-id", default="", metavar="ID", help="With --link, as admin: as the holder of this token.")
@server_option
@click.argument("token", default="")
def command(
    token: str, from_stdin: bool, no_check: bool, as_link: bool, server_account: str, token_id: str, server: str
) -> None:
    """Store TOKEN in ~/.config/rota/token for all later calls; `rota logout` removes it. Without one: it is asked for,
    unseen, or read from a pipe.

    An argument can be seen in the list of processes while the command runs: prefer to be asked, or --stdin.

    With --link nothing is stored: it prints a link that logs a browser in as you, who are known already.

    A port of this machine is only used where root, you, or the account that --server-account has named listens there,
    and a token goes to no other's unix socket. With --server-account the token may be left out.
    """
    if server_account:
        _keep_account(server_account)
    if as_link or token_id:
        if token or from_stdin or no_check or not as_link:
            raise click.UsageError("--link takes no TOKEN; --token-id goes with --link")
        _print_link(server, token_id)
        return
    _keep(token, from_stdin, no_check, server, needs_one=not server_account)


def _print_link(server: str, token_id: str) -> None:
    with connect(server) as client:
        made = client.login_link(token_id or _own(client))
        # the way this command came is a way a browser can go, unless it was the unix socket
        url = f"{client.url.rstrip('/')}{made['path']}" if client.url.startswith("http") else made.get("url")
    if not url:
        say("the server does not know its own address; ask it by that: rota login --link --server http://HOST:PORT")
        sys.exit(REFUSED)
    click.echo(url)


def _own(client: Client) -> str:
    """The token that was shown; for somebody known by their account alone, the newest of that name."""
    me = client.whoami()
    if me.token_id:
        return me.token_id
    if me.role == "admin":  # others may not look
        now = time.time()
        for one in sorted(client.tokens(), key=lambda one: -(one.created_at or 0.0)):
            if one.user == me.name and not one.revoked_at and (one.expires_at is None or now < one.expires_at):
                return one.id
    if me.known_by == "open":
        say("this server has no tokens: a browser needs no login")
    elif me.role == "admin":
        say(f"{me.name} has no token a browser could be logged in with; make one: rota token create --user {me.name}")
    else:
        say(
            f"you are known as {me.name} by your account, and a link is made for a token: store yours with `rota "
            "login`, or ask an admin for a token or for a link (rota login --link --token-id ID)"
        )
    sys.exit(REFUSED)


def _keep(token: str, from_stdin: bool, no_check: bool, server: str, *, needs_one: bool) -> None:
    from rota.client.address import token_file

    token, source = _given(token, from_stdin, needs_one)
    if not token and not needs_one:
        say("no token was given: only the server's account is kept")
        return
    if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        say("that is no token; one looks like rota_... and is made with: rota token create --user NAME")
        sys.exit(USAGE)
    path = token_file(os.environ)
    if not path:
        say("there is no home directory to keep a token in; set HOME or XDG_CONFIG_HOME, or use ROTA_TOKEN")
        sys.exit(USAGE)
    if not no_check:
        from rota.client.address import find_url
        from rota.client.errors import Unauthorised
        from rota.client.sync import Client

        try:
            with Client(server or find_url()[0], token) as client:
                me = client.whoami()
        except Unauthorised as error:  # told of here: elsewhere it would be the token that is stored
            say(f"{error}; the token {source} is not valid or has expired: ask for a new one. Nothing was stored")
            sys.exit(NOT_AUTHORISED)
        click.echo(f"{me.name} ({me.role})")
    try:
        store(path, token)
    except OSError as error:
        say(f"cannot write {path}: {error.strerror}")
        sys.exit(USAGE)
    say(f"the token is in {path}")


def _keep_account(name: str) -> None:
    from rota.client.trust import account_file

    path = account_file(os.environ)
    if not name.isprintable() or len(name) > LONGEST_NAME or not path:
        say("--server-account: give the name or the number of an account, and a home directory to keep it in")
        sys.exit(USAGE)
    try:
        store(path, name)
    except OSError as error:
        say(f"cannot write {path}: {error.strerror}")
        sys.exit(USAGE)
    os.environ.pop("ROTA_SERVER_ACCOUNT", None)  # what is said now is meant, in this call too


def _given(token: str, from_stdin: bool, needs_one: bool) -> tuple[str, str]:
    """The token, and how it came here. Without a terminal nobody can be asked, and it comes through the pipe."""
    if from_stdin or (not token and (sys.stdin is None or not sys.stdin.isatty())):
        return (sys.stdin.read(MAX_TOKEN + 1) if sys.stdin is not None else "").strip(), "from stdin"
    if token:
        return token, "on the command line"
    default = None if needs_one else ""
    return click.prompt("Token", default, hide_input=True, show_default=False, err=True).strip(), "that was typed"


def store(path: str, token: str) -> None:
    """Whole or not at all, and never readable by others, not even for a moment."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    scratch = f"{path}.{os.getpid()}"
    number = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with open(number, "w") as file:
            file.write(token + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError:
        os.unlink(scratch)
        raise
