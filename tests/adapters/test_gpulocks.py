"""One server for each GPU: locks that go with their process and that no stranger can hold."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from rota.adapters import legacy_lock
from rota.adapters.gpulocks import FLOCK, GpuLockError, GpuLocks, GuardedProbe
from rota.core.node import Gpu, Node
from tests.app.house import until

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be two accounts")
ANN, BOB = 54321, 54322
HOLD = """
import os, sys, time
from pathlib import Path
from rota.adapters.gpulocks import GpuLocks
locks = GpuLocks(Path(sys.argv[1]), [Path(sys.argv[2])], sys.argv[3])
locks.take(sys.argv[4:])
print("locked", flush=True)
sys.stdin.read()
"""


class Places:
    """Where root locks and where everybody else does."""

    def __init__(self, where: Path) -> None:
        where.chmod(0o755)
        for above in where.parents:
            if above.stat().st_uid == os.geteuid() and above != Path("/"):
                above.chmod(above.stat().st_mode | 0o011)
        self.root, self.shared = where / "root", where / "shared"
        self.shared.mkdir()
        self.shared.chmod(0o1777)

        self.legacy = f"rota.test.{os.urandom(6).hex()}"

    def locks(self) -> GpuLocks:
        return GpuLocks(self.root, [self.shared], self.legacy)

    def files(self) -> list[str]:
        return sorted(path.name for place in (self.root, self.shared) if place.exists() for path in place.iterdir())


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


@pytest.fixture
def hold(places: Places) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Another process that holds these GPUs."""
    made: list[subprocess.Popen[str]] = []

    def begin(*uuids: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", HOLD, str(places.root), str(places.shared), places.legacy, *uuids]
        made.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        assert made[-1].stdout is not None
        assert made[-1].stdout.readline() == "locked\n"
        return made[-1]

    yield begin
    for process in made:
        process.kill()
        process.communicate()


@contextmanager
def beside(
    uid: int, begin: Callable[[], Callable[[], str]], before: Callable[[], object] = bool
) -> Iterator[Callable[[], str]]:
    """Run a process of another account that has begun when this returns. The function given back lets it finish and
    returns what it said. `before` is called while the process is still root's."""
    said, says = os.pipe()
    stop, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go)
            before()
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            finish = begin()
            os.write(says, b".")
            os.read(stop, 1)
            os.write(says, finish().encode())
        except BaseException as error:  # noqa: BLE001 - a forked child must never return into pytest
            os.write(says, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(says)
    os.close(stop)
    open_ends = [go]

    def end() -> str:
        os.close(open_ends.pop())
        with open(said, encoding="utf-8", closefd=False) as file:
            return file.read()

    try:
        first = os.read(said, 1000)
        assert first == b".", first
        yield end
    finally:
        for fd in (*open_ends, said):
            os.close(fd)
        os.waitpid(pid, 0)


def test_a_gpu_has_one_server_and_other_gpus_have_others(places: Places, hold: Callable[..., object]) -> None:
    holder = hold("GPU-a", "GPU-b")
    second = places.locks()
    with pytest.raises(GpuLockError, match=rf"the Rota server of \w+ \(pid {holder.pid}\) gives out GPU GPU-b"):  # type: ignore[attr-defined]
        second.take(["GPU-c", "GPU-b"], patience_s=0.1)
    third = places.locks()
    third.take(["GPU-c", "GPU-d"])
    assert third.why_not("GPU-c") == "", "what was refused as a whole is not kept in part"
    third.close()
    assert len(places.files()) == 2, "the first one's"


def test_a_killed_server_leaves_no_lock(places: Places, hold: Callable[..., subprocess.Popen[str]]) -> None:
    holder = hold("GPU-a")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (stale,) = places.files()
    mine = places.locks()
    mine.take(["GPU-a"])
    assert len(places.files()) == 1 and places.files() != [stale]
    mine.close()
    assert places.files() == []


def test_a_lock_that_lives_on_in_a_child_for_a_moment_is_waited_for(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child of a killed server has it until it has become another program; this one, until somebody waits for it."""
    locks = places.locks()
    locks.take(["GPU-a"])
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    for lock in locks._held.values():
        os.close(lock.fd)
    locks._legacy.close()
    sleep, waited = time.sleep, list[float]()

    def wait(seconds: float) -> None:
        if not waited:
            os.close(writing)
        waited.append(seconds)
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", wait)
    after = places.locks()
    after.take(["GPU-a"], patience_s=60)
    assert waited, "it was held"
    os.waitpid(child, 0)
    after.close()


def test_many_that_start_at_once_leave_one(places: Places) -> None:
    argv = [sys.executable, "-c", HOLD, str(places.root), str(places.shared), places.legacy, "GPU-a", "GPU-b"]
    all_of_them = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    try:
        until(lambda: sum(each.poll() is not None for each in all_of_them) >= 3, "the others give up")
        alive = [each for each in all_of_them if each.poll() is None]
        assert len(alive) <= 1
        for each in alive:
            assert each.stdout is not None
            assert each.stdout.readline() == "locked\n"
    finally:
        for each in all_of_them:
            each.kill()
            each.communicate()


def test_a_lock_whose_file_was_removed_is_made_again(places: Places) -> None:
    locks = places.locks()
    locks.take(["GPU-a"])
    for place in (places.root, places.shared):
        for path in place.glob("*"):
            path.unlink()
    assert locks.why_not("GPU-a") == ""
    with pytest.raises(GpuLockError):
        places.locks().take(["GPU-a"], patience_s=0.1)
    locks.close()


def test_a_lock_made_again_does_not_take_the_gpu_from_its_new_server(
    places: Places, hold: Callable[..., subprocess.Popen[str]]
) -> None:
    """Its file was removed, and another server started before the next look."""
    first = places.locks()
    first.take(["GPU-a", "GPU-b"])
    for place in (places.root, places.shared):
        shutil.rmtree(place, ignore_errors=place == places.root)
    places.shared.mkdir()
    places.shared.chmod(0o1777)
    second = hold("GPU-a")
    assert first.why_not("GPU-a").endswith(f"(pid {second.pid}) gives it out")
    assert first.why_not("GPU-b") == "", "nobody took that one"
    assert first.why_not("GPU-a").endswith(f"(pid {second.pid}) gives it out"), "nor at the look after that"
    assert len(places.files()) == 2
    second.kill()
    second.wait()
    assert first.why_not("GPU-a") == "", "it is free again"
    first.close()


def test_without_a_descriptor_a_lock_is_not_taken_for_free(
    places: Places, hold: Callable[..., subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hold("GPU-a")
    mine = places.locks()
    mine.take(["GPU-b"])
    assert mine.why_not("GPU-b") == ""
    real = os.open

    def short(path: str, flags: int, mode: int = 0o777) -> int:
        """There is none at the moment of the look, and one a moment later."""
        if "rota-gpu" in str(path) and not flags & os.O_CREAT:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", short)
    with pytest.raises(OSError, match="Too many open files"):
        places.locks().take(["GPU-a"], patience_s=0.1)
    assert "Too many open files" in mine.why_not("GPU-a"), "it cannot be told whose it is"
    assert mine.why_not("GPU-b") == "", "and what was known before holds"
    monkeypatch.undo()
    assert "gives it out" in mine.why_not("GPU-a")
    mine.close()


class TestServersOfThePreviousRelease:
    def old(self, places: Places) -> socket.socket:
        """What such a server held, for all GPUs of the machine."""
        with ExitStack() as stack:
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            held.bind(f"\0{places.legacy}")
            stack.pop_all()
            return held

    def test_one_that_runs_is_minded(self, places: Places) -> None:
        locks = places.locks()
        with self.old(places), pytest.raises(GpuLockError, match=r"the Rota server of \w+, of an older version"):
            locks.take(["GPU-a"], patience_s=0.1)
        locks.take(["GPU-a"])
        locks.close()

    def test_one_that_would_start_is_kept_out(self, places: Places) -> None:
        first, second = places.locks(), places.locks()
        first.take(["GPU-a"])
        with pytest.raises(OSError, match="in use"):
            self.old(places)
        second.take(["GPU-b"], patience_s=0.0)
        first.close()
        second.close()
        self.old(places).close()

    @as_root
    def test_a_name_that_a_stranger_took_keeps_nobody_out(
        self, places: Places, caplog: pytest.LogCaptureFixture
    ) -> None:
        def stranger() -> Callable[[], str]:
            held = self.old(places)
            return lambda: str(held.fileno() >= 0)

        locks = places.locks()
        with beside(ANN, stranger):
            locks.take(["GPU-a"], patience_s=0.0)
        assert f"user id {ANN}" in caplog.text
        locks.close()
        refused = pytest.raises(AssertionError, match="of root, of an older version")
        with self.old(places), refused, beside(BOB, _keep(places, "GPU-a")):
            pass

    @as_root
    def test_a_line_that_a_stranger_forged_in_the_table_of_sockets_is_not_believed(self, places: Places) -> None:
        """The kernel prints the name of an abstract socket as it is, with its line feeds."""
        with socket.socket(socket.AF_UNIX) as roots:
            inode = os.fstat(roots.fileno()).st_ino

            def stranger() -> Callable[[], str]:
                kept = [self.old(places)]
                for _ in range(60):  # one of them stands before the true line
                    kept.append(socket.socket(socket.AF_UNIX))
                    kept[-1].bind(f"\0{os.urandom(8).hex()}\n0: 2 0 0 1 1 {inode} @{places.legacy}")
                return lambda: str(len(kept))

            locks = places.locks()
            with beside(ANN, stranger):
                locks.take(["GPU-a"], patience_s=0.0)
            locks.close()

    def test_names_that_look_like_it_cost_one_question(self, places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
        """The kernel finds one socket by its number as slowly as all of them: asking for each took minutes."""
        made: list[tuple[int, ...]] = []
        real = socket.socket

        class Counted(real):  # type: ignore[misc, valid-type]
            def __init__(self, *kind: int, **more: object) -> None:
                made.append(kind)
                super().__init__(*kind, **more)

        with ExitStack() as stack:
            for number in range(300):
                stack.enter_context(real(socket.AF_UNIX)).bind(f"\0{places.legacy}{number}")
            monkeypatch.setattr(socket, "socket", Counted)
            assert legacy_lock.holder(places.legacy) is None
            with self.old(places):
                assert legacy_lock.holder(places.legacy) == legacy_lock.Holder(os.geteuid(), listens=False)
        asked = [kind for kind in made if kind[0] == socket.AF_NETLINK]
        assert len(asked) == legacy_lock.LOOKS + 1

    def test_a_socket_of_another_kind_that_has_the_name_hides_nobody(self, places: Places) -> None:
        """Any account can make one, and the kernel may name it first."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(f"\0{places.legacy}")
            assert legacy_lock.holder(places.legacy) is None
            with self.old(places):
                assert legacy_lock.old_server(places.legacy) == os.geteuid()

    def test_one_that_listens_and_is_called_is_of_this_release(self, places: Places) -> None:
        """Who waits to be accepted has the name of the listener, and does not listen."""
        held = legacy_lock.hold(places.legacy)
        assert held is not None
        with held, socket.socket(socket.AF_UNIX) as caller:
            caller.connect(f"\0{places.legacy}")
            assert legacy_lock.holder(places.legacy) == legacy_lock.Holder(os.geteuid(), listens=True)

    def test_where_the_kernel_does_not_tell_the_name_alone_counts(
        self, places: Places, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(legacy_lock, "_BY_FAMILY", 99)  # a question that it does not know
        assert legacy_lock.holder(places.legacy) is None
        with self.old(places):
            assert legacy_lock.holder(places.legacy) == legacy_lock.Holder(None, listens=False)


@as_root
def test_a_stranger_who_holds_all_they_can_does_not_keep_root_out(places: Places) -> None:
    first = places.locks()
    first.take(["GPU-a"])

    def stranger() -> Callable[[], str]:
        kept = _hold_everything(places)
        return lambda: f"held {len(kept)}"

    with beside(ANN, stranger) as end:
        first.close()
        again = places.locks()
        again.take(["GPU-a"], patience_s=0.0)
        assert again.why_not("GPU-a") == ""
        with pytest.raises(GpuLockError, match="the Rota server of root"):
            places.locks().take(["GPU-a"], patience_s=0.1)
        again.close()
        assert end() == "held 6", "all it could get, to the end"


def _hold_everything(places: Places) -> list[object]:
    """As a stranger: every lock on root's file that a reader may have, and every trick with files of one's own."""
    kept: list[object] = []
    (path,) = places.root.iterdir()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    kept.append(fd)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(FLOCK, fcntl.F_RDLCK, 0, 0, 0, 0))
        raise AssertionError("root has the write lock")
    except BlockingIOError:
        pass
    for name in ("1.aa", "2.bb"):  # as if locked by a server, and one that is only read-locked
        own = os.open(places.shared / f"rota-gpu-GPU-a.{name}", os.O_RDWR | os.O_CREAT, 0o644)
        kind = fcntl.F_WRLCK if name == "1.aa" else fcntl.F_RDLCK
        fcntl.fcntl(own, fcntl.F_OFD_SETLK, struct.pack(FLOCK, kind, 0, 0, 0, 0))
        kept.append(own)
    os.mkfifo(places.shared / "rota-gpu-GPU-a.3.cc")
    os.symlink("/dev/zero", places.shared / "rota-gpu-GPU-a.4.dd")
    kept += ["fifo", "link"]
    old = socket.socket(socket.AF_UNIX)
    with suppress(OSError):  # another test may have it
        old.bind(f"\0{places.legacy}")
    kept.append(old)
    for act in (lambda: os.unlink(path), lambda: os.open(path, os.O_RDWR), (places.root / "x").touch):
        try:
            act()
            raise AssertionError("a stranger may not")
        except PermissionError:
            pass
    return kept


def _keep(places: Places, *uuids: str) -> Callable[[], Callable[[], str]]:
    def begin() -> Callable[[], str]:
        locks = places.locks()
        locks.take(uuids, patience_s=0.1)
        return lambda: "; ".join(locks.why_not(uuid) or "mine" for uuid in uuids)

    return begin


@as_root
def test_servers_of_two_accounts_mind_each_other_and_root(places: Places) -> None:
    with beside(ANN, _keep(places, "GPU-a")) as end:
        with pytest.raises(AssertionError, match="the Rota server of uid 54321"), beside(BOB, _keep(places, "GPU-a")):
            pass
        with beside(BOB, _keep(places, "GPU-b")) as bobs:
            assert bobs() == "mine", "another GPU"
        assert end() == "mine"
    root = places.locks()
    root.take(["GPU-a"])
    with pytest.raises(AssertionError, match="the Rota server of root"), beside(BOB, _keep(places, "GPU-a")):
        pass
    root.close()
    with beside(BOB, _keep(places, "GPU-a")) as end:
        assert end() == "mine"


@as_root
def test_when_root_takes_a_gpu_the_others_server_gives_it_out_no_more(places: Places) -> None:
    node = Node("here", "here", (Gpu(0, "GPU-a", "X", 80), Gpu(1, "GPU-b", "X", 80)), 8, 64)

    class Fixed:
        def nodes(self) -> list[Node]:
            return [node]

    def ann() -> Callable[[], str]:
        locks = places.locks()
        locks.take(["GPU-a", "GPU-b"])
        probe = GuardedProbe(Fixed(), locks)
        assert all(gpu.healthy for gpu in probe.nodes()[0].gpus)

        def finish() -> str:
            first, second = probe.nodes()[0].gpus
            return f"{first.healthy} {first.why}; {second.healthy}"

        return finish

    with beside(ANN, ann) as end:
        root = places.locks()
        root.take(["GPU-a"], patience_s=0.0)
        said = end()
    assert said.startswith("False the Rota server of root (pid ") and said.endswith("; True")
    root.close()


@as_root
def test_a_start_makes_no_directory_that_is_there(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one waits for the lock of the directory above, and /run every account can list."""
    places.locks().close()
    monkeypatch.setattr(Path, "mkdir", None)
    locks = places.locks()
    locks.take(["GPU-1"])
    locks.close()
