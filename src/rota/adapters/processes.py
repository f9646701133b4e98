"""Processes that are not ours: who they are, and being told when they end.

One thread waits on an epoll of pidfds, so a death is known within milliseconds, nothing is polled, and a number that
was given to another process since is never mistaken for the first: it is opened first and compared (start time, boot)
then. `on_end` is always called on that thread, never inside `watch`, so that callers may hold their own locks.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pwd
import resource
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import lru_cache

from rota.adapters import connections
from rota.adapters.accounts import Accounts
from rota.adapters.backends import inside, procs
from rota.app.ports import Account, Seen
from rota.core.descriptors import shares
from rota.core.run import Holder

log = logging.getLogger(__name__)

MAX_PID = 1 << 22  # the kernel's own limit
MAX_COMMAND_BYTES = 4096
GONE = -1


class _Watch:
    """One wish to be told. `fd` is closed by the watching thread alone: a number closed elsewhere could come back as
    another watch's between an event and its handling."""

    __slots__ = ("fd", "on_end", "over")

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        self.fd, self.on_end, self.over = fd, on_end, False


class LinuxProcesses:
    def __init__(self) -> None:
        self._boot_id = procs.boot_id()
        self._accounts = Accounts()
        self._accounts.start()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._lock = threading.Lock()  # guards the three below
        self._watches: dict[int, _Watch] = {}
        self._finished: deque[_Watch] = deque()  # given up, or gone before they were watched
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rota-processes", daemon=True)
        self._thread.start()

    def look(self, pid: int) -> Seen | None:
        if not 0 < pid <= MAX_PID:
            return None
        start = procs.start_time(pid)
        facts = _status(pid)
        # a thread of a process has a directory too, but is not the process
        if start is None or facts is None or facts.get("Tgid") != str(pid):
            return None
        uid = int(facts["Uid"].split()[0])  # the real one: who runs a setuid program may signal it, and so owns it here
        kernel = procs.is_kernel_thread(pid)
        command, where = _command(pid) or (facts.get("Name") or f"pid {pid}",), _directory(pid)
        if procs.start_time(pid) != start:  # it ended meanwhile: what was read may be another's
            return None
        account = self._accounts.of(uid)
        # All that is the account's in its namespaces goes with the lease, whichever of its ids it has.
        ender = account.uid if account.subordinate and procs.is_of(pid, account.uid) else uid
        holder = Holder(pid, start, self._boot_id, ender)
        return Seen(holder, uid, account.name, command, where, kernel, account.known)

    def attempt_of(self, pid: int) -> str | None:
        return inside.attempt_of(pid)

    def account(self, uid: int) -> Account:
        return self._accounts.of(uid)

    def counted_as(self, uid: int) -> int:
        return self._accounts.counted_as(uid)

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int | None:
        return connections.peer_uid(link, quick=quick)

    def peer_shares_pids(self, link: socket.socket) -> bool:
        return connections.peer_shares_pids(link)

    def peer_attempt(self, link: socket.socket) -> str | None:
        return connections.peer_attempt(link)

    def alive(self, holder: Holder) -> bool:
        return holder.boot_id == self._boot_id and procs.start_time(holder.pid) == holder.start_ticks

    def watch(self, holder: Holder, on_end: Callable[[], None]) -> Callable[[], None]:
        watch = _Watch(self._open(holder), on_end)
        with self._lock:
            if self._closing:
                _close(watch.fd)
                return lambda: None
            if watch.fd == GONE:
                self._finished.append(watch)
                self._nudge()
            else:
                self._watches[watch.fd] = watch
                self._epoll.register(watch.fd, select.EPOLLIN)
        return lambda: self._give_up(watch)

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._accounts.close()
        with self._lock:
            self._closing = True
            self._nudge()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _open(self, holder: Holder) -> int:
        if holder.boot_id != self._boot_id:
            return GONE
        try:
            fd = procs.pin(holder.pid, holder.start_ticks)
            if fd != GONE and not may_keep(fd):
                os.close(fd)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:  # no descriptor to be had: not the same as gone
            raise OSError(error.errno, f"process {holder.pid} cannot be watched: {error.strerror}") from error
        return fd

    def _give_up(self, watch: _Watch) -> None:
        with self._lock:
            if not watch.over and not self._closing:
                watch.over = True
                self._finished.append(watch)
                self._nudge()

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake anyway
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            ready = [fd for fd, _ in self._epoll.poll()]
            for on_end in self._gather(ready):
                try:
                    on_end()
                except Exception:  # a defect of one receiver must not keep the others from being told
                    log.exception("after the end of a process")
            if self._closing:
                break
        for fd in (*self._watches, self._wake):
            os.close(fd)
        self._watches.clear()
        self._epoll.close()

    def _gather(self, ready: list[int]) -> list[Callable[[], None]]:
        """Whom to tell; descriptors that are done with are closed on the way."""
        told: list[Callable[[], None]] = []
        with self._lock:
            if self._closing:
                return told
            ended = [self._watches[fd] for fd in ready if fd in self._watches]
            if self._wake in ready:
                os.eventfd_read(self._wake)
                ended += self._finished
                self._finished.clear()
            for watch in ended:
                if self._watches.get(watch.fd) is watch:  # not closed before, its number another's by now
                    del self._watches[watch.fd]
                    self._epoll.unregister(watch.fd)
                    os.close(watch.fd)
                if not watch.over:
                    watch.over = True
                    told.append(watch.on_end)
        return told


def may_keep(fd: int) -> bool:
    """May this descriptor stay open for as long as a process lives? Some are left for files and launches."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or fd < shares(soft).processes


def _status(pid: int) -> dict[str, str] | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            # only "\n" ends a line: the name, which is the process's to choose, may hold all else that would
            pairs = (line.partition(":") for line in file.read(MAX_COMMAND_BYTES).split("\n"))
            return {name: value.strip() for name, _, value in pairs}
    except OSError as error:
        procs.must_be_known(error)
        return None


def _command(pid: int) -> tuple[str, ...]:
    """Its argv as far as it may be read and no further than the bound; empty for a thread of the kernel."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            raw = file.read(MAX_COMMAND_BYTES)
    except OSError as error:
        procs.must_be_known(error)
        return ()
    words = tuple(word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0"))
    return words if words[0] else ()


def _directory(pid: int) -> str:
    try:
        where = os.readlink(f"/proc/{pid}/cwd".encode()).decode(errors="replace")
    except OSError:  # not ours to read, or it is gone
        return "/"
    return where if where.startswith("/") and len(where) < MAX_COMMAND_BYTES else "/"  # or one beyond our own root


def is_persons(account: str) -> bool:
    """There is such an account, and it is not root's under whatever name. Known for a minute: one that was made is
    soon seen, and asking may mean asking a directory server far away."""
    return _is_persons(account, int(time.monotonic() // 60))


@lru_cache(maxsize=1024)
def _is_persons(account: str, minute: int) -> bool:
    try:
        return pwd.getpwnam(account).pw_uid != 0
    except (KeyError, ValueError):  # ValueError: a name that holds NUL
        return False


def _close(fd: int) -> None:
    if fd != GONE:
        os.close(fd)
