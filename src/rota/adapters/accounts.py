"""Tell whose a user id is: an account's own, a subordinate id of an account (/etc/subuid), or nobody's.

An account with subordinate ids can have processes of 65,536 user ids, in user namespaces (rootless containers). To the
kernel they are ids like any other; for all that is counted they are one account's.

Ranges of root are no account's: containers that root starts are other people's. Ids in one of them are counted
together, and are nobody's.
"""

from __future__ import annotations

import logging
import os
import pwd
import threading
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from rota.app.ports import Account

log = logging.getLogger(__name__)

SUBUID = "/etc/subuid"
MAX_BYTES, MAX_RANGES = 1 << 20, 10_000
LOOK_EVERY_S = 5.0  # for a change of the file
FIRST_LOOK_S = 2.0  # a start waits no longer: names may have to be asked of a directory server
MOST_IDS = 1 << 32
NAMES_KEPT = 4096
ROOT = 0


class Range(NamedTuple):
    first: int
    end: int  # beyond the last one
    owner: int
    name: str


class Accounts:
    """Of this machine. Any thread may ask; `counted_as` and `subuids` never read a file."""

    def __init__(self) -> None:
        self._ranges: tuple[Range, ...] = ()
        self._subuids: Mapping[int | str, Sequence[tuple[int, int]]] = {}
        self._mark: tuple[int, ...] | None = None  # which file was read
        self._named: set[int] = set()  # ids in a range that have a name all the same
        self._over, self._looked = threading.Event(), threading.Event()

    def start(self) -> None:
        """Read the file, and look from now on whether it changes."""
        threading.Thread(target=self._run, name="rota-accounts", daemon=True).start()
        self._looked.wait(FIRST_LOOK_S)

    def close(self) -> None:
        self._over.set()

    def of(self, uid: int) -> Account:
        """Return whose it is. A name is known for a minute; else a directory server may have to be asked."""
        name = _name_of(uid, int(time.monotonic() // 60))
        if name is not None:
            self._remember(uid)
            return Account(name, uid)
        found = self._range(uid)
        if found is not None and found.owner != ROOT:
            return Account(found.name, found.owner, subordinate=True)
        return Account(f"uid{uid}", uid, known=False)

    def counted_as(self, uid: int) -> int:
        """Return the id for which a connection of this one counts."""
        found = None if uid in self._named else self._range(uid)
        if found is None:
            return uid
        return found.first if found.owner == ROOT else found.owner

    def subuids(self, account: int | str) -> Sequence[tuple[int, int]]:
        """Return the ranges (first id, the one beyond the last) in which an account, by its id or its name, has its
        subordinate ids. An id in them that has a name of its own is not left out: the account may become it in a user
        namespace, and then end its processes."""
        return self._subuids.get(account, ())

    def look(self) -> None:
        """Read the ranges anew if the file is another than the last time."""
        try:
            with open(SUBUID, "rb") as file:
                facts = os.fstat(file.fileno())
                mark: tuple[int, ...] = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
                if mark == self._mark:
                    return
                raw = file.read(MAX_BYTES)
        except FileNotFoundError:
            mark, raw = (), b""
        self._ranges, self._mark = _disjoint(raw), mark
        self._subuids = _by_account(self._ranges)

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except OSError as error:  # for want of a descriptor, or it is not ours to read: what was known still counts
                log.warning("%s cannot be read: %s", SUBUID, error.strerror)
            self._looked.set()
            if self._over.wait(LOOK_EVERY_S):
                return

    def _range(self, uid: int) -> Range | None:
        ranges = self._ranges
        place = bisect_right(ranges, uid, key=_first) - 1
        return ranges[place] if place >= 0 and uid < ranges[place].end else None

    def _remember(self, uid: int) -> None:
        if uid in self._named or self._range(uid) is None:
            return
        if len(self._named) >= NAMES_KEPT:
            self._named = set()
        self._named.add(uid)


def _by_account(ranges: Sequence[Range]) -> Mapping[int | str, Sequence[tuple[int, int]]]:
    found: dict[int | str, list[tuple[int, int]]] = {}
    for one in ranges:
        if one.owner != ROOT:
            for account in (one.owner, one.name):
                found.setdefault(account, []).append((one.first, one.end))
    return found


def _first(one: Range) -> int:
    return one.first


def _disjoint(raw: bytes) -> tuple[Range, ...]:
    """Read lines such as `ann:100000:65536`, as subuid(5) has them. Of ids in two ranges the lower range has them."""
    found: list[Range] = []
    lines = raw.split(b"\n")
    if len(lines) > MAX_RANGES or len(raw) == MAX_BYTES:
        log.warning("%s: only the first %d lines, of %d bytes, count", SUBUID, MAX_RANGES, MAX_BYTES)
    for line in lines[:MAX_RANGES]:
        one = _range_of(line)
        if one is not None:
            found.append(one)
    end, apart = 0, []
    for one in sorted(found):
        if one.end > end:
            apart.append(one._replace(first=max(one.first, end)))
            end = one.end
    return tuple(apart)


def _range_of(line: bytes) -> Range | None:
    """None for a comment, an odd line, or one of an account that is not there."""
    words = line.strip().split(b":")
    if len(words) != 3 or line.startswith(b"#") or not (words[1].isdigit() and words[2].isdigit()):
        return None
    first, count = (int(word[:12]) for word in words[1:])
    if not 0 < count <= MOST_IDS or first >= MOST_IDS:
        return None
    try:
        owner = pwd.getpwuid(int(words[0][:12])) if words[0].isdigit() else pwd.getpwnam(os.fsdecode(words[0]))
    except (KeyError, ValueError, OverflowError):  # ValueError: a name that holds NUL
        return None
    return Range(first, first + count, owner.pw_uid, owner.pw_name)


@lru_cache(maxsize=NAMES_KEPT)
def _name_of(uid: int, minute: int) -> str | None:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        os.close(os.open("/", os.O_RDONLY))  # it is said also for want of a descriptor, and must not be remembered then
        # this process is somebody, also where nothing is known of accounts (in a container)
        return f"uid{uid}" if uid == os.geteuid() else None
