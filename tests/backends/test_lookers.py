"""Looks at processes are made by others, which may be left alone."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from rota.adapters.backends import looker, lookers, procs, routed
from rota.adapters.backends.lookers import Lookers
from rota.adapters.backends.routed import RoutedBackend
from rota.app.ports import Unseen
from tests.backends.helpers import wait_for

FOREVER_S = 1000.0
SOON_S = 0.3


@pytest.fixture
def looks() -> Iterator[Lookers]:
    made = Lookers()
    yield made
    made.close()


@pytest.fixture
def unkillable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Lookers that are left alone stay, as one that waits in the kernel does, until this is called."""
    held: list[lookers._Looker] = []
    monkeypatch.setattr(lookers._Looker, "end", lambda self: held.append(self))  # noqa: PLW0108 - to be a method

    def let_go() -> None:
        monkeypatch.undo()
        while held:
            each = held.pop()
            each.end()
            each.process.wait()

    yield let_go
    let_go()


def test_what_a_look_finds_and_what_it_raises_come_back(looks: Lookers) -> None:
    own = os.getpid()
    assert looks.call(0, procs.start_time, own) == procs.start_time(own)
    with pytest.raises(FileNotFoundError):
        looks.call(0, os.stat, "/nowhere")
    assert looks.call(0, os.getpid) not in {own, looks.call(0, os.getppid)}


def test_a_looker_has_nothing_of_the_servers(looks: Lookers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROTA_SECRET", "x")
    with open("/dev/null", "rb") as file:
        os.set_inheritable(file.fileno(), True)
        assert len(looks.call(0, os.listdir, "/proc/self/fd")) == 5, "three, its socket, and the directory"
    assert looks.call(0, os.getenv, "ROTA_SECRET") is None


def test_a_looker_that_cannot_be_ended_holds_no_pipe_of_the_servers(looks: Lookers) -> None:
    """Whoever reads what the server says would wait for its end."""
    assert {looks.call(0, os.readlink, f"/proc/self/fd/{fd}") for fd in range(3)} == {"/dev/null"}


MOUNTS = """
import os, subprocess, sys
from rota.adapters.backends import procs
from rota.adapters.backends.lookers import Lookers

looks, place = Lookers(), sys.argv[1]
where = ["nsenter", "-t", str(os.getppid()), "-m"] if sys.argv[2] == "slave" else []  # what hears mounts nothing itself
subprocess.run([*where, "mount", "-t", "tmpfs", "rota-test", place], check=True)
at_first = looks.call(0, os.path.ismount, place)
seen = looks.call(0, procs.start_time, os.getpid()) == procs.start_time(os.getpid())
own = looks.call(0, os.stat, "/proc").st_dev != os.stat("/proc").st_dev
pid = looks.call(0, os.getpid)
subprocess.run([*where, "umount", place], check=True)
with open(f"/proc/{pid}/mountinfo") as file:
    left = any(line.split()[4] == place for line in file)
looks.close()
print(at_first, seen, own, left)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize(("propagation", "is_own"), [("shared", True), ("slave", True), ("private", False)])
def test_the_proc_of_a_looker_is_its_own_and_nothing_stays_mounted_for_it(
    tmp_path: Path, propagation: str, is_own: bool
) -> None:
    """So nobody else can hold the lock of a directory in it. Where a looker would not hear that something is unmounted,
    as in many containers, it has no mounts of its own."""
    python = [sys.executable, "-c", MOUNTS, str(tmp_path), propagation]
    first = ["unshare", "-m", "--propagation", "shared", "sh", "-c", '"$@"; exit', "outside"]  # which stays there
    then = [] if propagation == "shared" else ["unshare", "-m", "--propagation", propagation]
    done = subprocess.run([*first, *then, *python], capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout.split() == ["True", "True", str(is_own), "False"], done.stderr


def test_without_a_process_to_be_had_a_look_is_not_begun(looks: Lookers, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object, **more: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", none)
        with pytest.raises(Unseen, match="can be made: Resource temporarily unavailable") as refused:
            looks.call(0, os.getpid)
    assert not refused.value.has_begun
    assert not looks._busy
    assert looks.call(0, os.getpid) > 0


def test_a_look_that_may_not_wait_its_turn_is_refused_at_once(looks: Lookers) -> None:
    threads = [threading.Thread(target=_waits, args=(looks, 7), daemon=True) for _ in range(lookers.OF_ONE)]
    for thread in threads:
        thread.start()
    wait_for(lambda: looks._busy[7, ""] == lookers.OF_ONE, "its looks are under way")
    with pytest.raises(Unseen, match="too many looks"):
        looks.call(7, os.getpid, within_s=FOREVER_S, in_turn=False)
    assert looks.call(8, os.getpid, in_turn=False, within_s=60.0) > 0
    _kill_lookers()
    for thread in threads:
        thread.join(60)


def test_a_looker_that_starts_slowly_is_waited_for_and_not_replaced(
    looks: Lookers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is slow the next one would be as slow, and no look would ever end."""
    made: list[lookers._Looker] = []

    class Stopped(lookers._Looker):
        def __init__(self) -> None:
            super().__init__()
            self.process.send_signal(signal.SIGSTOP)
            made.append(self)

    monkeypatch.setattr(lookers, "_Looker", Stopped)
    for _ in range(2):
        with pytest.raises(Unseen, match="has not started in time") as refused:
            looks.call(7, os.getpid, within_s=SOON_S)
        assert not refused.value.has_begun
    assert len(made) == 1
    made[0].process.send_signal(signal.SIGCONT)
    assert looks.call(7, os.getpid, within_s=60.0) == made[0].process.pid
    assert not looks._left


def test_one_that_does_not_become_ready_is_given_up(looks: Lookers, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped(lookers._Looker):
        def __init__(self) -> None:
            super().__init__()
            self.process.send_signal(signal.SIGSTOP)
            made.append(self)

    made: list[lookers._Looker] = []
    monkeypatch.setattr(lookers, "_Looker", Stopped)
    monkeypatch.setattr(lookers, "START_S", 0.0)
    with pytest.raises(Unseen):
        looks.call(7, os.getpid, within_s=SOON_S)
    assert not looks._idle
    assert made[0].process.wait(60) == -signal.SIGKILL


def test_one_that_cannot_start_says_why(looks: Lookers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "looker.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(Path(looker.__file__).parents[3])!r})\n")
    program.write_text(
        program.read_text()
        + "from rota.adapters.backends import looker\nlooker.LOOKS = ['rota.nowhere']\nlooker.main(int(sys.argv[1]))\n"
    )
    monkeypatch.setattr(looker, "__file__", str(program))
    with pytest.raises(Unseen, match=r"has ended: it cannot start: ModuleNotFoundError.*rota\.nowhere"):
        looks.call(7, os.getpid, within_s=60.0)


def test_what_a_look_does_is_not_done_twice(looks: Lookers, tmp_path: Path) -> None:
    """Where its looker is killed in the middle it may be done: a program that saves hears one signal, not two."""
    looks.call(0, os.getpid)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    refused: list[Unseen] = []

    def begin() -> None:
        try:
            looks.call(0, os.system, f"echo begun >{fifo}; read x <{fifo}", within_s=60.0)
        except Unseen as error:
            refused.append(error)

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    assert fifo.read_text() == "begun\n"
    _kill_lookers()
    thread.join(60)
    assert [error.has_begun for error in refused] == [True]
    fifo.write_text("what it started may end\n")


def test_a_look_that_does_not_end_costs_its_party_alone(looks: Lookers, unkillable: Callable[[], None]) -> None:
    begun = set(threading.enumerate())
    for _ in range(lookers.LEFT_OF_ONE):
        assert "for account 7 has not ended in time" in _hang(looks, 7)
    with pytest.raises(Unseen, match="4 of 4 looks that do not end are for account 7"):
        looks.call(7, procs.start_time, os.getpid())
    assert looks.call(8, procs.start_time, os.getpid()) is not None
    assert set(threading.enumerate()) <= begun, "no thread waits for them"
    unkillable()
    wait_for(lambda: _is_seen(looks, 7), "the looks have ended, and others begin")


def _hang(looks: Lookers, party: int | str, place: int | str = "") -> str:
    """Leave a look behind; return what is said of it."""
    while True:
        with pytest.raises(Unseen) as refused:
            looks.call(party, time.sleep, FOREVER_S, within_s=SOON_S, place=place)
        if refused.value.has_begun:  # its looker may have started too slowly
            return str(refused.value)


def _is_seen(looks: Lookers, party: int) -> bool:
    try:
        return looks.call(party, procs.start_time, os.getpid()) is not None
    except Unseen:
        return False


def test_lookers_that_are_left_alone_are_bounded(
    looks: Lookers, unkillable: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookers, "MOST_LEFT", 2)
    for party in (1, 2):
        _hang(looks, party)
    with pytest.raises(Unseen, match="0 of 2 looks that do not end are for attempt a-1"):
        looks.call("attempt a-1", procs.start_time, os.getpid())


def test_one_party_leaves_lookers_to_the_others(looks: Lookers) -> None:
    threads = [threading.Thread(target=_waits, args=(looks, 7), daemon=True) for _ in range(lookers.OF_ONE)]
    for thread in threads:
        thread.start()
    wait_for(lambda: looks._busy[7, ""] == lookers.OF_ONE, "its looks are under way")
    with pytest.raises(Unseen, match="too many looks at processes are under way for account 7"):
        looks.call(7, procs.start_time, os.getpid(), within_s=SOON_S)
    assert looks.call(8, procs.start_time, os.getpid()) is not None
    _kill_lookers()
    for thread in threads:
        thread.join(60)
    assert not looks._busy


def _kill_lookers() -> None:
    for pid in procs.children(os.getpid()):
        if b"looker.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)


def _waits(looks: Lookers, party: int) -> None:
    with contextlib.suppress(Unseen):
        looks.call(party, time.sleep, FOREVER_S, within_s=60.0)


def test_a_looker_that_was_killed_is_replaced(looks: Lookers) -> None:
    pid = looks.call(0, os.getpid)
    os.kill(pid, signal.SIGKILL)
    assert looks.call(0, os.getpid) != pid


def test_few_lookers_are_kept(looks: Lookers) -> None:
    look = partial(looks.call, within_s=60.0)
    threads = [threading.Thread(target=look, args=(party, time.sleep, 0.2)) for party in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(looks._idle) == lookers.SPARE


def test_a_looker_ends_with_the_server(looks: Lookers) -> None:
    looks.call(0, os.getpid)
    (idle,) = looks._idle
    idle.link.close()
    assert idle.process.wait(60) == 0


class _Held:
    """The look at its processes does not end."""

    def carries(self, attempt_id: str) -> bool:
        return True

    def stalled_by(self, attempt_id: str) -> str:
        raise Unseen("it does not end")


def test_who_asks_why_an_attempt_stalls_is_told_of_a_look_that_does_not_end() -> None:
    backend = RoutedBackend(_Held(), _Held())  # type: ignore[arg-type]
    text = backend.stalled_by("0123456789ab-1")
    assert text == routed.UNSEEN.format(why="it does not end", run="0123456789ab")
    assert "rota cancel --force 0123456789ab" in text


def test_at_a_process_whose_look_does_not_end_no_other_one_begins(
    looks: Lookers, unkillable: Callable[[], None]
) -> None:
    """So somebody else who holds its lock takes one look of its owner's, however often that one asks."""
    assert "has not ended in time" in _hang(looks, "uid 7", place=1234)
    for _ in range(lookers.LEFT_OF_ONE + 1):
        with pytest.raises(Unseen, match="a look at process 1234 does not end"):
            looks.call("uid 7", procs.start_time, 1234, place=1234)
    assert looks.call("uid 7", procs.start_time, os.getpid(), place=os.getpid()) is not None
