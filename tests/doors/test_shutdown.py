"""A server that is told to stop does so, whatever its threads are at."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.app.house import until
from tests.doors.server import PROGRAM, Server

# A read of the server that takes far longer than anybody waits for a stop; it says that it has begun.
STUCK = """
import pathlib, time
from rota.app.service import Service
def stuck(*args, **more):
    pathlib.Path({begun!r}).touch()
    time.sleep(1000)
Service.{method} = stuck
from rota.cli.start import main
main()
"""


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("totals", "GET /usage"),
        ("explain", "GET /runs/{}/explain"),
        ("record", "GET /runs/{}/workspace"),
        ("run", "POST /runs/{}/stop"),
    ],
)
def test_a_thread_that_does_not_end_keeps_no_server_alive(tmp_path: Path, method: str, asked: str) -> None:
    begun = tmp_path / "begun"
    server = Server(tmp_path)
    server.start()
    run = server.post("/runs", {"name": "a", "command": "true"}).ok()["id"]
    server.stop()
    server.argv[:3] = [sys.executable, "-c", STUCK.format(begun=str(begun), method=method)]
    server.start()
    verb, path = asked.format(run).split()
    callers = [subprocess.Popen(["curl", "-s", "-X", verb, server.url + path]) for _ in range(3)]
    try:
        until(begun.exists, "the read has begun")
        process = server.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(60) == 0, server.said()
        print(f"it ended after {time.monotonic() - began:.1f} s")
        assert verb != "GET" or "Traceback" not in server.said()
        server.process = None
    finally:
        server.kill()
        for caller in callers:
            caller.kill()
            caller.wait()
    server.argv[:3] = PROGRAM
    server.log.unlink()
    with server:
        assert server.get(f"/runs/{run}").ok()["status"] == "ready", "the next one finds everything in order"
