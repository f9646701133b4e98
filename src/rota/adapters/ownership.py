"""Whether the files of a server are safe from other accounts.

A server opens what it finds in its data directory: a ledger with runs and tokens, records of attempts, keys. An account
that can write there, or can rename a directory on the way there, can have any command run as the server's account. So
everything on the way must belong to root or to the server's account, and nobody else may write to it. Once that holds
for a directory and all directories above it, no other account can change it, and it need not be looked at again.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rota.user_ids import is_unmapped

ROOT = 0
MOST_LINKS = 40  # as the kernel follows in one path
COMPANIONS = ("", "-wal", "-shm", "-journal")  # of an SQLite file
# Directories whose entries are the server's own. Those of `checkpoints` belong to the accounts of the runs.
OWN = ("attempts", "leases", "live", "metrics", "spare", "tmp")
# Names that earlier versions wrote with the mode of the umask: they give no power. Everybody may connect to the socket.
OPEN = ("store-made", "house-id", "rota.sock")
# All that a server opens in its data directory, besides what it writes under a name that begins with a dot or ends with
# .new. Other files are a person's: notes, a backup.
USED = (
    *OWN, *OPEN, *(f"rota.db{suffix}" for suffix in COMPANIONS),
    "admin.token", "checkpoints", "checkpoints-beside", "installation-id", "left-behind",
    "lock", "nudge", "rota.ballast", "session.key", "zygote.log",
)  # fmt: skip
ACL = "system.posix_acl_access"


class Unfit(NamedTuple):
    """A file or directory that another account could use against the server."""

    path: Path
    wrong: str
    mend: str  # a command, and what else would do
    is_tolerated: bool = False  # it is to be said, and the server starts nevertheless

    def __str__(self) -> str:
        return f"{self.path} {self.wrong}; {self.mend}"


def judge(
    data_dir: Path, database: Path | None = None, uid: int | None = None, *, must_exist: bool = False
) -> Unfit | None:
    """Return the first thing that keeps a server of the account `uid` (its own by default) from using `data_dir`, and
    the SQLite file `database` where that lies elsewhere, else the first that is tolerated; None = both are fit. What is
    not there yet is fit, but for the directory of `database`: a server does not make it, and another account could.
    `must_exist`: the data directory was made already, so it is unfit where it or a part of the way to it is absent at
    any moment. Raises OSError where something cannot be looked at."""
    judge_for = _Judge(os.geteuid() if uid is None else uid)
    tolerated: Unfit | None = None
    for unfit in judge_for.all_of(data_dir.expanduser().absolute(), database, must_exist=must_exist):
        if not unfit.is_tolerated:
            return unfit
        tolerated = tolerated or unfit
    return tolerated


class _Judge:
    def __init__(self, uid: int) -> None:
        self._uid = uid
        self._trusted = {ROOT, uid}
        self._account = _name(uid)

    def all_of(self, data_dir: Path, database: Path | None, *, must_exist: bool) -> Iterator[Unfit]:
        where, found = self._reach(data_dir, must_exist=must_exist)
        yield from found
        yield from self._directory(where, data=True, must_exist=must_exist)
        for name in _names(where):
            yield from self._entry(where, name)
        if database is not None:
            # a server makes its data directory before it opens a database in there
            yield from self._database(database, must_exist=database.parent != data_dir)

    def _directory(self, path: Path, *, data: bool = False, must_exist: bool = False) -> Iterator[Unfit]:
        """The directory itself, the way to which is judged already."""
        facts = _facts(path)
        if facts is None:
            if must_exist:
                yield _absent(path)
            return
        if facts.st_uid not in self._trusted:
            yield self._strange(path, facts, everything=data)
        if self._others_write(path, facts):
            yield Unfit(path, f"can be written to by others (mode {facts.st_mode & 0o7777:o})", _go_w(path))

    def _entry(self, where: Path, name: str) -> Iterator[Unfit]:
        path = where / name
        facts = _facts(path)
        if facts is None:
            return
        if not (name in USED or name.startswith(".") or name.endswith(".new")):
            if facts.st_uid not in self._trusted:
                yield self._strange(path, facts)
            return
        yield from self._file(path, facts, writable=name in OPEN)
        if name in OWN and stat.S_ISDIR(facts.st_mode):
            for inner in _names(path):
                seen = _facts(path / inner)
                if seen is not None:  # nobody else can write to the directory, so the owner tells all
                    yield from self._file(path / inner, seen, writable=True)
        if name.startswith("rota.db"):
            yield from self._linked(path, facts)

    def _database(self, path: Path, *, must_exist: bool = True) -> Iterator[Unfit]:
        where, found = self._reach(path.parent, must_exist=must_exist)
        yield from found
        # also with a sticky bit: a new -wal could be anybody's there
        yield from self._directory(where, must_exist=must_exist)
        for suffix in COMPANIONS:
            one = where / f"{path.name}{suffix}"
            facts = _facts(one)
            if facts is not None:
                yield from self._file(one, facts)
                yield from self._linked(one, facts)

    def _linked(self, path: Path, facts: os.stat_result) -> Iterator[Unfit]:
        """The database that a link leads to, also where that is absent: SQLite would make it. It keeps the companions
        beside the file itself."""
        if stat.S_ISLNK(facts.st_mode):
            yield from self._database(self._reach(path)[0])

    def _file(self, path: Path, facts: os.stat_result, *, writable: bool = False) -> Iterator[Unfit]:
        if facts.st_uid not in self._trusted:
            yield self._strange(path, facts)
        elif stat.S_ISLNK(facts.st_mode):
            where, found = self._reach(path)
            yield from found
            target = _facts(where)
            if target is not None:
                yield from self._file(where, target, writable=writable)
        elif not writable and self._others_write(path, facts):
            yield Unfit(path, f"can be written to by others (mode {facts.st_mode & 0o7777:o})", _go_w(path))

    def _reach(self, path: Path, *, must_exist: bool = False) -> tuple[Path, list[Unfit]]:
        """Walk from / to `path` as the kernel does. Return where it leads and the directories and links on the way
        through which another account could lead it elsewhere. The last directory is not judged. `must_exist`: what is
        absent at any moment is unfit, though it may be there at the next."""
        found: list[Unfit] = []
        here, left, links = Path("/"), list(reversed(path.parts[1:])), 0
        while left:
            found += self._above(here)
            name = left.pop()
            if name == "..":
                here = here.parent
                continue
            facts = _facts(here / name)
            if facts is None:
                found += [_absent(here / name)] if must_exist else []
                return (here / name).joinpath(*reversed(left)), found
            if not stat.S_ISLNK(facts.st_mode):
                here = here / name
                continue
            if facts.st_uid not in self._trusted and not is_unmapped(facts.st_uid):
                found.append(self._strange_link(here / name, facts))
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
            target = Path(os.readlink(here / name))
            left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            here = Path("/") if target.is_absolute() else here
        return here, found

    def _above(self, path: Path) -> Iterator[Unfit]:
        """A directory on the way. With the sticky bit nobody renames what belongs to others. A person's own server is
        often below a directory that a group shares or that an administrator's account owns: that person trusts them."""
        # lstat: it was no link a moment ago, but its owner may have put one to a directory of root's in its place
        facts, tolerated = os.lstat(path), self._uid != ROOT
        # where this user namespace hides the owner, as it hides root, nothing can be said
        if facts.st_uid not in self._trusted and not is_unmapped(facts.st_uid):
            yield self._strange(path, facts, above=True)._replace(is_tolerated=tolerated)
        if self._others_write(path, facts) and not facts.st_mode & stat.S_ISVTX:
            yield Unfit(
                path,
                f"lets others rename what is in it (mode {facts.st_mode & 0o7777:o})",
                f"{_go_w(path)}, or: chmod +t {_quoted(path)}, or choose another directory",
                is_tolerated=tolerated and not facts.st_mode & stat.S_IWOTH,
            )

    def _strange_link(self, path: Path, facts: os.stat_result) -> Unfit:
        """A link on the way. Who made it could write to its directory, of which a person's own server only warns; but
        where the sticky bit makes a directory fit that is open to all, that may be anybody."""
        unfit, directory = self._strange(path, facts), os.stat(path.parent)
        if self._uid == ROOT or (directory.st_mode & stat.S_ISVTX and directory.st_uid != facts.st_uid):
            return unfit
        mend = f"choose the directory that it leads to: {_quoted(Path(os.path.realpath(path)))}"
        return unfit._replace(mend=mend, is_tolerated=True)

    def _strange(self, path: Path, facts: os.stat_result, *, everything: bool = False, above: bool = False) -> Unfit:
        owner = _name(facts.st_uid)
        if stat.S_ISLNK(facts.st_mode):
            return Unfit(path, f"is a symbolic link of the account {owner}", f"remove it: rm {_quoted(path)}")
        wrong = f"belongs to the account {owner}, which could run commands as {self._account}"
        if above:
            return Unfit(path, wrong, f"choose another directory, or: chown {self._account} {_quoted(path)}")
        many = "-R " if everything else ""
        return Unfit(
            path,
            wrong,
            f"if what it holds can be trusted: chown {many}{self._account} {_quoted(path)}; else choose another "
            f"directory, or run the server as {owner}",
        )

    def _others_write(self, path: Path, facts: os.stat_result) -> bool:
        """Whether accounts besides root and the server's may. A group that only these two are in is as good as none:
        many systems give every account such a group, and a umask that lets it write."""
        if facts.st_mode & stat.S_IWOTH:
            return True
        return bool(facts.st_mode & stat.S_IWGRP) and (_has_acl(path) or not self._is_own_group(facts.st_gid))

    def _is_own_group(self, gid: int) -> bool:
        """Go by the group's name, which is its account's: not every system tells all members of a group."""
        try:
            group = grp.getgrgid(gid)
        except KeyError:  # a container may run as numbers that have no names
            return gid == self._uid
        names = {_name(uid) for uid in self._trusted}
        if group.gr_name not in names or not names.issuperset(group.gr_mem):
            return False
        # some systems put accounts of their own (sync, halt) into root's group
        return gid == ROOT or all(one.pw_uid in self._trusted for one in pwd.getpwall() if one.pw_gid == gid)


def _absent(path: Path) -> Unfit:
    return Unfit(path, "is not there", f"make it first: mkdir -m 700 {_quoted(path)}")


def _facts(path: Path) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _has_acl(path: Path) -> bool:
    """With one, the bits of the group bound what every account and group that it names may do."""
    try:
        return bool(os.getxattr(path, ACL))
    except OSError:
        return False


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _go_w(path: Path) -> str:
    return f"chmod go-w {_quoted(path)}"
