"""What `rota doctor` looks at. Each check answers how it stands and, where it is not well, what to do."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.render import plain

if TYPE_CHECKING:
    from rota.client.errors import Unauthorised

OK, WARN, FAIL = "ok", "warn", "fail"
SAFE_SQLITE = (3, 51, 3)
LITTLE_BYTES = 2 << 30
FEW_DESCRIPTORS = 4096
SKEW_S = 5.0
FUSE = "/dev/fuse"
KEY_USERS = "/proc/key-users"
PROGRAMS = ("/usr/bin", "/bin", "/usr/local/bin")
ACCESS_LIST = "system.posix_acl_access"
USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"
NEARLY_FULL = 0.8  # of a quota
TOKEN = "token"  # noqa: S105 - the name of a row


class Finding:
    __slots__ = ("about", "level", "next_step", "text")

    def __init__(self, about: str, level: str, text: str, next_step: str = "") -> None:
        self.about = about
        self.level = level
        self.text = text
        self.next_step = next_step


def findings(server: str, data_dir: Path) -> Iterator[Finding]:
    """Look at everything. The data directory is that of the server which answers, where that is on this machine."""
    told: dict[str, Any] = {}
    heard = list(_server(server, told))
    served = _served_here(told)
    yield _python()
    yield _sqlite()
    directory = _directory(served or data_dir, served=bool(served))
    yield directory
    # A server that answers has opened its own; what another account may have written is not opened here either.
    if not served and directory.level != FAIL:
        yield from _store(data_dir)
    yield _space(served or data_dir)
    yield _descriptors()
    if not any(one.about == TOKEN for one in heard):  # else the server had something to say about it
        yield _token()
    yield from heard
    yield _cgroup()
    if os.geteuid() == 0:
        yield from _fuse()
        yield from _keys()


def _python() -> Finding:
    from rota import __version__

    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", OK, f"Python {version}, rota {__version__}")


def _sqlite() -> Finding:
    try:
        import pysqlite3.dbapi2 as sqlite
    except ImportError:
        import sqlite3 as sqlite
    version: str = sqlite.sqlite_version
    if tuple(int(part) for part in version.split(".")) < SAFE_SQLITE:
        why = "older than 3.51.3 can lose commits when two connections write at once; Rota writes through one"
        return Finding("sqlite", WARN, f"SQLite {version}: {why}", "pip install 'rota[server]' brings a newer one")
    return Finding("sqlite", OK, f"SQLite {version}")


def _served_here(told: dict[str, Any]) -> Path | None:
    """Return the data directory of the server that answered; None = that is not to be seen from here."""
    if not told.get("here") or not isinstance(told.get("data_dir"), str):
        return None
    path = Path(told["data_dir"])
    return path if path.is_dir() else None


def _directory(data_dir: Path, *, served: bool = False) -> Finding:
    """`served`: it is that of the server which answers, whose account need not be the caller's."""
    path = data_dir.expanduser()
    try:
        facts = path.stat()
    except FileNotFoundError:
        return _unfit(path) or Finding("data directory", OK, f"{path} is not there yet; a server started here makes it")
    except OSError as error:
        return Finding("data directory", FAIL, f"{path}: {error.strerror}", "choose another with ROTA_DATA_DIR")
    if not stat.S_ISDIR(facts.st_mode):
        return Finding("data directory", FAIL, f"{path} is no directory", "choose another with ROTA_DATA_DIR")
    unfit = _unfit(path, _account_of(path, facts) if served else None)
    if unfit is not None:
        return unfit
    of = ", of the server that answers" if served else ""
    return Finding("data directory", OK, f"{path} ({facts.st_mode & 0o777:o}){of}")


def _account_of(path: Path, facts: os.stat_result) -> int:
    """Return whose server uses this directory: it has made the lock in it. The directory may be root's."""
    try:
        return (path / "lock").lstat().st_uid
    except OSError:
        return facts.st_uid


def _unfit(path: Path, uid: int | None = None) -> Finding | None:
    """Look at what a server looks at before it opens its files: one that is started from here, or that of `uid`."""
    from rota.config import BadSetting, Settings, read_settings

    try:
        from rota.main import files_trouble

        settings = Settings(path) if uid is not None else read_settings({"data_dir": path})[0]
        unfit = files_trouble(settings, uid)
    except (ImportError, BadSetting, PermissionError):
        return None  # no server starts from here, or this account may not look inside
    except OSError as error:
        return Finding("data directory", FAIL, f"{path}: {error.strerror}", "choose another with ROTA_DATA_DIR")
    if unfit is None:
        return None
    level = WARN if unfit.is_tolerated else FAIL
    return Finding("data directory", level, plain(f"{unfit.path} {unfit.wrong}"), plain(unfit.mend))


def _store(data_dir: Path) -> Iterator[Finding]:
    """Look whether a server could open what lies there, where it is ours to read and not behind a URL."""
    path = data_dir.expanduser()
    if os.environ.get("ROTA_DATABASE_URL") or not os.access(path, os.R_OK | os.X_OK):
        return
    try:
        from rota.main import store_trouble
    except ImportError:
        return  # the server's part is not installed here
    trouble = store_trouble(path)
    if trouble:
        yield Finding("store", FAIL, plain(trouble))


def _space(data_dir: Path) -> Finding:
    path = data_dir.expanduser()
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding("disk", WARN, f"{path}: {error.strerror}")
    if free < LITTLE_BYTES:
        return Finding("disk", WARN, f"{free / 1e9:.1f} GB free on {path}", "make room: logs and the ledger grow")
    return Finding("disk", OK, f"{free / 1e9:.0f} GB free")


def _descriptors() -> Finding:
    """What a server that is started from here may have."""
    import resource

    from rota.core.descriptors import HIGHEST, shares

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = shares(HIGHEST if hard == resource.RLIM_INFINITY else min(hard, HIGHEST))
    text = f"{found.limit}: room for {found.connections} connections, {found.per_peer} of one account or address"
    if found.limit < FEW_DESCRIPTORS:
        return Finding("descriptors", WARN, text, "raise it: ulimit -Hn 65536, or LimitNOFILE= of the unit")
    return Finding("descriptors", OK, text)


def _token() -> Finding:
    from rota.client.address import find_token
    from rota.client.errors import RotaError

    try:
        token, where = find_token()
    except RotaError as error:
        return Finding(TOKEN, FAIL, str(error), "rota login")
    return Finding(TOKEN, OK, f"from {where}" if token else "none; a server that has tokens asks for one")


def _server(server: str, told: dict[str, Any]) -> Iterator[Finding]:
    """Ask the server. `told` gets what it says of itself, and whether it is on this machine (`here`)."""
    from rota.cli.connect import connect
    from rota.client.address import find_url
    from rota.client.errors import RotaError, Unauthorised, Unreachable

    try:
        with connect(server, tries=2, connect_s=2.0, answer_s=10.0) as client:
            begun = time.monotonic()
            health, headers = client.do_with_headers(_health())
            took_s = time.monotonic() - begun
            told |= health
            told["here"] = _is_here(client.url)
            version = health.get("version")
            yield Finding("server", OK, f"{client.url} answers in {took_s * 1000:.0f} ms, version {plain(version)}")
            if health.get("trouble"):
                yield Finding("server", FAIL, plain(health["trouble"]), "make room on the server's disk")
            for text in health.get("warnings") or ():
                yield Finding("server", WARN, plain(text))
            yield from _same_version(str(version))
            yield _clock(headers.get("date", ""))
            if not health.get("trouble"):  # else nothing starts for that reason
                yield from _asked(lambda: _scheduling(client.capacity().raw, client.url), "scheduling")
            yield from _asked(lambda: _nodes(client.nodes()), "GPUs")
    except Unauthorised as error:
        yield _unauthorised(error, "server")
    except Unreachable as error:
        step = error.next_step if error.busy else f"rota up, or set ROTA_URL (now {server or find_url()[0]})"
        yield Finding("server", FAIL, str(error), step)
    except RotaError as error:
        yield Finding("server", FAIL, str(error), "check ROTA_URL: is that a Rota server?")


def _is_here(url: str) -> bool:
    from urllib.parse import urlsplit

    host = urlsplit(url).hostname or ""
    return url.startswith("unix:") or host in ("localhost", "::1") or host.startswith("127.")


def _scheduling(capacity: Mapping[str, Any], url: str) -> Sequence[Finding]:
    if not capacity.get("paused"):
        return (Finding("scheduling", OK, "on"),)
    why = f": {plain(capacity['pause_why'])}" if capacity.get("pause_why") else ""
    step = f"as an admin: {_resuming(url)}"
    return (Finding("scheduling", WARN, f"paused{why}; nothing is started", step),)


def _resuming(url: str) -> str:
    """Return the command line that ends a pause, for a shell; no command of ours does."""
    from shlex import quote

    path = "/orchestrator/start"
    if url.startswith("unix://"):  # the kernel says whose call it is
        return f"curl --unix-socket {quote(url.removeprefix('unix://'))} -X POST http://localhost{path}"
    return f'curl -X POST -H "X-Auth-Token: $ROTA_TOKEN" {quote(url.rstrip("/") + path)}'


def _health() -> Any:
    from rota.client.calls import health

    return health()


def _same_version(version: str) -> Iterator[Finding]:
    from rota import __version__

    if version != __version__:
        yield Finding(
            "version", WARN, f"the server is {plain(version)}, this is {__version__}", "upgrade the older one"
        )


def _asked(check: Callable[[], Sequence[Finding]], about: str) -> Iterator[Finding]:
    from rota.client.errors import Unauthorised

    try:
        yield from check()
    except Unauthorised as error:
        yield _unauthorised(error, about)


def _unauthorised(error: Unauthorised, about: str) -> Finding:
    from rota.cli.connect import token_at_fault

    where = token_at_fault(error)
    if where:
        return Finding(
            TOKEN, FAIL, f"the one from {where} is not valid or has expired", "ask for a new one; rota login"
        )
    return Finding(about, FAIL, str(error), "rota login, or set ROTA_TOKEN")


def _clock(date: str) -> Finding:
    from email.utils import parsedate_to_datetime

    try:
        skew_s = abs(parsedate_to_datetime(date).timestamp() - time.time())
    except (TypeError, ValueError):
        return Finding("clock", WARN, "the server did not say what time it has")
    if skew_s > SKEW_S:
        return Finding("clock", WARN, f"the server's clock differs by {skew_s:.0f} s", "let NTP set both clocks")
    return Finding("clock", OK, "agrees with the server's")


def _nodes(nodes: Any) -> Sequence[Finding]:
    return _gpus(nodes), _limits(nodes)


def _limits(nodes: Any) -> Finding:
    known = next((node.enforced for node in nodes), None)
    if known is None:
        return Finding("limits", WARN, "the server does not say which limits hold for a run")
    missing = [limit for limit in ("memory_gb", "cpus", "processes") if limit not in known]
    if not missing:
        return Finding("limits", OK, "memory_gb, cpus and the number of processes bound a run (cgroups)")
    text = f"not bounded: {', '.join(missing)}; the server may not use the cgroup controllers for it"
    return Finding("limits", WARN, text, "run the server as root, or by `rota service install` (systemd 254 or newer)")


def _gpus(nodes: Any) -> Finding:
    total = sum(len(node.gpus) for node in nodes)
    bad = [f"{gpu.node_id}:{gpu.gpu_id}" for node in nodes for gpu in node.gpus if gpu.status == "error"]
    simulated = any(node.simulated for node in nodes)
    if bad:
        return Finding(
            "GPUs", WARN, f"{len(bad)} of {total} are not well: {', '.join(bad[:8])}", "see: rota gpus --json"
        )
    if simulated:
        real = shutil.which("nvidia-smi")
        step = "nvidia-smi is here: pip install 'rota[gpu]' lets the server see real ones" if real else ""
        return Finding("GPUs", WARN if real else OK, f"{total} simulated on {len(nodes)} nodes", step)
    return Finding("GPUs", OK, f"{total} on {len(nodes)} node{'s'[: len(nodes) != 1]}")


def _cgroup() -> Finding:
    root = _unified_mount()
    if not root:
        return Finding("cgroup", WARN, "no cgroup v2 here: a run's processes are swept by their mark alone")
    if not os.access(root, os.W_OK):
        return Finding(
            "cgroup", OK, "cgroup v2, not for this account: a server that it starts sweeps runs by their mark"
        )
    return Finding("cgroup", OK, "cgroup v2, writable")


def _unified_mount() -> str:
    """Where cgroup v2 is mounted: with v1 beside it, not at /sys/fs/cgroup itself."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        return next((words[1] for line in file if len(words := line.split(" ")) > 2 and words[2] == "cgroup2"), "")


def _fuse() -> Iterator[Finding]:
    """An account that can make FUSE mounts can hold locks for which the server of everybody waits."""
    try:
        device = os.stat(FUSE)
    except FileNotFoundError:
        yield Finding("FUSE", OK, "none on this machine")
        return
    if not (to := _opened_to(device)):
        yield Finding("FUSE", OK, f"{FUSE} is open to root alone")
    elif not _may_mount():
        yield Finding("FUSE", OK, "no account can make mounts: there are no user namespaces, and no fusermount")
    else:
        yield Finding(
            "FUSE",
            WARN,
            f"{FUSE} is open to {to}: by a mount of its own an account can hold up runs, and the server",
            f"chown root:root {FUSE} and chmod 600 {FUSE}, and for the next boot a rule of udev, where not everybody "
            "who has an account is trusted (docs/operations.md, a lock that an account holds)",
        )


def _opened_to(device: os.stat_result) -> str:
    """Return who may open it besides root; "" = nobody."""
    if device.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        return "every account"
    with suppress(OSError):  # there is none
        os.getxattr(FUSE, ACCESS_LIST)
        return "those in its access list"
    if device.st_gid != 0 and device.st_mode & (stat.S_IRGRP | stat.S_IWGRP):
        return "a group"
    return f"its owner, account {device.st_uid}" if device.st_uid != 0 else ""


def _may_mount() -> bool:
    """Whether an account may mount what it has opened: in a user namespace of its own, or by a program of root's."""
    path = os.pathsep.join((*PROGRAMS, os.environ.get("PATH", "")))
    if any(shutil.which(name, path=path) for name in ("fusermount", "fusermount3")):
        return True
    try:
        with open(USER_NAMESPACES, encoding="ascii") as file:
            return int(file.read()) > 0
    except OSError:
        return True


def _keys() -> Iterator[Finding]:
    """Warn where root's quota of kernel keys is nearly full: runs of accounts whose own is full need some of it."""
    try:
        with open(KEY_USERS, encoding="ascii") as file:
            words = next((line.split() for line in file if line.split(":")[0].strip() == "0"), [])
    except FileNotFoundError:  # a kernel without keys
        return
    # "UID: USAGE KEYS/INSTANTIATED COUNTED/MOST BYTES/MOST"
    for unit, used in zip(("keys", "bytes"), words[3:5], strict=False):
        taken, _, most = used.partition("/")
        if int(taken) > NEARLY_FULL * int(most):
            yield Finding(
                "kernel keys",
                WARN,
                f"root has {taken} of the {most} {unit} of kernel keys that it may have ({KEY_USERS}): when it has "
                "all, no run of an account whose own share is full can start",
                f"sysctl kernel.keys.root_max{unit}={2 * int(most)}, and look for whose they are (/proc/keys)",
            )
