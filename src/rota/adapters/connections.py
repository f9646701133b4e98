"""The account and the process at the other end of a connection, as far as the kernel knows them.

On a unix socket the kernel noted both when the peer connected. The number of a process can be another's by the time it
is looked at, so the peer is held by a pidfd meanwhile (SO_PEERPIDFD, Linux 6.5 and later; older kernels have none, and
there the number is all there is). Of a TCP connection from this machine the account is in the kernel's table of
sockets.

The event loop may close a connection while a thread asks about it here. Its descriptor is -1 from then on, which uvloop
answers with a ValueError.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable

from rota import sock_diag
from rota.adapters.backends import inside, procs

SO_PEERPIDFD = 77  # include/uapi/asm-generic/socket.h; Python has no name for it yet
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_OPEN = (sock_diag.ESTABLISHED, sock_diag.CLOSE_WAIT)
_FAR_END_OF_OPEN = (sock_diag.ESTABLISHED, sock_diag.FIN_WAIT1, sock_diag.FIN_WAIT2)


def uid_at(near: tuple[str, int], far: tuple[str, int], *, quick: bool = False) -> int | None:
    """The account behind the socket that is connected from `near` to `far`. None also for one that its process has
    closed: the table shows such a socket as root's, whosever it was. `quick` does not read the table, whose length
    others decide."""
    found = sock_diag.connected(near, far, quick=quick)
    return found.uid if found is not None and found.inode and found.state in _FAR_END_OF_OPEN else None


def peer_uid(link: socket.socket, *, quick: bool = False) -> int | None:
    """The account at the other end; None = the kernel cannot tell, for it is on another machine, in another network
    namespace, or gone. `quick`: see above. The table is read only where the kernel has no other answer to give."""
    try:
        uid = _credentials(link)[1] if link.family == socket.AF_UNIX else _tcp_uid(link, quick)
    except ValueError:
        return None
    # A descriptor that was given up meanwhile may have been another connection's when the kernel was asked.
    return uid if link.fileno() >= 0 else None


def _tcp_uid(link: socket.socket, quick: bool) -> int | None:
    try:
        near, far = link.getpeername()[:2], link.getsockname()[:2]
        uid = uid_at(near, far, quick=True)
        if uid is None and not quick and not sock_diag.is_spoken():
            uid = uid_at(near, far)
        # Still connected after the look: so nobody else can have been connected by this pair of ends when it was made.
        still = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in _OPEN
    except OSError:  # it was closed on us
        return None
    return uid if still else None


def peer_shares_pids(link: socket.socket, namespaces: Callable[[int, int], int]) -> bool:
    """Return False where the process at the other end of a unix socket is in a pid namespace that is not ours, as in a
    container: the numbers that it knows are other processes' here. True also where that cannot be
    told. `namespaces` tells of a pid of an account in how many it has a number, from ours down."""
    if link.family != socket.AF_UNIX:
        return True
    try:
        pid, uid = _credentials(link)
    except ValueError:
        return True  # the connection is closed: there is nobody whom this could serve
    if pid == 0:
        return False  # it has no number here: its namespace is not below ours
    return namespaces(pid, uid) <= 1


def peer_attempt(link: socket.socket, attempt_of: Callable[[int, int], str | None]) -> str | None:
    """The attempt that the process at the other end of a unix socket is part of; None = of none; "" = it cannot be told
    of which, or the process is gone. `attempt_of` tells it of a pid of an account."""
    try:
        pid, uid = _credentials(link)
    except ValueError:
        return inside.UNKNOWN
    try:
        pidfd = link.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except (ProcessLookupError, ValueError):  # the process is gone, or the connection is closed
        return inside.UNKNOWN
    except OSError as error:
        procs.must_be_known(error)
        return attempt_of(pid, uid)  # a kernel without it
    try:
        found = attempt_of(pid, uid)
        # Once it has ended its number may be another's.
        return inside.UNKNOWN if procs.has_ended(pidfd) else found
    finally:
        os.close(pidfd)


def _credentials(link: socket.socket) -> tuple[int, int]:
    pid, uid, _ = _CREDENTIALS.unpack(link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
