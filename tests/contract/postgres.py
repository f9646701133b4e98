"""A private PostgreSQL for the tests: unix socket only, in a temporary directory, stopped by its pid."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from glob import glob
from pathlib import Path
from types import TracebackType

import psycopg


def find_binaries() -> Path | None:
    """The directory with initdb and postgres, the newest version's first."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += [Path(place) for place in sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root: whom to run it as instead."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("neither postgres nor nobody is an account here")


class Postgres:
    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._who = account()
        self._made = 0
        self.dir = Path(tempfile.mkdtemp(prefix="rota-pg-", dir="/tmp"))  # short: a socket's path has 107 bytes at most
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Postgres:
        if self._who is not None:
            os.chown(self.dir, self._who.pw_uid, self._who.pw_gid)
        initdb = [
            str(self._binaries / "initdb"),
            "-D",
            str(self.dir / "data"),
            "-U",
            "rota",
            "-A",
            "trust",
            "-E",
            "UTF8",
        ]
        self._run([*initdb, "--locale=C", "--no-sync", "--no-instructions"])
        self.start()
        return self

    def start(self) -> None:
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.dir),
            "fsync": "on",
            "shared_buffers": "32MB",
            "max_connections": "40",
            "log_min_messages": "panic",
        }
        argv = [str(self._binaries / "postgres"), "-D", str(self.dir / "data")]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        with (self.dir / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self.dir, **self._as_whom())
        self._wait_until_up()

    def _wait_until_up(self) -> None:
        until = time.monotonic() + 180
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(signal.SIGQUIT)  # at once: everything goes anyway
        shutil.rmtree(self.dir, ignore_errors=True)

    def url(self, schema: str = "public") -> str:
        return f"postgresql://rota@/postgres?host={self.dir}&options=-csearch_path%3D{schema}"

    def new_database(self) -> str:
        """The URL of an empty schema: to Rota the same as a database of its own, but made and dropped much faster."""
        self._made += 1
        name = f"s{self._made}"
        with psycopg.connect(self.url(), autocommit=True) as admin:
            admin.execute(f"CREATE SCHEMA {name}".encode())
        return self.url(name)

    def _run(self, argv: list[str]) -> None:
        done = subprocess.run(argv, capture_output=True, cwd=self.dir, check=False, **self._as_whom())
        if done.returncode:
            raise RuntimeError(done.stderr.decode("utf-8", "replace"))

    def _as_whom(self) -> dict:
        if self._who is None:
            return {}
        return {"user": self._who.pw_uid, "group": self._who.pw_gid, "extra_groups": []}
