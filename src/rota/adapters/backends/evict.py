"""Signals to a process that is not ours and to all it has begotten, by pidfd, so that no stranger is hit.

Who holds a lease is named by people, so only what is its owner's is ever signalled: processes of the account that the
lease was given for (`Holder.uid`), and none that belongs to an attempt the holder is no part of.

A process is the account's from when it is noted, with its start time: the holder when the lease was asked for, a
descendant when it was found. The account could end it then by the kernel's rules. It can become another account's only
by its own doing, as by the exec of a set-uid file, and is signalled all the same: else any program could keep its GPUs
in that way. No innocent process is hit: a number with its start time is never another process, and whoever starts a
set-uid program may end it by the kernel's rules as well (RLIMIT_CPU is kept over the exec). What another account's
process starts is that one's, and is left alone.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Collection, Iterable
from typing import NamedTuple

from rota.adapters.backends import heard, inside, procs
from rota.core.run import Holder

SIGKILL = signal.SIGKILL
Target = tuple[int, int]  # pid, start time


class Family(NamedTuple):
    found: tuple[Target, ...] = ()
    unseen: frozenset[Target] = frozenset()  # there may be more below these, which would be lost with them


def family(holder: Holder, known: Collection[Target] = (), subuids: procs.Ranges = ()) -> Family:
    """The process itself first, then its descendants and those of `known`, which were found before; empty when none is
    there any more, when the holder is not its owner's to end, or when we live by it: the server, whatever it was
    started by, and the first process. Nobody ends a lease by ending the house. `subuids` are the subordinate ids of the
    holder's account (see `procs.is_of`).

    The time this takes grows with the number of descendants, and only with that: each is looked at once, and by nothing
    that its owner can delay. So the mark in its environment is not read: that waits for a lock of the process. Nor does
    a name or a cgroup count that the owner can give to a process. Since descendants can fork ahead of the look, it ends
    in time (see heard); with what it has found in `known` the next look goes on where this one ended."""
    if holder.uid < 0 or holder.pid in {1, *(inside.lineage(os.getpid()) or ())}:
        return Family()
    give_up = procs.time_awake() + heard.LOOK_S
    head = (holder.pid, holder.start_ticks)
    found = [head] if _is_there(head) else []
    roots = dict.fromkeys((*found, *known))
    groups = inside.groups_of(next((each[0] for each in roots if _is_there(each)), holder.pid))
    todo = [(each[0], each) for each in roots]  # a process, and the one of the family that it is or is below
    seen, cut = {pid for pid, _ in roots}, False
    while todo and not (cut := cut or procs.time_awake() >= give_up):
        at, above = todo.pop()
        if at == above[0] and above in roots and not _is_there(above):
            continue  # its number may be a stranger's by now
        for pid in procs.children(at):
            if pid in seen:
                continue
            if cut := len(found) >= heard.MAX_FOUND or procs.time_awake() >= give_up:
                todo.append((at, above))
                break
            seen.add(pid)
            start, named = procs.start_time(pid), procs.name_and_parent(pid)
            if named is None or _is_attempts(pid, named[0], groups, holder.uid):
                continue  # with all that is below
            each = above
            if start is not None and procs.is_of(pid, holder.uid, subuids):
                each = (pid, start)
                found.append(each)
            todo.append((pid, each))
    return Family(tuple(found), frozenset(above for _, above in todo))


def _is_there(target: Target) -> bool:
    return procs.start_time(target[0]) == target[1]


def _is_attempts(pid: int, name: bytes, groups: set[str], owner: int) -> bool:
    """Return whether a process belongs to an attempt that the holder, which is in `groups`, is no part of.

    Any process can call itself a supervisor, and an account may have a part of the cgroup tree to make groups in. So
    where the owner is not the server's account, only a supervisor counts that has the server's: all of an attempt is
    below one. A program that gives its caller that account (su) is none, whatever it is called."""
    if owner == os.geteuid():
        return name in inside.SUPERVISORS or bool(inside.groups_of(pid) - groups)
    if name not in inside.SUPERVISORS or procs.uid_of(pid) != os.geteuid():
        return False
    try:
        program = os.stat(f"/proc/{pid}/exe")
    except OSError as error:
        procs.must_be_known(error)
        return False
    return not program.st_mode & (stat.S_ISUID | stat.S_ISGID)


def asked(holder: Holder, targets: Iterable[Target], number: int) -> list[Target]:
    """Leave out the forks that would run an inherited handler (see heard)."""
    below = {each.pid: each.spared for each in heard.look(number, holder.pid, stranger=False)}
    return [each for each in targets if each[0] == holder.pid or not below.get(each[0], _is_orphan(each[0], number))]


def _is_orphan(pid: int, number: int) -> bool:
    """Tell of a process that is no longer below the holder whether it is a fork with a handler, so an inherited one."""
    origin = procs.origin(pid)
    return origin is not None and origin.forked and bool(procs.caught(pid) >> (number - 1) & 1)


def signal_all(targets: Iterable[Target], number: int) -> bool:
    """False when one of them lives and may not be signalled by this account."""
    told = [_signal(pid, start, number) for pid, start in targets]
    return all(told)


def _signal(pid: int, start: int, number: int) -> bool:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        procs.must_be_known(error)
        return True  # gone
    try:
        if procs.start_time(pid) == start:
            signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        return False
    finally:
        os.close(pidfd)
    return True
