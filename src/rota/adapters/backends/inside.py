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

SUPERVISOR = b"/rota/adapters/backends/zygote.py"  # a word of the command line of the zygote, its workers and shims
GROUP = re.compile(r"/(rota-[0-9a-f]{8})(?=/|$)")
MAX_COMMAND = 4096
MAX_GROUPS = 1 << 16
UNKNOWN = ""
CLIMBS = 10


def attempt_of(pid: int) -> str | None:
    """None = of none; UNKNOWN = it cannot be told of which, or the process is gone and cannot be asked any more."""
    ours = (lineage(os.getpid()) or set()) | {1}
    if pid in ours:
        return None
    above, mark = lineage(pid), _mark(pid)
    if above is None or procs.start_time(pid) is None:
        return UNKNOWN
    supervised = any(_is_supervisor(each) for each in above - ours) or bool(_groups(pid) - _groups(os.getpid()))
    if mark == os.environ.get(procs.MARKER, ""):
        mark = ""
    if mark:
        return mark if is_attempt_id(mark) else UNKNOWN
    return UNKNOWN if supervised else None


def lineage(pid: int) -> set[int] | None:
    """A process and all above it; None when it is gone. Where one in between dies while we climb, its children have
    another parent by now and we begin again: a chain that ends early would hide who stands above it."""
    for _ in range(CLIMBS):
        found: set[int] = set()
        up: int | None = pid
        while up and up not in found:
            found.add(up)
            up = procs.parent(up)
        if up is not None:
            return found
    return None


def _is_supervisor(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            words = file.read(MAX_COMMAND).split(b"\0")
    except OSError as error:
        procs.must_be_known(error)
        return False
    return any(word.endswith(SUPERVISOR) for word in words)


def _groups(pid: int) -> set[str]:
    """Names of the groups of Rota servers on the way to its own."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as file:
            return set(GROUP.findall(file.read(MAX_GROUPS)))
    except OSError as error:
        procs.must_be_known(error)
        return set()


def _mark(pid: int) -> str:
    prefix, rest = f"\0{procs.MARKER}=".encode(), b"\0"
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:
            while chunk := file.read(procs.MAX_PROC_READ):
                rest += chunk
                if prefix in rest:
                    return (rest.partition(prefix)[2] + file.read(100)).partition(b"\0")[0].decode(errors="replace")
                rest = rest[-len(prefix) :]
    except OSError as error:
        procs.must_be_known(error)  # else it is gone, or another account's
    return ""
