"""Requests that come before the earlier ones of their connection are answered: bounded in number and in bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.api import pipeline, serve
from rota.api.receive_buffers import ReceiveBuffers
from rota.api.turns import AT_A_TIME, Turns
from tests.api.kit import serving
from tests.api.test_serve import HEAD, UPGRADE, app, talk, web_socket

GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
LONG_GET = b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 1000 + b"\r\n\r\n"
OK = b"\r\n\r\nok"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve._Connection, "patience", serve.Patience(60.0, 60.0))


class Slow:
    """An application whose answers wait until the test says so, and that may wait for its client to go."""

    def __init__(self, *, streams: bool = False) -> None:
        self.begun = self.left = 0
        self.go_on = asyncio.Event()
        self._streams = streams

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun += 1
        if self._streams:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left += 1
            return
        await self.go_on.wait()
        await app(scope, receive, send)


async def flood(writer: asyncio.StreamWriter, request: bytes, most: int) -> int:
    """Write until nothing is taken for a second, or until it is cut off; return the bytes that were taken."""
    sent = 0
    piece = request * (65536 // len(request))
    try:
        while sent < most:
            writer.write(piece)
            sent += len(piece)
            async with asyncio.timeout(1):
                await writer.drain()
    except (TimeoutError, ConnectionError):
        pass
    return sent


def kept(connection: Any) -> int:
    return len(connection._kept) + sum(len(cycle.body) for cycle, _ in connection.pipeline)


@pytest.mark.parametrize("streams", [False, True], ids=["answer", "stream"])
def test_of_what_comes_before_an_answer_at_most_one_read_is_kept(streams: bool) -> None:
    async def story() -> None:
        slow = Slow(streams=streams)
        async with serving(slow) as (address, connections):
            _, writer = await asyncio.open_connection(*address)
            writer.write(LONG_GET)
            while not slow.begun:
                await asyncio.sleep(0.005)
            await flood(writer, LONG_GET, 64 << 20)
            (connection,) = connections
            assert len(connection.pipeline) <= pipeline.MOST_PIPELINED
            assert 0 < kept(connection) <= 1 << 19, "a read is 256 KiB"
            writer.transport.abort()
            slow.go_on.set()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_all_connections_keep_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps more than READ_ON bytes behind a request, which is within the bound of one connection."""
    bound = 4 * pipeline.READ_ON
    buffers = ReceiveBuffers(bound)
    monkeypatch.setattr(serve._Connection, "buffers", buffers)

    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            writers = [(await asyncio.open_connection(*address))[1] for _ in range(8)]
            for begun, writer in enumerate(writers):
                writer.write(GET)
                while slow.begun <= begun:
                    await asyncio.sleep(0.005)
            for writer in writers:
                writer.write(LONG_GET * 40)
            while not all(connection.flow.held for connection in connections):
                await asyncio.sleep(0.005)
            assert len(connections) < len(writers)
            assert sum(kept(connection) for connection in connections) <= buffers.size <= bound
            slow.go_on.set()
            for writer in writers:
                writer.transport.abort()
            while connections:
                await asyncio.sleep(0.005)
        assert buffers.size == 0

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_body_that_its_request_has_not_taken_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    buffers = ReceiveBuffers()
    monkeypatch.setattr(serve._Connection, "buffers", buffers)

    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            _, writer = await asyncio.open_connection(*address)
            writer.write(HEAD + b"content-length: 50000\r\n\r\n")
            while not slow.begun:
                await asyncio.sleep(0.005)
            for sent in range(1000, 50_000, 1000):
                writer.write(b"x" * 1000)
                while buffers.size < sent:
                    await asyncio.sleep(0)
            slow.go_on.set()
            writer.write(b"x" * 1000)
            while buffers.size:
                await asyncio.sleep(0.005)
            writer.close()
            while connections:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


LONG = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"x: %b\r\n" % (b"x" * 5000) * 8  # without its end
MANY = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a:b\r\n" * 190


@pytest.mark.parametrize("end", [b"", b"\r\n"], ids=["on its way", "worked on"])
@pytest.mark.parametrize("head", [LONG, MANY], ids=["long", "many headers"])
def test_a_large_head_counts_until_its_request_is_answered(
    monkeypatch: pytest.MonkeyPatch, head: bytes, end: bytes
) -> None:
    buffers = ReceiveBuffers()
    monkeypatch.setattr(serve._Connection, "buffers", buffers)

    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            for count in (1, 2):
                slow.go_on.clear()
                writer.write(head + end)
                while not connections or next(iter(connections))._kept or (end and slow.begun < count):
                    await asyncio.sleep(0.005)
                while buffers.size < 20_000:
                    await asyncio.sleep(0.005)
                assert buffers.size < 80_000
                if not end:
                    writer.write(b"\r\n")
                slow.go_on.set()
                await reader.readuntil(OK)
                assert buffers.size == 0
            writer.close()
            while connections:
                await asyncio.sleep(0.005)
        assert buffers.size == 0

    asyncio.run(asyncio.wait_for(story(), 60))


def test_the_heads_of_ordinary_requests_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for long would be the first to be hung up on."""
    buffers = ReceiveBuffers()
    monkeypatch.setattr(serve._Connection, "buffers", buffers)

    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, _):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n" + b"accept: %b\r\n" % (b"x" * 50) * 20 + b"\r\n")
            while not slow.begun:
                await asyncio.sleep(0.005)
            assert buffers.size == 0
            slow.go_on.set()
            await reader.readuntil(OK)
            writer.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_heads_of_pipelined_requests_count_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET * 5)
            while not slow.begun:
                await asyncio.sleep(0.005)
            (connection,) = connections
            assert connection._heads >= 5 * serve.PER_HEADER
            slow.go_on.set()
            for _ in range(5):
                await reader.readuntil(OK)
            assert connection._heads == 0
            writer.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_flood_of_tiny_requests_is_cut_off() -> None:
    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * (pipeline.MOST_PIPELINED + 3))
            while not connections or not slow.begun:
                await asyncio.sleep(0.005)
            (connection,) = connections
            assert len(connection.pipeline) == pipeline.MOST_PIPELINED
            slow.go_on.set()
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
            assert [answer[:3] for answer in answers] == [b"200"] * (pipeline.MOST_PIPELINED + 1) + [b"400"]
            assert str(pipeline.MOST_PIPELINED).encode() in answers[-1]
            assert slow.begun == pipeline.MOST_PIPELINED + 1
            writer.close()
            while connections:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "bad",
    [
        b"XX\r\n\r\n",
        b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nx",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["garbage", "head", "body", "connect"],
)
def test_what_is_refused_is_answered_after_the_requests_before_it(bad: bytes, count: int) -> None:
    """The refusal was the only answer, and a client took it for that to its first request, which was done all the
    same."""

    async def story() -> None:
        slow = Slow()
        async with serving(slow) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET * count + bad)
            while not slow.begun:
                await asyncio.sleep(0.005)
            slow.go_on.set()
            answers = (await reader.read()).split(b"HTTP/1.1 ")[1:]
            assert [answer[:3] for answer in answers[:-1]] == [b"200"] * count
            assert answers[-1][:3] in (b"400", b"405")
            assert slow.begun == count, "of what is refused nothing is done"
            writer.close()
            while connections:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_is_worked_on_before_a_refusal_learns_that_its_client_has_gone() -> None:
    async def story() -> None:
        slow = Slow(streams=True)
        async with serving(slow) as (address, connections):
            _, writer = await asyncio.open_connection(*address)
            writer.write(GET + b"XX\r\n\r\n")
            while not slow.begun:
                await asyncio.sleep(0.005)
            writer.close()
            while not slow.left or connections:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("request_", [GET, LONG_GET, HEAD + b"content-length: 3\r\n\r\nabc"])
def test_those_of_an_honest_client_are_all_answered_in_order(request_: bytes) -> None:
    async def numbered(scope: Any, receive: Any, send: Any) -> None:
        body = scope["query_string"]
        await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    async def pipelined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        count = 400 if len(request_) > 500 else pipeline.MOST_PIPELINED // 2
        many = [request_.replace(b" / ", b" /?%04d " % number, 1) for number in range(count)]
        writer.write(b"".join(many))
        for number in range(count):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(4) == b"%04d" % number
        writer.write(GET.replace(b" / ", b" /?last "))
        assert (await reader.readuntil(b"last")).endswith(b"\r\n\r\nlast"), "and the connection is as good as new"

    talk(pipelined, numbered)


def test_a_large_body_in_the_midst_is_whole() -> None:
    async def measuring(scope: Any, receive: Any, send: Any) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message["more_body"]
        body = b"%08d" % size
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
        await send({"type": "http.response.body", "body": body})

    async def pipelined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sizes = [0, 3_000_000, 1, 70_000, 0, 300_000]
        for size in sizes:
            writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b"x" * size)
        for size in sizes:
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(8) == b"%08d" % size

    talk(pipelined, measuring)


def test_a_web_socket_may_follow_a_request_that_is_not_answered_yet() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await asyncio.sleep(0.3)
        await web_socket(scope, receive, send)

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GET)
        await asyncio.sleep(0.1)
        writer.write(b"GET" + UPGRADE + b"\r\n")
        assert b"200 OK" in await reader.readuntil(OK)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"\x81\x82\x00\x00\x00\x00go")
        assert await reader.readexactly(4) == b"\x81\x02go"

    talk(watch, slow)


@pytest.mark.parametrize("count", [1, 3])
def test_one_that_comes_along_with_requests_is_answered_after_them(count: int) -> None:
    async def story() -> None:
        may_answer, failed = asyncio.Semaphore(0), list[Any]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))

        async def one_by_one(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                await may_answer.acquire()
            await web_socket(scope, receive, send)

        async with serving(one_by_one) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(GET * count + b"GET" + UPGRADE + b"\r\n")
            while not connections or not next(iter(connections))._upgrading:
                await asyncio.sleep(0.005)
            (connection,) = connections
            for left in reversed(range(count)):
                assert connection._upgrading
                may_answer.release()
                assert (await reader.readuntil(OK)).startswith(b"HTTP/1.1 200 ")
                for _ in range(10 if left else 0):  # passes of the event loop, in which nothing may be handed over
                    await asyncio.sleep(0)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            writer.write(b"\x81\x82\x00\x00\x00\x00go")
            assert await reader.readexactly(4) == b"\x81\x02go"
            writer.close()
            while connections:
                await asyncio.sleep(0.005)
        assert not failed

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_is_worked_on_learns_that_its_client_has_gone_whatever_came_behind_it() -> None:
    async def story() -> None:
        slow = Slow(streams=True)
        async with serving(slow) as (address, connections):
            _, writer = await asyncio.open_connection(*address)
            writer.write(GET * 3)
            while not connections or not next(iter(connections)).pipeline:
                await asyncio.sleep(0.005)
            writer.transport.abort()
            while not slow.left:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("behind", [b"\r\n", GET, LONG_GET])
def test_also_one_that_comes_later_and_when_the_client_only_closes(behind: bytes) -> None:
    """A place in a queue must not be kept for a client that has gone."""

    async def story() -> None:
        slow = Slow(streams=True)
        async with serving(slow) as (address, connections):
            _, writer = await asyncio.open_connection(*address)
            writer.write(GET)
            while not slow.begun:
                await asyncio.sleep(0.005)
            writer.write(behind)
            await writer.drain()
            while not next(iter(connections))._kept:
                await asyncio.sleep(0.005)
            writer.close()
            while not slow.left:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(story(), 60))


CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


async def swallow(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the length of the body."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]})
    await send({"type": "http.response.body", "body": b"%08d" % size})


def test_a_body_in_chunks_of_one_byte_is_refused_before_it_costs_much() -> None:
    """A read of 256 KiB holds 43,000 of them, each a call of Python, and nobody is served meanwhile."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CHUNKED + b"1\r\nx\r\n" * 2000)
        async with asyncio.timeout(30):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert pipeline.TOO_SMALL.encode() in answer

    talk(drip, swallow)


@pytest.mark.parametrize("size", [1, 64, 100, 5000])
def test_one_in_few_or_in_larger_chunks_is_taken(size: int) -> None:
    """As of a program that sends line by line."""
    count = min(2_000_000 // size, pipeline.FREE_CHUNKS) if size == 1 else 2_000_000 // size

    async def lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(CHUNKED + (b"%x\r\n" % size + b"x" * size + b"\r\n") * count + b"0\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(8) == b"%08d" % (size * count)

    talk(lines, swallow)


def test_others_have_their_turn_while_many_chunks_are_parsed() -> None:
    async def story() -> None:
        passes: list[int] = []  # bytes of the body that were parsed between two passes of the loop

        async with serving(swallow) as (address, connections):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(CHUNKED + (b"40\r\n" + b"x" * 64 + b"\r\n") * 20_000 + b"0\r\n\r\n")
            answered = asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
            before = 0
            while not answered.done():
                await asyncio.sleep(0)
                now = next((connection._body for connection in connections), before)
                passes.append(now - before)
                before = now
            assert b" 200 " in answered.result()
            writer.close()
        assert sum(passes) == 20_000 * 64
        assert max(passes) <= 2 * AT_A_TIME * pipeline.PIECE, "a read is 256 KiB"

    asyncio.run(asyncio.wait_for(story(), 60))


class TestTurns:
    """What comes on connections that are open already is parsed in turns of their party."""

    @pytest.mark.parametrize(
        "burst",
        [GET * 8, b"GET /" + b"%41" * 2_500 + b" HTTP/1.1\r\nhost: x\r\n\r\n", CHUNKED + b"1\r\nx\r\n" * 900],
        ids=["requests", "long path", "chunks"],
    )
    def test_a_burst_on_hundreds_of_connections_of_one_party_delays_no_other(
        self, burst: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of it was parsed in one pass of the event loop, which took seconds."""
        parsed: list[tuple[str, int]] = []
        parse = serve._Connection.parse

        def noting(self: serve._Connection, data: bytes) -> None:
            parsed.append((self._peer, len(data)))
            parse(self, data)

        def party(link: Any) -> str:
            return "modest" if link.getpeername()[0] == "127.0.0.2" else "greedy"

        monkeypatch.setattr(serve._Connection, "parse", noting)
        monkeypatch.setattr(serve._Connection, "_party", party)
        monkeypatch.setattr(serve._Connection, "turns", Turns())

        async def story() -> None:
            async with serving(app) as (address, connections):
                many = [await asyncio.open_connection(*address) for _ in range(20 * AT_A_TIME)]
                reader, writer = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
                while len(connections) < len(many) + 1:
                    await asyncio.sleep(0.005)
                for _, other in many:
                    other.write(burst)
                writer.write(GET)
                answer = asyncio.ensure_future(reader.readuntil(OK))
                most = before = 0
                while not answer.done():
                    most, before = max(most, len(parsed) - before), len(parsed)
                    await asyncio.sleep(0)
                parties = [each for each, _ in parsed]
                assert parties.index("modest") <= 4 * AT_A_TIME, "of 320 and more"
                assert most <= 3 * AT_A_TIME, "in one pass"
                assert max(size for _, size in parsed) <= pipeline.PIECE
                for _, other in [*many, (reader, writer)]:
                    other.transport.abort()
                while connections:
                    await asyncio.sleep(0.005)

        asyncio.run(asyncio.wait_for(story(), 60))

    def test_while_a_connection_waits_for_its_turn_nothing_more_of_it_is_read(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        busy = BusyTurns()
        monkeypatch.setattr(serve._Connection, "turns", busy)

        async def story() -> None:
            async with serving(app) as (address, connections):
                reader, writer = await asyncio.open_connection(*address)
                gone = (await asyncio.open_connection(*address))[1]
                while len(connections) < 2:
                    await asyncio.sleep(0.005)
                busy.is_busy = True
                gone.write(GET)
                size = 3 << 20
                writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b"x" * size)
                while len(busy.waiting) < 2:
                    await asyncio.sleep(0.005)
                assert all(0 < kept(each) <= 1 << 19 for each in connections), "a read is 256 KiB"
                gone.transport.abort()
                busy.is_busy = False
                for turn in busy.waiting:
                    turn.set_result(None)
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\nOK"), "and then all of it is taken"
                writer.close()
                while connections:
                    await asyncio.sleep(0.005)

        asyncio.run(asyncio.wait_for(story(), 60))


class BusyTurns(Turns):
    """Gives no turns while it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy = False
        self.waiting: list[asyncio.Future[None]] = []

    def take(self, party: str) -> bool:
        return not self.is_busy and super().take(party)

    def line_up(self, party: str) -> asyncio.Future[None]:
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]


H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


class TestOtherUpgrades:
    """A request that asks for another protocol than WebSocket is answered as if it did not."""

    @pytest.mark.parametrize("in_one_read", [True, False])
    @pytest.mark.parametrize(
        "body",
        [b"content-length: 27\r\n\r\n" + GET, b"transfer-encoding: chunked\r\n\r\n1b\r\n" + GET + b"\r\n0\r\n\r\n"],
        ids=["length", "chunks"],
    )
    def test_its_body_is_its_own(self, body: bytes, in_one_read: bool) -> None:
        """The body looks like a request. It was dropped, or answered as one."""
        assert len(GET) == 27
        begun: list[Any] = []
        head, end, rest = (HEAD + H2C + body).partition(b"\r\n\r\n")

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            begun.append(scope)
            await swallow(scope, receive, send)

        async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(head + end)
            while not in_one_read and not begun:
                await asyncio.sleep(0.005)
            writer.write(rest + CHUNKED + b"3\r\nabc\r\n0\r\n\r\n")
            for size in (27, 3):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
                assert await reader.readexactly(8) == b"%08d" % size
            writer.write_eof()
            assert await reader.read() == b"", "and no further answer"

        talk(post, noting)

    def test_requests_behind_it_are_answered(self) -> None:
        async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((GET[:-2] + H2C + b"\r\n") * 3 + GET)
            for _ in range(4):
                assert (await reader.readuntil(OK)).startswith(b"HTTP/1.1 200 ")

        talk(get)

    @pytest.mark.parametrize(
        ("version", "more"), [(b"1.1", b"connection: close\r\n"), (b"1.0", b""), (b"1.0", b"connection: close\r\n")]
    )
    def test_the_last_request_of_a_connection_is_answered(self, version: bytes, more: bytes) -> None:
        sizes: list[bytes] = []

        async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"POST / HTTP/" + version + b"\r\nhost: x\r\n" + more + H2C)
            writer.write(b"content-length: 3\r\n\r\nabc")
            sizes.append((await reader.read())[-8:])

        talk(post, swallow)
        assert sizes == [b"00000003"]

    def test_its_other_headers_are_kept(self) -> None:
        scopes: list[Any] = []

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            scopes.append(dict(scope))
            await app(scope, receive, send)

        async def get(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"GET /a%20b?c=%64 HTTP/1.1\r\nhost: x\r\nX-Auth-Token: t\r\n" + H2C + b"\r\n")
            await reader.readuntil(OK)

        talk(get, noting)
        (scope,) = scopes
        assert (scope["method"], scope["raw_path"], scope["query_string"]) == ("GET", b"/a%20b", b"c=%64")
        names = [name for name, _ in scope["headers"]]
        assert names == [b"host", b"x-auth-token", b"connection", b"http2-settings"]

    def test_connect_is_refused_and_nothing_behind_it_is_parsed(self) -> None:
        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 405 ")
            assert answer.count(b"HTTP/1.1") == 1

        talk(connect)
