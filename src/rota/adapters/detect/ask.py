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

from rota.core.clusters import SHIM_MARK

COMMAND_S = 3.0
NETWORK_S = 1.0
MAX_ANSWER_BYTES = 4 << 20
SHIM_HEAD_BYTES = 500


def command(env: Mapping[str, str], argv: Sequence[str]) -> list[str] | None:
    """The lines it printed; None when it is not there, fails, or does not answer in time."""
    program = _program(argv[0], env.get("PATH", ""))
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


def _program(name: str, path: str) -> str | None:
    """The first program of this name on the PATH that is not one of Rota's own shims."""
    for place in filter(None, path.split(os.pathsep)):
        found = shutil.which(name, path=place)
        if found is not None and not _is_shim(found):
            return found
    return None


def _is_shim(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            return SHIM_MARK.encode() in file.read(SHIM_HEAD_BYTES)
    except OSError:
        return False  # it can be run and not be read: not written by us


def answers(host: str, port: int) -> bool:
    """Does anything listen there?"""
    try:
        with socket.create_connection((host, port), NETWORK_S):
            return True
    except OSError:
        return False


def get(host: str, port: int, path: str, *, token: str = "", secure: bool = False) -> tuple[int, Any]:
    """The status of a GET and its JSON; status 0 when nothing answers, None when the body is no JSON."""
    import http.client  # and with it ssl and email: a start needs none of them

    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(host, port, timeout=NETWORK_S)
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        status, body = response.status, response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()
    try:
        return status, json.loads(body)
    except ValueError:
        return status, None
