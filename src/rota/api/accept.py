"""Take connections from the listening sockets, and hand them to the HTTP protocol in turns of the parties.

The kernel keeps new connections in one queue, first come, first served, and libuv takes one of them in a pass of the
event loop. So the connections of one account would delay those of all others, and what waits in that queue counts for
nobody. Here up to AT_ONCE connections are taken in one pass. Each has its party and its seat at once, and waits for the
turn of the party in the line that requests wait in too (`turns`). So the kernel's queue is short, and the order ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rota.api.connections import SAY_EVERY_S, Refusal, Seat
from rota.api.link_transport import LinkTransport
from rota.api.passrights import Link
from rota.api.turns import Turns

log = logging.getLogger(__name__)

AT_ONCE = 128  # connections of one listener in one pass, at most; some milliseconds
PART = 20  # and at most this part of what one peer may have: else the idle would be closed before they could ask
REST_S = 0.1  # where the kernel has none to give, for want of descriptors or memory
READ_BEFORE_CLOSE = 1 << 16
MAX_UNSENT = 1 << 18  # bytes that the kernel takes ahead of what the other end has room for; else it is up to 4 MiB


@dataclass(slots=True)
class Admitted:
    """A connection that has a seat."""

    party: str
    uid: int | None  # the account at the other end, by the unix socket alone
    seat: Seat
    leave: Callable[[], None]  # gives the seat back
    is_last: bool  # for another one was asked to close, which takes until the next pass: none more is taken in this one
    is_handed: bool = False  # the event loop has the socket, and closes it
    is_made: bool = False  # the protocol has it, and gives the seat back


class Acceptor:
    """One listening socket. It stands in for an `asyncio.Server`: uvicorn closes it and waits for its end."""

    def __init__(
        self,
        listener: socket.socket,
        turns: Turns,
        admit: Callable[[socket.socket], Admitted],
        make: Callable[[Admitted], asyncio.Protocol],
        per_peer: int,
    ) -> None:
        """`admit` raises a Refusal, or an OSError for a connection that is gone. `per_peer`: the most of one peer."""
        self._listener, self._turns, self._admit, self._make = listener, turns, admit, make
        self._loop = asyncio.get_running_loop()
        self._at_once = max(1, min(AT_ONCE, per_peer // PART))
        self._waiting: dict[asyncio.Task[None], Callable[[], None]] = {}  # and how to drop what it hands over
        self._closed = False
        self._said_at = -SAY_EVERY_S
        listener.setblocking(False)
        if listener.family in (socket.AF_INET, socket.AF_INET6):  # its connections inherit that
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT)

    def open(self, backlog: int) -> None:
        self._listener.listen(backlog)
        self._loop.add_reader(self._listener, self._take_some)

    def close(self) -> None:
        """Take no more. Those that were taken wait for their turn still. May be said again."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._listener)

    async def hand_over(self, within_s: float) -> None:
        """Wait until all that were taken have had their turn, and hang up on the others."""
        if self._waiting:
            await asyncio.wait(list(self._waiting), timeout=within_s)
        await self.wait_closed()

    async def wait_closed(self) -> None:
        for drop in self._waiting.values():
            drop()
        await asyncio.gather(*self._waiting, return_exceptions=True)

    def _take_some(self) -> None:
        for _ in range(self._at_once):
            if self._closed:
                return
            try:
                link, _ = self._listener.accept()
            except BlockingIOError:
                return
            except (ConnectionAbortedError, InterruptedError):
                continue
            except OSError as error:
                self._rest(error)
                return
            if not self._take(link):
                return

    def _rest(self, error: OSError) -> None:
        if self._loop.time() - self._said_at >= SAY_EVERY_S:
            self._said_at = self._loop.time()
            log.warning("connections cannot be accepted: %s; retried every %s s", error, REST_S)
        self._loop.remove_reader(self._listener)
        self._loop.call_later(REST_S, self._resume)

    def _resume(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._take_some)

    def _take(self, link: socket.socket) -> bool:
        """Return whether there is room for more in this pass."""
        link.setblocking(False)
        try:
            if _is_gone(link):
                link.close()
                return True
            admitted = self._admit(link)
        except Refusal as refusal:
            _turn_away(link, refusal)
            return True
        except OSError:  # its client has gone meanwhile
            link.close()
            return True
        task = self._loop.create_task(self._hand_over(link, admitted))
        admitted.seat.hang_up = self._waiting[task] = partial(_drop, link, admitted, task)
        task.add_done_callback(partial(self._handed_over, link, admitted))
        return not admitted.is_last

    async def _hand_over(self, link: socket.socket, admitted: Admitted) -> None:
        await self._turns.turn(admitted.party)
        if not _is_gone(link):
            admitted.is_handed = True
            if isinstance(link, Link):
                LinkTransport(self._loop, link, self._make(admitted))
            else:
                await self._loop.connect_accepted_socket(partial(self._make, admitted), link)

    def _handed_over(self, link: socket.socket, admitted: Admitted, task: asyncio.Task[None]) -> None:
        """Also for a task that was cancelled before it began, which therefore cannot do this itself."""
        del self._waiting[task]
        if not admitted.is_made:
            admitted.leave()
            link.close()
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # an OSError: its client has gone
            log.error("a connection was not served", exc_info=error)


def _drop(link: socket.socket, admitted: Admitted, task: asyncio.Task[None]) -> None:
    """Close a connection that waits for its turn. One that has had it is about to be made, and sees then that it has no
    seat any more; a task that is cancelled meanwhile would leave a protocol behind that is never told of the end."""
    if not admitted.is_handed:
        task.cancel()
        link.close()


def _is_gone(link: socket.socket) -> bool:
    """Return whether the client has left without a word. Who has asked and then closed one direction is still there."""
    try:
        return link.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _turn_away(link: socket.socket, refusal: Refusal) -> None:
    """At once, without waiting for the request: a place to wait in is what there is none of. What has come of it is
    taken, since closing over unread bytes would take the answer back."""
    with contextlib.suppress(OSError):
        link.recv(READ_BEFORE_CLOSE)
    with contextlib.suppress(OSError):
        link.send(refusal.answer())
    link.close()
