"""The lease backend: attempts that are somebody else's process. Nothing is launched; a lease lasts while it lives.

    leases/<id>        whose it is: written when it is given, gone when the server forgets it
    leases/ended/<id>  how it ended; final

Files appear whole, by rename. They need not survive the machine: a lease never does, because its holder does not. What
the holder's own exit code was is not ours to know, so the end of a lease says only that it was released or cancelled.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rota.adapters.backends import claims, damaged, evict, heard, procs, records, stuck, tracers
from rota.adapters.backends.turns import Turns
from rota.app.ports import (
    Absent,
    Ended,
    LaunchOrder,
    Live,
    LogChunk,
    Observation,
    Report,
    Started,
    StopOrder,
    Unseen,
)
from rota.core.ids import is_attempt_id, run_of
from rota.core.run import Cause, Exit, Holder

if TYPE_CHECKING:
    from rota.adapters.processes import LinuxProcesses

T = TypeVar("T")
log = logging.getLogger(__name__)

RETRY_S = 0.5
LOOK_S = 10.0
MAX_BROOD = 10_000  # descendants that are on record, for a server that starts meanwhile; a record has a bound
MAX_WATCHED = 64  # of those, whose end is told. Where there are more, or no descriptors, they are looked at
COUNT_S = 0.5  # between two such looks
EVICT_S = 3 * heard.LOOK_S  # for one look at a family, which ends by itself before that
After = Callable[[float, Callable[[], None]], Callable[[], None]]  # (delay_s, act) -> call it off


@dataclass(slots=True)
class _Lease:
    """What we remember of a lease whose holder we watch."""

    holder: Holder
    tick: float  # when it was given
    cause: Cause = Cause.RELEASED  # how its end is to be called; cancelled once somebody asked for that
    brood: tuple[evict.Target, ...] = ()  # the holder's descendants that are to stop with it
    # Of those, the forks that get no signal but KILL; on record, as `asked` is: the next server signals nobody.
    spared: frozenset[evict.Target] = frozenset()
    order: StopOrder | None = None  # to be carried out
    asked: tuple[str, int] | None = None  # cause and signal of the last order that was
    kill_by: float = math.inf  # monotonic; on record, so that a server that starts meanwhile grants no more
    kill_at: float = math.inf  # when the next SIGKILL is due, by the same clock
    watched: int = 0  # descendants whose end is told
    unwatched: bool = False  # there are more of them, or the holder's own end is not told
    counting: bool = False  # the next look at those is due
    undo: list[Callable[[], None]] = field(default_factory=list)  # watches
    due: dict[str, Callable[[], None]] = field(default_factory=dict)  # the next kill and what follows it, to call off
    untouchable: bool = False  # said in the log
    named: bool = False  # as well: what is left after SIGKILL
    crowded: bool = False  # as well: not all of the brood is on record
    failing: bool = False  # as well
    gone: bool = False  # the holder has ended


class LeaseBackend:
    def __init__(self, root: Path, processes: LinuxProcesses, after: After) -> None:
        self._root = str(root.absolute())
        self._dir = f"{self._root}/leases"
        self._processes, self._after = processes, after
        self._lookers = processes.lookers
        self._boot_id = procs.boot_id()
        self._known: dict[str, _Lease] = {}
        self._lock = threading.RLock()  # one change at a time, of the files as well; never held while reporting
        self._turns = Turns("rota-evict", after)  # looking at a holder's processes takes as long as there are many
        self._report: Callable[[Report], None] = lambda report: None
        self._open = False

    # -- the port

    def open(self, report: Callable[[Report], None]) -> None:
        self._report = report
        for path in (self._dir, f"{self._dir}/ended"):
            if not os.path.lexists(path):  # else it would wait for the lock of the data directory
                os.makedirs(path, mode=0o700, exist_ok=True)
        self._turns.open()
        self._open = True

    def launch(self, *orders: LaunchOrder) -> None:
        """One that cannot be looked at just now keeps no other from being given; it is tried again by whoever looks."""
        errors: list[OSError] = []
        for order in orders:
            try:
                report = self._launch(_checked(order.attempt_id), order.holder)
            except OSError as error:
                errors.append(error)
                continue
            if report is not None:
                self._report(report)
        if errors:
            raise errors[0]

    def _launch(self, name: str, holder: Holder | None) -> Report | None:
        if holder is None:
            raise ValueError(f"{name} is no lease: it has no holder")
        with self._lock:
            if (end := self._ended(name)) is not None:
                return Ended(name, end)
            if name in self._known:
                return None
            lease = self._read(name)
            if lease is None:
                lease = _Lease(holder, procs.boottime())
                self._write(name, lease)
            if not self._alive(name, lease):
                return Ended(name, self._end(name, lease))
            self._watch(name, lease)
            return Started(name, holder.pid)

    def stop(self, attempt_id: str, order: StopOrder) -> None:
        name = _checked(attempt_id)
        with self._lock:
            end = self._stop(name, order)
        if end is not None:
            self._report(Ended(name, end))

    def _stop(self, name: str, order: StopOrder) -> Exit | None:
        if (end := self._ended(name)) is not None:
            return end
        lease = self._known.get(name) or self._read(name)
        if lease is None and order.holder is not None and os.path.lexists(f"{self._dir}/{name}"):
            lease = _Lease(order.holder, procs.boottime())  # its record is damaged
        if lease is None:
            never = Exit(Cause.NEVER_STARTED, message="stopped before it was given", ended_tick=procs.boottime())
            return self._record_end(name, never)
        if order.cause == Cause.RELEASED or not self._alive(name, lease):
            return self._end(name, lease)
        had = (lease.cause, lease.kill_by)
        lease.kill_by = min(lease.kill_by, time.monotonic() + order.grace_s)  # a later order can only hasten it
        if lease.cause is not Cause.CANCELLED:
            lease.cause = Cause(order.cause)
        if had != (lease.cause, lease.kill_by) or name not in self._known:
            self._write(name, lease)
        if name not in self._known:
            self._watch(name, lease)
        self._set_deadline(name, lease)
        # Orders are repeated for as long as it lives. A program has one signal to save by: at a second one it may end.
        if lease.asked != (order.cause, order.signal):
            lease.order = order
            self._turns.put(self._account(lease), name, lambda: self._evict(name))
        return None

    def observe(self, attempt_id: str) -> Observation:
        name = _checked(attempt_id)
        with self._lock:
            if (end := self._ended(name)) is not None:
                return end
            lease = self._known.get(name) or self._read(name)
            if lease is None:
                return Absent()
            if not self._alive(name, lease):
                return self._end(name, lease)
            if name not in self._known:
                self._watch(name, lease)
            return Live(lease.holder.pid)

    def carries(self, attempt_id: str) -> bool:
        """Is there any record of it here?"""
        name = _checked(attempt_id)
        return any(os.path.exists(f"{self._dir}/{path}") for path in (name, f"ended/{name}"))

    def strays(self) -> Collection[str]:
        return [name for name in os.listdir(self._dir) if is_attempt_id(name)]

    def stalled_by(self, attempt_id: str) -> str:
        """Name what is left some seconds after its SIGKILL. A lease has no supervisor."""
        lease = self._held(_checked(attempt_id))
        if lease is None or time.monotonic() < lease.kill_by + stuck.AFTER_S:
            return ""
        return "; ".join(self._left(lease))

    def sweep(self, attempt_id: str, account: str | None) -> None:
        """Without its record nobody knows whose it was, and no process of a lease is ours."""
        _checked(attempt_id)

    def forget(self, attempt_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._dir}/{_checked(attempt_id)}")

    def read_log(self, attempt_id: str, offset: int, limit: int) -> LogChunk:
        """A holder writes where it likes, not to us."""
        _checked(attempt_id)
        return LogChunk(b"", 0, 0)

    def enforced(self) -> Collection[str] | None:
        return ()

    def purge(self, before: float) -> int:
        count = 0
        with os.scandir(f"{self._dir}/ended") as entries:
            for entry in entries:
                if is_attempt_id(entry.name) and not os.path.exists(f"{self._dir}/{entry.name}"):
                    with contextlib.suppress(FileNotFoundError):
                        if entry.stat(follow_symlinks=False).st_mtime < before:
                            os.unlink(entry.path)
                            count += 1
        return count

    def close(self) -> None:
        with self._lock:
            self._open = False
            for lease in self._known.values():
                self._let_go(lease)
            self._known.clear()
        self._turns.close()

    # -- with the lock held

    def _alive(self, name: str, lease: _Lease) -> bool:
        """Does the holder live, or, where it was told to stop, anything that was told so with it? Of a lease that is
        known its watch tells, or the last count: nobody waits for a look here."""
        if lease.holder.boot_id != self._boot_id:
            return False
        if name not in self._known:
            lease.gone = not self._processes.alive(lease.holder)
        return bool(lease.brood) or not lease.gone

    def _watch(self, name: str, lease: _Lease) -> None:
        self._known[name] = lease
        self._follow(name, lease, lease.holder.pid, lease.holder.start_ticks, family=False)
        if lease.brood:  # on record: who of it lives is to be counted first
            lease.unwatched = lease.counting = True
            self._put(name, self._count)
        self._count_later(name, lease)

    def _follow(self, name: str, lease: _Lease, pid: int, start: int, *, family: bool) -> bool:
        """Return whether its end will be told; there may be no descriptor for that."""
        watched = Holder(pid, start, lease.holder.boot_id, lease.holder.uid)
        try:
            on_end = partial(self._gone, name, None if family else lease)
            lease.undo.append(self._processes.watch(watched, on_end, family=family, may_look=not family))
        except OSError as error:
            log.debug("%s is looked at now and then: %s", name, error)
            lease.unwatched = True
            return False
        return True

    def _watch_brood(self, name: str, lease: _Lease, new: Sequence[evict.Target]) -> None:
        """Those beyond the bounds are looked at now and then instead."""
        room = max(0, MAX_WATCHED - lease.watched)
        lease.unwatched = lease.unwatched or len(new) > room
        for pid, start in new[:room]:
            if not self._follow(name, lease, pid, start, family=True):
                break
            lease.watched += 1
        self._count_later(name, lease)

    def _count_later(self, name: str, lease: _Lease) -> None:
        if lease.unwatched and not lease.counting:
            lease.counting = True
            self._after(COUNT_S, lambda: self._put(name, self._count))

    def _set_deadline(self, name: str, lease: _Lease) -> None:
        """SIGKILL after the grace."""
        if lease.kill_by < lease.kill_at:
            lease.kill_at = lease.kill_by
            left_s = max(0.0, lease.kill_by - time.monotonic())
            self._set_due(name, lease, self._kill, left_s, urgent=True)

    def _set_due(
        self, name: str, lease: _Lease, act: Callable[[str], None], delay_s: float, *, urgent: bool = False
    ) -> None:
        """Do this once, so much later, instead of when it was due before. Orders are repeated for as long as a lease
        lasts, and may come to nothing for days."""
        if (before := lease.due.get(act.__name__)) is not None:
            before()
        lease.due[act.__name__] = self._after(delay_s, lambda: self._put(name, act, urgent=urgent))

    def _end(self, name: str, lease: _Lease) -> Exit:
        """The holder is gone, or gave it back: the first record of the end is the end for ever."""
        if lease.holder.boot_id == self._boot_id:
            end = Exit(lease.cause, started_tick=lease.tick, ended_tick=procs.boottime())
        else:  # ticks of two boots cannot be compared
            end = Exit(lease.cause, message="the machine restarted")
        end = self._record_end(name, end)
        self._known.pop(name, None)
        self._let_go(lease)
        return end

    def _let_go(self, lease: _Lease) -> None:
        for undo in (*lease.undo, *lease.due.values()):
            undo()
        lease.undo.clear()
        lease.due.clear()
        lease.watched = 0

    def _gather(self, name: str, lease: _Lease, found: Sequence[evict.Target]) -> tuple[evict.Target, ...]:
        """Note all that is to stop with the holder before any of it is signalled; return all that is to be."""
        head = (lease.holder.pid, lease.holder.start_ticks)
        known = frozenset((head, *lease.brood))
        new = [target for target in found if target not in known]
        if len(lease.brood) + len(new) > MAX_BROOD and not lease.crowded:
            lease.crowded = True
            text = "%s: process %d started more than %d others; %d of those that live are on record at a time"
            log.warning(text, name, lease.holder.pid, MAX_BROOD, MAX_BROOD)
        if new:
            lease.brood += tuple(new)
            self._write(name, lease)
            self._watch_brood(name, lease, new)
        return (*(each for each in found[:1] if each == head), *lease.brood)

    # -- in other threads; what takes long, without the lock

    def _put(self, name: str, act: Callable[[str], None], *, urgent: bool = False) -> None:
        with self._lock:
            lease = self._known.get(name)
            if lease is not None and self._open:
                self._turns.put(self._account(lease), (name, act.__name__), lambda: act(name), urgent=urgent)

    def _held(self, name: str) -> _Lease | None:
        with self._lock:
            return self._known.get(name) if self._open else None

    def _evict(self, name: str) -> None:
        """Send the polite signal. The GPUs stay taken until the last of the family is gone."""
        with self._or_again(name, self._evict):
            lease = self._held(name)
            if lease is None or lease.order is None:
                return
            order, (found, unseen) = lease.order, self._family(lease)
            self._keep(lease, found)
            with self._lock:
                if self._known.get(name) is not lease:
                    return  # given back meanwhile
                targets = self._gather(name, lease, found)
            looked_at = [each for each in targets if each not in unseen]  # the others have until the kill
            addressees = self._call(lease, evict.asked, lease.holder, looked_at, order.signal)
            lease.spared = frozenset(looked_at) - frozenset(addressees)
            with self._lock:  # first: where signalling them does not end in time, some of them have it
                before, lease.asked = lease.asked, (order.cause, order.signal)
                if lease.order is order:  # else another came meanwhile, and is carried out next
                    lease.order = None
                if self._known.get(name) is lease:
                    self._write(name, lease)
            try:
                told = bool(targets) and self._call(lease, evict.signal_all, addressees, order.signal)
            except OSError as error:
                if not (isinstance(error, Unseen) and error.has_begun):
                    self._has_not_asked(name, lease, order, before)
                raise
            if not told and not lease.untouchable:
                lease.untouchable = True
                who = self._described(lease, lease.holder.pid)
                log.warning("%s: %s is not ours to end; %s", name, who, _way_out(name))

    def _has_not_asked(self, name: str, lease: _Lease, order: StopOrder, before: tuple[str, int] | None) -> None:
        """Nobody got the signal: it is sent when this is tried again."""
        with self._lock:
            lease.asked = before
            lease.order = lease.order or order
            if self._known.get(name) is lease:
                self._write(name, lease)

    def _gone(self, name: str, held: _Lease | None = None) -> None:
        """A descendant of the holder has ended, or the holder of the lease `held`."""
        end = None
        with self._lock, self._or_again(name, self._gone):
            if held is not None:
                held.gone = True
            lease = self._known.get(name)
            if lease is not None and self._open:
                if lease.brood:
                    self._put(name, self._count)
                elif lease.gone:
                    end = self._end(name, lease)
        if end is not None:
            self._report(Ended(name, end))

    def _count(self, name: str) -> None:
        """Look which of the family are left. Kill the spared forks once every process that was signalled has ended: no
        program is left to end them."""
        end = None
        with self._or_again(name, self._count):
            lease = self._held(name)
            if lease is None:
                return
            brood = lease.brood
            left = self._living(lease)
            gone = frozenset(brood) - left
            with self._lock:
                if self._known.get(name) is not lease:
                    return
                lease.brood = tuple(target for target in lease.brood if target not in gone)
                lease.gone = (lease.holder.pid, lease.holder.start_ticks) not in left
                lease.counting = False
                if not self._alive(name, lease):
                    end = self._end(name, lease)
                else:
                    self._count_later(name, lease)
                    if lease.crowded and gone:  # there is room on record for others
                        self._write(name, lease)
            if end is None and left and left <= lease.spared:
                self._call(lease, evict.signal_all, list(left), evict.SIGKILL)
        if end is not None:
            self._report(Ended(name, end))

    def _kill(self, name: str) -> None:
        """Kill all that one look finds; where it was cut short, all below which there is nothing that it has not found,
        and the rest after the next look."""
        with self._or_again(name, self._kill):
            lease = self._held(name)
            if lease is None:
                return
            found, unseen = self._family(lease)
            self._keep(lease, found)
            with self._lock:
                if self._known.get(name) is not lease:
                    return
                targets = self._gather(name, lease, found)
                if unseen:
                    self._set_due(name, lease, self._kill, RETRY_S)
                elif targets and "_free" not in lease.due:  # it comes again by itself
                    self._set_due(name, lease, self._free, tracers.AFTER_S)
                lease.kill_at = math.inf  # what forked meanwhile is killed by the next order
            looked_at = [each for each in targets if each not in unseen]
            self._call(lease, evict.signal_all, looked_at, evict.SIGKILL)

    def _free(self, name: str) -> None:
        """Free those that outlive SIGKILL because another process of their account traces them, and say once what is
        left after that."""
        with self._or_again(name, self._free):
            lease = self._held(name)
            if lease is None:
                return
            left = [pid for pid, _ in self._living(lease)]
            uid, subuids = lease.holder.uid, self._subuids(lease)
            for text in self._call(lease, tracers.end, left, uid, subuids) if left else ():
                log.warning("%s: %s", name, text)
            if time.monotonic() >= lease.kill_by + stuck.AFTER_S and not lease.named and (texts := self._left(lease)):
                lease.named = True
                log.warning("%s: %s; %s", name, "; ".join(texts), _way_out(name))
            with self._lock:
                lease.due.pop("_free", None)
                if left and self._known.get(name) is lease:
                    self._set_due(name, lease, self._free, LOOK_S)

    def _account(self, lease: _Lease) -> int:
        """Return for whom the work on a lease counts. A record of an older version may name a subordinate id."""
        return self._processes.counted_as(lease.holder.uid)

    def _subuids(self, lease: _Lease) -> Sequence[tuple[int, int]]:
        return self._processes.subuids(lease.holder.uid)

    def _family(self, lease: _Lease) -> evict.Family:
        return self._call(lease, evict.family, lease.holder, lease.brood, self._subuids(lease))

    def _keep(self, lease: _Lease, found: Sequence[evict.Target]) -> None:
        """Have those open that `_gather` is to watch. Where that fails they are counted now and then: no signal waits
        for it."""
        known = frozenset(_all_of(lease))
        new = [each for each in found if each not in known][:MAX_WATCHED]
        try:
            self._processes.keep(new, lease.holder)
        except OSError as error:
            log.debug("%d processes are looked at now and then: %s", len(new), error)

    def _living(self, lease: _Lease) -> set[evict.Target]:
        return self._processes.living(_all_of(lease), lease.holder)

    def _call(self, lease: _Lease, look: Callable[..., T], *args: Any) -> T:
        """Look at a holder's processes, which can make that wait. Raises an OSError where it does not end in time."""
        return self._lookers.call(self._account(lease), look, *args, within_s=EVICT_S)

    def _left(self, lease: _Lease) -> list[str]:
        """Name some of the processes that keep the lease, and what traces these."""
        left = [pid for pid, _ in self._living(lease)]
        if lease.untouchable:
            why = "is not ours to end: the server may not signal it, or was itself started by it"
            return [f"{self._described(lease, pid)} {why}" for pid in left[: stuck.MAX_NAMED]]
        found = self._call(lease, stuck.described, left)
        by = self._call(lease, tracers.tracers_of, list(found))[: stuck.MAX_NAMED]
        traced = [f"{self._described(lease, pid)} traces it" for pid in by]
        return [f"{text} (account {self._name_of(lease, pid)})" for pid, text in found.items()] + traced

    def _described(self, lease: _Lease, pid: int) -> str:
        return f"{self._call(lease, tracers.described, pid)} (account {self._name_of(lease, pid)})"

    def _name_of(self, lease: _Lease, pid: int) -> str:
        uid = self._call(lease, procs.uid_of, pid)
        return "?" if uid is None else self._processes.account(uid).name

    @contextlib.contextmanager
    def _or_again(self, name: str, act: Callable[[str], None]) -> Iterator[None]:
        """Nobody calls a second time: what fails, for want of a descriptor or of room on the disk, is done again."""
        lease = self._known.get(name)
        try:
            yield
        except OSError as error:
            if lease is None:
                raise
            if not lease.failing:
                log.error("%s: %s; trying again", name, error)
            lease.failing = True
            with self._lock:
                self._set_due(name, lease, act, RETRY_S)
        else:
            if lease is not None:
                lease.failing = False

    # -- files

    def _ended(self, name: str) -> Exit | None:
        return claims.exit_in(f"{self._dir}/ended/{name}")

    def _record_end(self, name: str, end: Exit) -> Exit:
        content = records.dump(claims.exit_record(end))
        ended = f"{self._dir}/ended"
        if not records.publish(self._root, ended, name, content, replace=False) and self._ended(name) is None:
            records.publish(self._root, ended, name, content)  # over one that cannot be read
        return self._ended(name) or end

    def _write(self, name: str, lease: _Lease) -> None:
        holder = lease.holder
        content = {
            "pid": holder.pid,
            "start": holder.start_ticks,
            "boot_id": holder.boot_id,
            "uid": holder.uid,
            "tick": lease.tick,
            "cause": lease.cause.value,
            "brood": lease.brood[:MAX_BROOD],
            "spared": [each for each in lease.brood[:MAX_BROOD] if each in lease.spared],
            "asked": lease.asked,
            "kill_by": None if lease.kill_by == math.inf else lease.kill_by,
        }
        records.publish(self._root, self._dir, name, records.dump(content))

    def _read(self, name: str) -> _Lease | None:
        record: dict[str, Any] | None = records.read(f"{self._dir}/{name}")
        if record is None:
            return None
        lease = _lease_of(record)
        if lease is None:
            what = "the lease is given again to the process that the store names; what that started is not known"
            damaged.say(f"{self._dir}/{name}", what)
        return lease


def _all_of(lease: _Lease) -> tuple[evict.Target, ...]:
    return ((lease.holder.pid, lease.holder.start_ticks), *lease.brood)


def _way_out(name: str) -> str:
    return f"it keeps its lease while it lives, or until an admin gives it back with rota cancel --force {run_of(name)}"


def _targets(found: Any) -> tuple[evict.Target, ...] | None:
    """None: these are none."""
    if not isinstance(found, list):
        return None
    if not all(isinstance(each, list) and len(each) == 2 and all(map(records.is_whole_number, each)) for each in found):
        return None
    return tuple((pid, start) for pid, start in found)


def _lease_of(record: Mapping[str, Any]) -> _Lease | None:
    """None: it is not whole."""
    uid, brood, spared = record.get("uid", -1), _targets(record.get("brood")), _targets(record.get("spared", []))
    if not (
        all(records.is_whole_number(each) for each in (record.get("pid"), record.get("start"), uid))
        and isinstance(record.get("boot_id"), str)
        and records.is_number(record.get("tick"))
        and record.get("cause") in claims.CAUSES
        and brood is not None
        and spared is not None
    ):
        return None
    holder = Holder(record["pid"], record["start"], record["boot_id"], uid)
    lease = _Lease(holder, record["tick"], Cause(record["cause"]), brood, frozenset(spared))
    match record.get("asked"):  # nor has a record of an older version one
        case [str(cause), int(number)]:
            lease.asked = (cause, number)
    if records.is_number(record.get("kill_by")):
        lease.kill_by = record["kill_by"]
    return lease


def _checked(attempt_id: str) -> str:
    if not is_attempt_id(attempt_id):
        raise ValueError(f"not an attempt id: {attempt_id!r}")
    return attempt_id
