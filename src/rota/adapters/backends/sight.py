"""What a process that somebody names looks like. Called in a looker (see lookers): a process can make each of these
looks wait."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from rota.adapters.backends import procs

MAX_COMMAND_BYTES = 4096
MAX_STATUS_BYTES = 1 << 20  # with all groups that a process can have


class Sight(NamedTuple):
    start: int
    uid: int
    kernel: bool
    command: tuple[str, ...]
    workdir: str


def of(pid: int) -> Sight | None:
    """Return all of one look; None: there is no such process, or it ended meanwhile."""
    start = procs.start_time(pid)
    facts = _status(pid)
    # a thread of a process has a directory too, but is not the process
    if start is None or facts is None or facts.get("Tgid") != str(pid):
        return None
    uid = int(facts["Uid"].split()[0])  # the real one: who runs a setuid program may signal it, and so owns it here
    kernel = procs.is_kernel_thread(pid)
    command, where = _command(pid) or (facts.get("Name") or f"pid {pid}",), _directory(pid)
    if procs.start_time(pid) != start:  # it ended meanwhile: what was read may be another's
        return None
    return Sight(start, uid, kernel, command, where)


def start_times(pids: Iterable[int]) -> list[int | None]:
    return [procs.start_time(pid) for pid in pids]


def namespaces(pid: int) -> int:
    """Return in how many pid namespaces a process has a number, from ours down; 0 = it is gone."""
    facts = _status(pid)
    return 0 if facts is None else len(facts.get("NSpid", "").split())


def _status(pid: int) -> dict[str, str] | None:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace", newline="\n") as file:
            # only "\n" ends a line: the name, which is the process's to choose, may hold all else that would
            pairs = (line.partition(":") for line in file.read(MAX_STATUS_BYTES).split("\n"))
            return {name: value.strip() for name, _, value in pairs}
    except OSError as error:
        procs.must_be_known(error)
        return None


def _command(pid: int) -> tuple[str, ...]:
    """Its argv as far as it may be read and no further than the bound; empty for a thread of the kernel."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:
            raw = file.read(MAX_COMMAND_BYTES)
    except OSError as error:
        procs.must_be_known(error)
        return ()
    words = tuple(word.decode(errors="replace") for word in raw.rstrip(b"\0").split(b"\0"))
    return words if words[0] else ()


def _directory(pid: int) -> str:
    try:
        where = os.readlink(f"/proc/{pid}/cwd".encode()).decode(errors="replace")
    except OSError:  # not ours to read, or it is gone
        return "/"
    return where if where.startswith("/") and len(where) < MAX_COMMAND_BYTES else "/"  # or one beyond our own root
