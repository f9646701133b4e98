"""New connections: one account's do not delay another's, and none is lost or left behind. Real sockets and accounts."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import uvloop

from rota.api import accept, serve
from rota.api.house import House
from rota.api.passrights import Listener
from rota.api.turns import AT_A_TIME
from rota.core.descriptors import Shares
from tests.app.house import PATIENCE_S

GREEDY, MODEST = 54322, 54323  # accounts
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to call as other accounts")


class Noting:
    """An application that answers at once, and keeps the order of the accounts that called."""

    def __init__(self) -> None:
        self.order: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.order.append(scope["rota.peer"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


class Place:
    """Where a server listens, and clients that connect while its event loop stands still."""

    def __init__(self, house: House, app: Any, listening: socket.socket, stack: ExitStack) -> None:
        self.house, self.app, self.listening, self.stack = house, app, listening, stack
        self.server = serve._Server(serve._config(app, serve.connection_of(house)))

    def connect(self, uid: int, said: bytes = REQUEST) -> socket.socket:
        with acting_as(uid):
            one = self.stack.enter_context(socket.socket(self.listening.family))
            one.settimeout(PATIENCE_S)
            one.connect(self.listening.getsockname())
        if said:
            one.sendall(said)
        return one

    async def settled(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                await asyncio.sleep(0.01)


@contextmanager
def acting_as(uid: int) -> Iterator[None]:
    mine = os.geteuid()
    if uid == mine or mine != 0:
        yield
        return
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(mine)


Story = Callable[[Place], Coroutine[Any, Any, None]]
Tell = Callable[[Story], Place]


@pytest.fixture(params=["port", "unix socket", "unix socket before Linux 6.16"])
def tell(request: pytest.FixtureRequest, shared: House) -> Iterator[Tell]:
    with TemporaryDirectory(prefix="rota-") as where:  # pytest's own are for one account alone
        Path(where).chmod(0o711)
        kind = Listener if "before" in request.param else socket.socket
        yield teller(shared, None if request.param == "port" else Path(where) / "s", kind)


def teller(house: House, path: Path | None, kind: type[socket.socket] = socket.socket) -> Tell:
    def told(story: Story, loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop) -> Place:
        with ExitStack() as stack, asyncio.Runner(loop_factory=loop) as runner:
            listening = kind(socket.AF_INET if path is None else socket.AF_UNIX)
            listening.bind(("127.0.0.1", 0) if path is None else str(path))
            if path is not None:
                path.chmod(0o777)
            place = Place(house, Noting(), listening, stack)
            runner.run(serving(place, story))
            return place

    return told


async def serving(place: Place, story: Story) -> None:
    task = asyncio.create_task(place.server.serve([place.listening]))
    await place.settled(lambda: place.server.started)
    try:
        await story(place)
    finally:
        place.server.should_exit = True
        await task


def answered(one: socket.socket) -> bytes:
    try:
        return one.recv(15)
    except ConnectionError:
        return b""


def links(place: Place) -> int:
    """The server's ends of connections that are open in this process, where others have sockets too."""
    own, found = place.listening.getsockname(), 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it is no socket, or was closed meanwhile
            one = socket.socket(fileno=number)
            try:
                found += one.getsockname() == own
            finally:
                one.detach()
    return found


def has_news(one: socket.socket) -> bool:
    return bool(select.select([one], [], [], 0)[0])


@as_root
@pytest.mark.parametrize("loop", LOOPS)
def test_who_comes_last_does_not_wait_for_all_connections_of_another(tell: Any, loop: Any) -> None:
    """They lie in the kernel's queue together, with what they ask for, and the modest one is the last of them."""

    async def is_job(self: Any, link: socket.socket, uid: int) -> bool:
        return False  # a look at its process takes its time, however many passes that are

    async def story(place: Place) -> None:
        place.server.config.http_protocol_class._is_job = is_job  # type: ignore[attr-defined]
        many = [place.connect(GREEDY) for _ in range(400)]
        one = place.connect(MODEST)
        await place.settled(lambda: len(place.app.order) == 401)
        await place.settled(lambda: all(map(has_news, [*many, one])))
        assert {answered(link) for link in many} == {b"HTTP/1.1 200 OK"}

    place = tell(story, loop)
    passes = -(-401 // accept.AT_ONCE) + 4  # until it is accepted, and until it is read
    assert place.app.order.index(f"uid {MODEST}") <= passes * AT_A_TIME < 400 / 2


@as_root
def test_those_that_leave_while_they_wait_leave_nothing_behind(tell: Any) -> None:
    async def story(place: Place) -> None:
        assert links(place) == 1, "the listening one"
        for said in (b"", REQUEST, b"GET / HT"):
            for _ in range(100):
                place.connect(GREEDY, said).close()
        one = place.connect(MODEST)
        await place.settled(lambda: has_news(one))
        assert answered(one) == b"HTTP/1.1 200 OK"
        one.close()
        await place.settled(lambda: place.house.connections.count == 0)
        await place.settled(lambda: links(place) == 1)

    tell(story)


@as_root
def test_over_its_bound_an_account_gives_up_its_oldest_and_others_are_served(
    tell: Any, shared: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared.connections, "bounds", Shares(65_536, 60_000, 20, 65_000, 100, 10))

    async def story(place: Place) -> None:
        silent = [place.connect(GREEDY, b"") for _ in range(100)]
        one = place.connect(MODEST)
        await place.settled(lambda: has_news(one))
        assert answered(one) == b"HTTP/1.1 200 OK"
        await place.settled(lambda: sum(map(has_news, silent)) == 80)
        assert not any(map(has_news, silent[80:])), "the newest have stayed"
        assert place.house.connections.count == 21

    tell(story)


def test_those_that_were_accepted_before_the_end_are_answered(tell: Any) -> None:
    links: list[socket.socket] = []

    async def story(place: Place) -> None:
        links.extend(place.connect(os.geteuid()) for _ in range(100))
        await place.settled(lambda: bool(place.app.order))
        place.server.should_exit = True
        await place.settled(lambda: all(map(has_news, links)))
        assert {answered(link) for link in links} == {b"HTTP/1.1 200 OK"}

    tell(story)


def test_without_descriptors_it_waits_and_goes_on(shared: House) -> None:
    async def story(place: Place) -> None:
        one = place.connect(os.geteuid())
        bounds = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (one.fileno() + 1, bounds[1]))
        try:
            await asyncio.sleep(3 * accept.REST_S)
            assert not has_news(one), "nobody can have accepted it"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, bounds)
        await place.settled(lambda: has_news(one))
        assert answered(one) == b"HTTP/1.1 200 OK"

    teller(shared, None)(story)
