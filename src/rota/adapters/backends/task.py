"""From an order to a running command, in one of two ways.

`spawn` is the fast one, for commands that run as the server's own account: posix_spawn (a vfork) copies no page
tables, and reports a failed exec at once. What a spawned child cannot do for itself (working directory, umask) the
shim does around it.

`begin` is what a forked child does before it becomes the command: the way for another account, a device filter, a
terminal. It prepares itself while the shim records its pid, then waits for the shim's word: a child whose shim died
before that reads the end of the pipe instead and leaves. It also asks the kernel to be killed with its shim.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal

from rota.adapters.backends import confine, oom, records
from rota.adapters.backends.procs import INSTALLATION, MARKER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
NOT_FOUND, NOT_RUNNABLE = 127, 126  # as a shell would say
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

PTRACE_DETACH = 17
KEYCTL_SYSCALL = {"x86_64": 250, "aarch64": 219, "ppc64le": 271, "s390x": 280, "riscv64": 219}
KEYCTL_JOIN_SESSION_KEYRING, KEYCTL_SETPERM, KEYCTL_LINK = 1, 5, 8
KEY_SPEC_SESSION_KEYRING, KEY_SPEC_USER_KEYRING = -3, -4
# Of a keyring: its possessor may view, read and search it, its owner view and read it. Nothing can be linked into it.
CLOSED_KEYRING = 0x0B030000
# of a kernel without keyrings, or a container that denies them to everybody: there are no keys to give
NO_KEYRINGS = (errno.ENOSYS, errno.EPERM, errno.EOPNOTSUPP)
# Characters, of up to 4 bytes each: with what stands before them less than PIPE_BUF (4096 bytes), which a pipe takes as
# one piece. All tasks of a gang write to the same one.
MAX_SAID = 1000
SHORTAGE = 0  # in place of an exit code: no task that refuses its command exits with 0

libc = ctypes.CDLL(None, use_errno=True)


def detach(pid: int, signum: int) -> None:
    """Let a traced child go on by itself, with the signal at which it stopped (0 = none)."""
    libc.ptrace(ctypes.c_long(PTRACE_DETACH), ctypes.c_long(pid), None, ctypes.c_void_p(signum))


class Refused(Exception):
    """The command cannot be begun; the text is for the user."""

    def __init__(self, message: str, code: int = NOT_RUNNABLE) -> None:
        super().__init__(message)
        self.code = code


class Account:
    """Whom to become. `privileged` is false when that is who we are anyway."""

    def __init__(self, name: str) -> None:
        import pwd  # only where an account is named: the look-up may go over the network

        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise Refused(f"no such account on this machine: {name}") from None
        self.name, self.uid, self.gid, self.home = name, entry.pw_uid, entry.pw_gid, entry.pw_dir
        self.privileged = os.geteuid() == 0
        self.foreign = os.geteuid() != self.uid  # it must not get at what is the server's
        if not self.privileged and os.geteuid() != self.uid:
            raise Refused(f"cannot run as {name}: the server is not root")


def begin(order: dict[str, Any], rank: int, account: Account | None, fds: Fds, groups: list[str]) -> NoReturn:
    code = NOT_RUNNABLE
    try:
        _prepare(order, account, fds, groups)
        env = _environment(order, rank, account)
        if os.read(fds.go, 1) == b"":
            os._exit(NOT_RUNNABLE)  # the shim died, or gave up, before we were released
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _first_that_runs(order["argv"], env, lambda path, argv: os.execve(path, argv, env))  # noqa: S606
    except Refused as refusal:
        code = refusal.code
        _tell(fds, code, str(refusal))
    except records.Shortage as error:
        _tell(fds, SHORTAGE, records.shortage(error))
    except BaseException as error:  # noqa: BLE001 - a forked child must never return into the shim's code
        _tell(fds, code, f"cannot start the command: {type(error).__name__}: {error}")
    finally:
        os._exit(code)


class Fds:
    """What the child holds besides the standard three, and knows of itself; all close on exec."""

    def __init__(self, stdin: int, output: int, go: int, release: int, errors: int) -> None:
        self.stdin, self.output, self.go, self.release, self.errors = stdin, output, go, release, errors
        self.terminal = -1  # the pty's slave, for a task that has one
        self.bounded = False  # its run asked for an amount of memory, and has that bound


def spawn(order: dict[str, Any], rank: int, output: int, home: int) -> int:
    """Start the command; the pid once it runs. `home` is where the shim's own relative paths begin."""
    env = _environment(order, rank, None)
    umask = os.umask(order["umask"])
    score = oom.prefer_task(bounded=False)  # for the child, which cannot do it: then ours again
    try:
        _enter(order["workdir"], None)
        return _first_that_runs(order["argv"], env, lambda path, argv: _spawn(path, argv, env, output))
    finally:
        oom.prefer(score)
        os.fchdir(home)
        os.umask(umask)


def _spawn(path: str, argv: list[str], env: dict[str, str], output: int) -> int:
    actions = ((os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2))  # 0 is /dev/null in every shim
    return os.posix_spawn(
        path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=IGNORED_BY_PYTHON
    )


def _prepare(order: dict[str, Any], account: Account | None, fds: Fds, groups: list[str]) -> None:
    shim = os.getppid()
    os.close(fds.release)  # else the end of the pipe would never be seen
    os.setsid()
    for signum in IGNORED_BY_PYTHON:  # and what is ignored stays so through an exec
        signal.signal(signum, signal.SIG_DFL)
    for group in groups:
        confine.join(group)
    oom.prefer_task(bounded=fds.bounded)  # while we are root: it is then the least it may have
    if fds.terminal >= 0:
        import fcntl
        import termios

        fcntl.ioctl(fds.terminal, termios.TIOCSCTTY, 0)
        if account is not None and account.privileged:
            os.fchown(fds.terminal, account.uid, -1)
        fds.stdin = fds.output = fds.terminal
    os.dup2(fds.stdin, 0)
    os.dup2(fds.output, 1)
    os.dup2(fds.output, 2)
    os.umask(order["umask"])
    _leave_supervisor(fds)
    if account is not None:
        _become(account)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # after setuid, which clears it
    if os.getppid() != shim or shim == 1:
        os._exit(NOT_RUNNABLE)  # it died before the line above took effect
    _enter(order["workdir"], account)


def _leave_supervisor(fds: Fds) -> None:
    """Leave its directory and close its files. The working directory, and where the command is looked for, are names of
    the user's choice, and /proc/self leads to both: root's data directory, and what is above it, would be reached
    though the account may not search the way there."""
    os.chdir("/")
    fds.output, low = 1, 3
    for kept in sorted((fds.go, fds.errors)):
        os.closerange(low, kept)
        low = max(low, kept + 1)
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _become(account: Account) -> None:
    if account.privileged:
        os.initgroups(account.name, account.gid)
        os.setgid(account.gid)
        _leave_keyring(account)
        os.setuid(account.uid)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _leave_keyring(account: Account) -> None:
    """Begin a session keyring that holds only the account's keyring, as a login does. The server's would give the keys
    in it, which are the server's and those of all other people's jobs, to each job: it is inherited through setuid and
    exec.

    A key counts against the quota of its owner, and each link in a keyring against that of the keyring's. A process
    outside the run can keep the keyring after the run (an open file does), so that root's quota, without which no run
    of an account with a full one begins, must not pay for what jobs link."""
    os.setresuid(account.uid, 0, 0)  # the real user id says who owns a new keyring, and whose the user keyring is
    why = _keyctl(KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
    if why == 0:
        _keyctl(KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_SESSION_KEYRING)  # a run rarely needs it
    elif why == errno.EDQUOT:
        why = _join_closed_keyring(account)
    if why == errno.EDQUOT:
        raise records.Shortage("the quotas of kernel keys of the account and of root are full (see /proc/key-users)")
    if why == errno.ENOMEM:
        raise records.Shortage(records.SHORT_OF[why])
    if why not in (0, *NO_KEYRINGS):
        raise Refused(f"cannot begin a session keyring: {os.strerror(why)}")


def _join_closed_keyring(account: Account) -> int:
    """Begin one of root's, into which the job can link nothing: an account may have 200 keys, and more runs than that.
    Return the number of the error, 0 for none."""
    os.setresuid(0, 0, 0)
    why = _keyctl(KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
    if why == 0:
        os.setresuid(account.uid, 0, 0)
        _keyctl(KEYCTL_LINK, KEY_SPEC_USER_KEYRING, KEY_SPEC_SESSION_KEYRING)
        why = _keyctl(KEYCTL_SETPERM, KEY_SPEC_SESSION_KEYRING, CLOSED_KEYRING)
    return why


def _keyctl(operation: int, first: int, second: int) -> int:
    """Call keyctl; the number of the error, 0 for none."""
    number = KEYCTL_SYSCALL.get(os.uname().machine)
    if number is None:
        return errno.ENOSYS
    if libc.syscall(ctypes.c_long(number), ctypes.c_long(operation), ctypes.c_long(first), ctypes.c_long(second)) >= 0:
        return 0
    return ctypes.get_errno()


def _enter(workdir: str, account: Account | None) -> None:
    if not workdir.startswith("/"):
        raise Refused(f"workdir is not an absolute path: {workdir}")
    try:
        os.chdir(workdir)
    except FileNotFoundError:
        raise Refused(f"workdir does not exist: {workdir} (create it or submit from another directory)") from None
    except NotADirectoryError:
        raise Refused(f"workdir is not a directory: {workdir}") from None
    except PermissionError:
        who = account.name if account else "the server's account"
        raise Refused(f"workdir is not open to {who}: {workdir}") from None
    except OSError as error:  # the answer of its file system, whatever the number: no shortage of the server's
        raise Refused(f"workdir cannot be entered: {error.strerror} ({workdir})") from None


def _environment(order: dict[str, Any], rank: int, account: Account | None) -> dict[str, str]:
    env: dict[str, str] = {**order["env"], **order["tasks"][rank]["env"]}
    if account is not None:
        for key, value in (("HOME", account.home), ("USER", account.name), ("LOGNAME", account.name)):
            env.setdefault(key, value)
    env[MARKER] = order["id"]
    if order.get("installation"):
        env[INSTALLATION] = order["installation"]
    return env


def _first_that_runs(argv: list[str], env: dict[str, str], run: Callable[[str, list[str]], int]) -> int:
    """As execvp: look along the *job's* PATH, and give a script without an interpreter line to the shell."""
    name = argv[0]
    if "/" in name:
        places = [name]
    else:
        places = [f"{place or '.'}/{name}" for place in env.get("PATH", DEFAULT_PATH).split(":")]
    denied = ""
    for place in places:
        try:
            return run(place, argv)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                return run("/bin/sh", ["/bin/sh", place, *argv[1:]])
            if error.errno == errno.E2BIG:
                raise Refused("the command line and environment are too long for the kernel") from None
            if error.errno in records.NO_PROCESS:
                raise  # of the fork, not of this file
            if error.errno in (errno.ENOENT, errno.ENOTDIR) and not os.path.exists(place):
                continue
            denied = denied or f"cannot run {name}: {error.strerror} ({place})"
        except ValueError as error:  # a NUL in an argument, a "=" in a variable's name
            raise Refused(f"cannot run {name}: {error}") from None
    if denied:
        raise Refused(denied)
    raise Refused(f"command not found: {name}", NOT_FOUND)


def _tell(fds: Fds, code: int, message: str) -> None:
    """To the shim, and to whoever reads the log."""
    text = message[:MAX_SAID].replace("\n", " ")
    try:
        os.write(fds.errors, f"{code} {text}\n".encode(errors="surrogateescape"))
        os.write(fds.output, f"rota: {text}\n".encode(errors="surrogateescape"))
    except OSError:
        pass  # the shim still sees our exit code
