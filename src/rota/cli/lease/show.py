"""`srun status` and `srun jobs`: the lease door's own two reads, as text."""

from __future__ import annotations

import os
import sys
from typing import Any

from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE
from rota.cli.lease.door import find_door
from rota.cli.render import plain
from rota.client.errors import RotaError, Unreachable

LEAST, ELSEWHERE = 20, 100  # characters of a command


def show(program: str, what: str) -> int:
    try:
        door = find_door()
        status, value = door.call("GET", f"/{what}")
    except Unreachable as error:
        return _fail(program, UNREACHABLE, f"{error}; {error.next_step}")
    except RotaError as error:
        return _fail(program, UNREACHABLE, f"{error}; start one with: rota up")
    if status in (401, 403):
        return _fail(program, NOT_AUTHORISED, "not authorised; set ROTA_TOKEN, or: rota login")
    if status != 200:
        return _fail(program, REFUSED, f"{door.address} answered {status}")
    try:
        text = _status(value) if what == "status" else _jobs(value)
    except (AttributeError, KeyError, TypeError):
        return _fail(program, UNREACHABLE, f"what answers at {door.address} is no lease door")
    sys.stdout.write(text)
    return 0


def _status(value: dict[str, Any]) -> str:
    held = ",".join(map(str, value["gpus_allocated"])) or "none"
    return (
        f"{plain(str(value['service']))} {plain(str(value['version']))}, up {int(value['uptime_s'])} s, "
        f"port {value['port']}\n"
        f"GPUs: {value['gpus_total']} in all, given out: {held}\n"
        f"jobs: {value['jobs_running']} running, {value['jobs_queued']} waiting, {value['jobs_total']} in all\n"
    )


def _jobs(value: list[dict[str, Any]]) -> str:
    from rota.cli.slurm.told import line as told

    rows = [["ID", "STATUS", "GPUS", "PID", "USER", "COMMAND"]]
    for job in value:
        gpus = ",".join(map(str, job["gpus"])) or f"({job['num_gpus']})"
        row = (job["id"], job["status"], gpus, job["pid"], job.get("user") or "", told(str(job.get("cmd") or "")))
        rows.append([plain(str(cell)) for cell in row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = _room(sum(widths[:-1]) + 2 * len(widths[:-1]))
    for cells in rows:
        cells[-1] = cells[-1] if len(cells[-1]) <= room else f"{cells[-1][: room - 3]}..."
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)) for cells in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def _room(used: int) -> int:
    """For a command: what a terminal has left beside the other columns, and a length that can be read elsewhere."""
    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return max(LEAST, columns - used) if columns else ELSEWHERE


def _fail(program: str, code: int, message: str) -> int:
    sys.stderr.write(f"{program}: {message}\n")
    return code
