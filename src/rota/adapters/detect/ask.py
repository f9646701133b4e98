"""Asking programs and ports of the outside, each for a bounded time."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rota.core.clusters import SHIM_MARK

log = logging.getLogger(__name__)

COMMAND_S = 3.0
KILLED_S = 1.0  # for one that was killed to be gone
NETWORK_S = 1.0
ANSWER_S = 3.0  # for all that one place is asked
MAX_ANSWER_BYTES = 1 << 20
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
    try:
        out, _ = process.communicate(timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        _end(process)
        return None
    return out.decode(errors="replace").splitlines() if process.returncode == 0 else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it with what it started. One that hangs in the kernel, or has let its output to a process of another
    session, is not waited for: it is collected when the next program is started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.communicate(timeout=KILLED_S)
    except subprocess.TimeoutExpired:
        if process.poll() is None:
            log.warning("%s was killed, and is not gone yet", process.args)
    finally:
        if process.stdout is not None:
            process.stdout.close()


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


class _Timed:
    """A connection whose every read counts against one deadline: a byte now and then does not buy time."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        self._connection, self._until = connection, until

    def sendall(self, data: bytes) -> None:
        self._connection.settimeout(self._left_s())
        self._connection.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Reads(self._connection, self._left_s))

    def close(self) -> None:
        """Leave it open: http.client closes before the body is read, and a real socket waits for its files."""

    def _left_s(self) -> float:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer did not come in time")
        return left_s


class _Reads(io.RawIOBase):
    def __init__(self, connection: socket.socket, left_s: Callable[[], float]) -> None:
        self._connection, self._left_s = connection, left_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        self._connection.settimeout(self._left_s())
        return self._connection.recv_into(buffer)


def get(
    host: str, port: int, path: str, *, token: str = "", secure: bool = False, until: float | None = None
) -> tuple[int, Any]:
    """The status of a GET and its JSON; status 0 when nothing answers, None when the body is no JSON. What has not come
    whole by `until` (of time.monotonic) is no answer."""
    import http.client  # and with it ssl and email: a start needs none of them

    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    until = time.monotonic() + ANSWER_S if until is None else until
    connection = kind(host, port, timeout=NETWORK_S)
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    raw: socket.socket | None = None
    try:
        if time.monotonic() >= until:
            return 0, None
        connection.connect()
        raw = connection.sock
        timed: Any = _Timed(raw, until)  # Any: as much of a socket as http.client uses
        connection.sock = timed
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        status, body = response.status, response.read(MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError):
        return 0, None
    finally:
        connection.close()
        if raw is not None:
            raw.close()
    try:
        return status, json.loads(body)
    except (ValueError, RecursionError):
        return status, None
