"""What the files and locks say about an attempt, and the two verdicts only the server writes: the veto and "lost"."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rota.adapters.backends import confine, damaged, heard, inside, procs, records, tracers
from rota.core.run import Cause, Exit

BURIAL_S = 5.0
CAUSES = frozenset(map(str, Cause))
LOCKS = "/proc/locks"


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """No directory: nobody ever began it."""


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is held. `shim` and `tasks` are empty while it is being born."""

    shim: tuple[int, int] | None  # pid and start time
    task: int | None


@dataclass(frozen=True, slots=True)
class Deserted:
    """Claimed, not ended, and nobody holds the lock: its supervisor died."""


Sight = Unclaimed | Held | Deserted | Exit


def look(root: str, attempt_id: str, *, trust_pid: bool = False) -> Sight:
    """The truth now. With trust_pid a pid record counts as alive without asking the lock: for one whose death will be
    told."""
    directory = records.attempt_dir(root, attempt_id)
    if (end := read_exit(directory)) is not None:
        return end
    if trust_pid and (held := _held(directory)).shim is not None:
        return held
    match records.locked(root, attempt_id):
        case None:
            return Unclaimed()
        case True:
            return _held(directory)
        case False:  # an exit record comes before the lock is let go, so now it is there or never will be
            return read_exit(directory) or Deserted()


def read_exit(directory: str) -> Exit | None:
    return exit_in(f"{directory}/exit")


def exit_in(path: str) -> Exit | None:
    """Return the end on record; None when there is none, or none that can be read. That proves no end: a supervisor
    that lives writes a whole one."""
    record = records.read(path)
    if record is None:
        return None
    end = _exit_of(record)
    if end is None:
        damaged.say(path, "it counts for nothing; the attempt ends when none of its processes is left")
    return end


def _exit_of(record: Mapping[str, Any]) -> Exit | None:
    code, number = record.get("code"), record.get("signal")
    ticks = [record.get("started_tick"), record.get("ended_tick")]
    if not (
        record.get("cause") in CAUSES
        and all(each is None or records.is_whole_number(each) for each in (code, number))
        and all(each is None or records.is_number(each) for each in ticks)
        and isinstance(record.get("message"), str)
        and isinstance(record.get("oom"), bool)
    ):
        return None
    return Exit(
        cause=Cause(record["cause"]),
        code=code,
        signal=number,
        message=record["message"],
        oom=record["oom"],
        started_tick=ticks[0],
        ended_tick=ticks[1],
        warned=bool(record.get("warned")),  # older ones do not say
        killed=bool(record.get("killed")),
        machine_oom=bool(record.get("machine_oom")),
        shortage=bool(record.get("shortage")),
    )


def veto(root: str, attempt_id: str, end: Exit) -> bool:
    """Claim an attempt only to end it, so that no straggling order can ever begin it. False: somebody claimed it
    before."""
    prepared = records.prepare(root, {"boot_id": procs.boot_id(), "shim": 0, "cgroup": ""})
    try:
        records.publish(root, prepared.path, "exit", records.dump(exit_record(end)), durable=True)
        if records.claim(root, prepared, attempt_id):
            return True
        records.discard(prepared.path, prepared.live)
        return False
    finally:
        os.close(prepared.lock)


def bury(root: str, attempt_id: str, end_all: Callable[[int | None, str], bool]) -> Exit | None:
    """Have all killed that a deserted attempt left behind, then record it as lost. None: something of it does not die
    (yet). `end_all` is told the account and the cgroup of its processes, and returns whether they are gone."""
    directory = records.attempt_dir(root, attempt_id)
    claim = records.read(f"{directory}/lock") or {}
    record = records.read(f"{directory}/pid")
    boots = {each for each in (claim.get("boot_id"), (record or {}).get("boot_id")) if isinstance(each, str)}
    if boots and procs.boot_id() not in boots:
        # nothing of it can be alive, and its cgroup's name, its pids and its ticks mean others now, or nothing
        end = Exit(Cause.LOST, message="the machine was restarted")
    else:
        uid, group = _account(directory, record), _group(directory, claim, record or {})
        if not end_all(uid, group):
            return None
        limits = claim.get("limits")
        for group in limits if isinstance(limits, list) else ():  # older claims have none
            if _is_group(group):
                confine.discard(group)
        started = (record or {}).get("tick")
        started = started if records.is_number(started) else None
        end = Exit(Cause.LOST, None, None, "its supervisor was killed", False, started, procs.boottime())
    unreadable = records.read(f"{directory}/exit") is not None and read_exit(directory) is None
    if unreadable:  # nobody holds the lock, so nobody writes a better one
        end = replace(end, message="its exit record cannot be read")
    records.publish(root, directory, "exit", records.dump(exit_record(end)), durable=True, replace=unreadable)
    return read_exit(directory)


def sweep(root: str, attempt_id: str, uid: int) -> None:
    """By the mark alone: for an attempt whose record is gone, and with it the name of its group."""
    procs.kill_marked(attempt_id, uid, time.monotonic() + BURIAL_S, records.installation_id(root))


def processes(root: str, attempt_id: str, shim: int | None) -> list[int]:
    """Return what is there of an attempt: all below its supervisor, and in its cgroup, where it has one."""
    directory = records.attempt_dir(root, attempt_id)
    claim, record = records.read(f"{directory}/lock") or {}, records.read(f"{directory}/pid") or {}
    group = _group(directory, claim, record)
    below = [] if shim is None else [each.pid for each in heard.look(signal.SIGKILL, shim)]
    return sorted({*below, *(confine.members(group) if group else ())} - {0, shim})


def end_all(  # noqa: PLR0917 - what is left of one attempt, and how it is known
    root: str, attempt_id: str, uid: int | None, group: str, timeout_s: float, subuids: procs.Ranges
) -> tuple[bool, list[str]]:
    """Kill what is left of an attempt. Return whether nothing is, and what is to be said of it. `subuids` are the
    subordinate ids of its account."""
    deadline, here = time.monotonic() + timeout_s, records.installation_id(root)
    if not group or confine.remove(group, timeout_s):
        # Nothing of another account's leaves a group of root's but by a service of root's (`systemd-run --user`), and a
        # look at all processes of that account takes as long as it likes: it may have thousands, with megabytes of
        # environment each. So one that had its time, was cut short and found nothing will do there.
        will_do = bool(group) and os.geteuid() == 0 and uid not in (None, 0) and timeout_s >= BURIAL_S
        if procs.kill_marked(attempt_id, uid, deadline, here, thorough=not will_do):
            return True, []
    left = procs.marked(attempt_id, uid, here, time.monotonic() + timeout_s)
    return False, tracers.end({*confine.members(group), *left}, uid, subuids) if uid is not None else []


def _group(directory: str, claim: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The cgroup of its processes; empty where there is none."""
    if not isinstance(claim.get("cgroup"), str):
        damaged.say(f"{directory}/lock", "what is left of its attempt is found by its pid record and its mark")
    for group in (claim.get("cgroup"), record.get("cgroup")):
        if _is_group(group):
            return str(group)
    return ""


def _is_group(name: object) -> bool:
    """Is it a group of a Rota server? All that is in it will be killed."""
    return isinstance(name, str) and inside.GROUP.search(name) is not None and ".." not in name


def _account(directory: str, record: Mapping[str, Any] | None) -> int | None:
    """The user id that the attempt's processes have; None when it cannot be told. It is recorded before any process
    runs as another account; a record of an older version lacks it, but its log belongs to that account."""
    if record is None:
        return os.geteuid()
    if records.is_whole_number(record.get("uid")):
        return int(record["uid"])
    if "uid" in record or not _is_whole(record):
        damaged.say(f"{directory}/pid", "its attempt is over, and processes of any account that carry its mark end")
        return None
    try:
        return os.stat(f"{directory}/log", follow_symlinks=False).st_uid
    except FileNotFoundError:  # somebody removed it, to make room perhaps: only its group tells now what is left of it
        return os.geteuid()


def account_of(root: str, attempt_id: str) -> int | None:
    """Return the user id that the attempt's processes have, where it is on record."""
    uid = (records.read(f"{records.attempt_dir(root, attempt_id)}/pid") or {}).get("uid")
    return uid if isinstance(uid, int) else None


def exit_record(end: Exit) -> Mapping[str, Any]:
    return {
        "cause": str(end.cause),
        "code": end.code,
        "signal": end.signal,
        "message": end.message,
        "oom": end.oom,
        "machine_oom": end.machine_oom,
        "started_tick": end.started_tick,
        "ended_tick": end.ended_tick,
        "warned": end.warned,
        "killed": end.killed,
        "shortage": end.shortage,
        "boot_id": procs.boot_id(),
    }


def _held(directory: str) -> Held:
    record = records.read(f"{directory}/pid")
    if record is None or ("start" in record and record["start"] is None):
        return Held(None, None)
    if _is_whole(record):
        return Held((record["pid"], record["start"]), record["tasks"][0])
    shim = _lock_holder(directory)
    found = f"process {shim[0]} holds its lock and is its supervisor" if shim else "its supervisor cannot be found"
    ends = "a stop is sent there" if shim else "no stop reaches it, but its time limit does"
    damaged.say(f"{directory}/pid", f"the attempt runs on; {found}, so {ends}")
    return Held(shim, None)


def claimant(directory: str) -> tuple[int, int] | None:
    """Return pid and start time of the supervisor of an attempt that is held, as its claim names it: before the pid is
    recorded there is nothing else. None: a claim of an older version, or damaged."""
    claim = records.read(f"{directory}/lock") or {}
    pid, start = claim.get("shim"), claim.get("start")
    return (pid, start) if isinstance(pid, int) and isinstance(start, int) else None


def serial(directory: str) -> int:
    """Return the kernel's serial of that supervisor (see procs); 0 = it is not on record."""
    found = (records.read(f"{directory}/lock") or {}).get("serial")
    return found if isinstance(found, int) else 0


def _is_whole(record: Mapping[str, Any]) -> bool:
    tasks = record.get("tasks")
    return (
        records.is_whole_number(record.get("pid"))
        and records.is_whole_number(record.get("start"))
        and isinstance(tasks, list)
        and bool(tasks)
        and records.is_whole_number(tasks[0])
    )


def _lock_holder(directory: str) -> tuple[int, int] | None:
    """Return pid and start time of the supervisor that holds the lock, as the kernel names it; None when it does not
    tell. Inode numbers repeat on other file systems, so the process must also be a supervisor of this directory."""
    root = os.path.dirname(os.path.dirname(directory))
    try:
        inode = str(os.stat(f"{directory}/lock", follow_symlinks=False).st_ino)
        with open(LOCKS, encoding="ascii") as file:
            lines = [line.split() for line in file]
        # number, kind, advisory, access, pid, device:inode, ...
        pids = [int(each[4]) for each in lines if each[1] == "FLOCK" and each[5].rpartition(":")[2] == inode]
        for pid in filter(lambda pid: pid > 0, pids):
            start, seen = procs.start_time(pid), procs.name_and_parent(pid)
            named = seen is not None and seen[0] == b"rota-shim" and procs.uid_of(pid) == os.geteuid()
            if named and start is not None and os.path.samefile(f"/proc/{pid}/cwd", root):
                return pid, start
    except OSError as error:
        procs.must_be_known(error)
    return None
