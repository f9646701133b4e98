"""Whose connection, and whose process: what the kernel says of callers and holders."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota import sock_diag
from rota.adapters import connections
from rota.adapters.backends import inside, procs, sight
from rota.adapters.connections import peer_attempt, peer_shares_pids, peer_uid, uid_at
from rota.adapters.processes import is_persons
from tests.backends.helpers import wait_for

ATTEMPT = "0123456789ab-1"
OWN_LOOKS = 20  # at the test itself and what stands above it, and at its groups and its mark
NAMED = "import ctypes, sys; ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0); "
# Each process forks the next; the last one says that all are there.
CHAIN = (
    NAMED + "import os, signal\n"
    "for _ in range(int(sys.argv[2])):\n"
    "    if os.fork(): signal.pause()\n"
    "    ctypes.CDLL(None).prctl(15, b'link', 0, 0, 0)\n"
    "print(os.getpid(), flush=True); signal.pause()"
)


def has_ipv6() -> bool:
    """Whether there is a loopback of its kind: in many containers there is none."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


IPV6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@pytest.fixture(
    params=[(socket.AF_INET, "127.0.0.1"), pytest.param((socket.AF_INET6, "::1"), marks=IPV6)], ids=["v4", "v6"]
)
def line(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the caller's, and ours."""
    family, host = request.param
    with socket.create_server((host, 0), family=family) as listening, socket.socket(family) as caller:
        caller.connect(listening.getsockname()[:2])
        ours, _ = listening.accept()
        with ours:
            yield caller, ours


@pytest.fixture
def bound() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection whose caller is bound to the loopback device; nobody listens any more."""
    with socket.socket() as caller:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            caller.bind(("127.0.0.78", 0))  # an address of its own: nobody else takes the port meanwhile
            caller.connect(listening.getsockname())
            ours, _ = listening.accept()
        with ours:
            yield caller, ours


def whose(ours: socket.socket) -> int | None:
    return uid_at(ours.getpeername()[:2], ours.getsockname()[:2])


@pytest.fixture(params=["netlink", "tables"], autouse=True)
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As most kernels answer, and as those do that do not know sock_diag."""
    if request.param == "tables":
        monkeypatch.setattr(sock_diag, "_ask", lambda *ends: None)
    return str(request.param)


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

    def test_the_peer_of_a_socket(self, line: tuple[socket.socket, socket.socket]) -> None:
        caller, ours = line
        assert peer_uid(ours) == peer_uid(caller) == os.getuid()
        caller.shutdown(socket.SHUT_WR)
        assert peer_uid(ours) == os.getuid(), "it has said all, and is there"
        caller.close()
        assert peer_uid(ours) is None

    def test_whoever_has_the_same_ends_later_is_not_taken_for_the_peer(self) -> None:
        """A caller that vanished by a reset frees its port at once, while its request is still with us."""
        with socket.create_server(("127.0.0.1", 0)) as listening:
            # from an address of its own: nobody else on the machine takes the port meanwhile
            caller = socket.create_connection(listening.getsockname(), source_address=("127.0.0.77", 0))
            ours, _ = listening.accept()
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near = caller.getsockname()
            caller.close()
            with ours, socket.create_connection(listening.getsockname(), source_address=near):
                assert uid_at(near, listening.getsockname()) == os.getuid(), "there is one with these ends"
                assert peer_uid(ours) is None

    def test_a_listener_is_no_peer(self) -> None:
        """The kernel names a socket that listens where it finds none that is connected."""
        with socket.create_server(("127.0.0.1", 0)) as near, socket.create_server(("127.0.0.1", 0)) as far:
            assert uid_at(near.getsockname(), far.getsockname()) is None

    def test_a_socket_that_is_bound_to_a_device(self, bound: tuple[socket.socket, socket.socket], lookup: str) -> None:
        """Any account may bind its sockets to one, and the kernel then finds them only by it."""
        _, ours = bound
        assert whose(ours) == peer_uid(ours) == os.getuid()
        assert peer_uid(ours, quick=True) == (os.getuid() if lookup == "netlink" else None)
        with socket.socket() as listening:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            found = sock_diag.listening(listening.getsockname())
            assert found is not None
            assert found.inode == os.fstat(listening.fileno()).st_ino

    def test_who_waits_for_an_answer_with_the_same_ends_is_not_taken_for_the_peer(
        self, bound: tuple[socket.socket, socket.socket]
    ) -> None:
        """Beside a socket that is bound to a device another account's can get the same two ends. The kernel names that
        one, which is not connected to anybody."""
        caller, _ = bound
        near, far = caller.getsockname(), caller.getpeername()
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(near)
            other.setblocking(False)
            assert other.connect_ex(far) == errno.EINPROGRESS
            found = sock_diag.connected(near, far)
            assert found is None or found.inode == os.fstat(caller.fileno()).st_ino

    def test_a_server_does_not_read_the_tables_of_a_kernel_that_answers(
        self,
        bound: tuple[socket.socket, socket.socket],
        lookup: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Their length is the choice of any account of the machine."""
        read: list[object] = []
        monkeypatch.setattr(sock_diag, "_read", lambda *ends: read.append(ends))
        monkeypatch.setattr(sock_diag, "_device_of", lambda *address: 0, raising=False)
        assert peer_uid(bound[1]) is None
        assert peer_uid(bound[1], quick=True) is None
        assert len(read) == (lookup == "tables")

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a network namespace")
    @pytest.mark.skipif(shutil.which("ip") is None, reason="needs ip (iproute2) to set up a network device")
    def test_by_an_address_of_another_device(self, lookup: str) -> None:
        code = (
            "import os, socket, subprocess, sys\n"
            "from rota import sock_diag\n"
            "def ip(*words): return subprocess.run(['ip', *words], stderr=subprocess.DEVNULL).returncode == 0\n"
            "if not ip('link', 'set', 'lo', 'up'): sys.exit(77)\n"
            "device = 'd0' if ip('link', 'add', 'd0', 'type', 'veth') else 'lo'\n"  # not every kernel has these
            "ip('link', 'set', device, 'up'), ip('addr', 'add', '10.77.0.1/24', 'dev', device)\n"
            "with socket.create_server(('10.77.0.1', 0)) as listening, socket.socket() as caller:\n"
            "    caller.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())\n"
            "    caller.connect(listening.getsockname())\n"
            "    found = sock_diag.connected(caller.getsockname(), listening.getsockname(), quick=True)\n"
            "    assert found is not None and found.inode == os.fstat(caller.fileno()).st_ino\n"
        )
        argv = ["unshare", "-n", sys.executable, "-c", code]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode == 77 or "unshare:" in done.stderr:
            pytest.skip("there is no network namespace, or no device to be had in it")
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("host", ["127.0.0.1", "", pytest.param("::1", marks=IPV6), pytest.param("::", marks=IPV6)])
    def test_who_listens(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listening:
            port = listening.getsockname()[1]
            for at in {"127.0.0.1": ["127.0.0.1"], "": ["127.0.0.1"], "::1": ["::1"], "::": ["::1", "127.0.0.1"]}[host]:
                found = sock_diag.listening((at, port))
                assert found is not None, at
                assert (found.state, found.uid) == (sock_diag.LISTEN, os.getuid())
                assert found.inode == os.fstat(listening.fileno()).st_ino
        assert sock_diag.listening(("::1" if ":" in host else "127.0.0.1", port)) is None

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


def attempt_of(pid: int, uid: int) -> str | None:
    assert uid == os.getuid()
    return inside.attempt_of(pid)


def namespaces(pid: int, uid: int) -> int:
    return sight.namespaces(pid)


@pytest.mark.parametrize("kernel", ["as-it-is", "without-peerpidfd"])
class TestPeersOfUnixSockets:
    @pytest.fixture(autouse=True)
    def kernel(self, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if kernel == "without-peerpidfd":
            monkeypatch.setattr(connections, "SO_PEERPIDFD", 9999)

    @pytest.fixture
    def listening(self, tmp_path: Path) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(tmp_path / "s"))
            made.listen()
            yield made

    def call(self, listening: socket.socket, **more: Any) -> tuple[subprocess.Popen[bytes], socket.socket]:
        code = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); input()"
        argv = [sys.executable, "-c", code, listening.getsockname()]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, **more)
        return process, listening.accept()[0]

    def test_a_person_and_a_job(self, listening: socket.socket) -> None:
        for env, attempt in (({}, None), ({procs.MARKER: ATTEMPT}, ATTEMPT)):
            process, ours = self.call(listening, env=env)
            with process, ours:
                assert peer_uid(ours) == os.getuid()
                assert peer_attempt(ours, attempt_of) == attempt
                process.communicate(b"\n")

    def test_of_one_that_is_gone_it_cannot_be_told(self, listening: socket.socket) -> None:
        process, ours = self.call(listening)
        process.kill()
        process.communicate()
        with ours:
            assert peer_attempt(ours, attempt_of) == inside.UNKNOWN

    def test_no_descriptor_is_left(self, listening: socket.socket) -> None:
        process, ours = self.call(listening)
        with process, ours:
            before = os.listdir("/proc/self/fd")
            for _ in range(10):
                peer_attempt(ours, attempt_of)
            assert len(os.listdir("/proc/self/fd")) <= len(before)
            process.communicate(b"\n")


def test_a_number_that_was_given_away_is_not_taken_for_the_peer(tmp_path: Path) -> None:
    """The peer ends while it is looked at, and what is looked at is somebody else by then."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        process, ours = TestPeersOfUnixSockets().call(listening)
        with ours:
            try:
                os.close(ours.getsockopt(socket.SOL_SOCKET, connections.SO_PEERPIDFD))
            except OSError:
                process.kill()
                process.communicate()
                return  # this kernel has none, and cannot tell

            def ends_meanwhile(pid: int, uid: int) -> str | None:
                process.kill()
                process.communicate()
                return None  # its successor is part of no attempt

            assert peer_attempt(ours, ends_meanwhile) == inside.UNKNOWN


@pytest.fixture(scope="session")
def _opens() -> list[int]:
    """Counts the files of /proc that were opened. A hook cannot be taken away again, so there is one."""
    count = [0]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith("/proc/"):
            count[0] += 1

    sys.addaudithook(hook)
    return count


@pytest.fixture
def opened(_opens: list[int]) -> Callable[[], int]:
    return lambda: _opens[0]


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
            env = {"A": "x" * 5000, procs.MARKER: mark, "PATH": os.environ["PATH"]}
            started.append(subprocess.Popen(["sleep", "1000"], env=env))
            # in the middle of an exec, which Popen does not wait for to its end, a process has no environment to read
            wait_for(Path(f"/proc/{started[-1].pid}/environ").read_bytes, "its environment")
        assert inside.attempt_of(started[0].pid) == ATTEMPT
        assert inside.attempt_of(started[1].pid) == inside.UNKNOWN
        monkeypatch.setenv(procs.MARKER, ATTEMPT)
        assert inside.attempt_of(started[0].pid) is None, "we are all inside that one: it is not one of ours"

    def test_below_a_supervisor_the_mark_may_be_washed_off(self, started: list[subprocess.Popen[bytes]]) -> None:
        """Also where those in between are gone, as long as the supervisor takes them in."""
        code = (
            f"{NAMED}import subprocess; print(subprocess.Popen(['sleep', '1000'], env={{}}).pid, flush=True); input()"
        )
        argv = [sys.executable, "-c", code, "rota-shim"]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[0].stdout is not None
        child = int(started[0].stdout.readline())
        try:
            assert inside.attempt_of(child) == inside.UNKNOWN
            assert inside.attempt_of(started[0].pid) == inside.UNKNOWN, "nor is the supervisor anybody else's"
        finally:
            os.kill(child, 9)

    @pytest.fixture
    def chain(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], int]]:
        """Begin a chain of processes of which the first has this name; the last one's pid."""
        assert inside.MAX_ANCESTORS <= 256, "each costs the event loop a look"
        monkeypatch.setattr(inside, "MAX_ANCESTORS", 60)  # so that a short chain is a deep one
        made: list[subprocess.Popen[bytes]] = []

        def begin(name: str, links: int) -> int:
            argv = [sys.executable, "-c", CHAIN, name, str(links)]
            made.append(subprocess.Popen(argv, env={}, stdout=subprocess.PIPE, start_new_session=True))
            assert made[-1].stdout is not None
            return int(made[-1].stdout.readline())

        yield begin
        for process in made:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def test_however_deep_a_process_is_the_look_at_it_has_a_bound(
        self, chain: Callable[[str, int], int], opened: Callable[[], int]
    ) -> None:
        """Each connection to the socket is looked at, and its peer decides how many processes stand above it."""
        deep = chain("some-shell", 100)
        before = opened()
        assert inside.attempt_of(deep) == inside.UNKNOWN, "what may stand above it was not looked at: it needs a token"
        assert 0 < opened() - before < 60 + 2 * OWN_LOOKS

    def test_a_shell_in_a_deep_terminal_is_known(
        self, chain: Callable[[str, int], int], opened: Callable[[], int]
    ) -> None:
        shell = chain("some-shell", 25)
        before = opened()
        assert inside.attempt_of(shell) is None
        assert opened() - before < 25 + 2 * OWN_LOOKS, "one look at each that stands above it"

    @pytest.mark.parametrize("name", ["rota-shim", "rota-zygote"])
    @pytest.mark.parametrize("links", [0, 25, 100])
    def test_no_depth_hides_a_supervisor(self, chain: Callable[[str, int], int], name: str, links: int) -> None:
        assert inside.attempt_of(chain(name, links)) == inside.UNKNOWN

    def test_who_dies_above_it_while_it_is_looked_at_does_not_lengthen_the_look(
        self, chain: Callable[[str, int], int], opened: Callable[[], int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shell = chain("some-shell", 40)
        real = procs.name_and_parent

        def vanishes(pid: int) -> tuple[bytes, int] | None:
            found = real(pid)
            return None if found is not None and found[0] == b"some-shell" else found

        monkeypatch.setattr(procs, "name_and_parent", vanishes)
        before = opened()
        assert inside.attempt_of(shell) == inside.UNKNOWN
        assert opened() - before < 60 + 2 * OWN_LOOKS

    def test_who_is_gone_cannot_be_asked(self) -> None:
        with subprocess.Popen(["true"]) as process:
            process.wait()
        assert inside.attempt_of(process.pid) == inside.UNKNOWN


def test_accounts_of_persons() -> None:
    assert is_persons("nobody")
    for name in ("root", "no-such-account", "", "a\0b", "\ud800"):
        assert not is_persons(name)


class Closing:
    """A connection as uvloop shows it, which the event loop closes after this many questions."""

    def __init__(self, link: socket.socket, questions: int) -> None:
        self.family, self._link, self._left = link.family, link, questions

    def fileno(self) -> int:
        return self._link.fileno() if self._left else -1

    def __getattr__(self, question: str) -> Any:
        if not self._left:
            raise ValueError("negative file descriptor")
        self._left -= 1
        return getattr(self._link, question)


class TestConnectionsThatAreClosedMeanwhile:
    """A thread asks by the descriptor, which the event loop may give up between any two questions."""

    @pytest.mark.parametrize("questions", range(4))
    def test_of_a_port(self, line: tuple[socket.socket, socket.socket], questions: int) -> None:
        closing: Any = Closing(line[1], questions)
        assert peer_uid(closing) is None
        assert peer_uid(line[1]) == os.getuid()

    @pytest.mark.parametrize("questions", range(2))
    def test_of_a_unix_socket(self, questions: int) -> None:
        ours, caller = socket.socketpair()
        with ours, caller:
            closing: list[Any] = [Closing(ours, questions) for _ in range(3)]
            assert peer_uid(closing[0]) is None
            assert peer_attempt(closing[1], attempt_of) == inside.UNKNOWN
            assert peer_shares_pids(closing[2], namespaces)
            assert peer_uid(ours) == os.getuid()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a process groups")
def test_a_process_of_many_groups_is_known_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel lists them ahead of much else."""
    with subprocess.Popen(["sleep", "1000"], user=54_321, extra_groups=range(2_000_000_000, 2_000_001_000)) as process:
        try:
            assert sight.namespaces(process.pid) == sight.namespaces(os.getpid())
            assert procs.uid_of(process.pid) == 54_321
            monkeypatch.setattr(procs, "_uid_by_pidfd", lambda pid: None)  # before Linux 6.13
            assert procs.uid_of(process.pid) == 54_321
        finally:
            process.kill()
