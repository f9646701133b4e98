"""Listening: the sockets, two uvicorn servers on one event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import ClientDisconnected
from websockets.protocol import State

from rota.api import frames, malloc
from rota.api.accept import Acceptor, Admitted
from rota.api.connections import Connections, Seat, account, network
from rota.api.deferred import load_later_ones
from rota.api.frames import BoundedFrames
from rota.api.guard import MAX_BODY
from rota.api.heads import ODD_HANDSHAKE
from rota.api.house import House
from rota.api.passrights import Listener, refuse_descriptors
from rota.api.pipeline import BoundedPipeline
from rota.api.receive_buffers import ReceiveBuffers
from rota.api.server import guarded, guarded_leases
from rota.api.turns import Turns
from rota.app.errors import CannotStart, Unavailable
from rota.app.ports import Unseen
from rota.core.descriptors import HIGHEST, shares

log = logging.getLogger(__name__)

BACKLOG = 2048
DROP_UNSENT = struct.pack("ii", 1, 0)  # on, for 0 s
MAX_HEAD = 1 << 16
PER_HEADER = 160  # bytes that one takes in memory besides its text
# Bytes of heads that a connection may have without being counted. Ordinary ones have less: their requests, which may
# wait for a GPU or watch for days, are not the ones that are hung up on where others of their address send too much.
FREE_HEADS = 8 << 10
PARTING_S = 3
LAST_LOOK_S = 0.1  # what came while the event loop was held up is read before its sender is given up
TAKE_WITHIN_S = 30.0
COPIED = 16 << 10  # bytes of a body that are copied behind its head; a larger one may be the same for many clients
CHUNKED = b"transfer-encoding: chunked\r\n"  # the last header, where uvicorn adds it
ASK_WITHIN_S = 1.0  # of a connection that was taken right before the end


@dataclass(slots=True)
class Sockets:
    main: socket.socket
    lease: socket.socket | None
    unix: socket.socket | None = None

    def close(self) -> None:
        for one in (self.main, self.lease, self.unix):
            if one is not None:
                one.close()

    def host(self) -> str:
        """The address that is listened on; where there are two, the one that more can reach."""
        hosts = [str(one.getsockname()[0]) for one in (self.main, self.lease) if one is not None]
        return next((host for host in hosts if not is_loopback(host)), hosts[0])


def listen(
    host: str, port: int, lease_port: int, given: Mapping[str, socket.socket] | None = None, *, unix: bool = True
) -> Sockets:
    """Bind before anything is opened: a taken port must not cost a recovery. Sockets that were `given` are used."""
    given = given or {}
    if "unix" in given and not unix:
        raise CannotStart("a unix socket was passed (LISTEN_FDS), but ROTA_UNIX_SOCKET is off; leave one of them out")
    if port and port == lease_port and not {"main", "lease"} & given.keys():
        raise CannotStart(
            f"the server and its lease door cannot both listen on port {port}; choose another with --lease-port "
            "(0 does without the lease door's own port: its routes are on the server's, too)"
        )
    local = refuse_descriptors(given["unix"], has_listened=True) if "unix" in given else None
    main = given.get("main") or _bind(host, port, "--port")
    if "lease" in given or not lease_port:
        return Sockets(main, given.get("lease"), local)
    try:
        lease = _bind(host, lease_port, "--lease-port", " (0 does without the lease door's own port)")
    except BaseException:
        main.close()
        raise
    return Sockets(main, lease, local)


def _bind(host: str, port: int, flag: str, besides: str = "") -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise CannotStart(f"{host!r} is no address of this machine: {error.strerror}; try --host 127.0.0.1") from error
    family, kind, protocol, _, address = found[0]
    one = socket.socket(family, kind, protocol)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind(address)
        one.listen(BACKLOG)
    except OSError as error:
        one.close()
        hint = f"choose another with {flag}{besides}, or stop what listens there"
        if error.errno == errno.EADDRNOTAVAIL:
            hint = "choose an address of this machine with --host, such as 127.0.0.1"
        raise CannotStart(f"cannot listen on {host} port {port}: {error.strerror}; {hint}") from error
    return one


def listen_unix(path: Path) -> socket.socket | None:
    """Only with the data directory's lock in hand: what lies there is then a dead server's. Where there can be none
    (the path may be too long for a socket) it is done without."""
    one = socket.socket(socket.AF_UNIX)
    try:
        path.unlink(missing_ok=True)
        one = refuse_descriptors(one)
        one.bind(str(path))
        os.chmod(path, 0o666)  # noqa: S103 - everybody may knock: the kernel says who it is
        one.listen(BACKLOG)
    except OSError as error:
        one.close()
        log.warning("no unix socket at %s: %s; clients use the port", path, error)
        return None
    return one


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(house: House, sockets: Sockets, ready: Callable[[], None], broken: Sequence[BaseException]) -> None:
    """Until SIGTERM or SIGINT, or until the loop behind the doors fails (`broken` then has why)."""
    # Requests leave hardly any cycles behind, and every look for them costs; but a look at many holds the event loop.
    gc.set_threshold(20_000, 3, 140)
    malloc.fix_thresholds()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(house, sockets, ready, broken))


class _Threads(ThreadPoolExecutor):
    """Those of asyncio.to_thread. Requests were given up by the time that the event loop ends: what their threads are
    still at is not waited for."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


async def _serve(house: House, sockets: Sockets, ready: Callable[[], None], broken: Sequence[BaseException]) -> None:
    asyncio.get_running_loop().set_default_executor(_Threads(thread_name_prefix="rota-work"))
    await house.hub.open()
    servers = [_Server(_config(guarded(house), connection_of(house)))]
    listening = [[one for one in (sockets.main, sockets.unix) if one is not None]]
    if sockets.lease is not None:
        leases = guarded_leases(house, is_loopback(sockets.lease.getsockname()[0]))
        servers.append(_Server(_config(leases, connection_of(house))))
        listening.append([sockets.lease])

    def stop() -> None:
        house.leases.close()  # whoever waits is told to ask the next server, instead of holding this one up
        house.hub.close()
        house.bell.close()
        for server in servers:
            server.force_exit = server.should_exit  # asked twice: at once
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    tasks = [asyncio.create_task(server.serve(its)) for server, its in zip(servers, listening, strict=True)]
    while not all(server.started for server in servers) and not any(task.done() for task in tasks):
        await asyncio.sleep(0.005)
    ready()
    load_later_ones(house.processes.prepare)
    watch = asyncio.create_task(_stop_when_broken(broken, stop))
    try:
        await asyncio.gather(*tasks)
    finally:
        watch.cancel()


async def _stop_when_broken(broken: Sequence[BaseException], stop: Callable[[], None]) -> None:
    """A server whose writer is gone can only refuse: better to end, so that whoever keeps it running starts it anew."""
    while not broken:
        await asyncio.sleep(0.5)
    stop()


def _config(app: Any, connection: type[HttpToolsProtocol] | None = None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=connection or _Connection,
        ws=_Watch,
        ws_max_size=frames.AT_ONCE,
        ws_per_message_deflate=False,  # a dictionary per watcher would cost more than all events
        ws_ping_interval=20.0,
        ws_ping_timeout=20.0,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # who calls is what the kernel says
        backlog=BACKLOG,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=PARTING_S,
        h11_max_incomplete_event_size=1 << 16,
    )


class _Server(uvicorn.Server):
    """One of two on the same event loop: signals are ours to catch."""

    servers: list[Acceptor]  # type: ignore[assignment]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept by ourselves: connections have their party before they have their turn."""
        await self.lifespan.startup()
        connection: Any = self.config.http_protocol_class
        per_peer = connection.seats.bounds.per_peer
        self.servers = [
            Acceptor(one, connection.turns, connection.admit, self._make, per_peer) for one in sockets or ()
        ]
        for one in sockets or ():
            if isinstance(one, Listener):
                one.closers.counted_as = connection.counted_as
        for server in self.servers:
            server.open(self.config.backlog)
        self.started = True

    def _make(self, admitted: Admitted) -> asyncio.Protocol:
        connection: Any = self.config.http_protocol_class
        made: _Connection = connection(self.config, self.server_state, self.lifespan.state)
        made.admitted = admitted
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """What was accepted already is served: left in the kernel's queue it might have had the next server."""
        for server in self.servers:
            server.close()
        for one in sockets or ():
            one.close()
        within_s = 0 if self.force_exit else ASK_WITHIN_S
        await asyncio.gather(*(server.hand_over(within_s) for server in self.servers))
        await super().shutdown(sockets)
        await self._hang_up_on_the_rest()

    async def _hang_up_on_the_rest(self) -> None:
        """Abort the connections that are still open. Uvicorn has cancelled their requests, and a cancelled request is
        answered with a refusal. Where the client does not read, that refusal would be waited for, and with it the end
        of the event loop, until TAKE_WITHIN_S is over."""
        state = self.server_state
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=LAST_LOOK_S)  # for clients that read the refusal
        for connection in list(state.connections):
            connection.hang_up()  # type: ignore[union-attr]
        if state.tasks:
            await asyncio.wait(list(state.tasks), timeout=LAST_LOOK_S)


class _Corked:
    """A transport on which the head of an answer waits for its body, which follows at once: one write, not two."""

    __slots__ = ("_closed", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport, closed: Callable[[], None]) -> None:
        self._transport, self._closed = transport, closed
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) > COPIED:
                self._transport.writelines((head, data))
                return
            data = head + data
        elif b"\r\ncontent-length: " in data and data.startswith(b"HTTP/1.1 "):
            self._head = data
            return
        self._transport.write(data)

    def flush(self) -> None:
        """To a HEAD there is no body."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def close(self) -> None:
        self.flush()
        self._transport.close()
        self._closed()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def forget(self) -> None:
        """Drop the reference to the connection, which refers to this transport."""
        self._closed = _nothing


class _Unchunked:
    """What a request by HTTP/1.0 is answered through: its client knows no chunks (RFC 9112, 6.1), but the end of the
    connection. uvicorn writes one chunk at a time, and the last one along with the one before or alone."""

    __slots__ = ("_is_chunked", "_transport")

    def __init__(self, transport: _Corked) -> None:
        self._transport, self._is_chunked = transport, False

    def write(self, data: bytes) -> None:
        if self._is_chunked:
            size, _, rest = data.partition(b"\r\n")
            self._transport.write(rest[: int(size or b"0", 16)])
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(CHUNKED + b"\r\n"):
            self._is_chunked = True
            self._transport.write(data.removesuffix(CHUNKED + b"\r\n") + b"\r\n")
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


def _nothing() -> None:
    pass


def _is_half_closed(transport: asyncio.Transport) -> bool:
    """Return whether the other end of a unix socket says no more, and still listens."""
    link = transport.get_extra_info("socket")
    return link is not None and link.family == socket.AF_UNIX and _end_of(link) == select.POLLRDHUP


def _has_hung_up(transport: asyncio.Transport) -> bool:
    """Return whether the other end has closed, of which nothing is heard while nothing is read."""
    link = transport.get_extra_info("socket")
    return link is not None and _end_of(link) != 0 and not _is_half_closed(transport)


def _end_of(link: socket.socket) -> int:
    """Return what the kernel says of the other end, as events of poll; 0 = it is there."""
    look = select.poll()
    look.register(link.fileno(), select.POLLRDHUP)
    return sum(event for _, event in look.poll(0))


def _hang_up(transport: asyncio.Transport) -> None:
    """Close an open connection whose other end does not read, and drop what waits for it. The kernel would keep up to
    4 MB of that for as long as the other end is there."""
    link = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # then there is nothing to drop
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DROP_UNSENT)
    transport.abort()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client may take for a request."""

    first_byte_s: float = 5.0
    head_s: float = 15.0  # all of it

    @classmethod
    def of(cls, request_s: float) -> Patience:
        """Where a whole body may take `request_s`."""
        return cls(request_s / 6, request_s / 2)


def connection_of(house: House) -> type[HttpToolsProtocol]:
    """Connections to this house, which can tell a job from a person, and one account from another."""

    class Connection(_Connection):
        seats = house.connections
        turns = house.turns
        buffers = house.buffers
        patience = Patience.of(house.settings.request_seconds)

        async def _is_job(self, link: socket.socket, uid: int) -> bool | None:
            try:
                return await house.looks.read(account(self.counted_as(uid)), partial(_is_jobs, house, link, uid))
            except (Unavailable, Unseen):  # it takes its time to be looked at, of which the log tells
                return None
            except OSError as error:
                log.warning("who is on the unix socket cannot be told: %s", error)
                return None

        @classmethod
        def peer_uid(cls, link: socket.socket, *, quick: bool = False) -> int | None:
            return house.processes.peer_uid(link, quick=quick)

        @classmethod
        def counted_as(cls, uid: int) -> int:
            return house.processes.counted_as(uid)

        def _shares_pids(self) -> bool:
            link = self.transport.get_extra_info("socket")
            return link is None or house.processes.peer_shares_pids(link)

    return Connection


def _is_jobs(house: House, link: socket.socket, uid: int) -> bool:
    house.processes.account(uid)  # is remembered for the event loop, which then has not to ask for the name
    return house.processes.peer_attempt(link) is not None


SEEN_AS = {True: "job", False: "uid", None: "unseen"}  # whether it is a job; see guard.PEER


class _Connection(BoundedPipeline):
    """Has a seat among those that there is room for, knows who is on the other end of the unix socket, and waits
    neither for ever nor for any amount of bytes for the head of a request, nor for ever for an answer to be taken."""

    seats = Connections(shares(HIGHEST))
    turns = Turns()
    buffers = ReceiveBuffers()
    patience = Patience()
    admitted: Admitted  # before the connection is made

    @classmethod
    def admit(cls, link: socket.socket) -> Admitted:
        """Find out whose it is, and give it a seat; raises a Refusal, or an OSError where the client has gone."""
        uid = cls.peer_uid(link) if link.family == socket.AF_UNIX else None
        party = account(cls.counted_as(uid)) if uid is not None else cls._party(link)
        seat = cls.seats.admit(party, link.fileno(), link.close)
        is_last = link.fileno() >= cls.seats.bounds.connections
        return Admitted(party, uid, seat, partial(cls.seats.leave, seat), is_last)

    @classmethod
    def _party(cls, link: socket.socket) -> str:
        """For whom it counts: the account where it is known, else the address."""
        if link.family == socket.AF_UNIX:
            return ""
        near = link.getpeername()[0]
        # asked whatever the address is: this machine may have many, and one account is one party by all of them
        uid = cls.peer_uid(link, quick=True)
        return account(cls.counted_as(uid)) if uid is not None else network(near)

    @classmethod
    def peer_uid(cls, link: socket.socket, *, quick: bool = False) -> int | None:
        return None  # nobody here can tell

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Nothing that the kernel does not take counts as read: by default up to 64 KiB of each connection would.
        transport.set_write_buffer_limits(high=0)
        self._corked = _Corked(transport, self._see_it_taken)
        self._head = 0  # bytes of one that is not whole yet, or of what a body has around it
        self._body = 0  # and of the body after it
        self._heads = 0  # what the heads of requests take that are not answered
        self._in_body = False
        self._stopping = False  # this is its last request
        self._untaken = 0  # bytes of answers that waited for their reader when it was last looked at
        self._taking: asyncio.TimerHandle | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._seat: Seat | None
        self._unseen: int | None  # the account at the other end, until it is looked whether that is a job
        self._looking: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None  # the client has said its last word, and waits for answers
        self.admitted.is_made = True
        self._peer, self._seat, self._unseen = self.admitted.party, self.admitted.seat, self.admitted.uid
        self._seat.hang_up = transport.abort
        if self._seat.peer is None:  # it was given up for another one
            transport.abort()
        self._patience = self.loop.call_later(self.patience.first_byte_s, self._impatient)

    def _peer_uid(self) -> int | None:
        link = self.transport.get_extra_info("socket")
        return self.peer_uid(link) if link is not None else None

    def _shares_pids(self) -> bool:
        return True  # nor that

    @classmethod
    def counted_as(cls, uid: int) -> int:
        return uid  # nor that

    async def _is_job(self, link: socket.socket, uid: int) -> bool | None:
        return True  # nor that: then nobody is known by the socket

    def connection_lost(self, exc: Exception | None) -> None:
        if self._looking is not None:
            self._looking.cancel()
        self._calm()
        self._taken()
        if self._ending is not None:
            self._ending.cancel()
        if self._seat is not None:
            self.seats.leave(self._seat)
        super().connection_lost(exc)
        self._forget()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return whether the connection stays open: a client of the unix socket may close its own direction behind its
        last request, and wait for the answer. By TCP it cannot be told from one that has gone. Reading is over then, so
        that its end is not heard: it is waited for no longer than for a client that does not read."""
        if not (self._is_busy() or self._kept) or not _is_half_closed(self.transport):
            return False
        if self._ending is None:
            self._ending = self.loop.call_later(TAKE_WITHIN_S, self._close)
        return True

    def _has_gone(self) -> bool:
        """Whether the client has hung up. While reading rests, as it has sent much behind its request, nothing is heard
        of that, so the kernel is asked."""
        if not self.transport.is_closing() and self.flow.held and _has_hung_up(self.transport):
            self.hang_up()
        return self.transport.is_closing()

    def _forget(self) -> None:
        """Drop what refers back to this connection. Else thousands of closed ones would wait for the garbage collector,
        which would hold the event loop for a second when it comes. A request that is still worked on keeps its own
        references: its cycle knows that the client has gone, and calls this connection no more."""
        self._unset_keepalive_if_required()  # uvicorn leaves the timer running where the client reset the connection
        self.parser = self.scope = self.cycle = self._at_work = None  # type: ignore[assignment]
        self._refusal = None  # its traceback has frames of this connection's methods
        self._corked.forget()
        del self.admitted

    def data_received(self, data: bytes) -> None:
        # Only now, since a connection that asks for nothing is cheap to make; and before a request, not within one.
        if self._unseen is not None and not (self._head or self._in_body or self._is_busy()):
            self.flow.pause_reading()
            self._looking = self.loop.create_task(self._see(self._unseen))
            self._unseen = None
        if self._looking is not None:
            # Thousands of connections may be read before the first look begins.
            self._kept += data
            self.buffers.note(self._peer, self, self.waiting())
            return
        super().data_received(data)

    def waiting(self) -> int:
        """Count heads, too: each may have 64 KiB, and is in memory until its request is answered."""
        heads = self._heads + self._head
        if self._head and not self._in_body:
            heads += PER_HEADER * len(self.headers or ())
        return super().waiting() + max(0, heads - FREE_HEADS)

    def parse(self, data: bytes) -> None:
        self._head += len(data)
        super().parse(data)
        if self.transport.is_closing() or self._parting is not None:
            return
        if self._head > MAX_HEAD:
            what = "trailers" if self._in_body else "head"
            self.send_400_response(f"The {what} of a request may have {MAX_HEAD} bytes.")
        elif (
            self._patience is None
            and getattr(self.cycle, "response_complete", False)
            and self.transport.get_protocol() is self  # no WebSocket by now
        ):
            # a next head, or a body that was refused
            self._patience = self.loop.call_later(self.patience.head_s, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Where an answer has begun, a second one would be taken for a part of it."""
        working = self._at_work
        if working is not None and working.response_started and not working.response_complete and working.more_body:
            self._close()
        else:
            super().send_400_response(msg)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are dropped: they come after the headers were looked at, here and by a proxy (RFC 9110, 6.5.1)."""
        if not self._in_body:
            super().on_header(name, value)

    async def _see(self, uid: int) -> None:
        """Look whether the peer is a job, and go on with what it sent. A job has an account, of its person or of this
        server, but not that one's powers here: an agent's run is the agent's, who is no more than its role. So a job is
        not known by its account and needs a token. So does who could not be looked at, or has to ask again."""
        if self.transport.is_closing():  # it was cut off before the look began
            return
        is_job = await self._is_job(self.transport.get_extra_info("socket"), uid)
        if self.transport.is_closing():
            return
        self._looking = None
        self.client = (f"{SEEN_AS[is_job]}={uid}", 0)
        self._unseen = uid if is_job is None else None  # by the next request it may be seen
        self._parse_kept()

    def upgrade(self) -> None:
        super().upgrade()
        self._calm()
        self.transport.set_write_buffer_limits()  # a watcher may be somewhat behind
        watch = self.transport.get_protocol()
        if isinstance(watch, _Watch):
            watch.turns, watch.party = self.turns, self._peer
        if isinstance(watch, _Watch) and hasattr(watch, "scope"):
            watch.scope["rota.peer"] = self._peer  # type: ignore[typeddict-unknown-key]
        if self._seat is not None and isinstance(watch, _Watch):
            self.seats.busy(self._seat)
            watch.leave, self._seat = partial(self.seats.leave, self._seat), None
        if isinstance(watch, _Watch) and not watch.handshake_initiated:
            # It was given the whole head and could not read it. It says nothing of that, and would wait for ever.
            self.send_400_response(ODD_HANDSHAKE)
        self._forget()  # the WebSocket alone is told of the end

    def on_headers_complete(self) -> None:
        if self.is_other_upgrade():
            return
        if not (self.parser.should_upgrade() and self._should_upgrade()):
            self._calm()  # else a body may follow, which is waited for no longer than a head
        self.scope["rota.hang_up"] = self.hang_up  # type: ignore[typeddict-unknown-key]
        self.scope["rota.gone"] = self._has_gone  # type: ignore[typeddict-unknown-key]
        self.scope["rota.closing"] = self.transport.is_closing  # type: ignore[typeddict-unknown-key]
        self.scope["rota.drained"] = self.flow.drain  # type: ignore[typeddict-unknown-key]
        self.scope["rota.peer_uid"] = self._peer_uid  # type: ignore[typeddict-unknown-key]
        self.scope["rota.shares_pids"] = self._shares_pids  # type: ignore[typeddict-unknown-key]
        self.scope["rota.peer"] = self._peer  # type: ignore[typeddict-unknown-key]
        size, before = self._head + PER_HEADER * len(self.headers), self.cycle
        self._head, self._body, self._in_body = 0, 0, True
        super().on_headers_complete()
        if self.cycle is not before:  # else it is a WebSocket
            self.cycle.head_size = size  # type: ignore[attr-defined]
            self._heads += size
            is_old = self.cycle.scope["http_version"] == "1.0"
            self.cycle.transport = _Unchunked(self._corked) if is_old else self._corked  # type: ignore[assignment]
            if is_old:  # nor does it know of an answer before the answer (RFC 9110, 10.1.1)
                self.cycle.waiting_for_100_continue = False
            if self._stopping:
                self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        self._corked.flush()
        super().on_response_complete()
        if self._ending is not None and not (self._is_busy() or self._kept):
            self._close()
        if self.timeout_keep_alive_task is not None and self._seat is not None and not self._kept:
            self.seats.idle(self._seat)

    def _drop_request(self, answered: Any) -> None:
        super()._drop_request(answered)
        self._heads -= answered.head_size

    def on_body(self, body: bytes) -> None:
        self._head = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.is_other_upgrade():
            return
        self._head, self._in_body = 0, False
        if self._seat is not None and not (self.cycle and self.cycle.response_complete):  # else nobody waits for it
            self.seats.busy(self._seat)
        super().on_message_complete()
        # Most bodies come along with their head. The application has not begun then, and need not wait for them.
        if self._body <= MAX_BODY and self.scope is not None:  # None: it is answered already
            self.scope["rota.whole"] = self._body  # type: ignore[typeddict-unknown-key]

    def shutdown(self) -> None:
        """The server stops. A connection that was just taken and has not asked yet is let ask: left in the queue it
        would have had the next server."""
        if self._has_asked() or self.transport.is_closing():
            super().shutdown()
            return
        self._stopping = True
        self.loop.call_later(ASK_WITHIN_S, self._close_unasked)

    def _close_unasked(self) -> None:
        if not self._has_asked():
            self._close()

    def _has_asked(self) -> bool:
        cycle: Any = self.cycle  # None until the first head is whole, whatever its type says
        return cycle is not None

    # -- a client that is slow to ask -------------------------------------------------------------------------------
    def _calm(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _impatient(self) -> None:
        """For the first byte there is less time than for the rest of the head."""
        begun = self._head or self._kept  # it may be there and wait for its turn
        rest_s = self.patience.head_s - self.patience.first_byte_s if begun else LAST_LOOK_S
        self._patience = self.loop.call_later(rest_s, self._give_up if begun else self._silent)

    def _silent(self) -> None:
        if self._head or self._kept:  # it was late only because we were
            self._impatient()
        else:
            self._close()

    def _give_up(self) -> None:
        self._patience = self.loop.call_later(LAST_LOOK_S, self._close)

    def _close(self) -> None:
        if not self.transport.is_closing():
            self._corked.close()

    # -- a client that is slow to listen ----------------------------------------------------------------------------
    def pause_writing(self) -> None:
        super().pause_writing()
        self._see_it_taken()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._taken()

    def timeout_keep_alive_handler(self) -> None:
        if not self._kept:  # else the next request waits for its turn
            self._close()

    def _see_it_taken(self) -> None:
        """Merely closed, a line stays open until the other end has read what is on its way: one that takes nothing of
        it is hung up on."""
        self._untaken = self.transport.get_write_buffer_size()
        if self._untaken and self._taking is None:
            self._taking = self.loop.call_later(TAKE_WITHIN_S, self._look_whether_taken)

    def _look_whether_taken(self) -> None:
        self._taking, before = None, self._untaken
        self._see_it_taken()
        if self._untaken and self._untaken == before:
            self.hang_up()

    def hang_up(self) -> None:
        if self in self.connections:
            _hang_up(self.transport)

    def _taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None


class _Watch(BoundedFrames):
    """Can be hung up on. Merely closed, a line stays open until the other end has read what is on its way, and one that
    does not read may keep that for ever."""

    leave: Callable[[], None] | None = None  # the seat it has among the connections

    def connection_lost(self, exc: Exception | None) -> None:
        if self.leave is not None:
            self.leave()
        super().connection_lost(exc)
        self._forget()

    def _forget(self) -> None:
        """Drop what refers back to this connection or to its parser, as `_Connection` does."""
        self.conn.parser.close()
        for error in (self.conn.handshake_exc, self.conn.parser_exc):
            if error is not None:  # the frames of its traceback refer to the request, which refers to the error
                error.__traceback__ = error.__cause__ = error.__context__ = None
        if hasattr(self, "scope"):  # the application may still be at work, and may not even have begun
            self.scope["rota.hang_up"] = _nothing  # type: ignore[typeddict-unknown-key]

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # a handshake that failed has none
            self.scope["rota.hang_up"] = self.hang_up  # type: ignore[typeddict-unknown-key]

    async def send(self, message: Any) -> None:
        """Besides what ASGI knows: `rota.frames` of a `websocket.send` are whole messages as they go over the line,
        which were written once for many watchers."""
        frames = message.get("rota.frames")
        if frames is None:
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(frames)

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.hang_up()

    def hang_up(self) -> None:
        if self in self.connections:
            _hang_up(self.transport)
