"""Tell which processes of a killed attempt are there by their number only: they run nothing and hold no file.

A zombie stays until its parent, or what traces it, reaps it. The first process of a pid namespace stays inside its
exit, with its memory and its files gone, until all other processes of the namespace have been reaped. A process outside
the attempt that has entered the namespace (setns) can keep a zombie there for ever. Neither of the two can use a GPU.

Imported by shims: cheap standard modules only.
"""

from __future__ import annotations

import _thread
import os
import signal

from rota.adapters.backends import heard, procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MAX_STATUS = 4096
PF_EXITING = 0x4  # in field 9 of /proc/<pid>/stat: on its way out
# Where the first process of a pid namespace sleeps during its exit (zap_pid_ns_processes in kernel/pid_namespace.c):
# first until its children have ended, then until others have reaped theirs. Both come after the closing of all files,
# and nothing else in an exit waits for a child. A kernel that does not tell has "0" there.
LAST_WAITS = (b"zap_pid_ns_processes", b"do_wait", b"kernel_wait4")


def left(uid: int) -> frozenset[tuple[int, int]]:
    """Return pid and start time of every process below the calling one, if all are defunct; nothing if one of them may
    still run, or if not all can be looked at."""
    procs.STRICT.add(_thread.get_ident())  # what is not seen for want of a descriptor is not gone
    try:
        found = heard.look(signal.SIGKILL, os.getpid(), whole=True)
        defunct = are_all([each.pid for each in found], uid)
    except OSError:
        return frozenset()
    finally:
        procs.STRICT.discard(_thread.get_ident())
    return frozenset(each.key for each in found) if defunct else frozenset()


def are_all(pids: Iterable[int], uid: int) -> bool:
    """Tell whether each of these processes is defunct, and with it all of a pid namespace whose first process it is:
    one that `uid`, or anybody, has brought into the namespace may still hold what the attempt had. False when that
    cannot be told."""
    family = frozenset(pids)
    if not all(map(is_defunct, family)):
        return False
    own = _own_namespace()
    waited_for = {_namespace(pid) for pid in family if not _is_zombie(pid)} - {own}
    return 0 not in waited_for and not any(_others(family, waited_for, own, uid))


def members(pids: Iterable[int]) -> list[int]:
    """Return the processes for which those of `pids` wait that are defunct and the first ones of their pid namespaces;
    only what is certain to be in there."""
    family, own = frozenset(pids), _own_namespace()
    waited_for = {_namespace(pid) for pid in family if is_defunct(pid) and not _is_zombie(pid)} - {own, 0}
    return list(_others(family, waited_for, own, None))


def _others(family: frozenset[int], namespaces: set[int], own: int, uid: int | None) -> Iterator[int]:
    """Find what is in these namespaces, is none of the family, and is not defunct."""
    for pid in procs.all_pids() if namespaces else ():
        if pid not in family and _may_be_in(pid, namespaces, own, uid) and not is_defunct(pid):
            yield pid


def is_defunct(pid: int) -> bool:
    """Tell whether no thread of a process can run any more: each has ended, or waits as the last one of a namespace's
    first process. False for a process that is gone."""
    stat = procs.fields(pid)
    if stat is None or not int(stat[6]) & PF_EXITING:  # no need to look at thousands of threads
        return False
    threads = procs.threads(pid)
    return bool(threads) and all(_has_ended(f"{pid}/task/{each}") for each in threads) and threads == procs.threads(pid)


def _has_ended(thread: str) -> bool:
    stat = procs.fields(thread)
    if stat is None or stat[0] in (b"Z", b"X"):
        return stat is not None
    return stat[0] == b"S" and bool(int(stat[6]) & PF_EXITING) and _waits_in(thread) in LAST_WAITS


def _is_zombie(pid: int) -> bool:
    stat = procs.fields(pid)
    return stat is not None and stat[0] == b"Z" and int(stat[17]) <= 1


def _waits_in(thread: str) -> bytes:
    try:
        with open(f"/proc/{thread}/wchan", "rb", buffering=0) as file:
            return file.read(100) or b""
    except OSError as error:
        procs.must_be_known(error)
        return b""


def _numbers(pid: int) -> list[bytes]:
    """Return the numbers of a process in our pid namespace and in all below that it is in; none when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            return file.read(MAX_STATUS).partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    except OSError as error:
        procs.must_be_known(error)
        return []


def _own_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _namespace(pid: int) -> int:
    """Return the number of the pid namespace of a process; 0 when it cannot be told."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError as error:
        procs.must_be_known(error)
        return 0


def _may_be_in(pid: int, namespaces: set[int], own: int, uid: int | None) -> bool:
    """Tell whether a process is in one of these pid namespaces, or in one below. Of a process that may not be looked
    at, as it is another account's or has closed itself, the account decides; None: it is not in there."""
    if len(_numbers(pid)) == 1:  # as most are: in our own namespace
        return False
    try:
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        return uid is not None and procs.uid_of(pid) == uid
    except OSError as error:
        procs.must_be_known(error)
        return False  # gone
    for each in procs.namespaces(fd):
        number = os.fstat(each).st_ino
        if number in namespaces or number == own:
            return number in namespaces
    return False
