"""Two real servers on GPUs of a stand-in driver: one of them gives out a GPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import site
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.adapters.test_gpulocks import beside
from tests.app.house import until
from tests.doors.server import Server, curl

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the NVML stand-in")
SOURCE = Path(__file__).parents[1] / "probes" / "nvml_stand_in.c"
STRANGER, SQUATTER = 54321, 54323


class Gpus:
    """Makes servers that see real GPUs, as far as they can tell."""

    def __init__(self, where: Path, stack: ExitStack) -> None:
        self._where, self._stack = where, stack
        self._library = where / "lib" / "libnvidia-ml.so.1"
        self._library.parent.mkdir()
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(self._library), str(SOURCE)], check=True)
        self.name = os.urandom(4).hex()

    def server(self, name: str = "", *, prefix: tuple[str, ...] = ()) -> Server:
        number = len(list(self._where.glob("real*")))
        where = self._where / f"real{number}"
        where.mkdir()
        (where / "state").write_text("2 -1 0")
        env = {"LD_LIBRARY_PATH": str(self._library.parent), "NVML_STATE": str(where / "state")}
        made = Server(where, env={**env, "NVML_NAME": name or self.name})
        simulated = made.argv.index("--nodes")
        made.argv = [*prefix, *made.argv[:simulated], *made.argv[simulated + 4 :]]
        return made

    def start(self, server: Server) -> Server:
        self._stack.enter_context(server)
        self._stack.callback(_give_to_us, server)
        return server

    def refused(self, server: Server) -> str:
        """What it says when it does not start."""
        done = subprocess.run(
            server.argv, env=server.env, cwd=server.where, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode not in (0, None), done.stdout
        return done.stderr


@pytest.fixture
def gpus() -> Iterator[Gpus]:
    """Not below pytest's own directory: every pytest that starts closes that one to other accounts again."""
    with TemporaryDirectory(prefix="rota-gpus-") as where, ExitStack() as stack:
        yield Gpus(Path(where), stack)


def test_a_second_server_is_refused_also_from_another_network_namespace(gpus: Gpus) -> None:
    first = gpus.start(gpus.server())
    assert first.process is not None
    taken = f"(pid {first.process.pid}) gives out GPU GPU-{gpus.name}-0 of this machine already"
    assert taken in gpus.refused(gpus.server())
    if os.geteuid() == 0:
        assert taken in gpus.refused(gpus.server(prefix=("unshare", "-n")))
    other = gpus.start(gpus.server(f"other{gpus.name}"))
    status = other.get("/gpu/status").ok()["cluster_status"]
    assert status["available_gpus"] == 2, "other GPUs are another server's to give out"
    first.kill()
    again = gpus.server()
    gpus.start(again)  # the lock went with its process


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two accounts")
def test_no_other_account_keeps_roots_server_from_starting(gpus: Gpus) -> None:
    theirs = _strangers(gpus.server())
    gpus.start(theirs)
    assert theirs.get("/gpu/status").ok()["cluster_status"]["available_gpus"] == 2
    ours = gpus.start(gpus.server())
    assert ours.get("/gpu/status").ok()["cluster_status"]["available_gpus"] == 2
    shown = until(lambda: _unfit(theirs), "the other one sees so at its next look", 60)
    assert all(why.startswith("the Rota server of root") for why in shown)
    assert "the Rota server of root" in gpus.refused(_strangers(gpus.server()))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two accounts")
def test_the_name_that_was_the_lock_once_is_none_in_a_strangers_hands(gpus: Gpus) -> None:
    """Every account can bind an abstract socket, and nobody else can take its name away."""

    def stranger() -> Callable[[], str]:
        held = socket.socket(socket.AF_UNIX)
        held.bind("\0rota.gpus")
        return lambda: str(held.getsockname())

    with _namespace() as there, beside(SQUATTER, stranger, before=partial(_enter, there)) as end:
        ours = gpus.server(prefix=("nsenter", f"--net={there}"))
        with ours.log.open("wb") as log:
            ours.process = subprocess.Popen(ours.argv, env=ours.env, cwd=ours.where, stdout=log, stderr=log)
        status = until(lambda: _on_socket(ours, "/gpu/status"), "the server answers")
        assert status["cluster_status"]["available_gpus"] == 2
        assert end() == "b'\\x00rota.gpus'", "it had the name all the time"
        ours.finish()


@contextmanager
def _namespace() -> Iterator[str]:
    """A network namespace: names of abstract sockets are free there, whatever else runs on this machine."""
    with subprocess.Popen(["unshare", "-n", "sleep", "100000"]) as holder:
        there = f"/proc/{holder.pid}/ns/net"
        try:
            until(lambda: os.readlink(there) != os.readlink("/proc/self/ns/net"), "there is a namespace")
            yield there
        finally:
            holder.kill()


def _enter(namespace: str) -> None:
    with open(namespace, "rb") as there:
        assert ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())


def _on_socket(server: Server, path: str) -> Any:
    """The answer over the unix socket, which can be reached from every network namespace; None = there is none yet."""
    assert server.process is not None
    assert server.process.poll() is None, f"it ended with {server.process.returncode}: {server.said()}"
    options = ["--unix-socket", str(server.data / "rota.sock")]
    answer = curl(f"http://localhost{path}", options=options, may_fail=True)
    return answer.ok() if answer.status else None


def _strangers(server: Server) -> Server:
    """The same, of another account."""
    as_stranger = ["setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "--"]
    server.env["PYTHONPATH"] = os.pathsep.join([server.env["PYTHONPATH"], *site.getsitepackages()])
    for path in (server.where, *server.where.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    for above in server.where.parents:
        if above != Path("/"):
            above.chmod(above.stat().st_mode | 0o011)
    # The interpreter of the tests may lie in a directory that only root may enter.
    for python in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin") or ""):
        tried = [*as_stranger, python, "-c", "import sys, rota.main; open(sys.executable)"]
        if subprocess.run(tried, env=server.env, capture_output=True, check=False).returncode == 0:
            server.argv = [*as_stranger, python, *server.argv[1:]]
            return server
    pytest.skip("no Python here that another account may run")


def _give_to_us(server: Server) -> None:
    """End the server and take over its files: what it left is looked at as our own, and nobody opens a stranger's."""
    assert server.stop() == 0, server.said()
    for path in (server.where, *server.where.rglob("*")):
        os.chown(path, os.geteuid(), os.getegid(), follow_symlinks=False)


def _unfit(server: Server) -> list[str]:
    status = server.get("/gpu/status").ok()["cluster_status"]
    return [gpu["why"] for gpu in status["nodes"][0]["gpus"] if gpu["status"] == "error"]


def test_a_simulated_server_minds_no_lock(gpus: Gpus, make_server: Callable[..., Server]) -> None:
    gpus.start(gpus.server())
    assert make_server(nodes=1, gpus=1).get("/gpu/status").ok()["cluster_status"]["simulated"]
