"""Processes that are not ours: who they are, and being told when they end.

One thread waits on an epoll of pidfds, so a death is known within milliseconds, nothing is polled, and a number that
was given to another process since is never mistaken for the first: it is opened first and compared (start time, boot)
then. `on_end` is always called on that thread, never inside `watch`, so that callers may hold their own locks.

All who watch one process share its pidfd. How many processes are watched is bounded, for each account and for all
together (`core.descriptors`).

A process of another account is never looked at here, where it could make us wait (see `backends.lookers`). A process
that was looked at is kept open for a while after: to watch it then needs no look.
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
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TypeVar

from rota.adapters import connections
from rota.adapters.accounts import Accounts
from rota.adapters.backends import inside, procs, sight
from rota.adapters.backends.lookers import WITHIN_S, Lookers
from rota.app.ports import Account, Seen
from rota.core.descriptors import HIGHEST, Shares, shares
from rota.core.run import Holder

log = logging.getLogger(__name__)

MAX_PID = 1 << 22  # the kernel's own limit
MAX_FAMILY = 64  # watched descendants of one account's leases. Its others are looked at now and then
MAX_IDLE = 256  # processes that were looked at, or watched until just now, and are watched soon perhaps
IDLE_OF_ONE = 4  # for one account, a part of that
LOOKS_PER_S = 2000  # at the least
GONE = -1


T = TypeVar("T")
Target = tuple[int, int]  # pid, start time


class _Wish:
    """One wish to be told."""

    __slots__ = ("family", "on_end", "over")

    def __init__(self, on_end: Callable[[], None], *, family: bool) -> None:
        self.on_end, self.family, self.over = on_end, family, False


class _Watch:
    """One watched process. `fd` is closed by the watching thread alone: a number closed elsewhere could come back as
    another watch's between an event and its handling."""

    __slots__ = ("account", "fd", "wishes")

    def __init__(self, fd: int) -> None:
        self.fd, self.account = fd, GONE
        self.wishes: dict[bool, set[_Wish]] = {False: set(), True: set()}  # by whether it is watched as a family's


class LinuxProcesses:
    def __init__(self) -> None:
        self._boot_id = procs.boot_id()
        self.lookers = Lookers()
        self._asked = Lookers()  # for looks that others ask for, at whatever they name
        self._accounts = Accounts()
        self._accounts.start()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._lock = threading.Lock()  # guards all below
        self._watches: dict[Target, _Watch] = {}
        self._by_fd: dict[int, Target] = {}
        # Watched processes of each account; one that is watched both for its own lease and as a family's counts twice.
        self._counts: dict[bool, Counter[int]] = {False: Counter(), True: Counter()}
        self._gone: deque[_Wish] = deque()  # of processes that were gone before they were watched
        self._closable: deque[Target] = deque()  # watches, unless somebody watches one again
        self._idle: OrderedDict[Target, str] = OrderedDict()  # watches without a wish, by for whom; oldest first
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="rota-processes", daemon=True)
        self._thread.start()

    def look(self, pid: int, asker: str) -> Seen | None:
        if not 0 < pid <= MAX_PID or (fd := _opened(pid)) == GONE:
            return None
        try:
            found = self._call(asker, sight.of, pid)
            if found is None or procs.has_ended(fd):
                return None
            with self._lock:
                if self._keep((pid, found.start), fd, asker):
                    fd = GONE
        finally:
            _close(fd)
        account = self._accounts.of(found.uid)
        # All that is the account's goes with the lease, whichever of its ids it has.
        holder = Holder(pid, found.start, self._boot_id, account.uid)
        return Seen(holder, found.uid, account.name, found.command, found.workdir, found.kernel, account.known)

    def attempt_of(self, pid: int, asker: str) -> str | None:
        return self._call(asker, inside.attempt_of, pid)

    def account(self, uid: int) -> Account:
        return self._accounts.of(uid)

    def counted_as(self, uid: int) -> int:
        return self._accounts.counted_as(uid)

    def subuids(self, account: int | str) -> Sequence[tuple[int, int]]:
        return self._accounts.subuids(account)

    def peer_uid(self, link: socket.socket, *, quick: bool = False) -> int | None:
        return connections.peer_uid(link, quick=quick)

    def peer_shares_pids(self, link: socket.socket) -> bool:
        return connections.peer_shares_pids(link, partial(self._call_for, sight.namespaces))

    def peer_attempt(self, link: socket.socket) -> str | None:
        return connections.peer_attempt(link, partial(self._call_for, inside.attempt_of))

    def _call_for(self, look: Callable[[int], T], pid: int, uid: int) -> T:
        return self._call(f"uid {self.counted_as(uid)}", look, pid)

    def _call(self, asker: str, look: Callable[[int], T], pid: int) -> T:
        return self._asked.call(asker, look, pid, place=pid)

    def _started(self, uid: int, pids: list[int]) -> list[int | None]:
        within_s = WITHIN_S + len(pids) / LOOKS_PER_S
        return self.lookers.call(self.counted_as(uid), sight.start_times, pids, within_s=within_s)

    def alive(self, holder: Holder) -> bool:
        return bool(self.living([(holder.pid, holder.start_ticks)], holder))

    def living(self, targets: Iterable[Target], holder: Holder) -> set[Target]:
        """Return those of these processes, each given by its pid and start time, that live. They are the holder's or
        its account's. Raises an OSError where a look at them does not end in time."""
        if holder.boot_id != self._boot_id:
            return set()
        with self._lock:
            known = {each: self._watches.get(each) for each in targets}
            found = {each for each, watch in known.items() if watch is not None and not procs.has_ended(watch.fd)}
        rest = [each for each, watch in known.items() if watch is None and not _is_gone(each[0])]
        if rest:
            starts = self._started(holder.uid, [pid for pid, _ in rest])
            found |= {each for each, start in zip(rest, starts, strict=True) if each[1] == start}
        return found

    def keep(self, targets: Iterable[Target], holder: Holder) -> None:
        """Keep these processes of the holder's account open, as after a look at each."""
        opened: dict[Target, int] = {}
        try:
            for each in targets:
                if (fd := _opened(each[0])) != GONE:
                    opened[each] = fd
            starts = self._started(holder.uid, [pid for pid, _ in opened]) if opened else []
            party = f"account {self.counted_as(holder.uid)}"
            with self._lock:
                for each, start in zip(list(opened), starts, strict=True):
                    if each[1] == start and not procs.has_ended(opened[each]) and self._keep(each, opened[each], party):
                        del opened[each]
        finally:
            for fd in opened.values():
                os.close(fd)

    def watch(
        self, holder: Holder, on_end: Callable[[], None], *, family: bool = False, may_look: bool = False
    ) -> Callable[[], None]:
        wish, key = _Wish(on_end, family=family), (holder.pid, holder.start_ticks)
        account = self.counted_as(holder.uid)
        with self._lock:
            if self._add(holder, wish, account):
                return lambda: self._give_up(key, wish)
            self._must_have_room(holder, account, family=family)
        fd = self._open(holder, may_look=may_look)
        with self._lock:
            try:
                if self._closing:
                    return lambda: None
                if fd == GONE:
                    self._gone.append(wish)
                    self._nudge()
                elif not self._add(holder, wish, account):  # nobody else began to watch it meanwhile
                    self._must_have_room(holder, account, family=family)
                    self._begin(key, fd)
                    fd = GONE  # the thread closes it
                    self._add(holder, wish, account)
            finally:
                _close(fd)
        return lambda: self._give_up(key, wish)

    def prepare(self) -> None:
        """Have the first looks find somebody to look, also where new processes wait for a lock of the machine's."""
        self.lookers.prepare()
        self._asked.prepare()

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._accounts.close()
        with self._lock:
            self._closing = True
            self._nudge()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self.lookers.close()
        self._asked.close()

    def _open(self, holder: Holder, *, may_look: bool) -> int:
        if holder.boot_id != self._boot_id:
            return GONE
        try:
            fd = self._pin((holder.pid, holder.start_ticks), holder.uid, may_look=may_look)
            if fd != GONE and not may_keep(fd):
                os.close(fd)
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:  # no descriptor to be had, or a look that does not end: not the same as gone
            raise OSError(error.errno, f"process {holder.pid} cannot be watched: {error.strerror}") from error
        return fd

    def _pin(self, target: Target, uid: int, *, may_look: bool) -> int:
        fd = _opened(target[0])
        if fd == GONE:
            return GONE
        try:
            if procs.has_ended(fd):  # whichever process it is
                return GONE
            if not may_look:
                raise OSError(errno.EAGAIN, "it was looked at too long ago, and is not open any more")
            if self._started(uid, [target[0]]) == [target[1]] and not procs.has_ended(fd):
                pinned, fd = fd, GONE
                return pinned
            return GONE  # dead, and the number is a stranger's or a zombie's
        finally:
            _close(fd)

    # -- with the lock held

    def _keep(self, target: Target, fd: int, party: str) -> bool:
        """Watch a process for nobody yet. Return whether the descriptor is in use."""
        if target in self._idle:
            self._idle.move_to_end(target)
            return False
        if self._closing or target in self._watches or not may_keep(fd):
            return False
        self._begin(target, fd)
        self._rest(target, party)
        return True

    def _begin(self, target: Target, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._watches[target] = _Watch(fd)
        self._by_fd[fd] = target

    def _rest(self, target: Target, party: str) -> None:
        """It may be watched again soon: a lease's process is by who asks for it, by who waits, and by who has it.
        `party`: for whom it is open. One that has many open keeps no others from having theirs."""
        self._idle[target] = party
        self._idle.move_to_end(target)
        most = min(MAX_IDLE, _shares().idle)
        own = [each for each, other in self._idle.items() if other == party]
        if len(own) > most // IDLE_OF_ONE:
            self._forget(own[0])
        elif len(self._idle) > most:
            counts = Counter(self._idle.values())
            largest = max(counts.values())
            self._forget(next(each for each, other in self._idle.items() if counts[other] == largest))

    def _forget(self, target: Target) -> None:
        del self._idle[target]
        self._closable.append(target)
        self._nudge()

    def _add(self, holder: Holder, wish: _Wish, account: int) -> bool:
        """Return whether the process is watched already, and the wish with it."""
        watch = self._watches.get((holder.pid, holder.start_ticks)) if holder.boot_id == self._boot_id else None
        if watch is None:
            return False
        if not any(watch.wishes.values()):
            watch.account = account
        if not watch.wishes[wish.family]:
            self._must_have_room(holder, watch.account, family=wish.family)
            self._counts[wish.family][watch.account] += 1
        watch.wishes[wish.family].add(wish)
        self._idle.pop((holder.pid, holder.start_ticks), None)
        return True

    def _must_have_room(self, holder: Holder, account: int, *, family: bool) -> None:
        bounds, counts = _shares(), self._counts[family]
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

    def _give_up(self, key: Target, wish: _Wish) -> None:
        with self._lock:
            if wish.over or self._closing:
                return
            wish.over = True
            watch = self._watches.get(key)
            if watch is not None and wish in watch.wishes[wish.family]:
                self._remove(watch, wish)
                if not any(watch.wishes.values()):
                    self._rest(key, f"account {watch.account}")

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
        with self._lock:  # who asks which of them live finds them closed, or not there
            for fd in (*self._by_fd, self._wake):
                os.close(fd)
            self._watches.clear()
            self._by_fd.clear()
            self._idle.clear()
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
                given_up = {key for key in self._closable if key in self._watches}
                ended += [key for key in given_up.difference(ended) if not any(self._watches[key].wishes.values())]
                self._closable.clear()
            for key in ended:
                watch = self._watches.pop(key)
                del self._by_fd[watch.fd]
                self._epoll.unregister(watch.fd)
                os.close(watch.fd)
                self._idle.pop(key, None)
                for wish in [*watch.wishes[False], *watch.wishes[True]]:
                    self._remove(watch, wish)
                    told.append(wish)
            told = [wish for wish in told if not wish.over]
            for wish in told:
                wish.over = True
        return [wish.on_end for wish in told]


def _shares() -> Shares:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return shares(HIGHEST if soft == resource.RLIM_INFINITY else soft)


def may_keep(fd: int) -> bool:
    """May this descriptor stay open for as long as a process lives? Some are left for files and launches."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or fd < shares(soft).processes


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


def _opened(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        procs.must_be_known(error)
        return GONE


def _is_gone(pid: int) -> bool:
    """Tell by pidfd, without a look, that no process with this number runs any more."""
    fd = _opened(pid)
    try:
        return fd == GONE or procs.has_ended(fd)
    finally:
        _close(fd)


def _close(fd: int) -> None:
    if fd != GONE:
        os.close(fd)
