"""Other people's processes: who they are, and being told of their end."""

from __future__ import annotations

import errno
import os
import pwd
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rota.adapters import accounts
from rota.adapters import processes as module
from rota.adapters.backends import procs
from rota.adapters.backends.lookers import Lookers
from rota.adapters.processes import LinuxProcesses
from rota.core.descriptors import Shares
from rota.core.run import Holder

PATIENCE_S = 60.0


@pytest.fixture
def processes() -> Iterator[LinuxProcesses]:
    made = LinuxProcesses()
    yield made
    made.close()


class Sleepers:
    """Real processes, ended with the test."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self, *argv: str, **more: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(argv or ("sleep", "1000"), **more)  # type: ignore[call-overload]
        self.all.append(process)
        return process  # type: ignore[no-any-return]


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    made = Sleepers()
    yield made
    for process in made.all:
        process.kill()
        process.communicate()


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """More than a shell gives its programs on many machines."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def holder_of(processes: LinuxProcesses, process: subprocess.Popen[bytes]) -> Holder:
    seen = processes.look(process.pid, "test")
    assert seen is not None
    return seen.holder


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def until_it_sleeps(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    # its name is that of the new program a moment before its command line is
    while Path(f"/proc/{pid}/comm").read_text() != "sleep\n" or not Path(f"/proc/{pid}/cmdline").read_bytes():
        assert time.monotonic() < deadline, "bash never became sleep"
        time.sleep(0.002)


def test_a_process_is_seen_as_it_is(processes, sleepers):
    process = sleepers.start("sleep", "1000")
    until_it_sleeps(process.pid)
    seen = processes.look(process.pid, "test")
    assert seen.command == ("sleep", "1000")
    assert (seen.uid, seen.user) == (os.getuid(), pwd.getpwuid(os.getuid()).pw_name)
    assert (seen.holder.pid, len(seen.holder.boot_id)) == (process.pid, 36)
    assert processes.look(process.pid, "test") == seen


def test_a_number_without_an_account_is_called_by_its_number(processes, sleepers):
    process = sleepers.start("sleep", "1000", user=54321)
    assert (processes.look(process.pid, "test").uid, processes.look(process.pid, "test").user) == (54321, "uid54321")


def test_what_is_no_process_is_not_seen(processes, sleepers):
    dead = sleepers.start("true")
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
    assert processes.look(dead.pid, "test") is None
    dead.wait()
    assert processes.look(dead.pid, "test") is None
    for wrong in (0, -1, 1 << 22, 1 << 63, 10**400):
        assert processes.look(wrong, "test") is None
    thread = threading.Thread(target=lambda: seen.append(processes.look(threading.get_native_id(), "test")))
    seen: list[object] = []
    thread.start()
    thread.join()
    assert seen == [None], "a thread is not a process"


def test_a_process_lives_while_any_of_its_threads_does(processes, sleepers):
    code = "import threading, time, ctypes\nthreading.Thread(target=time.sleep, args=(1000,)).start()\n"
    code += "print('go', flush=True)\nctypes.CDLL(None).pthread_exit(0)"
    process = sleepers.start(sys.executable, "-c", code, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"go\n"
    stat = Path(f"/proc/{process.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        pass
    assert processes.look(process.pid, "test") is not None


def test_a_long_command_line_is_cut(processes, sleepers):
    process = sleepers.start("sleep", "1000", *["0" * 1000] * 50)
    assert sum(map(len, processes.look(process.pid, "test").command)) <= 4096


def test_one_without_a_command_line_is_called_by_its_name(processes, sleepers):
    process = sleepers.start("bash", "-c", "exec -a '' sleep 1000")
    until_it_sleeps(process.pid)
    assert processes.look(process.pid, "test").command == ("sleep",)


def test_the_end_is_told_once_and_at_once(processes, sleepers):
    process = sleepers.start()
    told = threading.Event()
    calls: list[int] = []

    def hear() -> None:
        calls.append(1)
        told.set()

    processes.watch(processes.look(process.pid, "test").holder, hear)
    assert not told.wait(0.05)
    process.kill()
    assert told.wait(PATIENCE_S), "and nobody had to reap it"
    process.wait()
    assert calls == [1]


def test_one_that_is_gone_already_is_told_too_but_never_inside_watch(processes, sleepers):
    process = sleepers.start()
    holder = processes.look(process.pid, "test").holder
    process.kill()
    process.wait()
    lock, told = threading.Lock(), threading.Event()

    def hear() -> None:
        with lock:
            told.set()

    with lock:  # whoever watches may hold a lock that its answer needs
        processes.watch(holder, hear)
    assert told.wait(PATIENCE_S)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_number_given_to_another_process_counts_as_gone(processes, sleepers, change):
    process = sleepers.start()
    told = threading.Event()
    processes.watch(replace(processes.look(process.pid, "test").holder, **change), told.set, may_look=True)
    assert told.wait(PATIENCE_S)
    assert process.poll() is None


def test_who_gave_up_is_not_told(processes, sleepers):
    process, other = sleepers.start(), sleepers.start()
    calls: list[str] = []
    told = threading.Event()
    give_up = processes.watch(processes.look(process.pid, "test").holder, lambda: calls.append("gave up"))
    processes.watch(processes.look(other.pid, "test").holder, told.set)
    give_up()
    give_up()
    process.kill()
    process.wait()
    other.kill()
    assert told.wait(PATIENCE_S)
    assert calls == []


def test_a_receiver_that_fails_does_not_deafen_the_others(processes, sleepers, caplog):
    process, other = sleepers.start(), sleepers.start()
    told = threading.Event()
    processes.watch(processes.look(process.pid, "test").holder, lambda: 1 / 0)
    process.kill()
    process.wait()
    processes.watch(processes.look(other.pid, "test").holder, told.set)
    other.kill()
    assert told.wait(PATIENCE_S)
    assert "ZeroDivisionError" in caplog.text


def test_no_descriptor_is_left_behind(sleepers, many_descriptors):
    before = descriptors()
    processes = LinuxProcesses()
    process = sleepers.start()
    holder = holder_of(processes, process)
    gone, told = threading.Semaphore(0), 0
    stops = [processes.watch(holder, gone.release, family=bool(n % 2)) for n in range(3000)]
    assert descriptors() < before + 100, "all share one"
    for stop in stops[:1500]:
        stop()
    process.send_signal(signal.SIGKILL)
    while told < 1500:
        assert gone.acquire(timeout=PATIENCE_S)
        told += 1
    processes.watch(holder, gone.release)
    assert gone.acquire(timeout=PATIENCE_S)
    processes.close()
    assert descriptors() <= before
    assert not gone.acquire(blocking=False)


def test_a_process_is_watched_until_the_last_has_given_up(processes, sleepers, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDLE", 0)
    process, told = sleepers.start(), threading.Event()
    holder = holder_of(processes, process)
    watch = partial(processes.watch, holder, may_look=True)
    stops = [watch(lambda: None, family=family) for family in (False, False, True)]
    for stop in stops[:2]:
        stop()
    assert (len(processes._by_fd), processes._counts[False].total(), processes._counts[True].total()) == (1, 0, 1)
    stops[2]()
    until(lambda: len(processes._by_fd) == 0, "its descriptor is closed")
    assert processes._counts[True].total() == 0
    watch(lambda: None)()
    watch(told.set)  # before or after the descriptor is closed
    process.kill()
    assert told.wait(PATIENCE_S)


def few(monkeypatch: pytest.MonkeyPatch, holders: int, families: int) -> None:
    """One account may have two thirds of these."""
    monkeypatch.setattr(module, "shares", lambda limit: Shares(limit, limit // 2, 10, limit, holders, families, 64))


@pytest.mark.parametrize("family", [False, True])
def test_watched_processes_are_bounded_for_one_account_and_for_all(processes, sleepers, monkeypatch, family):
    few(monkeypatch, *((0, 6) if family else (6, 0)))
    holders = [holder_of(processes, sleepers.start()) for _ in range(8)]

    def watch(number: int, uid: int) -> Callable[[], None]:
        stop: Callable[[], None] = processes.watch(replace(holders[number], uid=uid), lambda: None, family=family)
        return stop

    stops = [watch(number, 1001) for number in range(4)]
    with pytest.raises(OSError, match="4 processes of its account are watched"):
        watch(4, 1001)
    watch(0, 1001)  # it costs nothing more
    watch(4, 1002)
    watch(5, 1003)
    with pytest.raises(OSError, match="6 processes are watched, as many as there are descriptors for"):
        watch(6, 1004)
    assert len(processes._by_fd) == 8, "those that were looked at stay open for a while"
    assert len(processes._idle) == 2
    stops[1]()
    watch(6, 1004)


def test_families_take_no_descriptor_of_the_holders(processes, sleepers, monkeypatch):
    """Nor by a process that is both: as the lease of one ends, it stays watched for the other."""
    few(monkeypatch, 30, 30)
    monkeypatch.setattr(module, "MAX_FAMILY", 2)
    holders = [holder_of(processes, sleepers.start()) for _ in range(6)]
    stops = [processes.watch(holder, lambda: None) for holder in holders]
    for holder in holders[:2]:
        processes.watch(holder, lambda: None, family=True)
    with pytest.raises(OSError, match="2 processes of its account are watched"):
        processes.watch(holders[2], lambda: None, family=True)
    for stop in stops:
        stop()
    assert sum(any(watch.wishes.values()) for watch in processes._watches.values()) == 2
    for holder in holders:
        processes.watch(holder, lambda: None)
    assert len(processes._by_fd) == 6


def test_watches_of_subordinate_ids_count_for_their_account(processes, sleepers, tmp_path, monkeypatch):
    """A lease that an older version gave names the subordinate id itself."""
    (tmp_path / "subuid").write_text("nobody:900000:65536\n")
    monkeypatch.setattr(accounts, "SUBUID", str(tmp_path / "subuid"))
    monkeypatch.setattr(module, "MAX_FAMILY", 2)
    processes._accounts.look()
    holders = [replace(holder_of(processes, sleepers.start()), uid=900_000 + n) for n in range(3)]
    for holder in holders[:2]:
        processes.watch(holder, lambda: None, family=True)
    with pytest.raises(OSError, match="2 processes of its account are watched"):
        processes.watch(holders[2], lambda: None, family=True)


def test_after_the_closing_nobody_is_told(sleepers):
    processes = LinuxProcesses()
    process = sleepers.start()
    calls: list[int] = []
    holder = holder_of(processes, process)
    give_up = processes.watch(holder, lambda: calls.append(1))
    processes.close()
    process.kill()
    process.wait()
    give_up()
    processes.watch(holder, lambda: calls.append(2))()
    assert calls == []


def test_a_shortage_of_descriptors_in_the_middle_leaves_none_open(
    processes: LinuxProcesses, sleepers: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = [sleepers.start() for _ in range(3)]
    targets = [(each.pid, procs.start_time(each.pid) or 0) for each in started]
    holder = holder_of(processes, started[0])
    real, opened = module._opened, list[int]()

    def short(pid: int) -> int:
        if pid == started[-1].pid:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(real(pid))
        return opened[-1]

    monkeypatch.setattr(module, "_opened", short)
    with pytest.raises(OSError, match="Too many open files"):
        processes.keep(targets, holder)
    assert len(opened) == 2
    assert not [fd for fd in opened if os.path.exists(f"/proc/self/fd/{fd}")]


def test_looks_at_subordinate_ids_are_for_their_account(processes, sleepers, tmp_path, monkeypatch):
    """Else an account with 65,536 of them could leave as many lookers as all may."""
    (tmp_path / "subuid").write_text("nobody:900000:65536\n")
    monkeypatch.setattr(accounts, "SUBUID", str(tmp_path / "subuid"))
    processes._accounts.look()
    asked: list[int | str] = []
    real = Lookers.call

    def call(self: Lookers, party: int | str, *args: Any, **more: Any) -> Any:
        asked.append(party)
        return real(self, party, *args, **more)

    monkeypatch.setattr(Lookers, "call", call)
    process = sleepers.start("sleep", "1000", user=900_001)
    holder = Holder(process.pid, 1, procs.boot_id(), 900_001)
    assert processes.living([(process.pid, 1)], holder) == set()
    processes.keep([(process.pid, 1)], holder)
    nobody = pwd.getpwnam("nobody").pw_uid
    assert asked == [nobody, nobody]
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as caller:
        listening.bind(f"\0rota-test-{os.getpid()}")
        listening.listen()
        os.seteuid(900_001)
        try:
            caller.connect(listening.getsockname())
        finally:
            os.seteuid(0)
        with listening.accept()[0] as link:
            assert processes.peer_attempt(link) is None
    assert asked[2:] == [f"uid {nobody}"]


def test_looks_that_somebody_asks_for_are_for_who_asks(processes, sleepers, monkeypatch):
    """They may name any process, and others can make looks at it wait."""
    asked: list[int | str] = []
    real = Lookers.call

    def call(self: Lookers, party: int | str, *args: Any, **more: Any) -> Any:
        asked.append(party)
        assert self is not processes.lookers, "what the server itself needs is looked at by others"
        return real(self, party, *args, **more)

    monkeypatch.setattr(Lookers, "call", call)
    process = sleepers.start()
    assert processes.look(process.pid, "uid 1003") is not None
    assert processes.attempt_of(process.pid, "uid 1003") is None
    assert asked == ["uid 1003", "uid 1003"]


def test_what_was_looked_at_is_watched_without_another_look(processes, sleepers, monkeypatch):
    process, told = sleepers.start(), threading.Event()
    holder = holder_of(processes, process)
    monkeypatch.setattr(processes.lookers, "call", None)
    assert processes.alive(holder)
    processes.watch(holder, told.set)()
    processes.watch(holder, told.set, family=True)
    assert processes.alive(holder)
    with pytest.raises(OSError, match="it was looked at too long ago"):
        processes.watch(replace(holder, start_ticks=1), lambda: None)
    process.kill()
    assert told.wait(PATIENCE_S)
    told.clear()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    processes.watch(replace(holder, start_ticks=1), told.set)
    assert told.wait(PATIENCE_S), "what has ended is gone, whichever process it was"


def test_those_that_are_kept_open_are_bounded_and_go_with_their_process(processes, sleepers, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDLE", 3)
    monkeypatch.setattr(module, "IDLE_OF_ONE", 1)
    made = [sleepers.start() for _ in range(5)]
    for process in made[:3]:
        holder_of(processes, process)
    holder_of(processes, made[0])  # it is looked at again
    for process in made[3:]:
        holder_of(processes, process)
    until(lambda: len(processes._by_fd) == 3, "the oldest are closed")
    assert {pid for pid, _ in processes._idle} == {made[at].pid for at in (0, 3, 4)}
    made[3].kill()
    until(lambda: len(processes._by_fd) == len(processes._idle) == 2, "and that of one that has ended")


def test_one_who_names_many_processes_keeps_no_others_from_staying_open(processes, sleepers, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDLE", 4)
    monkeypatch.setattr(module, "IDLE_OF_ONE", 2)
    made = [sleepers.start() for _ in range(8)]
    for at, process in enumerate(made):
        assert processes.look(process.pid, "uid 1002" if at == 0 else "uid 1001" if at < 6 else f"uid {1000 - at}")
    left = [next(at for at, process in enumerate(made) if process.pid == pid) for pid, _ in processes._idle]
    assert left == [0, 5, 6, 7], "of one no more than its part, and where all have too many, of who has most"


def test_what_cannot_be_kept_open_costs_the_others_nothing(processes, sleepers, monkeypatch):
    """Descriptors that are in use stay open where the kernel watches no more of them."""
    made = [sleepers.start() for _ in range(3)]
    starts = [procs.start_time(process.pid) for process in made]
    holder = Holder(made[0].pid, starts[0] or 0, procs.boot_id(), os.getuid())
    targets = [(process.pid, start) for process, start in zip(made, starts, strict=True)]
    begin, begun = processes._begin, list[int]()

    def full(target: tuple[int, int], fd: int) -> None:
        if len(begun) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        begun.append(fd)
        begin(target, fd)

    monkeypatch.setattr(processes, "_begin", full)
    with pytest.raises(OSError, match="No space"):
        processes.keep(targets, holder)
    assert processes.living(targets, holder) == set(targets)
    assert all(os.fstat(fd) for fd in begun)


def test_of_one_that_has_ended_it_is_known_without_a_look(processes, sleepers, monkeypatch):
    """So the end of a lease waits for nobody."""
    process = sleepers.start()
    holder = Holder(process.pid, procs.start_time(process.pid) or 0, procs.boot_id(), os.getuid())
    monkeypatch.setattr(processes.lookers, "call", None)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.alive(holder), "a zombie"
    process.wait()
    assert not processes.alive(holder)
