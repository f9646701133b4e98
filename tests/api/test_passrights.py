"""Whoever may connect to the unix socket must not hand the server descriptors to close."""

from __future__ import annotations

import array
import asyncio
import errno
import logging
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rota.api import passrights
from rota.api.connections import Refusal
from rota.api.house import House
from rota.api.link_transport import LinkTransport
from rota.api.passrights import SO_PASSRIGHTS, Closers, Link, Listener, refuse_descriptors
from rota.api.serve import listen, listen_unix
from tests.api.test_accept import GREEDY, LOOPS, MODEST, REQUEST, Place, answered, has_news, teller
from tests.app.house import PATIENCE_S

LINGER_S = 300


def is_refused(listener: socket.socket, path: Path) -> bool:
    """Pass a descriptor before and after the connection is accepted; say whether both are refused."""
    told = []
    with socket.socket(socket.AF_UNIX) as caller, open(os.devnull, "rb") as passed:
        caller.connect(str(path))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [passed.fileno()]))]
        for accepts in (False, True):
            link = listener.accept()[0] if accepts else None
            try:
                caller.sendmsg([b"x"], rights)
                told.append(False)
            except PermissionError:
                told.append(True)
            if link is not None:
                link.close()
    assert told[0] == told[1]
    return told[0]


@pytest.mark.parametrize("given", [False, True])
def test_a_message_with_a_descriptor_is_refused_where_the_kernel_can(tmp_path: Path, given: bool) -> None:
    path = tmp_path / "s"
    if given:  # as systemd passes one on
        one: socket.socket | None = socket.socket(socket.AF_UNIX)
        assert one is not None
        one.bind(str(path))
        one.listen()
        sockets = listen("127.0.0.1", 0, 0, {"unix": one})
        sockets.main.close()
        one = sockets.unix
    else:
        one = listen_unix(path)
    assert one is not None
    with one:
        try:
            able = one.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 0
        except OSError:  # before Linux 6.16
            able = False
        assert is_refused(one, path) == able


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a kernel before 6.16."""
    monkeypatch.setattr(passrights, "SO_PASSRIGHTS", 0x7FFF)


@pytest.mark.usefixtures("without")
def test_a_kernel_that_cannot_is_said_and_reads_are_guarded(caplog: pytest.LogCaptureFixture) -> None:
    plain = socket.socket(socket.AF_UNIX)
    with caplog.at_level(logging.INFO), refuse_descriptors(plain) as one:
        assert isinstance(one, Listener)
        assert plain.fileno() == -1
    assert "cannot refuse descriptors" in caplog.text


def test_who_connected_before_the_server_came_is_guarded(tmp_path: Path) -> None:
    """The connection has the option that the socket had then, and keeps it."""
    path = str(tmp_path / "s")
    given = socket.socket(socket.AF_UNIX)
    given.bind(path)
    given.listen()
    with socket.socket(socket.AF_UNIX) as before, socket.socket(socket.AF_UNIX) as after:
        before.connect(path)
        with refuse_descriptors(given, has_listened=True) as listener:
            after.connect(path)
            accepted = [listener.accept()[0] for _ in range(2)]
            try:
                able = listener.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 0
            except OSError:  # before Linux 6.16
                able = False
            assert [isinstance(link, Link) for link in accepted] == [True, not able]
            for link in accepted:
                link.close()


class Lingering:
    """A TCP connection whose close waits for LINGER_S, or until its other end goes."""

    def __init__(self, stack: ExitStack) -> None:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        # Far less than the sender keeps, and not adapted by the kernel: the rest stays unsent.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sender = stack.enter_context(socket.create_connection(listening.getsockname()))
        self.other_end = stack.enter_context(listening.accept()[0])
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LINGER_S))
        self._sender.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self._sender.send(b"x" * 65536)

    def passed_over(self, link: socket.socket, text: bytes = b"x", flags: int = 0) -> None:
        """Pass the connection, and have no descriptor of it any more."""
        link.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self._sender.fileno()]))], flags)
        self._sender.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Holds what is closed in threads until it is set: the kernel may end the wait of a close before its time."""
    opened, hold = threading.Event(), Closers._hold

    def hold_later(numbers: Sequence[int]) -> Any:
        opened.wait()
        return hold(numbers)

    monkeypatch.setattr(Closers, "_hold", staticmethod(hold_later))
    yield opened
    opened.set()


async def with_the_first_bytes(place: Place, passed: Lingering) -> None:
    passed.passed_over(place.connect(os.geteuid(), b""))


async def with_bytes_behind_others(place: Place, passed: Lingering) -> None:
    one = place.connect(os.geteuid(), b"GET / HT")
    passed.passed_over(one)


async def on_a_connection_that_was_answered(place: Place, passed: Lingering) -> None:
    one = place.connect(os.geteuid())
    await place.settled(lambda: has_news(one))
    passed.passed_over(one)


async def with_an_urgent_byte_that_reads_skip(place: Place, passed: Lingering) -> None:
    one = place.connect(os.geteuid(), b"")
    try:
        passed.passed_over(one, flags=socket.MSG_OOB)
    except OSError:
        pytest.skip("this kernel has no urgent bytes on unix sockets")
    one.send(REQUEST)


async def by_one_that_goes_at_once(place: Place, passed: Lingering) -> None:
    one = place.connect(os.geteuid(), b"")
    passed.passed_over(one)
    one.close()


async def behind_a_refused_request(place: Place, passed: Lingering) -> None:
    one = place.connect(os.geteuid(), b"NO HTTP\r\n\r\n")
    passed.passed_over(one)


async def where_there_is_no_seat(place: Place, passed: Lingering) -> None:
    def refuse(link: socket.socket) -> Any:
        acceptor._admit = admit
        raise Refusal(429, "too many")

    acceptor = place.server.servers[0]
    admit, acceptor._admit = acceptor._admit, refuse
    passed.passed_over(place.connect(os.geteuid(), b""))
    await place.settled(lambda: acceptor._admit is admit)


WAYS = [
    with_the_first_bytes,
    with_bytes_behind_others,
    on_a_connection_that_was_answered,
    with_an_urgent_byte_that_reads_skip,
    by_one_that_goes_at_once,
    behind_a_refused_request,
    where_there_is_no_seat,
]


@pytest.mark.parametrize("way", WAYS)
def test_others_are_answered_while_a_passed_descriptor_is_closed(
    tmp_path: Path, shared: House, gate: threading.Event, way: Any
) -> None:
    async def story(place: Place) -> None:
        passed = Lingering(place.stack)
        await way(place, passed)
        await place.settled(lambda: closers_of(place).count == 1)
        await answers(place)
        assert closers_of(place).count == 1, "it was not closed before others were answered"
        gate.set()
        await answers(place)
        passed.other_end.close()
        await place.settled(lambda: closers_of(place).count == 0)

    teller(shared, tmp_path / "s", Listener)(story)


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("listens", [False, True])
def test_what_lingers_is_closed_without_its_time(tmp_path: Path, depth: int, listens: bool) -> None:
    """Also where it waits in a unix socket that was passed, or in a connection that such a one has not accepted."""
    closers = Closers()
    with ExitStack() as stack:
        several = [Lingering(stack) for _ in range(3)]
        for number, passed in enumerate(several):
            if listens:
                ours, theirs = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
                ours.bind(str(tmp_path / str(number)))
                ours.listen()
                theirs.connect(str(tmp_path / str(number)))
            else:
                ours, theirs = socket.socketpair()
            passed.passed_over(theirs)
            theirs.close()
            for _ in range(depth):
                outer, other = socket.socketpair()
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ours.fileno()]))]
                other.sendmsg([b"x"], rights)
                other.close()
                ours.close()
                ours = outer
            closers.close(ours.detach(), os.geteuid())
        give_up = time.monotonic() + PATIENCE_S
        while closers.count and time.monotonic() < give_up:
            time.sleep(0.01)
        assert closers.count == 0, "while the other ends read nothing and stay"


def test_while_too_many_wait_for_their_close_no_more_are_accepted(
    tmp_path: Path, shared: House, gate: threading.Event
) -> None:
    async def story(place: Place) -> None:
        assert isinstance(place.listening, Listener)
        place.listening._closers = Closers(most=2)
        before = place.connect(os.geteuid())
        await place.settled(lambda: has_news(before))
        assert answered(before) == b"HTTP/1.1 200 OK"
        several = [Lingering(place.stack) for _ in range(2)]
        for passed in several:
            passed.passed_over(place.connect(os.geteuid(), b""))
        await place.settled(lambda: closers_of(place).count == 2)
        late = place.connect(os.geteuid())
        before.recv(4096)
        before.send(REQUEST)
        await place.settled(lambda: has_news(before))
        assert not has_news(late)
        gate.set()
        for passed in several:
            passed.other_end.close()
        await place.settled(lambda: has_news(late))
        assert answered(late) == b"HTTP/1.1 200 OK"

    teller(shared, tmp_path / "s", Listener)(story)


def test_subordinate_ids_wait_in_the_line_of_their_account(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[int] = []
    closers = Closers()
    closers.counted_as = lambda uid: GREEDY
    monkeypatch.setattr(closers, "close", lambda number, uid: lines.append(uid))
    ours, theirs = socket.socketpair()
    number = ours.fileno()
    with theirs:
        closers.close_passed(ours)
    os.close(number)
    assert lines == [GREEDY]


def test_a_server_counts_passed_descriptors_as_it_counts_connections(
    tmp_path: Path, shared: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(shared.processes), "counted_as", lambda self, uid: GREEDY)

    async def story(place: Place) -> None:
        assert closers_of(place).counted_as(MODEST) == GREEDY

    teller(shared, tmp_path / "s", Listener)(story)


@contextmanager
def ends(count: int) -> Iterator[tuple[list[int], list[socket.socket]]]:
    """Descriptors to close, and the other ends, which see when nobody has them any more."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(count)]
        for _, theirs in pairs:
            stack.enter_context(theirs).settimeout(PATIENCE_S)
        yield [ours.detach() for ours, _ in pairs], [theirs for _, theirs in pairs]


def settle(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_processes_that_do_not_end_hold_up_their_account_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As files of FUSE keep them, whose daemon does not answer."""
    hold = Closers._hold
    stuck: list[tuple[int, subprocess.Popen[bytes]]] = []

    def hold_for_long(numbers: Sequence[int]) -> Any:
        if set(numbers) & greedy:
            argv = ["sleep", "1000"]
            stuck.append((len(numbers), subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=numbers)))
            return stuck[-1][1]
        return hold(numbers)

    monkeypatch.setattr(Closers, "_hold", staticmethod(hold_for_long))
    closers = Closers(most=32, most_holders=2)  # and a third process for 4 connections
    with ends(6) as (numbers, _), ends(1) as ((other,), (theirs,)):
        greedy = set(numbers)
        try:
            for count, number in enumerate(numbers[:2], start=1):
                closers.close(number, GREEDY)
                settle(lambda count=count: len(stuck) == count)  # type: ignore[misc]
            settle(lambda: closers.count == 0)
            for number in numbers[2:5]:
                closers.close(number, GREEDY)
            closers.close(other, MODEST)
            assert theirs.recv(1) == b"", "it is closed"
            settle(lambda: closers.count == 3)
            assert len(stuck) == 2 and not closers.is_full()
            closers.close(numbers[5], GREEDY)
            settle(lambda: closers.count == 0)
            assert [count for count, _ in stuck] == [1, 1, 4]
        finally:
            for _, process in stuck:
                process.kill()
                process.communicate()


@pytest.mark.parametrize(
    "error", [OSError(errno.EAGAIN, "no process"), MemoryError(), FileNotFoundError("cat")], ids=repr
)
def test_where_no_process_can_be_started_it_is_tried_again(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """To close it here would take the time that it lingers."""
    hold, tries = Closers._hold, []

    def hold_later(numbers: Sequence[int]) -> Any:
        tries.append(tuple(numbers))
        if len(tries) < 3:
            raise error
        return hold(numbers)

    monkeypatch.setattr(Closers, "_hold", staticmethod(hold_later))
    closers = Closers()
    with ends(1) as ((number,), (theirs,)):
        closers.close(number, GREEDY)
        assert theirs.recv(1) == b""
        settle(lambda: closers.count == 0)
    assert tries == [(number,)] * 3


def test_where_none_can_be_started_for_long_it_is_closed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold_never(numbers: Sequence[int]) -> Any:
        raise FileNotFoundError("cat")

    monkeypatch.setattr(Closers, "_hold", staticmethod(hold_never))
    monkeypatch.setattr(passrights, "GIVE_UP_S", 0.0)
    closers = Closers()
    with ends(1) as ((number,), (theirs,)):
        closers.close(number, GREEDY)
        assert theirs.recv(1) == b""
        settle(lambda: closers.count == 0)


def test_a_server_ends_while_connections_with_descriptors_were_not_accepted(tmp_path: Path, shared: House) -> None:
    async def story(place: Place) -> None:
        place.server.servers[0].close()
        passed = Lingering(place.stack)
        passed.passed_over(place.connect(os.geteuid(), b""))
        place.stack.callback(passed.other_end.close)

    place = teller(shared, tmp_path / "s", Listener)(story)
    assert place.listening.fileno() == -1


async def answers(place: Place) -> None:
    one = place.connect(os.geteuid())
    await place.settled(lambda: has_news(one))
    assert answered(one) == b"HTTP/1.1 200 OK"


def closers_of(place: Place) -> Closers:
    assert isinstance(place.listening, Listener)
    return place.listening.closers


class Telling(asyncio.Protocol):
    """Notes what its transport tells."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append("lost")


@pytest.mark.parametrize("loop", LOOPS)
def test_what_the_kernel_does_not_take_at_once_is_sent_as_the_client_reads(tmp_path: Path, loop: Any) -> None:
    async def story(listening: Listener) -> None:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        link, _ = listening.accept()
        assert isinstance(link, Link)
        link.setblocking(False)
        protocol = Telling()
        transport = LinkTransport(asyncio.get_running_loop(), link, protocol)
        transport.set_write_buffer_limits(high=0)
        transport.writelines([b"a" * 10, b"b" * 3_000_000])
        transport.write(bytearray(b"c" * 10))
        transport.close()
        assert protocol.told == ["pause"]
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b"a" * 10 + b"b" * 3_000_000 + b"c" * 10
        assert protocol.told == ["pause", "resume", "lost"]
        assert transport.get_protocol() is None, "it refers to the transport"
        assert link.fileno() == -1
        writer.close()

    with asyncio.Runner(loop_factory=loop) as runner, Listener(socket.AF_UNIX) as listening:
        runner.run(story(listening))
