"""`rota login`: keep a token for this account, where nobody else can read it."""

from __future__ import annotations

import os
import sys

import click

from rota.cli.connect import USAGE, say, server_option

MAX_TOKEN = 4096


@click.command()
@click.option(
    "--stdin", "from_stdin", is_flag=True, help="Read the token from stdin, so that it is in no argument list."
)
@click.option("--no-check", is_flag=True, help="Do not ask the server whether it knows the token.")
@server_option
@click.argument("token", default="")
def command(token: str, from_stdin: bool, no_check: bool, server: str) -> None:
    """Store TOKEN in ~/.config/rota/token for all later calls. Without one: it is asked for, unseen.

    An argument can be seen in the list of processes while the command runs: prefer to be asked, or --stdin.
    """
    from rota.client.address import token_file

    if from_stdin:
        token = (sys.stdin.read(MAX_TOKEN + 1) if sys.stdin is not None else "").strip()
    elif not token:
        token = click.prompt("Token", hide_input=True, err=True).strip()
    if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        say("that is no token; one looks like rota_... and is made with: rota token create --user NAME")
        sys.exit(USAGE)
    path = token_file(os.environ)
    if not path:
        say("there is no home directory to keep a token in; set HOME or XDG_CONFIG_HOME, or use ROTA_TOKEN")
        sys.exit(USAGE)
    if not no_check:
        from rota.client.address import find_url
        from rota.client.sync import Client

        with Client(server or find_url()[0], token) as client:
            me = client.whoami()
        click.echo(f"{me.name} ({me.role})")
    try:
        store(path, token)
    except OSError as error:
        say(f"cannot write {path}: {error.strerror}")
        sys.exit(USAGE)
    say(f"the token is in {path}")


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
