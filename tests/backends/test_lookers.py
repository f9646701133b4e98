"""Looks at processes are made by others, which may be left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import lookers, procs, routed
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


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_the_proc_of_a_looker_is_its_own(looks: Lookers) -> None:
    """So nobody else can hold the lock of a directory in it. What is mounted or removed elsewhere is so there, too."""
    assert looks.call(0, os.stat, "/proc").st_dev != os.stat("/proc").st_dev
    assert looks.call(0, os.stat, "/").st_dev == os.stat("/").st_dev
    assert looks.call(0, procs.start_time, os.getpid()) == procs.start_time(os.getpid())
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        assert sum(line.split()[4] == "/proc" for line in file) == 1, "it is mounted nowhere else"


def test_a_look_that_does_not_end_costs_its_party_alone(looks: Lookers, unkillable: Callable[[], None]) -> None:
    begun = threading.active_count()
    for _ in range(lookers.LEFT_OF_ONE):
        with pytest.raises(Unseen, match="for account 7 has not ended in time"):
            looks.call(7, time.sleep, FOREVER_S, within_s=SOON_S)
    with pytest.raises(Unseen, match="4 of 4 looks that do not end are for account 7"):
        looks.call(7, procs.start_time, os.getpid())
    assert looks.call(8, procs.start_time, os.getpid()) is not None
    assert threading.active_count() == begun, "no thread waits for them"
    unkillable()
    wait_for(lambda: _is_seen(looks, 7), "the looks have ended, and others begin")


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
        with pytest.raises(Unseen):
            looks.call(party, time.sleep, FOREVER_S, within_s=SOON_S)
    with pytest.raises(Unseen, match="0 of 2 looks that do not end are for attempt a-1"):
        looks.call("attempt a-1", procs.start_time, os.getpid())


def test_one_party_leaves_lookers_to_the_others(looks: Lookers) -> None:
    threads = [threading.Thread(target=_waits, args=(looks, 7), daemon=True) for _ in range(lookers.OF_ONE)]
    for thread in threads:
        thread.start()
    wait_for(lambda: looks._busy[7] == lookers.OF_ONE, "its looks are under way")
    with pytest.raises(Unseen, match="too many looks at processes are under way for account 7"):
        looks.call(7, procs.start_time, os.getpid(), within_s=SOON_S)
    assert looks.call(8, procs.start_time, os.getpid()) is not None
    for pid in procs.children(os.getpid()):
        if b"looker.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert not looks._busy


def _waits(looks: Lookers, party: int) -> None:
    with contextlib.suppress(Unseen):
        looks.call(party, time.sleep, FOREVER_S, within_s=60.0)


def test_a_looker_that_was_killed_is_replaced(looks: Lookers) -> None:
    pid = looks.call(0, os.getpid)
    os.kill(pid, signal.SIGKILL)
    assert looks.call(0, os.getpid) != pid


def test_few_lookers_are_kept(looks: Lookers) -> None:
    threads = [threading.Thread(target=looks.call, args=(party, time.sleep, 0.2)) for party in range(6)]
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
    assert text == routed.UNSEEN.format(run="0123456789ab")
    assert "rota cancel --force 0123456789ab" in text


def test_at_a_process_whose_look_does_not_end_no_other_one_begins(
    looks: Lookers, unkillable: Callable[[], None]
) -> None:
    """So somebody else who holds its lock takes one look of its owner's, however often that one asks."""
    with pytest.raises(Unseen, match="has not ended in time"):
        looks.call("uid 7", time.sleep, FOREVER_S, within_s=SOON_S, place=1234)
    for _ in range(lookers.LEFT_OF_ONE + 1):
        with pytest.raises(Unseen, match="a look at process 1234 does not end"):
            looks.call("uid 7", procs.start_time, 1234, place=1234)
    assert looks.call("uid 7", procs.start_time, os.getpid(), place=os.getpid()) is not None
