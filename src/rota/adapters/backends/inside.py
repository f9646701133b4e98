"""Is a process part of an attempt, and of which?

Three signs, of which any one is enough: a supervisor above it (a shim is the subreaper of all that it started, so no
fork gets away from under it), the cgroup of one, and the mark in its environment. A process can wash the mark off, so
it alone proves nothing; it is what tells which attempt. Where this server itself runs inside an attempt of another,
what both have in common is no sign.
"""

from __future__ import annotations

import os
import re

from rota.adapters.backends import procs
from rota.core.ids import is_attempt_id

SUPERVISORS = (b"rota-zygote", b"rota-shim")  # as zygote and worker call themselves: only a process can name itself
GROUP = re.compile(r"/(rota-[0-9a-f]{8})(?=/|$)")
MAX_GROUPS = 1 << 16
UNKNOWN = ""
MAX_MARK = 100
CLIMBS = 10
MAX_ANCESTORS = 100  # a shell has about ten


def attempt_of(pid: int) -> str | None:
    """None = of none; UNKNOWN = it cannot be told of which, it is deeper than MAX_ANCESTORS below the first process, or
    it is gone and cannot be asked any more. A bounded amount of work: the event loop does it for each caller."""
    ours = {1, *(lineage(os.getpid()) or ())}
    if pid in ours:
        return None
    mark = _mark(pid)
    if mark and mark != os.environ.get(procs.MARKER, ""):
        return mark if is_attempt_id(mark) and procs.start_time(pid) is not None else UNKNOWN
    if groups_of(pid) - groups_of(os.getpid()):
        return UNKNOWN
    # In no group of a Rota server it can still be a job: its account may have a group to move it to.
    above = _climb(pid, MAX_ANCESTORS)
    if above is None or procs.start_time(pid) is None:
        return UNKNOWN
    return UNKNOWN if any(above[each] in SUPERVISORS for each in above.keys() - ours) else None


def lineage(pid: int) -> set[int] | None:
    """A process and all above it; None when it is gone."""
    above = _climb(pid, None)
    return None if above is None else set(above)


def _climb(pid: int, limit: int | None) -> dict[int, bytes] | None:
    """A process and all above it, with their names; None when it is gone, or after `limit` looks. Where one in between
    dies while we climb, its children have another parent by now and we begin again: a chain that ends early would hide
    who stands above it."""
    looks = 0
    for _ in range(CLIMBS):
        found: dict[int, bytes] = {}
        up = pid
        while up and up not in found:
            looks += 1
            seen = procs.name_and_parent(up) if limit is None or looks <= limit else None
            if seen is None:
                break
            found[up], up = seen
        else:
            return found
    return None


def groups_of(pid: int) -> set[str]:
    """Names of the groups of Rota servers on the way to its own."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace", newline="\n") as file:
            return set(GROUP.findall(file.read(MAX_GROUPS)))
    except OSError as error:
        procs.must_be_known(error)
        return set()


def _mark(pid: int) -> str:
    prefix = f"\0{procs.MARKER}=".encode()
    longest = len(prefix) + MAX_MARK
    try:
        for window in procs.environment(pid, longest):
            if 0 <= (at := window.find(prefix)) <= len(window) - longest:
                return window[at + len(prefix) : at + longest].partition(b"\0")[0].decode(errors="replace")
    except OSError as error:
        procs.must_be_known(error)  # else it is gone, or another account's
    return ""
