"""Asking programs and ports of the outside, each for a bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

COMMAND_S = 3.0
NETWORK_S = 1.0
MAX_ANSWER_BYTES = 4 << 20


def command(env: Mapping[str, str], argv: Sequence[str]) -> list[str] | None:
    """The lines it printed; None when it is not there, fails, or does not answer in time."""
    program = shutil.which(argv[0], path=env.get("PATH", ""))
    if program is None:
        return None
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that what it starts can be ended with it
        )
    except OSError:
        return None
    with process:
        try:
            out, _ = process.communicate(timeout=COMMAND_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None
    return out.decode(errors="replace").splitlines() if process.returncode == 0 else None


def answers(host: str, port: int) -> bool:
    """Does anything listen there?"""
    try:
        with socket.create_connection((host, port), NETWORK_S):
            return True
    except OSError:
        return False


def json_of(host: str, port: int, path: str) -> Any:
    """What a GET answers; None when it does not, or not with JSON."""
    import http.client  # and with it ssl and email: a start needs none of them

    connection = http.client.HTTPConnection(host, port, timeout=NETWORK_S)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = connection.getresponse()
        return json.loads(response.read(MAX_ANSWER_BYTES)) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
