"""From a command to the server and back: the client, ids by a part of them, and what an error means to a shell."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE, USAGE
from rota.client.errors import BadAnswer, NotFound, Refused, RotaError, TooLong, Unauthorised, Unreachable, Untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rota.client.sync import Client

FULL_ID = 12
ADDRESS = "rota.address"  # in the context: whom a command talked to, for the words of an error
MOST_LOOKED_AT = 5000  # runs, when only a part of an id is given

server_option = click.option(
    "--server", default="", metavar="URL", help="Instead of $ROTA_URL: http://host:port or unix:///path/rota.sock."
)
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON value on stdout.")


def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
    from rota.cli.complete import run_ids

    return run_ids(incomplete)


run_argument = click.argument("run_id", shell_complete=complete)
runs_argument = click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...", shell_complete=complete)
dry_option = click.option("--dry-run", is_flag=True, help="Say what would happen, and do nothing.")


def connect(server: str = "", **options: Any) -> Client:
    from rota.client.sync import Client

    client = Client.from_env(server, **options)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.find_root().meta[ADDRESS] = client.url
    return client


def say(text: str) -> None:
    """A message to the person, beside the output."""
    click.echo(f"rota: {text}", err=True)


def note_ignored(answer: Mapping[str, Any]) -> None:
    """Tell which fields of the request the server did not know: something was asked for that will not be done."""
    from rota.cli.render import plain

    for text in answer.get("ignored") or ():
        say(f"note: the server ignored a field that it does not know, {plain(str(text))}")


def note_left_out(workspace: Mapping[str, Any] | None) -> None:
    """Tell which files are not recorded with a run that is submitted: its code cannot be made again."""
    if workspace and workspace.get("diff_truncated"):
        from rota.cli.render import plain
        from rota.cli.workspace import unrestorable

        say(f"note: `rota rerun --restore` will not work for this run: {plain(unrestorable(workspace))}")


def emit(value: Any) -> None:
    """The one JSON value on stdout."""
    import json

    click.echo(json.dumps(value))


def fail(error: RotaError, about: str = "") -> int:
    """Say what went wrong and what to do next, in one line; the exit code. `about`: what was asked for, where one
    could not tell from the words alone which of several it was."""
    from rota.cli.render import plain

    text = f"{_address()} is no Rota server: {error}" if _stranger(error) else str(error)
    text = f"{about}: {text}" if about and about.strip().lower() not in text else text
    say(plain(f"{text}{_next_step(error)}"))
    return exit_code(error)


def exit_code(error: RotaError) -> int:
    if isinstance(error, Unreachable | Untrusted | BadAnswer) or _stranger(error):
        return UNREACHABLE
    if isinstance(error, Unauthorised):
        return NOT_AUTHORISED
    if isinstance(error, Refused):
        return USAGE if error.status == 422 else REFUSED
    return USAGE  # said by the client itself, before anything was sent: an address, a token file


def _next_step(error: RotaError) -> str:
    if _stranger(error):
        return "; check ROTA_URL or --server: host, port, http or https; `rota doctor` looks closer"
    if isinstance(error, TooLong):
        return "; `rota history` reads runs page by page, and `rota show RUN` one of them"
    if isinstance(error, Unreachable) and not error.sent and "ssl" in str(error).lower():
        return "; is it http:// and not https://? Check ROTA_URL or --server"
    if isinstance(error, Unreachable) and (error.denied or error.busy):
        return f"; {error.next_step}"
    if isinstance(error, Unreachable) and not error.sent:
        return "; start one with `rota up`, or name one with ROTA_URL; `rota doctor` looks closer"
    if isinstance(error, Unauthorised) and error.status == 401:
        where = token_at_fault(error)
        if where:
            return f"; the token from {where} is not valid or has expired: ask for a new one, then `rota login`"
        return "; log in with `rota login`, or set ROTA_TOKEN"
    if isinstance(error, NotFound) and "un not found" in error.detail:
        return "; see `rota queue` and `rota history`; a sweep's id goes with `rota show` and `rota cancel`"
    return ""


def token_at_fault(error: RotaError) -> str:
    """Where the token came from that the server did not take; "" where none was shown, or that was not the trouble."""
    from rota.client.address import find_token

    if not isinstance(error, Unauthorised) or error.status != 401:
        return ""
    try:
        token, where = find_token()
    except RotaError:
        return ""
    return where if token else ""


def _stranger(error: RotaError) -> bool:
    """Whether whoever answered is no Rota server: Rota says why it refuses, and under names of its own."""
    if isinstance(error, BadAnswer):
        return not isinstance(error, TooLong)
    if not isinstance(error, Refused) or error.status in (429, 503, 507):
        return False
    return error.detail == f"the server answered {error.status}" or (error.status, error.detail) == (404, "not found")


def _address() -> str:
    context = click.get_current_context(silent=True)
    return str(context.find_root().meta.get(ADDRESS, "this")) if context is not None else "this"


def full_id(client: Client, text: str) -> str:
    """The run whose id ends so, or begins so, or that is this task of an array: ID_INDEX, as `squeue` shows it. A
    whole id is believed; the server will say if there is none."""
    text = text.strip().lower()
    array, task, index = text.partition("_")
    if task and len(array) == FULL_ID and index.isdecimal():
        return _task(client, text)
    if not text or len(text) >= FULL_ID or any(char not in "0123456789abcdef" for char in text):
        return text or "-"
    looked_at = (run.id for run in client.runs(archived=True, limit=MOST_LOOKED_AT))
    found = {run_id for run_id in looked_at if run_id.endswith(text) or run_id.startswith(text)}
    if len(found) == 1:
        return found.pop()
    if not found:
        raise NotFound(404, f"no run's id ends with {text}; see `rota queue` and `rota history`", "run_id")
    some = ", ".join(sorted(found)[:4])
    raise Refused(422, f"{text} is part of {len(found)} ids: {some}; give more of it", "run_id")


def _task(client: Client, text: str) -> str:
    from rota.cli.slurm.jobs import find
    from rota.cli.slurm.options import UsageError

    try:
        job = find(client, text)[0]
    except (NotFound, UsageError):  # the latter of an index that is too large
        raise NotFound(404, f"no array has the task {text}; see `rota show {text[:FULL_ID]}`", "run_id") from None
    return job.run.id


def for_each(client: Client, ids: Iterable[str], act: Callable[[str], str]) -> int:
    """Do it to each run and say how it went; one that fails does not stop the rest. The exit code: of the first that
    failed."""
    code = 0
    for text in ids:
        try:
            click.echo(act(full_id(client, text)))
        except Unreachable:
            raise
        except RotaError as error:
            failed = fail(error, text)
            code = code or failed
    return code


def leave(code: int) -> None:
    if code:
        sys.exit(code)
