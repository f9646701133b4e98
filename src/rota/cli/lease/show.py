"""`srun status` and `srun jobs`: the lease door's own two reads, as text."""

from __future__ import annotations

import sys
from typing import Any

from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE
from rota.cli.lease.door import find_door
from rota.cli.render import plain
from rota.client.errors import RotaError


def show(program: str, what: str) -> int:
    try:
        door = find_door()
        status, value = door.call("GET", f"/{what}")
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
    rows = [["ID", "STATUS", "GPUS", "PID", "USER", "COMMAND"]]
    for job in value:
        gpus = ",".join(map(str, job["gpus"])) or f"({job['num_gpus']})"
        row = (job["id"], job["status"], gpus, job["pid"], job.get("user") or "", job.get("cmd") or "")
        rows.append([plain(str(cell)) for cell in row])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "".join(line.rstrip() + "\n" for line in lines)


def _fail(program: str, code: int, message: str) -> int:
    sys.stderr.write(f"{program}: {message}\n")
    return code
