"""`rota local -- cmd`: one command through the whole house and back, with its output and its exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from rota.cli.environment import mask
from rota.cli.exits import REFUSED
from rota.cli.options import data_dir_option, nodes_option, parse_cluster
from rota.cli.stopping import of_spec, stopping_options
from rota.cli.values import Duration, Priority, surroundings

if TYPE_CHECKING:
    from rota.app.authz import Principal
    from rota.app.service import Service
    from rota.core.run import Run

LAST_PRESS = 2
ENDED_BY_ROTA = {"time_limit": 124, "cancelled": 130, "preempted": REFUSED}


@click.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False})
@click.option("-G", "--gpus", default=1, show_default=True, help="GPUs to hold; 0 for none.")
@click.option("-N", "--nodes-wanted", "wanted", default=0, help="Spread them evenly over so many nodes.")
@click.option("-J", "--name", default="", help="A name for the run.")
@click.option("-t", "--time", "limit_s", type=Duration(), help="How long it may run: 90, 30m, 2h, 1w, 1-12:00:00.")
@click.option("-p", "--priority", type=Priority(), default=2, show_default=True, help="low to critical, or 1 to 4.")
@stopping_options
@click.option("--terminal", is_flag=True, help="Give it a terminal that `rota attach` can look into.")
@nodes_option
@data_dir_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    gpus: int,
    wanted: int,
    name: str,
    limit_s: float | None,
    priority: int,
    terminal: bool,
    cluster: str,
    data_dir: Path,
    command: tuple[str, ...],
    **options: Any,
) -> None:
    """Run COMMAND through the queue on this machine, show its output and exit as it did.

    Its stdin is empty, and what it writes to stdout and stderr comes out on stdout, as in its log.

    \b
    rota local -G 2 -- python train.py
    rota local -G 1 -- sh -c 'echo my GPU is $CUDA_VISIBLE_DEVICES'
    """
    from rota.app.commands import Cancel, Submit
    from rota.app.errors import CannotStart, Conflict, Refused
    from rota.config import Settings
    from rota.core.resources import Request
    from rota.core.run import Spec
    from rota.main import open_rota

    where, env = surroundings(None)
    spec = Spec(
        name=name or Path(command[0]).name or "run",
        argv=command,
        workdir=where,
        request=Request(gpus=gpus, nodes=wanted),
        env=env,
        umask=mask(),
        priority=priority,
        time_limit_s=limit_s,
        terminal=terminal,
        **of_spec(options),
    )
    try:
        with open_rota(Settings(data_dir, simulated=parse_cluster(cluster))) as rota:
            service, who = rota.service, _me()
            run: Run = service.do(who, Submit(spec))
            if terminal:
                _say(f"its keyboard and screen: rota attach {run.id}")
            elif sys.stderr is not None and sys.stderr.isatty():
                _say(f"run {run.id}")
            with _signals(service, run.id):
                try:
                    ended = _follow(service, run.id)
                except BrokenPipeError:  # nobody reads any more: it would have died of SIGPIPE, as in any pipe
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                    with suppress(Conflict):  # it had just ended
                        service.do(who, Cancel(run.id, why="nobody reads its output any more"))
                    service.wait(run.id)
                    sys.exit(128 + signal.SIGPIPE)
    except CannotStart as error:
        click.echo(f"rota: {error}", err=True)
        sys.exit(REFUSED)
    except Refused as refusal:
        click.echo(f"rota: {refusal.message}", err=True)
        sys.exit(2 if refusal.code == "invalid" else REFUSED)
    sys.exit(_status(ended))


def _me() -> Principal:
    import getpass

    from rota.app.authz import Principal, Role

    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run as a number that has no name
        name = f"uid{os.getuid()}"
    return Principal(name, Role.ADMIN)


def _follow(service: Service, run_id: str) -> Run:
    """Copy the output as it comes until the run has ended."""
    from concurrent.futures import wait as futures_wait

    from rota.app.errors import Refused
    from rota.app.ports import FileBusy

    ended: Future[Run] = Future()

    def wait() -> None:
        try:
            ended.set_result(service.wait(run_id))
        except Refused as refusal:  # the server failed meanwhile; the job runs on
            ended.set_exception(refusal)

    Thread(target=wait, daemon=True).start()
    attempt, offset = 1, 0
    pause_s = 0.02
    while True:
        over = not futures_wait([ended], pause_s).not_done
        pause_s = min(pause_s * 1.2, 0.3)  # a silent job is looked at less and less often
        made = service.run(run_id).attempts_made
        while attempt <= made:  # one that is followed by another has ended, so it is read to its end first
            try:
                chunk = service.log(run_id, offset, attempt=attempt)
            except FileBusy:  # its log is leased: the kernel ends that within a minute
                over = False
                break
            _show(chunk.content)
            pause_s = 0.02 if chunk.content else pause_s
            offset = chunk.offset + len(chunk.content)
            if not chunk.content:
                if attempt == made:
                    break
                attempt, offset = attempt + 1, 0
        if over:
            return ended.result()


def _show(content: bytes) -> None:
    if sys.stdout is not None:  # it may have been closed: >&-
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()


@contextmanager
def _signals(service: Service, run_id: str) -> Iterator[None]:
    """Ctrl-C cancels politely, a second one kills. The run is ended by the queue, not by our death."""
    from rota.app.commands import Cancel
    from rota.app.errors import Conflict, Refused

    presses: list[int] = []

    def cancel(number: int, frame: object) -> None:
        presses.append(number)
        if len(presses) > LAST_PRESS:
            _say(f"leaving; {run_id} is not known to have ended, `rota history` will tell")
            os._exit(128 + number)
        _say("cancelling; once more to kill it" if len(presses) == 1 else "killing it; once more to leave it alone")
        order = Cancel(run_id, grace_s=0.0 if len(presses) > 1 else None)
        service.send(_me(), order).add_done_callback(told)

    def told(done: Future[Any]) -> None:
        trouble = done.exception()
        if isinstance(trouble, Refused) and not isinstance(trouble, Conflict):  # a conflict: it has just ended
            _say(f"not cancelled: {trouble}")

    before = [(number, signal.signal(number, cancel)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Straight to the terminal's stderr: this may be a signal handler in the middle of another print."""
    with suppress(OSError):
        os.write(2, f"rota: {text}\n".encode())


def _status(run: Run) -> int:
    """The command's own exit code; 128+N for a signal; what Rota did to it is said on stderr."""
    last = run.past[-1].exit if run.past else None
    if run.why and run.state.value != "succeeded":
        click.echo(f"rota: {run.id} {run.state}: {run.why}", err=True)
    if last is None:
        return REFUSED
    if last.code is not None and (last.code or run.state.value == "succeeded"):
        return last.code
    if last.cause == "time_limit" or (last.signal is None and last.cause in ENDED_BY_ROTA):
        return ENDED_BY_ROTA[last.cause]  # also where it left politely with 0: not a success all the same
    return 128 + last.signal if last.signal is not None else REFUSED
