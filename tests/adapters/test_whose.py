"""Whose connection, and whose process: what the kernel says of callers and holders."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rota.adapters import connections
from rota.adapters.backends import inside, procs, zygote
from rota.adapters.connections import uid_at
from rota.adapters.processes import is_persons

ATTEMPT = "0123456789ab-1"


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["v4", "v6"])
def line(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the caller's, and ours."""
    family, host = request.param
    with socket.create_server((host, 0), family=family) as listening, socket.socket(family) as caller:
        caller.connect(listening.getsockname()[:2])
        ours, _ = listening.accept()
        with ours:
            yield caller, ours


def whose(ours: socket.socket) -> int | None:
    """By both ways of asking the kernel, which must agree."""
    near, far = ours.getpeername()[:2], ours.getsockname()[:2]
    found = uid_at(near, far)
    assert connections._search(near, far) == found
    assert uid_at(near, far, quick=True) == found
    return found


class TestConnections:
    def test_the_account_behind_a_connection(self, line: tuple[socket.socket, socket.socket]) -> None:
        assert whose(line[1]) == os.getuid()

    def test_of_one_that_was_closed_nobody(self, line: tuple[socket.socket, socket.socket]) -> None:
        """The table shows it as root's, whosever it was."""
        caller, ours = line
        caller.close()
        assert whose(ours) is None

    def test_of_one_that_is_not_there_nobody(self, line: tuple[socket.socket, socket.socket]) -> None:
        _, ours = line
        near, far = ours.getpeername()[:2], ours.getsockname()[:2]
        assert uid_at((near[0], 1), far) is None
        assert uid_at(near, (far[0], 1)) is None, "from the same place to another"
        assert uid_at(far, far) is None
        assert uid_at(("uid=0", 0), far) is uid_at(("localhost", near[1]), far) is None

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as another account")
    def test_of_another_account(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
            argv = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}; read x"]
            with subprocess.Popen(argv, user=54321, cwd="/", stdin=subprocess.PIPE) as caller:
                ours, _ = listening.accept()
                with ours:
                    assert whose(ours) == 54321
                caller.kill()


class TestInside:
    @pytest.fixture
    def started(self) -> Iterator[list[subprocess.Popen[bytes]]]:
        made: list[subprocess.Popen[bytes]] = []
        yield made
        for process in made:
            process.kill()
            process.communicate()

    def test_most_processes_are_part_of_none(self, started: list[subprocess.Popen[bytes]]) -> None:
        started.append(subprocess.Popen(["sleep", "1000"], env={}))
        for pid in (started[0].pid, os.getpid(), os.getppid(), 1):
            assert inside.attempt_of(pid) is None

    def test_a_mark_tells_which(self, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch) -> None:
        for mark in (ATTEMPT, "nonsense"):
            argv = ["sh", "-c", "echo; exec sleep 1000"]
            env = {"A": "x" * 5000, procs.MARKER: mark, "PATH": os.environ["PATH"]}
            started.append(subprocess.Popen(argv, env=env, stdout=subprocess.PIPE))
            assert started[-1].stdout is not None
            started[-1].stdout.readline()
        assert inside.attempt_of(started[0].pid) == ATTEMPT
        assert inside.attempt_of(started[1].pid) == inside.UNKNOWN
        monkeypatch.setenv(procs.MARKER, ATTEMPT)
        assert inside.attempt_of(started[0].pid) is None, "we are all inside that one: it is not one of ours"

    def test_below_a_supervisor_the_mark_may_be_washed_off(self, started: list[subprocess.Popen[bytes]]) -> None:
        """Also where those in between are gone, as long as the supervisor takes them in."""
        code = "import subprocess; print(subprocess.Popen(['sleep', '1000'], env={}).pid, flush=True); input()"
        argv = [sys.executable, "-c", code, zygote.__file__]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        child = int(started[0].stdout.readline())
        try:
            assert inside.attempt_of(child) == inside.UNKNOWN
            assert inside.attempt_of(started[0].pid) == inside.UNKNOWN, "nor is the supervisor anybody else's"
        finally:
            os.kill(child, 9)

    def test_who_is_gone_cannot_be_asked(self) -> None:
        with subprocess.Popen(["true"]) as process:
            process.wait()
        assert inside.attempt_of(process.pid) == inside.UNKNOWN


def test_accounts_of_persons() -> None:
    assert is_persons("nobody")
    for name in ("root", "no-such-account", "", "a\0b", "\ud800"):
        assert not is_persons(name)
