"""A request goes only to a server of an account that may see it: whoever holds the port while the server is down gets
nothing. Real listeners of a second account."""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rota import sock_diag
from rota.cli.lease.door import Door
from rota.client import trust
from rota.client.address import Address
from rota.client.aio import AsyncClient
from rota.client.errors import RotaError, Untrusted
from rota.client.sync import Client
from tests.client.stub import ok, stub

THIEF = 54321
SECRET = "rota_" + "s" * 40
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to listen as another account")


class Thief:
    """Another account that holds an address, in a process of its own."""

    def __init__(self, pid: int, heard: int, url: str) -> None:
        self.pid, self.url, self._heard = pid, url, heard

    def got(self) -> str:
        """All that was ever sent to it."""
        self.end()
        found = b""
        while piece := os.read(self._heard, 65536):
            found += piece
        return found.decode()

    def end(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def close(self) -> None:
        self.end()
        os.close(self._heard)


@contextmanager
def thief(family: str = "AF_INET", where: str = "127.0.0.1", accepts: bool = True) -> Iterator[Thief]:
    """Forked: the other account could not start this Python, which may lie in somebody's home."""
    heard, hears = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            steal(family, where, accepts, hears)
        finally:
            os._exit(1)
    os.close(hears)
    port = int(os.read(heard, 8))
    host = f"[{where}]" if ":" in where else where
    found = Thief(pid, heard, f"unix://{where}" if family == "AF_UNIX" else f"http://{host}:{port}")
    try:
        yield found
    finally:
        found.close()


def steal(family: str, where: str, accepts: bool, hears: int) -> None:
    os.setgroups([])
    os.setgid(THIEF)
    os.setuid(THIEF)
    listening = socket.socket(getattr(socket, family))
    listening.bind(where if family == "AF_UNIX" else (where, 0))
    listening.listen()
    port = 0 if family == "AF_UNIX" else listening.getsockname()[1]
    os.write(hears, b"%8d" % port)
    while True:
        if not accepts:
            signal.pause()
        link, _ = listening.accept()
        with link, suppress(OSError):  # who calls may have hung up
            os.write(hears, link.recv(65536))
            link.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 22\r\n\r\n" + b'{"detail": "answers"}\n')


def blocking(url: str) -> None:
    with Client(url, SECRET, tries=1, answer_s=5.0) as client:
        client.health()


def streaming(url: str) -> None:
    with Client(url, SECRET, tries=1, answer_s=5.0) as client:
        next(iter(client.events(0, patience_s=1.0)))


def asynchronous(url: str) -> None:
    async def ask() -> None:
        async with AsyncClient(url, SECRET, tries=1, answer_s=5.0) as client:
            await client.health()

    asyncio.run(ask())


def lease(url: str) -> None:
    Door(url, SECRET).call("GET", "/jobs", timeout_s=5.0)


WAYS = [blocking, streaming, asynchronous, lease]


@pytest.fixture(params=["netlink", "tables"])
def lookup(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tables":
        monkeypatch.setattr(sock_diag, "_ask", lambda *ends: None)


@pytest.mark.parametrize("way", WAYS)
def test_no_token_for_a_stranger_who_holds_the_port(way: Callable[[str], None], lookup: None) -> None:
    with thief() as found:
        for _ in range(2):
            with pytest.raises(
                Untrusted, match=r"held by the account uid54321.*was not sent.*ROTA_SERVER_ACCOUNT=54321"
            ):
                way(found.url)
        assert "rota_" not in found.got()


def submitting(url: str) -> None:
    with Client(url, "", tries=1, answer_s=5.0) as client:
        client.submit(["true"], env={"HF_TOKEN": SECRET}, inherit=False)


def asynchronously_submitting(url: str) -> None:
    async def ask() -> None:
        async with AsyncClient(url, "", tries=1, answer_s=5.0) as client:
            await client.submit(["true"], env={"HF_TOKEN": SECRET}, inherit=False)

    asyncio.run(ask())


def reading(url: str) -> None:
    with Client(url, "", tries=1, answer_s=5.0) as client:
        client.queue()


@pytest.mark.parametrize("way", [submitting, asynchronously_submitting, reading])
def test_nor_anything_else_without_a_token(
    way: Callable[[str], None], lookup: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run has its person's secrets in its environment, and an answer of a stranger must not pass for the server's."""
    with thief() as found:
        for _ in range(2):
            with pytest.raises(Untrusted, match=r"held by the account uid54321.*request was not sent"):
                way(found.url)
        assert found.got() == ""
    with thief() as found, monkeypatch.context() as patched:
        patched.setenv("ROTA_SERVER_ACCOUNT", "54321")
        with pytest.raises(RotaError, match="answers"):
            way(found.url)
        assert (SECRET in found.got()) == (way is not reading)


def test_root_may_use_the_unix_socket_of_a_person_without_a_token(tmp_path: Path) -> None:
    """It was named, and is in a directory of that person's server, which knows root by the socket."""
    where = f"/tmp/rota-trust-{os.getpid()}.sock"
    try:
        with thief("AF_UNIX", where) as found, pytest.raises(RotaError, match="answers"):
            reading(found.url)
    finally:
        Path(where).unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("family", "where", "accepts"),
    [
        ("AF_INET", "0.0.0.0", True),
        ("AF_INET6", "::1", True),
        ("AF_INET6", "::", True),
        ("AF_INET", "127.0.0.1", False),
    ],
)
def test_wherever_it_listens(family: str, where: str, accepts: bool, lookup: None) -> None:
    """Also on all addresses, on the IPv6 one that `localhost` means first, and without taking the call yet."""
    with thief(family, where, accepts) as found:
        port = found.url.rpartition(":")[2]
        hosts = {"0.0.0.0": ["127.0.0.1", own_address()], "::": ["[::1]", "127.0.0.1"], "::1": ["[::1]"]}
        for host in hosts.get(where, ["127.0.0.1"]):
            with pytest.raises(Untrusted):
                blocking(f"http://{host}:{port}")
        assert "rota_" not in found.got()


def own_address() -> str:
    """One of this machine that is not loopback's, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.2"
        return str(probe.getsockname()[0])


def test_nor_at_a_unix_socket_of_a_stranger(tmp_path: Path) -> None:
    where = f"/tmp/rota-trust-{os.getpid()}.sock"
    try:
        with thief("AF_UNIX", where) as found:
            for way in WAYS:
                with pytest.raises(Untrusted, match="uid54321"):
                    way(found.url)
            assert "rota_" not in found.got()
    finally:
        Path(where).unlink(missing_ok=True)


def test_who_runs_the_server_can_be_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for said in ("54321", "nobody, 54321", "no-such-account,54321"):
        with thief() as found, monkeypatch.context() as patched:
            patched.setenv("ROTA_SERVER_ACCOUNT", said)
            with pytest.raises(RotaError, match="answers"):
                blocking(found.url)
            assert SECRET in found.got()
    path = Path(trust.account_file(os.environ))
    path.parent.mkdir()
    path.write_text("54321\n")
    with thief() as found:
        with pytest.raises(RotaError, match="answers"):
            blocking(found.url)
        with monkeypatch.context() as patched, pytest.raises(Untrusted):
            patched.setenv("ROTA_SERVER_ACCOUNT", "nobody")
            blocking(found.url)
        assert found.got().count(SECRET) == 1


def test_one_s_own_server_with_a_token_and_without() -> None:
    """An ssh tunnel is one's own process, too."""
    with stub(lambda asked: ok({"status": "ok"})) as own:
        blocking(own.url)
        asynchronous(own.url)
        assert [asked.headers["x-auth-token"] for asked in own.asked] == [SECRET] * 2
    with stub(lambda asked: ok({"status": "ok"})) as own, Client(own.url, "") as client:
        client.health()
        assert ["x-auth-token" in asked.headers for asked in own.asked] == [False]


def test_where_the_kernel_says_nothing_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that root forwards into a container has no listener here; nobody else can make it look so."""
    monkeypatch.setattr(sock_diag, "_ask", lambda *ends: None)
    monkeypatch.setattr(sock_diag, "_read", lambda *ends: None)
    with thief() as found:
        with pytest.raises(RotaError, match="answers"):
            blocking(found.url)
        assert SECRET in found.got()


def namespaced(attempt: Callable[[], None], ids: str) -> str:
    """Do it as another account in a user namespace in which only these ids are known; say what came of it."""
    for name in ("ascii", "idna", "latin-1"):  # that account may not be able to read Python's own files
        codecs.lookup(name)
    ready, made, told = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "nothing"
        signal.alarm(60)  # whatever happens, the test goes on
        try:
            os.setgroups([])
            os.setgid(THIEF + 1)
            os.setuid(THIEF + 1)
            if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):  # CLONE_NEWUSER
                said = "no namespace"
            os.write(ready[1], b"x")
            os.read(made[0], 1)
            if said == "nothing":
                attempt()
        except RotaError as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(told[1], said.encode())
            os._exit(0)
    os.close(told[1])
    os.read(ready[0], 1)
    Path(f"/proc/{pid}/uid_map").write_text(ids)
    os.write(made[1], b"x")
    with open(told[0], "rb") as answer:
        said = answer.read().decode()
    os.waitpid(pid, 0)
    for end in (*ready, *made):
        os.close(end)
    if said == "no namespace":
        pytest.skip("no user namespaces here")
    return said


@pytest.mark.parametrize("way", [blocking, asynchronous, lease])
def test_in_a_namespace_that_does_not_know_the_server_s_account_it_is_sent(
    way: Callable[[str], None], lookup: None
) -> None:
    """Apptainer, bubblewrap and rootless containers on the host's network: the kernel calls every account there but
    one's own by the overflow number, root's as well, so it has not said that a stranger listens."""
    only_own = f"{THIEF + 1} {THIEF + 1} 1"
    with stub(lambda asked: ok({"status": "ok", "jobs": []})) as root_s:
        assert "Untrusted" not in namespaced(lambda: way(root_s.url), only_own)
        assert root_s.asked[0].headers["x-auth-token"] == SECRET


def test_also_at_a_unix_socket(tmp_path: Path) -> None:
    where = f"/tmp/rota-trust-{os.getpid()}.sock"
    try:
        with thief("AF_UNIX", where) as found:
            Path(where).chmod(0o777)
            assert "answers" in namespaced(lambda: blocking(found.url), f"{THIEF + 1} {THIEF + 1} 1")
            assert SECRET in found.got()
    finally:
        Path(where).unlink(missing_ok=True)


def test_a_stranger_whom_the_namespace_does_know_is_refused() -> None:
    with thief() as found:
        said = namespaced(lambda: blocking(found.url), f"{THIEF} {THIEF} 2")
        assert said.startswith("Untrusted: "), said
        assert "uid54321" in said
        assert "rota_" not in found.got()


def test_nobody_is_refused_where_every_account_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The overflow number is an account's own number, too: outside such a namespace it means that account."""
    monkeypatch.setattr(sys.modules[__name__], "THIEF", 65534)
    with thief() as found:
        with pytest.raises(Untrusted):
            blocking(found.url)
        assert "rota_" not in found.got()


def test_an_admin_can_say_for_the_whole_machine_who_runs_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "SYSTEM_FILE", str(tmp_path / "server-account"))
    (tmp_path / "server-account").write_text("54321\n")
    with thief() as found:
        with pytest.raises(RotaError, match="answers"):
            blocking(found.url)
        monkeypatch.setenv("ROTA_SERVER_ACCOUNT", "nobody")  # one's own word adds to it
        with pytest.raises(RotaError, match="answers"):
            blocking(found.url)
        assert found.got().count(SECRET) == 2


class TestWhoIsTrusted:
    """A socket that root opened and handed to a service vouches for it, and for no person."""

    @pytest.mark.parametrize(
        ("listener", "accepted", "right"),
        [
            (0, 0, True),
            (0, None, True),
            (0, 998, True),  # systemd's socket, a service's account
            (0, 1500, False),  # root's listener has come only after a person's took the call
            (1500, 0, True),
            (998, 998, False),
            (None, 998, False),
            (None, 0, True),
            (None, None, True),
        ],
    )
    def test_by_listener_and_call(
        self, listener: int | None, accepted: int | None, right: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def socket_of(uid: int | None, state: int) -> sock_diag.Socket | None:
            return None if uid is None else sock_diag.Socket(state, uid, 7)

        monkeypatch.setattr(sock_diag, "listening", lambda at: socket_of(listener, sock_diag.LISTEN))
        monkeypatch.setattr(sock_diag, "connected", lambda near, far: socket_of(accepted, sock_diag.ESTABLISHED))
        with stub(lambda asked: ok({"status": "ok"})) as own:
            if right:
                blocking(own.url)
            else:
                with pytest.raises(Untrusted):
                    blocking(own.url)

    def test_the_services_account_by_its_usual_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Only where it is a service's, by its number: a person may have that name."""
        for uid, right in ((998, True), (1500, False)):
            entry = pwd_entry("rota", uid)
            monkeypatch.setattr(trust, "_entry", lambda name, entry=entry: entry if name == "rota" else None)
            assert trust.is_trusted(uid, {}) is right
            assert trust.is_trusted(uid, {"ROTA_SERVER_ACCOUNT": "rota"}), "who is named is meant"


def pwd_entry(name: str, uid: int) -> Any:
    import pwd

    return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/false"))


def test_it_costs_next_to_nothing() -> None:
    """Looks at real sockets: a few questions to the kernel, no table."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        link = stack.enter_context(socket.create_connection(listening.getsockname()))
        address = Address(f"http://127.0.0.1:{listening.getsockname()[1]}")
        took: list[float] = []
        for _ in range(50):
            begun = time.perf_counter()
            trust.must_be_trusted(address, link)
            took.append(time.perf_counter() - begun)
        assert min(took) < 0.05, "the budget of a command is a tenth of a second"


def test_a_command_tells_what_to_do(tmp_path: Path) -> None:
    with thief() as found:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ROTA_URL": found.url, "ROTA_TOKEN": SECRET}
        env["PYTHONPATH"] = str(Path(trust.__file__).parents[2])
        for words in (["queue"], ["login", "--link"], ["run", "-G", "1", "--", "true"], ["login", SECRET]):
            argv = [sys.executable, "-c", "from rota.cli.start import main; main()", *words]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 69, done
            assert "held by the account uid54321" in done.stderr
            assert "ROTA_SERVER_ACCOUNT" in done.stderr
            assert "Traceback" not in done.stderr
        assert "rota_" not in found.got()


def test_an_account_that_is_given_at_login_is_remembered(tmp_path: Path) -> None:
    with thief() as found:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ROTA_URL": found.url}
        env["PYTHONPATH"] = str(Path(trust.__file__).parents[2])
        program = [sys.executable, "-c", "from rota.cli.start import main; main()"]
        for words in (["login", "--server-account", "54321", "--no-check", SECRET], ["queue"]):
            done = subprocess.run(
                [*program, *words], env=env, capture_output=True, text=True, check=False, cwd=tmp_path
            )
            assert "held by" not in done.stderr, done
        assert SECRET in found.got()


def test_an_account_can_be_given_at_login_without_a_token(tmp_path: Path) -> None:
    with thief() as found:
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ROTA_URL": found.url, "HF_TOKEN": SECRET}
        env["PYTHONPATH"] = str(Path(trust.__file__).parents[2])

        def rota(*words: str) -> subprocess.CompletedProcess[str]:
            program = [sys.executable, "-c", "from rota.cli.start import main; main()", *words]
            return subprocess.run(
                program, env=env, capture_output=True, text=True, check=False, cwd=tmp_path, stdin=subprocess.DEVNULL
            )

        for words in (["submit", "-G", "1", "--", "true"], ["run", "-G", "1", "--", "true"]):
            refused = rota(*words)
            assert refused.returncode == 69
            assert "held by the account uid54321" in refused.stderr
        kept = rota("login", "--server-account", "54321")
        assert kept.returncode == 0, kept
        assert "only the server's account" in kept.stderr
        assert not list(tmp_path.rglob("token"))
        assert rota("login").returncode == 2, "without an account it needs a token"
        assert "held by" not in rota("queue").stderr
        assert SECRET not in found.got()
