"""How many connections are open, in total and of one peer: kept when one is accepted, before a byte of it is read.

A peer is an account of this machine, where the kernel says which, else an address. Where there is no room, a connection
that waits for its client is closed for the new one, the oldest first: at a peer's own bound one of its own, at the
bound of all one of the peer that has most. Where none waits, the peer is refused; but a peer that has fewer than the
largest one takes a place of that one.
"""

from __future__ import annotations

import ipaddress
import logging
import resource
import time
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus

from rota.api.answers import dumps
from rota.core.descriptors import HIGHEST, Shares, shares

log = logging.getLogger(__name__)

RETRY_AFTER_S = 5
SAY_EVERY_S = 60.0
LOOPBACK = "127.0.0.1"


class Seat:
    """The place of one connection."""

    __slots__ = ("hang_up", "is_above", "peer")

    def __init__(self, peer: _Peer, hang_up: Callable[[], None], *, is_above: bool) -> None:
        self.peer: _Peer | None = peer  # None = it has been given up
        self.hang_up = hang_up
        self.is_above = is_above  # its descriptor is one that connections should not have


class _Peer:
    __slots__ = ("idle", "name", "seats")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seats: dict[Seat, None] = {}
        self.idle: OrderedDict[Seat, None] = OrderedDict()  # those that wait for their client, the longest first


class Refusal(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status

    def answer(self) -> bytes:
        """The whole of it, without any request: in the shape of the main routes and of the lease routes."""
        body = dumps({"detail": str(self), "error": str(self)})
        head = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\ncontent-type: application/json\r\n"
        again = f"retry-after: {RETRY_AFTER_S}\r\n" if self.status in (429, 503) else ""
        return f"{head}{again}connection: close\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Connections:
    """On the event loop's thread alone."""

    def __init__(self, bounds: Shares) -> None:
        self.bounds = bounds
        self.count = 0
        self.refused = 0
        self._peers: dict[str, _Peer] = {}
        self._said_at = -SAY_EVERY_S
        self._above = 0
        self._fit = 0  # how many connections there were when one had such a descriptor; counts while there is one

    def admit(self, name: str, descriptor: int, hang_up: Callable[[], None]) -> Seat:
        """A seat for a connection with this descriptor; raises a Refusal."""
        peer = self._peers.get(name) or _Peer(name)
        if len(peer.seats) >= self.bounds.per_peer and not self._close_idle(peer):
            raise self._refusal(
                429, f"{name} has {len(peer.seats)} connections open, as many as one may; close some, or come later"
            )
        is_above = descriptor >= self.bounds.connections
        if is_above:
            self._fit = self.count
        if (is_above or (self._above and self.count >= self._fit)) and not self._make_room(peer):
            raise self._refusal(503, self._no_room())
        seat = Seat(peer, hang_up, is_above=is_above)
        self._above += is_above
        peer.seats[seat] = peer.idle[seat] = None
        self._peers[name] = peer
        self.count += 1
        return seat

    def busy(self, seat: Seat) -> None:
        """Its request is whole: it is not closed for another any more."""
        if seat.peer is not None:
            seat.peer.idle.pop(seat, None)

    def idle(self, seat: Seat) -> None:
        """It was answered, and waits for the next request."""
        if seat.peer is not None:
            seat.peer.idle[seat] = None

    def leave(self, seat: Seat) -> None:
        """It is closed, or about to be. May be said again."""
        peer, seat.peer = seat.peer, None
        if peer is None:
            return
        self.count -= 1
        self._above -= seat.is_above
        del peer.seats[seat]
        peer.idle.pop(seat, None)
        if not peer.seats:
            self._peers.pop(peer.name, None)

    def _no_room(self) -> str:
        if not self.count:  # all descriptors are in use for other things
            return "the server has no descriptor left for a connection; come later"
        return f"all {self.count} connections that there is room for are in use; come later"

    def _make_room(self, peer: _Peer) -> bool:
        with_idle = [one for one in self._peers.values() if one.idle]
        if with_idle:
            return self._close_idle(max(with_idle, key=_size))
        largest = max(self._peers.values(), key=_size, default=peer)
        if _size(largest) <= _size(peer) + 1:
            return False
        self._close(next(reversed(largest.seats)))
        return True

    def _close_idle(self, peer: _Peer) -> bool:
        if not peer.idle:
            return False
        self._close(next(iter(peer.idle)))
        return True

    def _close(self, seat: Seat) -> None:
        self.leave(seat)
        seat.hang_up()

    def _refusal(self, status: int, why: str) -> Refusal:
        self.refused += 1
        if time.monotonic() - self._said_at >= SAY_EVERY_S:
            self._said_at = time.monotonic()
            log.warning("a connection is refused (%d so far): %s", self.refused, why)
        return Refusal(status, why)


def _size(peer: _Peer) -> int:
    return len(peer.seats)


def bounds_here() -> Shares:
    """By the limit of this process as it is now."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return shares(HIGHEST if soft == resource.RLIM_INFINITY else soft)


def account(uid: int) -> str:
    return f"uid {uid}"


def network(address: str) -> str:
    """What one party has at least: an IPv4 address, 64 bits of IPv6 addresses, or all of 127/8."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address) and found.is_loopback:
        return LOOPBACK
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None and found.ipv4_mapped.is_loopback:
        return LOOPBACK
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is None:
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return address
