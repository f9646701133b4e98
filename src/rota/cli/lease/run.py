"""The whole way of `rota run` and `srun`: look, ask, wait, become. Returns an exit code only when it did not become."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from rota.cli.exits import UNREACHABLE
from rota.cli.lease.acquire import Failed, Left, acquire
from rota.cli.lease.become import become, environment, missing
from rota.cli.lease.door import find_door
from rota.cli.lease.waiting import Waiting
from rota.client.errors import RotaError


def run(
    program: str,
    argv: Sequence[str],
    gpus: int,
    *,
    timeout_s: float | None = None,
    name: str = "",
    env: dict[str, str] | None = None,
    prepare: Callable[[str], None] | None = None,
) -> int:
    """`prepare` is called with the lease's id right before the command takes over; an OSError of it ends the whole."""
    env = dict(os.environ) if env is None else env
    problem = missing(argv[0], env)  # nobody should queue for an hour to learn of a typing error
    if problem is not None:
        return _end(program, *problem)
    try:
        door = find_door()
    except RotaError as error:
        return _end(program, UNREACHABLE, str(error))
    screen = Waiting(program, gpus)
    try:
        grant = acquire(door, gpus, screen, timeout_s=timeout_s, name=name, argv=argv)
    except Failed as failed:
        screen.clear()
        return _end(program, failed.code, str(failed))
    except Left as left:
        screen.clear()
        return _end(program, 128 + left.number, "left the queue")
    screen.clear()
    return take_over(program, argv, environment(env, grant), grant.job_id, prepare)


def take_over(
    program: str, argv: Sequence[str], env: dict[str, str], job_id: str, prepare: Callable[[str], None] | None
) -> int:
    try:
        if prepare is not None:
            prepare(job_id)
    except OSError as error:
        return _end(program, 1, f"{error.filename}: {error.strerror}")
    return _end(program, *become(argv, env))


def _end(program: str, code: int, message: str) -> int:
    sys.stderr.write(f"{program}: {message}\n")
    return code
