"""Processes that are not ours: who they are, and being told when they end.

One thread waits on an epoll of pidfds, so a death is known within milliseconds, nothing is polled, and a number that
was given to another process since is never mistaken for the first: it is opened first and compared (start time, boot)
then. `on_end` is always called on that thread, never inside `watch`, so that callers may hold their own locks.

All who watch one process share its pidfd. How many processes are watched is bounded, for each account and for all
together (`core.descriptors`).
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
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import lru_cache

from rota.adapters import connections
from rota.adapters.accounts import Accounts
from rota.adapters.backends import inside, procs
from rota.app.ports import Account, Seen
from rota.core.descriptors import HIGHEST, shares
from rota.core.run import Holder

log = logging.getLogger(__name__)

MAX_PID = 1 << 22  # the kernel's own limit
MAX_COMMAND_BYTES = 4096
MAX_FAMILY = 64  # watched descendants of one account's leases. Its others are looked at now and then
GONE = -1


class _Wish:
    """One wish to be told."""

    __slots__ = ("family", "on_end", "over")

    def __init__(self, on_end: Callable[[], None], *, family: bool) -> None:
        self.on_end, self.family, self.over = on_end, family, False


class _Watch:
    """One watched process. `fd` is closed by the watching thread alone: a number closed elsewhere could come back as
    another watch's between an event and its handling."""

    __slots__ = ("account", "fd", "wishes")

    def __init__(self, fd: int, account: int) -> None:
        self.fd, self.account = fd, account
        self.wishes: dict[bool, set[_Wish]] = {False: set(), True: set()}  # by whether it is watched as a family's


class LinuxProcesses:
    def __init__(self) -> None:
        self._boot_id = procs.boot_id()
        self._accounts = Accounts()
        self._accounts.start()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._lock = threading.Lock()  # guards all below
        self._watches: dict[tuple[int, int], _Watch] = {}  # by pid and start time
        self._by_fd: dict[int, tuple[int, int]] = {}
        # Watched processes of each account; one that is watched both for its own lease and as a family's counts twice.
        self._counts: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
        self._gone: deque[_Wish] = deque()  # of processes that were gone before they were watched
        self._given_up: deque[tuple[int, int]] = deque()
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
        # All that is the account's goes with the lease, whichever of its ids it has.
        holder = Holder(pid, start, self._boot_id, account.uid)
        return Seen(holder, uid, account.name, command, where, kernel, account.known)

    def attempt_of(self, pid: int) -> str | None:
        return inside.attempt_of(pid)

    def account(self, uid: int) -> Account:
        return self._accounts.of(uid)

    def counted_as(self, uid: int) -> int:
        return self._accounts.counted_as(uid)

    def subuids(self, account: int | str) -> Sequence[tuple[int, int]]:
        return self._accounts.subuids(account)

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int | None:
        return connections.peer_uid(link, quick=quick)

    def peer_shares_pids(self, link: socket.socket) -> bool:
        return connections.peer_shares_pids(link)

    def peer_attempt(self, link: socket.socket) -> str | None:
        return connections.peer_attempt(link)

    def alive(self, holder: Holder) -> bool:
        return holder.boot_id == self._boot_id and procs.start_time(holder.pid) == holder.start_ticks

    def watch(self, holder: Holder, on_end: Callable[[], None], *, family: bool = False) -> Callable[[], None]:
        wish, key = _Wish(on_end, family=family), (holder.pid, holder.start_ticks)
        account = self.counted_as(holder.uid)
        with self._lock:
            if self._add(holder, wish):
                return lambda: self._give_up(key, wish)
            self._must_have_room(holder, account, family=family)
        fd = self._open(holder)
        with self._lock:
            try:
                if self._closing:
                    return lambda: None
                if fd == GONE:
                    self._gone.append(wish)
                    self._nudge()
                elif not self._add(holder, wish):  # nobody else began to watch it meanwhile
                    self._must_have_room(holder, account, family=family)
                    self._epoll.register(fd, select.EPOLLIN)
                    self._watches[key] = _Watch(fd, account)
                    self._by_fd[fd] = key
                    fd = GONE  # the thread closes it
                    self._add(holder, wish)
            finally:
                _close(fd)
        return lambda: self._give_up(key, wish)

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

    # -- with the lock held

    def _add(self, holder: Holder, wish: _Wish) -> bool:
        """Return whether the process is watched already, and the wish with it."""
        watch = self._watches.get((holder.pid, holder.start_ticks)) if holder.boot_id == self._boot_id else None
        if watch is None:
            return False
        if not watch.wishes[wish.family]:
            self._must_have_room(holder, watch.account, family=wish.family)
            self._counts[wish.family][watch.account] += 1
        watch.wishes[wish.family].add(wish)
        return True

    def _must_have_room(self, holder: Holder, account: int, *, family: bool) -> None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        bounds, counts = shares(HIGHEST if soft == resource.RLIM_INFINITY else soft), self._counts[family]
        most = bounds.families if family else bounds.holders
        of_one = min(MAX_FAMILY, bounds.of_one(most)) if family else bounds.of_one(most)
        if counts[account] >= of_one:
            why = f"{of_one} processes of its account are watched, as many as may be"
        elif counts.total() >= most:
            why = f"{most} processes are watched, as many as there are descriptors for"
        else:
            return
        raise OSError(errno.EMFILE, f"process {holder.pid} cannot be watched: {why}")

    def _remove(self, watch: _Watch, wish: _Wish) -> None:
        watch.wishes[wish.family].remove(wish)
        if not watch.wishes[wish.family]:
            counts = self._counts[wish.family]
            counts[watch.account] -= 1
            if not counts[watch.account]:
                del counts[watch.account]

    # -- without it

    def _give_up(self, key: tuple[int, int], wish: _Wish) -> None:
        with self._lock:
            if wish.over or self._closing:
                return
            wish.over = True
            watch = self._watches.get(key)
            if watch is not None and wish in watch.wishes[wish.family]:
                self._remove(watch, wish)
                if not any(watch.wishes.values()):
                    self._given_up.append(key)
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
        for fd in (*self._by_fd, self._wake):
            os.close(fd)
        self._watches.clear()
        self._by_fd.clear()
        self._epoll.close()

    def _gather(self, ready: list[int]) -> list[Callable[[], None]]:
        """Whom to tell; descriptors that are done with are closed on the way."""
        told: list[_Wish] = []
        with self._lock:
            if self._closing:
                return []
            ended = [self._by_fd[fd] for fd in ready if fd in self._by_fd]
            if self._wake in ready:
                os.eventfd_read(self._wake)
                told += self._gone
                self._gone.clear()
                # Unless somebody watches it again, or it has been closed since.
                idle = {key for key in self._given_up if key in self._watches}
                ended += [key for key in idle.difference(ended) if not any(self._watches[key].wishes.values())]
                self._given_up.clear()
            for key in ended:
                watch = self._watches.pop(key)
                del self._by_fd[watch.fd]
                self._epoll.unregister(watch.fd)
                os.close(watch.fd)
                for wish in [*watch.wishes[False], *watch.wishes[True]]:
                    self._remove(watch, wish)
                    told.append(wish)
            told = [wish for wish in told if not wish.over]
            for wish in told:
                wish.over = True
        return [wish.on_end for wish in told]


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
