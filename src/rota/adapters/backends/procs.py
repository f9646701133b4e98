"""Processes as /proc shows them, and signals that cannot hit a stranger.

Shared by the server, the zygote and the shims, so it imports only cheap standard modules. A pid alone is never
trusted: it is opened as a pidfd first and *then* checked (start time, parent, environment); if it was reused before
the opening the check fails, and if it dies after it the pidfd points at nobody.
"""

from __future__ import annotations

import _thread  # threading itself would be one more import in every shim
import errno
import fcntl
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself is too dear for the zygote
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Ranges = Sequence[Sequence[int]]

MARKER = "ROTA_ATTEMPT_ID"
INSTALLATION = "ROTA_INSTALLATION_ID"  # whose attempt it is: two servers can give the same id
PF_FORKNOEXEC = 0x40  # in field 9 of /proc/<pid>/stat: "forked but didn't exec"
PF_KTHREAD = 0x00200000  # in the same field: a thread of the kernel
NS_GET_PARENT, NS_GET_OWNER_UID = 0xB702, 0xB704
MAX_NAMESPACES = 33  # the kernel nests 32
MAX_PROC_READ = 1 << 20
# An exec gives at most 6 MiB, but a process may say that any of its memory is its environment (PR_SET_MM_MAP).
MAX_ENVIRONMENT = 8 << 20
MAX_THREADS = 64  # of a process whose first thread has ended, that are looked at for its memory
MIN_LOOK_S = 1.0  # one look at all processes takes a hundredth of that, unless they make it long
MANY_BORN = 256  # numbers that are looked at one by one
FOR_EVER = float("inf")
PIDFD_GET_INFO, PIDFD_INFO_CREDS, PIDFD_INFO_BYTES = 0xC040FF0B, 1 << 1, 64


# A supervisor goes on with what it can see: of its children it hears from the kernel. The zygote sets this.
LENIENT = False
STRICT: set[int] = set()  # threads of such a process that have to know all
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def must_be_known(error: OSError) -> None:
    """Raise the error where it says nothing of the process: there was no descriptor, or no memory, to look with."""
    if error.errno in SHORTAGE and (not LENIENT or _thread.get_ident() in STRICT):
        raise error


def boot_id() -> str:
    return _read_text("/proc/sys/kernel/random/boot_id").strip()


def boottime() -> float:
    """Seconds since boot including sleep: never jumps with the wall clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def time_awake() -> float:
    """Seconds since boot without sleep: for what a program is given to do something in."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def start_time(pid: int | str) -> int | None:
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot; None when there is no such process or it is a zombie."""
    stat = fields(pid)
    return None if stat is None or _is_dead(stat) else int(stat[19])


def is_stopped(pid: int) -> bool:
    """Whether a signal, or what traces it, keeps a process from running."""
    stat = fields(pid)
    return stat is not None and stat[0] in (b"T", b"t")


def waits_in_kernel(pid: int) -> bool:
    """Whether a process waits for something that no signal but SIGKILL, or none at all, can interrupt."""
    stat = fields(pid)
    return stat is not None and stat[0] == b"D"


def is_kernel_thread(pid: int) -> bool:
    stat = fields(pid)
    return stat is not None and bool(int(stat[6]) & PF_KTHREAD)


def parent(pid: int) -> int | None:
    stat = fields(pid)
    return None if stat is None else int(stat[1])


def name_and_parent(pid: int) -> tuple[bytes, int] | None:
    """What a process calls itself, and its parent; None when there is no such process."""
    text = _stat_text(pid)
    if text is None:
        return None
    name, _, rest = text.partition(b"(")[2].rpartition(b")")
    return name, int(rest.split(maxsplit=2)[1])


def children(pid: int) -> list[int]:
    """The direct children of a process (of all its threads)."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        for thread in threads:
            found += [int(word) for word in _read_text(f"/proc/{pid}/task/{thread}/children").split()]
    except OSError as error:
        must_be_known(error)
        if os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"):
            return found  # the process, or a thread of it, went away meanwhile
        return [child for child in all_pids() if parent(child) == pid]  # kernel without CONFIG_PROC_CHILDREN
    return found


def listed_in(children: int) -> list[int]:
    """Return the children of a thread, by its /proc/<pid>/task/<tid>/children, opened before."""
    os.lseek(children, 0, os.SEEK_SET)
    text = b""
    while chunk := os.read(children, MAX_PROC_READ):
        text += chunk
    return [int(word) for word in text.split()]


def all_pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def uid_of(pid: int) -> int | None:
    """The real user id; None when there is no such process. The kernel writes all groups of a process into its status,
    of which there may be 65,536: that takes 20 ms, for as many processes as an account likes. So it is asked by pidfd
    where it answers that (Linux 6.13)."""
    uid = _uid_by_pidfd(pid)
    if uid is not None:
        return uid
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            return int(file.read(4096).partition(b"\nUid:")[2].split(maxsplit=1)[0])
    except IndexError:
        return None
    except OSError as error:
        must_be_known(error)
        return None


def _uid_by_pidfd(pid: int) -> int | None:
    """None: it is not told so, for whatever reason."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    info = bytearray(PIDFD_INFO_BYTES)
    info[0] = PIDFD_INFO_CREDS
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:
        return None
    finally:
        os.close(pidfd)
    # mask, cgroup (64 bits each), pid, thread group, parent, real user id (32 bits each), ...
    return int.from_bytes(info[28:32], sys.byteorder) if info[0] & PIDFD_INFO_CREDS else None


def is_of(pid: int, uid: int, subuids: Ranges = ()) -> bool:
    """Tell whether a process is an account's: by its user id, which may be one of the account's subordinate ids (each
    range with its first id, and the one beyond its last), or since it is in a user namespace that the account made,
    where it may have taken any other id."""

    def is_its(one: int | None) -> bool:
        return one == uid or (one is not None and any(first <= one < end for first, end in subuids))

    if is_its(uid_of(pid)):
        return True
    try:
        fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        must_be_known(error)
        return False
    own = os.stat("/proc/self/ns/user").st_ino
    for each in namespaces(fd):
        if os.fstat(each).st_ino == own:
            return False
        if is_its(int.from_bytes(fcntl.ioctl(each, NS_GET_OWNER_UID, bytes(4)), sys.byteorder)):
            return True
    return False


def namespaces(fd: int) -> Iterator[int]:
    """Yield this descriptor of a namespace, then one of each namespace above it that may be seen; each is closed before
    the next."""
    try:
        for _ in range(MAX_NAMESPACES):
            yield fd
            try:
                above = fcntl.ioctl(fd, NS_GET_PARENT)
            except OSError:  # the next one is above ours, or there is none
                return
            os.close(fd)
            fd = above
    finally:
        os.close(fd)


def threads(pid: int) -> list[str]:
    """Return the numbers of a process's threads; none when it is gone."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError as error:
        must_be_known(error)
        return []


def threads_in(stat: int) -> int:
    """Return how many threads a process has, by its /proc/<pid>/stat, opened before."""
    text = os.pread(stat, 4096, 0)
    return int(text[text.rindex(b")") + 2 :].split()[17])


def born_after(pid: int) -> Iterable[int]:
    """Return the numbers that processes and threads were given after this one was, or those of all processes where
    these are many. A look at all would cost a short attempt more than all the rest."""
    last = int(_read_text("/proc/loadavg").split()[-1])
    return range(pid + 1, last + 1) if pid <= last <= pid + MANY_BORN else all_pids()


def marked(
    attempt_id: str,
    uid: int | None,
    installation: str = "",
    deadline: float = FOR_EVER,
    pids: Iterable[int] | None = None,
) -> list[int]:
    """Processes of this account (None: of any) that carry the attempt's marker in their environment, however far they
    ran; those that were found by the deadline (monotonic), among `pids` where given."""
    return _marked(attempt_id, uid, installation, deadline, pids)[0]


def _marked(
    attempt_id: str, uid: int | None, installation: str, deadline: float, pids: Iterable[int] | None = None
) -> tuple[list[int], bool]:
    """The same, and whether all processes were looked at. A look has a second in any case."""
    own, found = os.getpid(), list[int]()
    deadline = max(deadline, time.monotonic() + MIN_LOOK_S)
    for pid in all_pids() if pids is None else pids:
        if time.monotonic() > deadline:
            return found, False
        if pid != own and has_marker(pid, attempt_id, uid, installation):
            found.append(pid)
    return found, True


def has_marker(pid: int, attempt_id: str, uid: int | None, installation: str = "") -> bool:
    """Look for the marker in a process of the attempt's account: anybody may set the variable in a process of their
    own. The real user id counts, since the environment of a setuid program is its caller's choice as well. A process
    that names another installation is none of ours; one of an older version names none. "": any will do."""
    if uid is not None and uid_of(pid) != uid:
        return False
    wanted, prefix = f"\0{MARKER}={attempt_id}\0".encode(), f"\0{INSTALLATION}=".encode()
    ours = prefix + installation.encode() + b"\0"
    found, named = False, not installation
    try:
        for window in environment(pid, max(len(wanted), len(ours))):
            found = found or wanted in window
            if not named and 0 <= (at := window.find(prefix)) <= len(window) - len(ours):
                if not window.startswith(ours, at):
                    return False
                named = True
            if found and named:
                break
    except OSError as error:
        must_be_known(error)
        return False  # gone, or another user's
    return found and start_time(pid) is not None


def environment(pid: int, longest: int) -> Iterator[bytes]:
    """The variables of a process, each between two zero bytes, in windows that overlap: what has at most `longest`
    bytes is whole in one of them. The last window ends with as many zero bytes. How much is read has a bound."""
    with open(f"/proc/{_with_memory(pid)}/environ", "rb", buffering=0) as file:
        rest = b"\0"
        for _ in range(0, MAX_ENVIRONMENT, MAX_PROC_READ):
            chunk = file.read(MAX_PROC_READ)
            if not chunk:
                break
            rest += chunk
            yield rest
            rest = rest[-longest:]
        yield rest + bytes(longest)


def _with_memory(pid: int) -> str:
    """Return where below /proc to read what is in the memory of a process. A first thread that has ended has no memory
    any more; the other threads have it as long as one of them runs."""
    stat = fields(pid)
    if stat is None or stat[0] != b"Z" or _is_dead(stat):
        return str(pid)
    threads = (f"{pid}/task/{name}" for name in os.listdir(f"/proc/{pid}/task")[:MAX_THREADS] if name != str(pid))
    # field 23, the size of the memory, is 0 for a thread that has ended
    return next((each for each in threads if (seen := fields(each)) is not None and int(seen[20])), str(pid))


def caught(pid: int) -> int:
    """The signals it has handlers for, as a mask with the first signal in bit 0; 0 when it is gone."""
    try:
        status = _read_text(f"/proc/{pid}/status")
    except OSError as error:
        must_be_known(error)
        return 0
    mask = status.partition("\nSigCgt:")[2].split(maxsplit=1)
    return int(mask[0], 16) if mask else 0


class Origin:
    """How a process came about: when, in which group, and whether by a fork without an exec since.

    `image` is where its stack began: the kernel chooses that anew at every exec, and a fork inherits it, so two
    processes with different images cannot be forks of each other. 0 = it cannot be read, or the kernel does not tell.
    """

    __slots__ = ("dead", "forked", "group", "image", "parent", "start")

    def __init__(self, stat: list[bytes]) -> None:
        self.dead = _is_dead(stat)
        self.parent, self.group, self.start = int(stat[1]), int(stat[2]), int(stat[19])
        self.forked, self.image = bool(int(stat[6]) & PF_FORKNOEXEC), int(stat[25])

    def may_be_fork_of(self, other: Origin) -> bool:
        """False: its parent is another, and has ended."""
        return self.forked and (not self.image or not other.image or self.image == other.image)


def origin(pid: int) -> Origin | None:
    stat = fields(pid)
    return None if stat is None else Origin(stat)


def send(pid: int, signum: int, check: Callable[[], bool]) -> bool:
    """Signal `pid` if `check()`, made while the process is pinned by a pidfd, still holds. False: nobody was
    signalled."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        must_be_known(error)
        return False
    try:
        if not check():
            return False
        signal.pidfd_send_signal(pidfd, signum)
        return True
    except OSError as error:
        must_be_known(error)
        return False  # ended in between, or not ours to signal
    finally:
        os.close(pidfd)


def own_serial() -> int:
    """Return the number by which the kernel knows this process until it starts anew; 0 = it has none (Linux before 6.9,
    where all pidfds have one number)."""
    own, above = _serial(os.getpid()), _serial(os.getppid())
    return 0 if own == above else own


def pin(pid: int, serial: int) -> int:
    """Return a pidfd of the process that has this pid and this serial; -1 when it is gone. This never waits."""
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        must_be_known(error)
        return -1
    if os.fstat(pidfd).st_ino == serial:
        return pidfd
    os.close(pidfd)
    return -1


def has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def _serial(pid: int) -> int:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        must_be_known(error)
        return 0
    serial = os.fstat(pidfd).st_ino
    os.close(pidfd)
    return serial


def send_to(pid: int, started: int, signum: int) -> bool:
    """Signal the process that has this pid *and* this start time."""
    return send(pid, signum, lambda: start_time(pid) == started)


def kill_marked(
    attempt_id: str, uid: int | None, deadline: float, installation: str = "", *, thorough: bool = True
) -> bool:
    """Kill all processes of this account that carry the marker, again and again until none is found. False when
    `deadline` (monotonic) came first: a last look that it cut short counts only where not `thorough`."""
    pause = 0.001
    while True:
        pids, are_all = _marked(attempt_id, uid, installation, deadline)
        if not pids and (are_all or not thorough):
            return True
        for pid in pids:
            send(pid, signal.SIGKILL, lambda pid=pid: has_marker(pid, attempt_id, uid, installation))  # type: ignore[misc]
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def _is_dead(stat: list[bytes]) -> bool:
    """A process whose first thread has ended looks like a zombie while its other threads (field 20) run on."""
    return stat[0] in (b"Z", b"X") and int(stat[17]) <= 1


def fields(pid: int | str) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on; the second, the command, may be anything."""
    text = _stat_text(pid)
    return None if text is None else text[text.rindex(b")") + 2 :].split()


def _stat_text(pid: int | str) -> bytes | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError as error:
        must_be_known(error)
        return None
    try:
        return os.read(fd, 4096)
    except OSError:
        return None
    finally:
        os.close(fd)


def _read_text(path: str) -> str:
    # The name of a process and of a mount may hold a carriage return, which ends a line in Python's usual text mode.
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return file.read(MAX_PROC_READ)
