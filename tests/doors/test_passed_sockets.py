"""A server whose sockets were opened by its parent, as systemd does it: it goes and comes, and they stay."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.app.house import PATIENCE_S, until
from tests.doors.server import Answer, Server, curl, parse

# What systemd does between fork and exec: the sockets from 3 on, and whom they are for.
LAUNCH = """
import fcntl, os, sys
numbers = [int(word) for word in sys.argv[1].split(",")]
held = [fcntl.fcntl(number, fcntl.F_DUPFD, 100) for number in numbers]
for place, number in enumerate(held, 3):
    os.dup2(number, place)
    os.close(number)
os.environ |= {"LISTEN_PID": sys.argv[2] or str(os.getpid()), "LISTEN_FDS": str(len(numbers))}
os.execv(sys.argv[3], sys.argv[3:])
"""


class Passed(Server):
    """Started with sockets that the test holds. `for_pid`: for which process they are said to be, instead of it."""

    for_pid = ""

    def __init__(self, where: Path, sockets: Sequence[socket.socket], env: Mapping[str, str] | None = None) -> None:
        super().__init__(where, nodes=1, gpus=2, env=env)
        self.sockets = sockets
        self.plain = self.argv

    def start(self) -> Server:
        self.argv = self.launch()
        self.pass_fds = tuple(one.fileno() for one in self.sockets)
        return super().start()

    def launch(self) -> list[str]:
        numbers = ",".join(str(one.fileno()) for one in self.sockets)
        return [sys.executable, "-c", LAUNCH, numbers, self.for_pid, *self.plain]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def listening(stack: ExitStack, port: int = 0, host: str = "127.0.0.1") -> socket.socket:
    return stack.enter_context(socket.create_server((host, port), backlog=4096))


def unix_at(stack: ExitStack, path: Path) -> socket.socket:
    path.parent.mkdir(parents=True, exist_ok=True)
    one = stack.enter_context(socket.socket(socket.AF_UNIX))
    one.bind(str(path))
    one.listen(4096)
    return one


def all_three(where: Path, stack: ExitStack) -> Passed:
    server = Passed(where, ())
    server.sockets = (
        listening(stack, server.port),
        listening(stack, server.lease_port),
        unix_at(stack, server.data / "rota.sock"),
    )
    return server


def over_unix(path: Path) -> Answer:
    return curl("http://localhost/health", options=["--unix-socket", str(path)])


def test_it_serves_on_what_it_was_given(tmp_path: Path, stack: ExitStack) -> None:
    """Also where the data directory holds nothing yet but the socket."""
    before = all_three(tmp_path, stack)
    with before as server:
        assert server.get("/health").status == server.get("/status", lease=True).status == 200
        assert over_unix(server.data / "rota.sock").ok()["status"] == "ok"
        server.stop()
        server.start()
        assert over_unix(server.data / "rota.sock").ok()["status"] == "ok", "it did not take the socket away"
        env = server.data.parent / "env"
        job = server.submit(f"env > {env}; ls -l /proc/self/fd >> {env}", 0)
        server.in_state(job, "completed")
        assert "LISTEN_" not in env.read_text()
        assert "socket:" not in env.read_text(), "no job holds a socket of the server's"
        assert server.process is not None
        environ = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        for child in environ:
            fds = [os.readlink(f"/proc/{child}/fd/{fd}") for fd in os.listdir(f"/proc/{child}/fd")]
            inodes = {f"socket:[{os.fstat(one.fileno()).st_ino}]" for one in before.sockets}
            assert not inodes & set(fds), "nor does a process that starts jobs"


def test_a_friendly_server_is_never_open_not_even_to_the_first_caller(tmp_path: Path, stack: ExitStack) -> None:
    """A call that waits for the server to come up is answered before the server has said that it is ready."""
    main = listening(stack)
    body = b'{"user": "mallory", "role": "admin"}'
    head = f"POST /tokens HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    caller = stack.enter_context(socket.create_connection(main.getsockname(), PATIENCE_S))
    caller.sendall(f"{head}\r\n\r\n".encode() + body)
    up = [str(Path(sys.executable).with_name("rota")), "up", "--port", str(main.getsockname()[1])]
    up += ["--lease-port", "0", "--nodes", "1", "--gpus", "1", "--data-dir", str(tmp_path / "data")]
    argv = [sys.executable, "-c", LAUNCH, str(main.fileno()), "", *up]
    with subprocess.Popen(argv, pass_fds=(main.fileno(),), stdout=subprocess.DEVNULL) as process:
        try:
            answer = caller.recv(4096)
        finally:
            process.terminate()
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_a_restart_loses_no_call(tmp_path: Path, stack: ExitStack) -> None:
    """Clients connect all the time, each call on a connection of its own, while the server stops and another starts."""
    with all_three(tmp_path, stack) as server:
        done = threading.Event()
        answers: list[int] = []
        troubles: list[str] = []

        def call(family: socket.AddressFamily, where: str | tuple[str, int]) -> None:
            while not done.is_set():
                try:
                    with socket.socket(family) as link:
                        link.settimeout(PATIENCE_S)
                        link.connect(where)
                        link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                        text = b"".join(iter(lambda: link.recv(65536), b""))
                    answers.append(parse(text).status)
                except (OSError, ValueError, IndexError) as error:  # refused, cut off, or no answer
                    troubles.append(repr(error))
                    return

        def enough(wanted: int) -> bool:
            return len(answers) > wanted or bool(troubles)

        callers = [
            threading.Thread(target=call, args=(socket.AF_INET, ("127.0.0.1", server.port))),
            threading.Thread(target=call, args=(socket.AF_UNIX, str(server.data / "rota.sock"))),
        ]
        for one in callers:
            one.start()
        try:
            for _ in range(3):
                wanted = len(answers) + 20
                until(partial(enough, wanted), "calls are answered")
                assert server.stop() == 0
                server.start()
            until(partial(enough, len(answers) + 20), "calls are answered again")
        finally:
            done.set()
            for one in callers:
                one.join()
        assert not troubles
        assert set(answers) == {200}


def test_while_no_server_is_there_nobody_else_can_have_the_port(tmp_path: Path, stack: ExitStack) -> None:
    with all_three(tmp_path, stack) as server:
        server.kill()
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                thief.bind(("127.0.0.1", server.port))
        waiting = subprocess.Popen(
            ["curl", "-sS", "--max-time", str(PATIENCE_S), f"{server.url}/healthz"], stdout=subprocess.PIPE
        )
        server.start()
        assert waiting.communicate(timeout=PATIENCE_S)[0]
        assert waiting.returncode == 0


def test_what_is_meant_for_another_process_is_left_alone(tmp_path: Path, stack: ExitStack) -> None:
    """The variables stay in the environment of programs that do not know them, and so does what they start."""
    server = Passed(tmp_path, [listening(stack)])
    server.for_pid = "1"
    with server:
        assert server.get("/health").status == 200
        job = server.submit(f"env > {tmp_path}/env", 0)
        server.in_state(job, "completed")
        assert "LISTEN_" not in (tmp_path / "env").read_text()


def refused(server: Passed) -> str:
    ended = subprocess.run(
        server.launch(),
        env=server.env,
        pass_fds=[one.fileno() for one in server.sockets],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode not in (0, -6), ended
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_what_makes_no_sense_is_refused_in_plain_words(tmp_path: Path, stack: ExitStack) -> None:
    server = Passed(tmp_path, [listening(stack)])
    assert "neither --port" in refused(server)
    server.sockets = [listening(stack, server.port), listening(stack, server.port, "127.0.0.2")]
    assert "two sockets were passed for the same use (main)" in refused(server)
    pair = socket.socketpair()
    for one in pair:
        stack.enter_context(one)
    server.sockets = pair[:1]
    assert "does not listen" in refused(server)
    server.sockets = [unix_at(stack, tmp_path / "s")]
    server.env["ROTA_UNIX_SOCKET"] = "false"
    assert "ROTA_UNIX_SOCKET is off" in refused(server)


@pytest.mark.parametrize("which", ["main", "lease"])
def test_an_address_for_everybody_needs_tokens_whoever_opened_it(tmp_path: Path, stack: ExitStack, which: str) -> None:
    """The settings say loopback; what counts is where the socket is."""
    server = Passed(tmp_path, ())
    server.sockets = [listening(stack, server.port if which == "main" else server.lease_port, "0.0.0.0")]
    assert "without any token" in refused(server)
    server.env["ROTA_SHARED_TOKEN"] = "shared-secret"
    with server:
        server.token = "shared-secret"
        assert server.get("/queue").status == 200
        bare = curl(f"{server.lease_url}/status")
        assert bare.status == (401 if which == "lease" else 200), "the lease port is open on loopback alone"
