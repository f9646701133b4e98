"""The `rota` command as people run it: a process of its own, its exit code and what it printed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.app.house import PATIENCE_S, SOURCES, House, until

ROTA = [sys.executable, "-m", "rota"]
PROGRAM = [sys.executable, "-c", "from rota.cli.start import main; main()"]


class Shell:
    """Somebody with a data directory of their own."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.house = House(where / "house")
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(where),
            "PYTHONPATH": SOURCES,
            "ROTA_DATA_DIR": str(self.house.data),
        }

    def start(self, *args: str | bytes, **more: Any) -> subprocess.Popen[bytes]:
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen([*PROGRAM, *args], **{"env": self.env, "cwd": self.where, **pipes, **more})

    def rota(self, *args: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
        with self.start(*args, **more) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        assert b"Traceback" not in err, err.decode()
        return subprocess.CompletedProcess(process.args, process.returncode, out or b"", err or b"")

    def local(self, *args: str | bytes, **more: Any) -> subprocess.CompletedProcess[bytes]:
        return self.rota("local", "--simulate", "2x4", *args, **more)

    @contextmanager
    def at_work(self, *args: str) -> Iterator[subprocess.Popen[bytes]]:
        """`rota local` with a job that has said "ready"."""
        process = self.start("local", "--simulate", "2x4", *args)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.communicate()

    def finish(self) -> None:
        if self.house.data.exists():
            self.house.finish()


def ends(process: subprocess.Popen[bytes], *signals: signal.Signals) -> tuple[int, str]:
    """Send the signals, wait for the end; its code and what it said on stderr."""
    for number in signals:
        process.send_signal(number)
    assert process.stderr is not None
    code = process.wait(PATIENCE_S)
    said = process.stderr.read().decode()
    assert "Traceback" not in said, said
    return code, said


__all__ = ["Shell", "ends", "until"]
