"""What the files and locks say about an attempt, and the two verdicts only the server writes: the veto and "lost"."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rota.adapters.backends import confine, procs, records, tracers
from rota.core.run import Cause, Exit

log = logging.getLogger(__name__)
BURIAL_S = 5.0


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
    record = records.read(path)
    if record is None:
        return None
    try:
        return Exit(
            cause=Cause(record["cause"]),
            code=record["code"],
            signal=record["signal"],
            message=record["message"],
            oom=record["oom"],
            started_tick=record["started_tick"],
            ended_tick=record["ended_tick"],
            warned=bool(record.get("warned")),  # older ones do not say
            killed=bool(record.get("killed")),
        )
    except (KeyError, ValueError, TypeError) as error:  # not written by us: an end all the same
        return Exit(Cause.LOST, message=f"its exit record cannot be read: {error!r}")


def veto(root: str, attempt_id: str, end: Exit) -> bool:
    """Claim an attempt only to end it, so that no straggling order can ever begin it. False: somebody claimed it
    before."""
    prepared = records.prepare(root, {"boot_id": procs.boot_id(), "shim": 0, "cgroup": ""})
    try:
        records.publish(prepared.path, "exit", records.dump(exit_record(end)), durable=True)
        if records.claim(root, prepared, attempt_id):
            return True
        records.discard(prepared.path)
        return False
    finally:
        os.close(prepared.lock)


def bury(root: str, attempt_id: str, timeout_s: float = BURIAL_S) -> Exit | None:
    """Kill all that a deserted attempt left behind, then record it as lost. None: something of it does not die
    (yet)."""
    directory = records.attempt_dir(root, attempt_id)
    claim = records.read(f"{directory}/lock") or {}
    if claim.get("boot_id") == procs.boot_id():
        record = records.read(f"{directory}/pid") or {}
        uid = _account(directory, record)
        if not _sweep(attempt_id, uid, str(claim.get("cgroup") or ""), timeout_s):
            return None
        for group in claim.get("limits") or ():  # older claims have none
            confine.discard(str(group))
        started = record.get("tick")
        end = Exit(Cause.LOST, None, None, "its supervisor was killed", False, started, procs.boottime())
    else:  # nothing of it can be alive, and its cgroup's name, its pids and its ticks mean others now, or nothing
        end = Exit(Cause.LOST, message="the machine was restarted")
    records.publish(directory, "exit", records.dump(exit_record(end)), durable=True, replace=False)
    return read_exit(directory)


def sweep(attempt_id: str, uid: int) -> None:
    """By the mark alone: for an attempt whose record is gone, and with it the name of its group."""
    procs.kill_marked(attempt_id, uid, time.monotonic() + BURIAL_S)


def _sweep(attempt_id: str, uid: int, group: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    if (not group or confine.remove(group, timeout_s)) and procs.kill_marked(attempt_id, uid, deadline):
        return True
    for text in tracers.end({*confine.members(group), *procs.marked(attempt_id, uid)}, uid):
        log.warning("%s: %s", attempt_id, text)
    return False


def _account(directory: str, record: Mapping[str, Any]) -> int:
    """The user id that the attempt's processes have. It is recorded before any process runs as another account; a
    record of an older version lacks it, but its log belongs to that account."""
    if "uid" in record:
        return int(record["uid"])
    if not record:
        return os.geteuid()
    try:
        return os.stat(f"{directory}/log", follow_symlinks=False).st_uid
    except FileNotFoundError:  # somebody removed it, to make room perhaps: only its group tells now what is left of it
        return os.geteuid()


def exit_record(end: Exit) -> Mapping[str, Any]:
    return {
        "cause": str(end.cause),
        "code": end.code,
        "signal": end.signal,
        "message": end.message,
        "oom": end.oom,
        "started_tick": end.started_tick,
        "ended_tick": end.ended_tick,
        "warned": end.warned,
        "killed": end.killed,
        "boot_id": procs.boot_id(),
    }


def _held(directory: str) -> Held:
    record = records.read(f"{directory}/pid")
    if record is None or record["start"] is None:
        return Held(None, None)
    return Held((record["pid"], record["start"]), record["tasks"][0])
