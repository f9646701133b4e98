"""Descriptors that a client passes over a unix socket (SCM_RIGHTS), which nobody here wants.

A plain recv() drops them: the kernel then closes, inside that call, what may be the last descriptor of a file. To close
a TCP socket with SO_LINGER and unsent bytes takes as long as its owner said, and the event loop waits meanwhile. The
same goes for a close() of the connection while such a message waits in it.

Since Linux 6.16 the kernel refuses such messages (SO_PASSRIGHTS). Before, a `Link` looks at what came before it reads:
with MSG_PEEK the message keeps its descriptors, and without room for them MSG_CTRUNC says that there are some. Such a
connection is not read any further, and is closed in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from rota.api.connections import bounds_here

log = logging.getLogger(__name__)

SO_PASSRIGHTS = 83  # asm-generic/socket.h, since Linux 6.16; the socket module does not know it yet
READ = 64 << 10  # bytes
MOST_READS = 64  # of what waits in a connection that is closed, in the event loop
MOST_HOLDERS = 8  # processes that close connections of one account and have not ended; then one more for MANY
MANY = 1024  # connections that one of them closes, at most
MOST_HOLDERS_OF_ALL = 256
ASK_EVERY_S = 0.1
GIVE_UP_S = 60.0  # that no such process can be started
SAY_EVERY_S = 60.0


def refuse_descriptors(listener: socket.socket, *, has_listened: bool = False) -> socket.socket:
    """Have the kernel refuse messages with descriptors, to this socket and to those that it accepts (EPERM). Return the
    socket to listen on: where the kernel cannot refuse them, or clients may have connected before (`has_listened`), a
    `Listener` in place of the given one."""
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS, 0)
    except OSError as error:
        log.info("the kernel cannot refuse descriptors on the unix socket (%s): each read is looked at first", error)
    else:
        if not has_listened:
            return listener
    return Listener(listener.family, listener.type, listener.proto, fileno=listener.detach())


class DescriptorPassed(OSError):
    """The next bytes of a connection carry descriptors."""


class Closers:
    """Closes connections in which descriptors wait, by the end of a process that has them too: a socket does not linger
    then, and no descriptor is received. A file of FUSE can keep such a process from ending, and whoever passed one has
    the rest of their own account's connections wait for it, not those of others. Use it on one thread alone."""

    def __init__(self, most: int | None = None, most_holders: int = MOST_HOLDERS) -> None:
        self._most = bounds_here().connections // 8 if most is None else most  # those that wait take no other's place
        self._many = max(1, min(MANY, self._most // 8))
        self._most_holders = most_holders
        self.counted_as: Callable[[int], int] = lambda uid: uid  # the account for which a user id counts
        self._waiting: dict[int, list[int]] = {}  # account -> descriptors; who had a turn goes last
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._holders: dict[int, list[subprocess.Popen[bytes]]] = {}  # account -> those that have not ended
        self._failing_since: float | None = None  # that no holder can be started
        self.count = 0  # connections that are not closed yet
        self._said_at = -SAY_EVERY_S

    def close(self, number: int, uid: int) -> None:
        """Close this descriptor, of a connection of this account, in a thread."""
        with self._news:
            self.count += 1
            self._waiting.setdefault(uid, []).append(number)
            self._news.notify()
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._close_all, name="rota-close", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread can be had now: the next close asks for one again
                thread.start()
                self._thread = thread

    def is_full(self) -> bool:
        return self.count >= self._most

    def close_passed(self, link: socket.socket) -> None:
        """Close a connection in which descriptors wait."""
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        now = time.monotonic()
        if now - self._said_at >= SAY_EVERY_S:
            self._said_at = now
            log.warning("user id %s (process %s) passed descriptors over the unix socket; it was hung up on", uid, pid)
        self.close(link.detach(), self.counted_as(uid))

    def _close_all(self) -> None:
        while True:
            try:
                self._close_some()
            except Exception:
                # Whatever it was (no memory, say): nobody else closes what waits, and at last none would be accepted.
                log.exception("connections with passed descriptors could not be closed; trying again")
                time.sleep(ASK_EVERY_S)

    def _close_some(self) -> None:
        with self._news:
            self._news.wait_for(lambda: self._waiting)
            uid, numbers = self._take()
        if not numbers:
            time.sleep(ASK_EVERY_S)
            return
        holder = None
        try:
            holder = self._hold(numbers)
            self._holders.setdefault(uid, []).append(holder)
            self._failing_since = None
        except Exception as error:  # noqa: BLE001 - as above; it is logged, and the connections are not lost
            if self._may_try_again(error):
                with self._news:
                    self._waiting[uid] = [*numbers, *self._waiting.get(uid, ())]
                time.sleep(ASK_EVERY_S)
                return
        try:
            for number in numbers:
                os.close(number)  # not the last descriptor of it where there is a holder, and so done at once
        finally:
            with self._news:
                self.count -= len(numbers)
        if holder is not None:
            assert holder.stdin is not None
            holder.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(ASK_EVERY_S)

    def _take(self) -> tuple[int, list[int]]:
        """Return the account whose turn it is, with some of its descriptors; none where all have to wait. An account
        whose holders do not end has one more of them for MANY connections at a time."""
        alive = {uid: [each for each in of_one if each.poll() is None] for uid, of_one in self._holders.items()}
        self._holders = {uid: of_one for uid, of_one in alive.items() if of_one}
        if sum(map(len, self._holders.values())) < MOST_HOLDERS_OF_ALL:
            for uid, waiting in self._waiting.items():
                if len(self._holders.get(uid, ())) < self._most_holders or len(waiting) >= self._many:
                    del self._waiting[uid]
                    if rest := waiting[self._many :]:
                        self._waiting[uid] = rest
                    return uid, waiting[: self._many]
        return -1, []

    def _may_try_again(self, error: Exception) -> bool:
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            log.warning("no process can be started that closes connections with passed descriptors: %r", error)
        if now - self._failing_since < GIVE_UP_S:
            return True
        log.warning("connections with passed descriptors are closed here, which may take long: %r", error)
        return False

    @staticmethod
    def _hold(numbers: Sequence[int]) -> subprocess.Popen[bytes]:
        """Start a process that has these descriptors until its standard input is closed."""
        nothing = subprocess.DEVNULL
        return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, pass_fds=numbers)


class Listener(socket.socket):
    """A unix socket whose connections are Links, but for those to which the kernel passes no descriptors."""

    _closers: Closers | None = None

    @property
    def closers(self) -> Closers:
        if self._closers is None:
            self._closers = Closers()
        return self._closers

    def accept(self) -> tuple[socket.socket, str]:
        if self.closers.is_full():  # each of those that wait has a descriptor of this process
            raise OSError(errno.EMFILE, "too many connections with passed descriptors wait for their close")
        plain, address = super().accept()
        if _is_refused(plain):
            return plain, address
        link = Link(self.family, self.type, self.proto, fileno=plain.detach())
        link.closers = self.closers
        # Else a read would skip an urgent byte, and drop the descriptors that came with it.
        link.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        return link, address

    def close(self) -> None:
        """Close in a thread: descriptors may wait in connections that were not accepted."""
        if self.fileno() >= 0:
            self.closers.close(self.detach(), os.geteuid())


def _is_refused(link: socket.socket) -> bool:
    """Return whether the kernel refuses descriptors to this connection, and has since it was made."""
    try:
        return link.getsockopt(socket.SOL_SOCKET, SO_PASSRIGHTS) == 0
    except OSError:
        return False


class Link(socket.socket):
    """A connection that is never read, nor closed on this thread, where that would close a passed descriptor. The other
    calls of `socket.socket` that read are not guarded."""

    closers: Closers

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Raise DescriptorPassed where descriptors came with the next bytes."""
        if flags & socket.MSG_PEEK:
            return super().recv(bufsize, flags)
        # Only this end reads, so that what was looked at is what is read, and nothing behind it.
        ahead, _, said, _ = self.recvmsg_into([memoryview(_SCRATCH)[:bufsize]], 0, socket.MSG_PEEK)
        if said & socket.MSG_CTRUNC:
            raise DescriptorPassed(errno.EPERM, "descriptors were passed over the unix socket")
        return super().recv(ahead, flags) if ahead else b""

    def close(self) -> None:
        if self.fileno() < 0:
            return
        if self._holds_descriptors():
            self.closers.close_passed(self)
        else:
            super().close()

    def _holds_descriptors(self) -> bool:
        """Return whether a message with descriptors waits here, or so much else that it cannot be told."""
        try:
            self.shutdown(socket.SHUT_RD)  # nothing more can come
            return all(self.recv(READ) for _ in range(MOST_READS))
        except DescriptorPassed:
            return True
        except OSError:  # is told only where nothing waits
            return False


_SCRATCH = bytearray(READ)  # what was looked at; the event loop's thread alone reads Links
