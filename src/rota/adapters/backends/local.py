"""The local backend: attempts as processes of this machine, each under a shim of its own that outlives the server.

What is true of an attempt is in its files and its lock (see records, claims); this class remembers only which
attempts somebody waits for, so that it can say `Started` and `Ended`. `Started` may be left out when the end was seen
first. Reports are made by the watcher's thread, with no lock held; the same end may be reported again when asked for
again (launch or stop of an attempt that is over).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from rota.adapters.backends import claims, heard, logs, procs, records, stuck, supervisors
from rota.adapters.backends.launcher import Launcher, Overloaded, order_frame
from rota.adapters.backends.lookers import WITHIN_S as SHORT_S
from rota.adapters.backends.lookers import Lookers
from rota.adapters.backends.pins import WITHIN_S, Directory, Pins
from rota.adapters.backends.purge import purge
from rota.adapters.backends.turns import Act, Turns
from rota.adapters.backends.watch import Watcher
from rota.adapters.backends.zygote import MAX_FRAME
from rota.adapters.processes import may_keep
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
from rota.core.ids import is_attempt_id
from rota.core.run import Cause, Exit

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_TRIES = 3  # orders for one attempt whose shims die before they claim it
MAX_CONTINUED = 2  # times that a stopped process is continued before it is killed
CLAIMED_WITHIN_S = 5.0  # an order; where it takes longer, it is looked whether the launcher was stopped
CONTINUED_WITHIN_S = 1.0  # between two looks whether a stopped process that was continued is stopped again
LAUNCHES_LOOKED_AT = 100  # in one look: the watcher has other things to do
LOOK_S = 0.05  # of each kind of waiting in `observe`: the one writer stands still meanwhile
AT_ONCE_S = 0.5  # of all of it
STANDS_S, STANDS_IN_S = 1.5, 10.0  # of all attempts together
LISTED_WITHIN_S = heard.LOOK_S + 1.0  # a look at all of a run, which ends by itself before that
LOOK_AGAIN_S = 0.02
ADOPTED_LOOK_S = 2.0
MAX_VAIN = 250
SUPERVISORS_LOOK_S = 2.0  # between two looks whether supervisors wait in the kernel
BURY_FIRST_S = 1.0  # a first burial, so that others have their turn
BURY_AGAIN_S, DOUBLED = 1.0, 5  # until it is tried again: doubled after each in vain, so many times at most
RETRY_S = 0.5  # after a look that failed, as for want of a descriptor
CLOSED_WITHIN_S = 1.0  # what looks at supervisors; it may wait for a file system


@dataclass(slots=True)
class _Attempt:
    """What we remember of an attempt somebody waits for."""

    order: bytes = b""  # kept until it is claimed, to be sent again if the zygote dies
    saves_in: Directory | None = None  # what has to be open before the order is handed over
    tries: int = 1
    ours: bool = False  # our zygote's: it will tell us when the shim ends
    started: bool = False  # reported
    pidfd: int = -1  # of a shim that is not our zygote's
    burying: bool = False  # the undertaker has it, or will
    resists: int = 0  # how often something of it did not die
    unseen: bool = False  # the last look failed
    overdue: bool = False  # its end, by the last stop
    woken: bool = False  # its supervisor, since then
    continued: int = 0  # how often that was found to hear nothing
    unwatched: bool = False  # the last look at it failed while its end was overdue
    vain: int = 0  # looks that found it held, and by whom they could not tell
    sent_at: float = 0.0  # when its order was handed over, by the awake clock
    claimant: tuple[int, int] | None = None  # pid and start time of its supervisor
    # Threads of the supervisor that wait in the kernel: how often each had run, and since when that is so.
    waits: dict[str, tuple[int, float]] = field(default_factory=dict)
    hangs: bool = False  # one of them for so long that it was named


def _none(account: int | str) -> procs.Ranges:
    return ()


class LocalBackend:
    def __init__(
        self,
        root: Path,
        *,
        cgroups: bool = True,
        deny: Sequence[tuple[int, int]] = (),
        zygote_prefix: Sequence[str] = (),
        processes: int | None = None,
        memory_bytes: int | None = None,
        least_free: int = 0,
        subuids: Callable[[int | str], procs.Ranges] = _none,
    ) -> None:
        """Bound each attempt to `processes` (None: by the machine's cores), and all of them together to `memory_bytes`
        (None: the machine's memory less a reserve). No log grows while fewer bytes than `least_free` are free.
        `subuids` tells the subordinate ids of an account, which is given by its name or its id."""
        self._root = str(root.absolute())
        self._launcher = Launcher(
            Path(self._root),
            cgroups=cgroups,
            deny=deny,
            prefix=zygote_prefix,
            processes=processes,
            memory_bytes=memory_bytes,
            least_free=least_free,
        )
        self._subuids = subuids
        self._known: dict[str, _Attempt] = {}
        self._lock = threading.Lock()  # guards _known; never held while reporting
        self._news = threading.Condition(self._lock)
        self._watcher: Watcher | None = None
        self._undertaker: Turns | None = None
        self._in_hand: set[str] = set()  # attempts that a thread is burying
        self._installation = ""
        self._pins: list[int] = []
        self._directories = Pins()
        self._lookers = Lookers()
        self._looking: threading.Thread | None = None  # at supervisors
        self._look_now = threading.Event()
        self._stood_since, self._stood_s = -STANDS_IN_S, 0.0  # the writer's thread alone uses these
        self._awaits_claims = False  # a look at orders that nobody has claimed is due
        self._stalls = 0  # looks in a row that found a stopped launcher
        self._report: Callable[[Report], None] = lambda report: None

    # -- the port

    def open(self, report: Callable[[Report], None]) -> None:
        self._report = report
        for name in ("", "attempts", "live", "checkpoints"):
            # other accounts must reach their own checkpoints, and nothing else
            mode = 0o711 if name in ("", "checkpoints") and os.geteuid() == 0 else 0o700
            if not os.path.lexists(f"{self._root}/{name}"):  # else it would wait for the lock of the one above
                os.makedirs(f"{self._root}/{name}", mode=mode, exist_ok=True)
        # What is open stays known to the kernel. Else it could be looked up anew, which waits for the lock of the data
        # directory, and accounts that can search that can hold it.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self._pins = [os.open(f"{self._root}/{name}", flags) for name in ("attempts", "live", "checkpoints")]
        _make_fifo(f"{self._root}/nudge")
        self._installation = self._named()
        self._clear_private()
        self._watcher = Watcher(Path(self._root, "nudge"), self._launcher, self._settle, self._gone, self._reborn)
        self._watcher.start()
        self._undertaker = Turns("rota-undertaker", self._after, urgent_beside=True)
        self._undertaker.open()
        self._looking = threading.Thread(target=self._look_at_supervisors, name="rota-supervisors", daemon=True)
        self._looking.start()
        if self.strays():
            self._lookers.prepare()

    @property
    def group_name(self) -> str:
        """The name of the cgroups, in every hierarchy, below which all attempts are."""
        return self._launcher.group_name

    def enforced(self) -> frozenset[str] | None:
        return self._launcher.enforced

    def launch(self, *orders: LaunchOrder) -> None:
        for order in orders:
            self._launch(order)
        self._flush()

    def _launch(self, order: LaunchOrder) -> None:
        name = _checked(order.attempt_id)
        if order.holder is not None:
            self._refuse(name, "a lease is its holder's own process: there is nothing to launch")
            return
        subuids = self._subuids(os.geteuid() if order.account is None else order.account)
        content = order_frame(order, self._installation, subuids)
        if len(content) > MAX_FRAME or not order.argv or not order.tasks:
            self._refuse(name, "the order is too large" if order.argv and order.tasks else "there is nothing to run")
            return
        with self._lock:
            if name in self._known:
                self._soon(name)
                return
            self._known[name] = _Attempt(content, _saves_in(order), ours=True, sent_at=procs.time_awake())
        if os.path.exists(records.attempt_dir(self._root, name)):
            with self._lock:
                if (attempt := self._known.get(name)) is not None:
                    attempt.ours = False
            self._soon(name)
            return
        self._queue(name, content)

    def stop(self, attempt_id: str, order: StopOrder) -> None:
        name = _checked(attempt_id)
        directory = records.attempt_dir(self._root, name)
        never = Exit(Cause.NEVER_STARTED, message="stopped before it was started", ended_tick=procs.boottime())
        if (os.path.exists(directory) or not claims.veto(self._root, name, never)) and claims.read_exit(
            directory
        ) is None:
            content = {
                "cause": order.cause,
                "signal": int(order.signal),
                "grace_s": order.grace_s,
                "saves": order.saves,
            }
            # It is ordered again every few seconds, and on a full disk each record takes a spare file.
            if records.read(f"{directory}/stop") != content:
                records.publish(self._root, directory, "stop", records.dump(content))
            # The shim records its pid and then looks for a stop; we the other way round. One of the two sees the other.
            sight = claims.look(self._root, name)
            # A job of the server's own account can stop its supervisor, even before that has recorded its pid.
            if isinstance(sight, claims.Held) and (shim := sight.shim or claims.claimant(directory)) is not None:
                if order.overdue:  # whether it hears anything is looked at before it is woken
                    self._hasten(name)
                else:
                    self._wake(name, shim)
        self._adopt(name)

    def observe(self, attempt_id: str) -> Observation:
        name = _checked(attempt_id)
        sight = claims.look(self._root, name)
        if isinstance(sight, claims.Deserted):
            # what does not die at once lives: `_adopt` leaves it to the undertaker, who says when it is over
            sight = self._buried_at_once(name) or claims.Held(None, None)
        match sight:
            case Exit():
                return sight
            case claims.Held(_, task):
                self._adopt(name)
                return Live(task)
            case _:
                return Absent()

    def stalled_by(self, attempt_id: str) -> str:
        name = _checked(attempt_id)
        match claims.look(self._root, name):
            case claims.Unclaimed():
                stopped = self._stopped_of_launcher()
                listed = ", ".join(map(str, stopped))
                text = f"processes of the launcher are stopped (state T): {listed}; they are continued, or made anew"
                return text if stopped else ""
            case claims.Held(shim):
                shim = shim or claims.claimant(records.attempt_dir(self._root, name))
                if shim is not None and self._explain(name, procs.is_stopped, shim[0]):
                    return (
                        f"its supervisor, process {shim[0]}, is stopped (state T) or traced (t), so that it keeps to "
                        f"neither a time limit nor a stop by itself; each stop continues it, and when its end is "
                        f"overdue the server kills it and all that it started"
                    )
                return self._stuck(name, None if shim is None else shim[0])
            case claims.Deserted():
                return self._stuck(name, None)
        return ""

    def _stuck(self, name: str, shim: int | None) -> str:
        """Name a supervisor that hangs, and what is left of an attempt some seconds after a stop was to have killed it,
        or after its supervisor did so by itself, at a time limit or at the end of its first process."""
        directory = records.attempt_dir(self._root, name)
        where = f"{directory}/stop"
        grace_s: Any = (records.read(where) or {}).get("grace_s")
        stopped = records.is_number(grace_s) and time.time() >= os.stat(where).st_mtime + grace_s + stuck.AFTER_S
        hangs = self._hanging(name, shim)
        if not stopped and not os.path.exists(f"{directory}/stuck"):
            return hangs
        left = self._explain(name, supervisors.left, self._root, name, shim, within_s=LISTED_WITHIN_S)
        return "; ".join(each for each in (hangs, *left) if each) or self._explain(name, stuck.unexplained, shim)

    def _hanging(self, name: str, shim: int | None) -> str:
        """Name a supervisor that has waited in the kernel for some seconds; "" = it has not, or it goes on."""
        attempt = self._known.get(name)
        hangs = shim is not None and attempt is not None and attempt.hangs
        functions = self._explain(name, stuck.waits, shim) if hangs else []
        return stuck.supervisor(shim, functions, name.partition("-")[0]) if shim is not None and functions else ""

    def strays(self) -> Collection[str]:
        return [name for name in os.listdir(f"{self._root}/live") if is_attempt_id(name)]

    def sweep(self, attempt_id: str, account: str | None) -> None:
        name = _checked(attempt_id)
        try:
            uid = os.geteuid() if account is None else pwd.getpwnam(account).pw_uid
        except KeyError:
            log.error("%s ran as %s, an account that is gone: what is left of it cannot be told", name, account)
            return
        self._ask(name, claims.sweep, self._root, name, uid, within_s=claims.BURIAL_S + SHORT_S, in_turn=False)

    def forget(self, attempt_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._root}/live/{_checked(attempt_id)}")

    def read_log(self, attempt_id: str, offset: int, limit: int) -> LogChunk:
        return logs.read_log(self._root, _checked(attempt_id), offset, limit)

    def purge(self, before: float) -> int:
        return purge(self._root, before)

    def close(self) -> None:
        if self._watcher is None:
            return
        self._watcher.stop()
        self._launcher.stop()
        if self._undertaker is not None:
            self._undertaker.close(0.0)  # a looker that waits in the kernel may never end
        for attempt in self._known.values():
            if attempt.pidfd >= 0:
                os.close(attempt.pidfd)
        self._known.clear()
        while self._pins:
            os.close(self._pins.pop())
        self._directories.close()
        self._watcher = None
        self._look_now.set()
        self._lookers.close()
        if self._looking is not None:
            self._looking.join(CLOSED_WITHIN_S)

    # -- in any thread

    def _is_open(self) -> bool:
        return self._watcher is not None

    def _queue(self, name: str, content: bytes) -> None:
        attempt, watcher = self._known.get(name), self._watcher
        wanted = attempt.saves_in if attempt is not None else None
        if wanted is None or watcher is None or self._directories.is_open(wanted.path):
            self._hand_over(name, content)
        else:
            watcher.post(lambda: self._open_directory(name, content, wanted))

    def _hand_over(self, name: str, content: bytes) -> None:
        try:
            self._launcher.queue(content)
        except Overloaded as error:
            self._refuse(name, str(error))
        with self._lock:
            awaited, self._awaits_claims = self._awaits_claims, True
        if not awaited and (watcher := self._watcher) is not None:
            watcher.post(lambda: watcher.later(CLAIMED_WITHIN_S, self._look_at_launches))

    def _ask(
        self,
        name: str,
        look: Callable[..., T],
        *args: Any,
        kind: str = "",
        within_s: float = SHORT_S,
        in_turn: bool = True,
    ) -> T:
        """Look at processes of an attempt or at its supervisor, or at the launcher: name "". Raises Unseen where that
        does not end in time. It counts for the account that the processes have."""
        uid = claims.account_of(self._root, name) if name else None
        party = "the launcher" if not name else f"attempt {name}" if uid is None else uid
        return self._lookers.call(party, look, *args, within_s=within_s, place=name, kind=kind, in_turn=in_turn)

    def _explain(self, name: str, look: Callable[..., T], *args: Any, within_s: float = SHORT_S) -> T:
        """Look because somebody asks why: the server's own looks do not wait for that."""
        return self._ask(name, look, *args, kind="explanations", within_s=within_s)

    def _wake(self, name: str, shim: tuple[int, int]) -> None:
        """Have a supervisor look for its stop, also one that was stopped itself."""
        pidfd = self._pin(name, shim)
        if pidfd < 0:
            return
        try:
            for signum in (signal.SIGUSR1, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    signal.pidfd_send_signal(pidfd, signum)
        finally:
            os.close(pidfd)

    def _pin(self, name: str, shim: tuple[int, int]) -> int:
        """Return a pidfd of a supervisor; -1 when it is gone."""
        if serial := claims.serial(records.attempt_dir(self._root, name)):
            return procs.pin(shim[0], serial)
        try:
            pidfd = os.pidfd_open(shim[0])
        except OSError as error:
            procs.must_be_known(error)
            return -1
        is_it = False
        try:
            is_it = self._ask(name, procs.start_time, shim[0]) == shim[1]
        finally:
            if not is_it:
                os.close(pidfd)
        return pidfd if is_it else -1

    def _stopped_of_launcher(self) -> list[int]:
        launcher = self._launcher.pid
        try:
            return [] if launcher is None else self._ask("", supervisors.stopped_of_launcher, launcher)
        except Unseen:  # it is looked at again in a while
            return []

    def _buried_at_once(self, name: str) -> Exit | None:
        """Bury what dies at once: the one writer stands still meanwhile, for STANDS_S in STANDS_IN_S at most. Something
        that does not die, and whatever is beyond that, is the undertaker's."""
        attempt, begun = self._known.get(name), time.monotonic()
        if begun - self._stood_since > STANDS_IN_S:
            self._stood_since, self._stood_s = begun, 0.0
        if (attempt is not None and attempt.resists) or self._stood_s >= STANDS_S:
            return None
        self._await_gone(name)
        try:
            with self._alone_with(name) as alone:
                if not alone:
                    return None
                end = self._buried(name, LOOK_S, within_s=AT_ONCE_S, in_turn=False)
        except Unseen:
            return None
        finally:
            self._stood_s += time.monotonic() - begun
        if end is None:
            with self._lock:
                self._known.setdefault(name, _Attempt()).resists += 1
        return end

    @contextlib.contextmanager
    def _alone_with(self, name: str) -> Iterator[bool]:
        """Tell whether no other thread is burying an attempt, and keep the others from it."""
        with self._lock:
            alone = name not in self._in_hand
            self._in_hand.add(name)
        try:
            yield alone
        finally:
            if alone:
                with self._lock:
                    self._in_hand.discard(name)

    def _buried(self, name: str, timeout_s: float, *, within_s: float, in_turn: bool) -> Exit | None:
        """See `claims.bury`."""

        def end_all(uid: int | None, group: str) -> bool:
            subuids = () if uid is None else self._subuids(uid)
            given = (self._root, name, uid, group, timeout_s, subuids)
            kind = "burials" if in_turn else ""
            are_gone, texts = self._ask(name, claims.end_all, *given, kind=kind, within_s=within_s, in_turn=in_turn)
            for text in texts:
                log.warning("%s: %s", name, text)
            return are_gone

        return claims.bury(self._root, name, end_all)

    def _flush(self) -> None:
        self._launcher.flush()
        if self._launcher.behind and self._watcher is not None:
            self._watcher.wake()

    def _hasten(self, name: str) -> None:
        """Have a supervisor whose end is overdue looked at at once, and woken."""
        with self._lock:
            attempt = self._known.setdefault(name, _Attempt())
            attempt.overdue, attempt.woken = True, False
        self._look_now.set()

    def _adopt(self, name: str) -> None:
        with self._lock:
            self._known.setdefault(name, _Attempt())
        self._soon(name)

    def _after(self, delay_s: float, act: Act) -> Act:
        if (watcher := self._watcher) is not None:
            watcher.post(lambda: watcher.later(delay_s, act))
        return lambda: None  # nobody calls it off

    def _soon(self, name: str) -> None:
        if self._watcher is not None:
            self._watcher.post(lambda: self._settle(name))

    def _refuse(self, name: str, why: str, cause: Cause = Cause.LAUNCH_FAILED, *, shortage: bool = False) -> None:
        """An order that cannot be carried out, and that nobody is carrying out: ended on record, like any failure to
        launch."""
        code = 126 if cause is Cause.LAUNCH_FAILED else None
        end = Exit(cause, code=code, message=why, shortage=shortage, ended_tick=procs.boottime())
        try:
            claims.veto(self._root, name, end)
        except OSError as error:
            # No room even for that: not on record, but as no order for it is on its way it stays true.
            if cause is Cause.LOST and (short := records.shortage(error)):
                end = replace(end, message=short, shortage=True)
            with self._lock:
                self._known.setdefault(name, _Attempt())
            if self._watcher is not None:
                self._watcher.post(lambda: self._finish(name, end))
            return
        self._adopt(name)

    def _await_gone(self, name: str) -> None:
        """Our zygote kills what a dead shim of its own leaves behind, even without cgroup and marker. Give it the
        time."""
        with self._news:
            self._news.wait_for(lambda: not ((attempt := self._known.get(name)) and attempt.ours), LOOK_S)

    def _named(self) -> str:
        """Return the name of this data directory, made if it has none; "" where the disk is full: a start matters more,
        and the id alone is the mark then."""
        try:
            records.make_installation_id(self._root)
        except OSError as error:
            if error.errno not in records.FULL:
                raise
            log.error("the data directory gets no name now, so its processes are known by their ids alone: %s", error)
        return records.installation_id(self._root)

    def _clear_private(self) -> None:
        """Remove claims that were never made, and what is left of attempts that were being removed. A name begins with
        the pid of its maker; one that lives may still be at it, but not ourselves, who begin."""
        for place in ("attempts", "live", records.OLD_PRIVATE):
            try:
                names = os.listdir(f"{self._root}/{place}")
            except FileNotFoundError:
                continue  # no earlier version was here
            for name in names if place == records.OLD_PRIVATE else filter(records.is_private, names):
                pid = name.removeprefix(".").partition(".")[0]
                with contextlib.suppress(OSError):  # it is looked for again at the next start
                    if not pid.isdigit() or int(pid) == os.getpid() or procs.start_time(int(pid)) is None:
                        records.discard(f"{self._root}/{place}/{name}", f"{self._root}/live/{name}")

    # -- in the watcher's thread

    def _open_directory(self, name: str, content: bytes, wanted: Directory) -> None:
        def then(answered: bool) -> None:
            if not answered:
                above = os.path.dirname(wanted.path)
                why = f"{above} did not answer within {WITHIN_S:g} s: a process of another account may hold its lock"
                self._refuse(name, f"could not be started: {why}", Cause.LOST, shortage=True)
            elif (attempt := self._known.get(name)) is not None:
                attempt.sent_at = procs.time_awake()
                self._hand_over(name, content)
                self._flush()

        assert self._watcher is not None
        try:
            self._directories.ask(name, wanted, then, self._watcher)
        except OSError as error:
            why = records.shortage(error)
            self._refuse(name, why or str(error), Cause.LOST, shortage=bool(why))

    def _settle(self, name: str) -> None:
        """Look at the files and do what they ask for. Harmless at any time, for any name. A look that fails tells
        nothing, neither that it runs nor that it has ended, and nobody may ever call again: it is repeated."""
        try:
            self._look(name)
        except OSError as error:
            attempt, watcher = self._known.get(name), self._watcher
            if attempt is None or watcher is None:
                return
            if not attempt.unseen:
                log.error("%s cannot be looked at, trying again: %s", name, error)
            attempt.unseen = True
            watcher.later(RETRY_S, lambda: self._settle(name))
        else:
            attempt = self._known.get(name)
            if attempt is not None:
                attempt.unseen = False

    def _look(self, name: str) -> None:
        attempt = self._known.get(name)
        if attempt is None or attempt.burying:
            return
        match claims.look(self._root, name, trust_pid=attempt.ours):
            case Exit() as end:
                self._finish(name, end)
            case claims.Held(shim, task):
                attempt.order = b""
                if task is not None and not attempt.started:
                    attempt.started = True
                    self._report(Started(name, task))
                if not attempt.ours and attempt.pidfd < 0:
                    self._follow(name, attempt, shim)
            case claims.Deserted() if not attempt.ours:
                uid = claims.account_of(self._root, name)
                account = os.geteuid() if uid is None else uid
                assert self._undertaker is not None
                attempt.burying = True  # last: a look that fails is repeated
                self._undertaker.put(account, name, lambda: self._bury(name), urgent=not attempt.resists)
            case claims.Unclaimed() if not attempt.ours:
                self._try_again(name, attempt)
            case _:
                pass  # our zygote will say when its shim is gone

    def _finish(self, name: str, end: Exit) -> None:
        with self._lock:
            attempt = self._known.pop(name, None)
        if attempt is None:
            return
        if attempt.pidfd >= 0 and self._watcher is not None:
            self._watcher.unfollow(attempt.pidfd)
        self._report(Ended(name, end))

    def _follow(self, name: str, attempt: _Attempt, shim: tuple[int, int] | None) -> None:
        """Be told of the end of a shim that is not our zygote's."""
        assert self._watcher is not None
        pidfd = -1 if shim is None else self._pin(name, shim)
        if not may_keep(pidfd):  # there are too many to follow: it is looked at now and then
            os.close(pidfd)
            self._watcher.later(ADOPTED_LOOK_S, lambda: self._settle(name))
            return
        if pidfd < 0:  # being born, or just dead while a child of it still holds the lock: soon it is clear which
            attempt.vain += 1  # else its pid record is damaged, or gone: then it is looked at now and then
            again_s = LOOK_AGAIN_S if attempt.vain < MAX_VAIN else ADOPTED_LOOK_S
            self._watcher.later(again_s, lambda: self._settle(name))
            return
        attempt.pidfd = pidfd
        self._watcher.later(ADOPTED_LOOK_S, lambda: self._look_on(name))

        def ended() -> None:
            attempt.pidfd = -1
            self._settle(name)

        self._watcher.follow(pidfd, ended)

    def _look_on(self, name: str) -> None:
        """The shim of an adopted attempt may outlive it, and its nudge may have been lost: look now and then."""
        assert self._watcher is not None
        if name in self._known:
            self._settle(name)
            self._watcher.later(ADOPTED_LOOK_S, lambda: self._look_on(name))

    def _gone(self, name: str) -> None:
        """Our zygote says the shim of this attempt ended, and that nothing it left behind lives."""
        with self._news:
            attempt = self._known.get(name)
            if attempt is None:
                return
            attempt.ours = False
            self._news.notify_all()
        self._settle(name)

    def _reborn(self) -> None:
        """There is a new zygote; of the shims of the last one we now have to see for ourselves."""
        with self._news:
            names = list(self._known)
            for attempt in self._known.values():
                attempt.ours = False
            self._news.notify_all()
        for name in names:
            self._settle(name)

    def _try_again(self, name: str, attempt: _Attempt) -> None:
        """Nobody claimed it and nobody is on the way. Safe: of two claims one fails."""
        if not attempt.order:
            with self._lock:
                self._known.pop(name, None)
            return
        attempt.tries += 1
        if attempt.tries > MAX_TRIES:
            # not the run's own fault: as lost, it may be tried again later
            self._refuse(name, f"the launcher failed again and again; see {self._root}/zygote.log", Cause.LOST)
            return
        attempt.ours, attempt.sent_at = True, procs.time_awake()
        self._queue(name, attempt.order)
        self._flush()

    def _look_at_launches(self) -> None:
        """Where the launcher does not take orders although it is there, see whether somebody stopped it: a job of the
        server's own account can. To send an order to another launcher is safe: of two claims one fails."""
        assert self._watcher is not None
        before = procs.time_awake() - CLAIMED_WITHIN_S
        with self._lock:
            waiting = [(name, each) for name, each in self._known.items() if each.order and each.ours]
            self._awaits_claims = bool(waiting)
        late = [(name, each) for name, each in waiting if each.sent_at <= before][:LAUNCHES_LOOKED_AT]
        is_stalled = False
        try:
            for name, _ in late:
                self._settle(name)  # it may have been claimed, and the nudge lost
            still = any(each.order and self._known.get(name) is each for name, each in late)
            is_stalled = still and self._wake_launcher()
            if not is_stalled:
                self._stalls = 0
        finally:  # a look that fails (no descriptor is free) is repeated
            if waiting:
                self._watcher.later(CONTINUED_WITHIN_S if is_stalled else CLAIMED_WITHIN_S, self._look_at_launches)

    def _wake_launcher(self) -> bool:
        """Continue the launcher and its workers where they were stopped, or kill those that are stopped again and
        again: of a launcher and of an idle worker nothing is lost. Return whether any was stopped."""
        launcher = self._launcher.pid
        stopped = self._stopped_of_launcher()
        if launcher is None or not stopped:
            return False
        self._stalls += 1
        if self._stalls <= MAX_CONTINUED:
            log.warning("starts wait for processes of the launcher that were stopped: continuing %s", stopped)
            self._launcher.send(signal.SIGCONT, stopped)
            return True
        directories = (records.attempt_dir(self._root, name) for name in self.strays())
        carrying = {shim[0] for directory in directories if (shim := claims.claimant(directory)) is not None}
        stopped = [launcher] if launcher in stopped else [pid for pid in stopped if pid not in carrying]
        log.warning("starts wait for processes of the launcher that are stopped again and again: killing %s", stopped)
        self._launcher.send(signal.SIGKILL, stopped)
        return True

    # -- in a thread of its own

    def _look_at_supervisors(self) -> None:
        """Find the supervisors that wait in the kernel and go on for no signal, and name each once in the log. Kill
        those that do not hear that their end is overdue."""
        while self._is_open():
            self._look_now.wait(SUPERVISORS_LOOK_S)
            self._look_now.clear()
            with self._lock:
                known = list(self._known.items())
            for name, attempt in known:
                if not self._is_open():
                    return
                try:
                    if attempt.overdue:
                        self._tell(name, attempt)
                    self._look_at_supervisor(name, attempt)
                    attempt.unwatched = False
                except OSError as error:  # it is looked at again in the next round
                    level = logging.WARNING if attempt.overdue and not attempt.unwatched else logging.DEBUG
                    attempt.unwatched = attempt.overdue
                    log.log(level, "%s: its supervisor cannot be looked at, trying again: %s", name, error)
                except Exception:  # a defect of one look must not keep the other supervisors from being looked at
                    log.exception("%s: its supervisor cannot be looked at", name)

    def _tell(self, name: str, attempt: _Attempt) -> None:
        """Have a supervisor look for its stop, also one that was stopped itself. Where that was in vain, kill it: what
        it leaves behind is found by its cgroup and its mark, as of any that was killed."""
        sight = claims.look(self._root, name)
        if not isinstance(sight, claims.Held):
            return
        shim = sight.shim or claims.claimant(records.attempt_dir(self._root, name))
        if shim is None:
            return
        is_deaf = self._is_deaf(name, shim, sight.shim is not None)
        attempt.continued += is_deaf
        if is_deaf and attempt.continued > MAX_CONTINUED:
            if attempt.continued == MAX_CONTINUED + 1:
                why = "is stopped again and again or waits for a file system"
                log.warning("%s: killing its supervisor, process %d, which %s", name, shim[0], why)
            self._ask(name, supervisors.kill_with_children, shim)
        elif is_deaf or not attempt.woken:
            attempt.woken = True  # first: another stop may come meanwhile, and be for a later round
            try:
                self._wake(name, shim)
            except OSError:
                attempt.woken = False
                raise

    def _is_deaf(self, name: str, shim: tuple[int, int], has_begun: bool) -> bool:
        try:
            return self._ask(name, supervisors.is_deaf, shim[0], has_begun)
        except OSError as error:  # it may hear its stop all the same
            log.debug("%s: whether its supervisor hears a stop is not known: %s", name, error.strerror)
            return False

    def _look_at_supervisor(self, name: str, attempt: _Attempt) -> None:
        if attempt.claimant is None:
            attempt.claimant = claims.claimant(records.attempt_dir(self._root, name))
        if attempt.claimant is None or (seen := self._ask(name, supervisors.waiting, attempt.claimant)) is None:
            return
        pid, now, before = attempt.claimant[0], procs.time_awake(), attempt.waits
        attempt.waits = {
            each: before[each] if each in before and before[each][0] == ran else (ran, now)
            for each, ran in seen.items()
        }
        hung, attempt.hangs = attempt.hangs, any(now - at >= stuck.AFTER_S for _, at in attempt.waits.values())
        if attempt.hangs and not hung:
            log.warning(
                "%s: %s", name, stuck.supervisor(pid, self._ask(name, stuck.waits, pid), name.partition("-")[0])
            )

    # -- in the undertaker's threads

    def _bury(self, name: str) -> None:
        if (attempt := self._known.get(name)) is None:  # somebody saw its end meanwhile
            return
        timeout_s = claims.BURIAL_S if attempt.resists > 1 else BURY_FIRST_S
        again_s = BURY_AGAIN_S * 2 ** min(attempt.resists, DOUBLED)
        try:
            with self._alone_with(name) as alone:
                if alone:
                    attempt.resists += 1
                    # each of the three looks of it has that long
                    if self._buried(name, timeout_s, within_s=3 * timeout_s + SHORT_S, in_turn=True) is not None:
                        again_s = 0.0
        except OSError as error:  # whatever went wrong (a full disk): it is tried again
            log.error("%s cannot be swept, trying again: %s", name, error)
        except Exception:  # a defect, of one attempt perhaps: nobody else would end it
            log.exception("%s cannot be swept, trying again", name)

        def look_again() -> None:
            attempt.burying = False
            self._settle(name)

        if (watcher := self._watcher) is not None:
            watcher.post(lambda: watcher.later(again_s, look_again))


def _checked(attempt_id: str) -> str:
    if not is_attempt_id(attempt_id):
        raise ValueError(f"not an attempt id: {attempt_id!r}")
    return attempt_id


def _saves_in(order: LaunchOrder) -> Directory | None:
    """Return what a supervisor of root's must find open: the directory of the account, or that of the run which an
    earlier version made."""
    if order.checkpoint_dir is None or os.geteuid() != 0:
        return None
    return Directory(order.checkpoint_parent or order.checkpoint_dir, order.checkpoint_parent is not None)


def _make_fifo(path: str) -> None:
    """Make the FIFO that shims write to. Whatever else has its name is replaced: nothing is kept in it."""
    try:
        if not stat.S_ISFIFO(os.lstat(path).st_mode):
            log.warning("%s is no FIFO; it is replaced", path)
            os.unlink(path)
    except FileNotFoundError:
        pass
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
