"""One server gives out a GPU of this machine: a lock for each GPU, by UUID, that no stranger can hold.

A lock is a file with a name of its own on which its server has a write lock (OFD: the kernel drops it when the process
ends, however it ends). The file is made under a private name, locked, and then renamed, so that nobody locks it first;
everybody may read it, and so ask whether it is locked, but only its owner may write-lock it.

Servers of root lock in /run/rota, where nobody else can make files, and mind only the locks there: no other account can
keep them from starting. Servers of other accounts lock where every account can make files, and mind both places; when a
server of root takes a GPU from one of them, that one sees so at its next look and gives it out no more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import re
import stat
import struct
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from rota.adapters import legacy_lock
from rota.app.ports import Probe
from rota.core.descriptors import SHORTAGE
from rota.core.node import Node

ROOT_DIR = Path("/run/rota")
# The first of these that is root's, sticky and open to everybody: the same for every account.
SHARED_DIRS = (Path("/run/lock"), Path("/tmp"))  # noqa: S108 - made safe by O_EXCL, O_NOFOLLOW and the lock itself
PATIENCE_S = 2.0  # a killed server's lock may live on in a child that has not become another program yet
MAX_FILES = 1000  # locks on one GPU that are looked at
FLOCK = "hhqqi"  # struct flock of 64-bit Linux


class GpuLockError(Exception):
    """The GPUs cannot be locked; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A server that has a GPU's lock."""

    uid: int
    pid: str  # as it says itself

    def __str__(self) -> str:
        try:
            name = pwd.getpwuid(self.uid).pw_name
        except KeyError:
            name = f"uid {self.uid}"
        return f"the Rota server of {name}" + (f" (pid {self.pid})" if self.pid else "")


@dataclass(frozen=True, slots=True)
class _Lock:
    path: Path
    fd: int
    inode: tuple[int, int]


class GpuLocks:
    def __init__(
        self,
        root_dir: Path = ROOT_DIR,
        shared_dirs: Sequence[Path] = SHARED_DIRS,
        legacy_name: str = legacy_lock.NAME,
    ) -> None:
        self._uid = os.geteuid()
        self._root_dir = root_dir
        self._own_dir = self._make_root_dir() if self._uid == 0 else _shared(shared_dirs)
        self._minded = (root_dir,) if self._uid == 0 else (root_dir, self._own_dir)
        self._held: dict[str, _Lock] = {}
        self._answers: dict[str, str] = {}  # what `why_not` said last
        self._legacy_name, self._legacy = legacy_name, ExitStack()

    def take(self, uuids: Collection[str], patience_s: float = PATIENCE_S) -> None:
        """Lock all of these GPUs, or raise GpuLockError and lock none."""
        give_up = time.monotonic() + patience_s
        self._take_legacy(give_up)
        while (taken := self._try(uuids)) is not None:
            if time.monotonic() > give_up:
                uuid, holder = taken
                raise GpuLockError(
                    f"{holder} gives out GPU {uuid} of this machine already; use that one, stop it, or --simulate"
                )
            # Two that start at once see each other and both withdraw: come back at different times.
            time.sleep(0.01 + os.urandom(1)[0] / 2560)

    def _take_legacy(self, give_up: float) -> None:
        """Keep servers of the previous release out, and stay out where there is one."""
        while (held := legacy_lock.hold(self._legacy_name)) is None:
            uid = legacy_lock.old_server(self._legacy_name)
            if uid is None:
                return  # another of this release has it: they have a lock for each GPU
            if time.monotonic() > give_up:
                raise GpuLockError(
                    f"{Holder(uid, '')}, of an older version, gives out the GPUs of this machine already; use that "
                    "one, stop it, or --simulate"
                )
            time.sleep(0.01)
        self._legacy.enter_context(held)

    def why_not(self, uuid: str) -> str:
        """Why a GPU is not this server's to give out now; "" = it is. Locks one that was not there before."""
        try:
            self._answers[uuid] = self._look(uuid)
        except (OSError, GpuLockError) as error:
            # A look that failed for want of a descriptor says nothing: what it said before still holds.
            if getattr(error, "errno", None) not in SHORTAGE or uuid not in self._held or uuid not in self._answers:
                self._answers[uuid] = f"its lock cannot be kept: {error}"
        return self._answers[uuid]

    def _look(self, uuid: str) -> str:
        if uuid not in self._held:
            taken = self._try([uuid])
        elif self._restore(uuid) and (taken := self._taken([uuid])) is not None:
            # The file was gone for a while, and another server took the GPU meanwhile.
            self._withdraw(self._held.pop(uuid))
        else:
            holder = self._holder(self._root_dir, uuid) if self._uid != 0 else None
            taken = (uuid, holder) if holder is not None else None
        return f"{taken[1]} gives it out" if taken is not None else ""

    def close(self) -> None:
        for uuid in list(self._held):
            self._withdraw(self._held.pop(uuid))
        self._legacy.close()

    def _try(self, uuids: Collection[str]) -> tuple[str, Holder] | None:
        """Lock all, or none and say who has one. Looked at before and after, as another may do the same just now."""
        wanted = [uuid for uuid in uuids if uuid not in self._held]
        if (taken := self._taken(wanted)) is not None:
            return taken
        made = {uuid: self._publish(uuid) for uuid in wanted}
        self._held |= made
        if (taken := self._taken(wanted)) is not None:
            for uuid in made:
                self._withdraw(self._held.pop(uuid))
        return taken

    def _taken(self, uuids: Sequence[str]) -> tuple[str, Holder] | None:
        for uuid in uuids:
            for place in self._minded:
                if (holder := self._holder(place, uuid)) is not None:
                    return uuid, holder
        return None

    def _holder(self, place: Path, uuid: str) -> Holder | None:
        """A server other than this one that has the lock, if there is one. Removes what dead ones left."""
        for path in _files(place, _prefix(uuid)):
            with _opened(path) as fd:
                if fd < 0:
                    continue
                facts = os.fstat(fd)
                mine = self._held.get(uuid)
                if mine is not None and (facts.st_dev, facts.st_ino) == mine.inode:
                    continue
                if _is_locked(fd):
                    pid = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
                    return Holder(facts.st_uid, pid if pid.isdigit() else "")
                if self._uid in (0, facts.st_uid):
                    path.unlink(missing_ok=True)
        return None

    def _publish(self, uuid: str) -> _Lock:
        if self._uid == 0:
            self._make_root_dir()  # it may have been removed
        name = f"{_prefix(uuid)}{os.getpid()}.{os.urandom(6).hex()}"
        draft, path = self._own_dir / f".{name}", self._own_dir / name
        fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
            os.write(fd, f"{os.getpid()}\n".encode())
            os.fchmod(fd, 0o644)
            os.rename(draft, path)
        except BaseException:
            os.close(fd)
            draft.unlink(missing_ok=True)
            raise
        facts = os.fstat(fd)
        return _Lock(path, fd, (facts.st_dev, facts.st_ino))

    def _restore(self, uuid: str) -> bool:
        """A lock must stay to be seen: keep it young for what clears up old files, and make it again if it is gone.
        True: it was made again."""
        held = self._held[uuid]
        try:
            os.utime(held.fd)
            if held.path.lstat().st_ino == held.inode[1]:
                return False
        except FileNotFoundError:
            pass
        self._held[uuid] = self._publish(uuid)
        os.close(held.fd)
        return True

    def _withdraw(self, lock: _Lock) -> None:
        with contextlib.suppress(OSError):
            lock.path.unlink(missing_ok=True)
        os.close(lock.fd)

    def _make_root_dir(self) -> Path:
        try:
            if not os.path.lexists(
                self._root_dir
            ):  # else it would wait for the lock of /run, which any account can hold
                self._root_dir.mkdir(mode=0o755, exist_ok=True)
            facts = self._root_dir.lstat()
        except OSError as error:
            raise GpuLockError(f"cannot lock the GPUs in {self._root_dir}: {error.strerror}") from error
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != self._uid or facts.st_mode & 0o022:
            raise GpuLockError(f"{self._root_dir} must be a directory that only root can write to; remove it")
        return self._root_dir


class GuardedProbe:
    """Shows the GPUs of another probe; those that are not this server's to give out are unfit."""

    def __init__(self, probe: Probe, locks: GpuLocks) -> None:
        self._probe, self._locks = probe, locks

    def nodes(self) -> Sequence[Node]:
        return [self._guarded(node) for node in self._probe.nodes()]

    def _guarded(self, node: Node) -> Node:
        gpus = []
        for gpu in node.gpus:
            why = self._locks.why_not(gpu.uuid)
            gpus.append(replace(gpu, healthy=False, why=gpu.why or why) if why else gpu)
        return replace(node, gpus=tuple(gpus))


def _prefix(uuid: str) -> str:
    return f"rota-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)[:100]}."


def _shared(places: Sequence[Path]) -> Path:
    wanted = stat.S_ISVTX | 0o002
    for place in places:
        with contextlib.suppress(OSError):
            facts = place.lstat()
            if stat.S_ISDIR(facts.st_mode) and facts.st_mode & wanted == wanted:
                return place
    raise GpuLockError(f"cannot lock the GPUs: none of {', '.join(map(str, places))} is open to every account")


def _files(place: Path, prefix: str) -> Iterator[Path]:
    try:
        with os.scandir(place) as entries:
            found = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
    except FileNotFoundError:
        return
    if len(found) > MAX_FILES:
        raise GpuLockError(f"there are {len(found)} files {prefix}* in {place}: an admin should remove them")
    yield from found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """-1 where it is no file, or its owner makes it hard to open (a link, a pipe, a lease)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in SHORTAGE:
            raise
        yield -1
        return
    try:
        yield fd if stat.S_ISREG(os.fstat(fd).st_mode) else -1
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """Whether its owner has the write lock; a read lock is anybody's and means nothing."""
    asked = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    found: int = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))[0]
    return found == fcntl.F_WRLCK
