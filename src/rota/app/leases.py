"""Leases: GPUs for a process that is there already, for as long as it lives. A lease is a run like any other.

Who asks gets a future that is answered when the GPUs are durably its own, and may leave while it waits. Only the
waiting is kept here, and all of it can be found again: which process, how many GPUs and under which key stand in the
run itself. A request with a key that was made before joins the one that is there, waiting or given, so that a client
that lost its connection, or outlived a restart of the server, keeps its place.

Everything may be called from any thread; nothing blocks. Futures are answered on the loop's thread or the watcher's.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field, replace
from threading import RLock

from rota.app.authz import Principal, Role
from rota.app.commands import EndLease, Submit, Withdraw
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound, Refused, Unavailable
from rota.app.ports import Processes, Seen, StoreError
from rota.app.problems import made_visible
from rota.app.service import Service
from rota.core import events as e
from rota.core.flat import Flat
from rota.core.ids import run_of
from rota.core.resources import Request
from rota.core.run import ACTIVE, ENDED, WAITING, Holder, Run, Spec

log = logging.getLogger(__name__)

HOUSE = Principal("rota", Role.ADMIN)
KEY = "lease_key"  # the label that keeps the key
MAX_WAITERS = 10_000
MAX_OF_ONE = 1_000  # leases of one owner, asked for and held: also those without GPUs cost memory and descriptors
ROOT = 0
FIRST_PROCESS = 1
MAX_KEY = 200
REJOIN_S = 10.0  # after a start: for clients of the last server to come back
LINGER_S = 1.0  # after a client with a key left: it may have lost only its connection
WATCH_AGAIN_S = 1.0  # where there was no descriptor to be had
ELSEWHERE = (
    "is another process here than where it was asked for: the caller has process numbers of its own (a container); "
    "start the container with --pid=host, or use: rota submit"
)
NO_ACCOUNT = (
    "process {pid} has the user id {uid}, which no account of this machine has, so its GPUs would be nobody's; show a "
    "token (header X-Auth-Token), and the lease is its owner's"
)
SHARED = (
    "process {pid} has the account {account}, which runs of several people have (--run-as), so whose its GPUs would be "
    "is not known; show a token (header X-Auth-Token), and the lease is its owner's"
)
STOPPING = "the server is stopping; ask the next one with the same key"
NOT_TO_END = -1  # a holder that is not its owner's

After = Callable[[float, Callable[[], None]], Callable[[], None]]  # (delay_s, act) -> call it off


class NotAlive(Refused):
    """There is no such process, or there is none any more."""

    code = "not_alive"


@dataclass(frozen=True, slots=True)
class Looked:
    """A process as it was when somebody looked."""

    seen: Seen | None  # None = there is none
    attempt: str | None  # that it is part of; see Processes.attempt_of


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks for a lease, by what is known of them."""

    who: Principal | None  # None = nobody is known: the lease is for the account of the process itself
    uid: int | None  # the account at the other end of the connection; None = the kernel cannot tell
    own_token: bool = False  # `who` showed a token of their own: their name is then as good as their account


@dataclass(frozen=True, slots=True)
class Grant:
    run_id: str
    gpus: tuple[int, ...]  # flat numbers, sorted


@dataclass(slots=True, eq=False)
class _Lease:
    """One request, from the ask to its end; any number of clients may wait for it."""

    owner: str
    holder: Holder
    gpus: int
    key: str
    run_id: str = ""  # "" until it is durable
    grant: Grant | None = None
    waiting: list[Future[Grant]] = field(default_factory=list)
    unwatch: Callable[[], None] | None = None
    linger: Callable[[], None] | None = None  # calls off what happens when nobody comes for it
    told: int = 0  # how many clients were told of the grant and have not given it back
    visits: int = 0  # how often somebody came for it: a deadline set before the last visit counts for nothing
    deserted: str = ""  # why nobody waits for it any more: to be withdrawn as soon as it has an id
    over: Refused | None = None  # how it ended


@dataclass(frozen=True, slots=True)
class Asked:
    granted: Future[Grant]  # raises Refused when it was refused, cancelled, or its process ended
    leave: Callable[[], None]  # the client is gone; does nothing once the lease is given
    give_back: Callable[[], None]  # the client may not have it, given or not; ends the lease unless others have it too


class Leases:
    def __init__(self, service: Service, processes: Processes, after: After) -> None:
        self._service, self._processes, self._after = service, processes, after
        self._lock = RLock()  # guards all below; never held while a future is answered
        self._by_run: dict[str, _Lease] = {}
        self._by_key: dict[tuple[str, str], _Lease] = {}
        self._waiters = 0
        self._of_owner: Counter[str] = Counter()  # leases that are not over
        self._closed = False

    def open(self) -> None:
        """Once the loop runs: find the leases of the last server again."""
        self._service.subscribe(self._told)
        epoch = self._service.ask(lambda state, now: state.epoch)
        for run in list(self._service.view().runs.values()):
            if run.spec.holder is not None:
                self._find_again(run, epoch)

    def close(self) -> None:
        """Whoever waits is told to ask the next server. What waits keeps its place in the queue."""
        with self._lock:
            self._closed = True
            leases = {id(lease): lease for lease in (*self._by_run.values(), *self._by_key.values())}
            futures = [future for lease in leases.values() for future in lease.waiting]
            for lease in leases.values():
                self._let_go(lease)
        for future in futures:
            _refuse(future, Unavailable(STOPPING))

    def ask(
        self, caller: Caller, pid: int | Looked, gpus: int, key: str = "", *, name: str = "", argv: Sequence[str] = ()
    ) -> Asked:
        """GPUs for this process, which must be the caller's own. What only the queue can know (that it is full, that
        the share is used up) comes out of `granted`. `name` and `argv` say what the process will be, where it only
        waits in order to become something else."""
        looked = self._looked(pid)
        who, seen = self._checked(caller, looked, gpus, key)
        spec = self._spec(who, replace(looked, seen=seen), gpus, key, name, argv)
        future: Future[Grant] = Future()
        with self._lock:
            known = self._known(who, seen, gpus, key)
            lease = known or self._begin(who, spec, key)
            self._join(lease, future)
            lease.told += lease.grant is not None
        if known is None:  # not under the lock: whoever hears of the answer may answer others
            self._service.send(who, Submit(spec)).add_done_callback(lambda done: self._submitted(lease, done))
        if lease.over is not None:
            _refuse(future, lease.over)
        elif lease.grant is not None:
            _answer(future, lease.grant)
        future.add_done_callback(lambda done: self._leave(lease, done) if done.cancelled() else None)
        return Asked(future, lambda: self._leave(lease, future), lambda: self._give_back(lease, future))

    def try_out(
        self, caller: Caller, pid: int | Looked, gpus: int, key: str = "", *, name: str = "", argv: Sequence[str] = ()
    ) -> Run:
        """The run that asking would make, or has made under this key; or the refusal. Nothing is taken."""
        looked = self._looked(pid)
        who, seen = self._checked(caller, looked, gpus, key)
        with self._lock:
            lease = self._known(who, seen, gpus, key)
            known = lease.run_id if lease is not None else ""
        if known:
            return self._service.run(known)
        spec = self._spec(who, replace(looked, seen=seen), gpus, key, name, argv)
        tried: Run = self._service.try_out(who, Submit(spec))
        return tried

    def release(self, who: Principal, run_id: str) -> Future[Run]:
        """Give it back while the process lives on."""
        return self._service.send(who, EndLease(run_id))

    # -- asking -----------------------------------------------------------------------------------------------------
    def look(self, pid: int, asker: str, start_ticks: int | None = None, *, shares_pids: bool = True) -> Looked:
        """Look at a process before it is asked for. That may take as long as the process likes: it can keep others from
        reading its command line and its environment.

        `start_ticks`: when the process started, as the caller sees it; None = the caller does not say. `shares_pids`:
        whether a process has the same number for the caller as here, as far as that is known."""
        if self._closed:  # so may be what looks
            raise Unavailable(STOPPING)
        seen = self._processes.look(pid, asker)
        if start_ticks is None:
            is_same = shares_pids
        else:
            is_same = seen is None or seen.holder.start_ticks == start_ticks
        if not is_same:
            raise Invalid(f"pid: {pid} {ELSEWHERE}", "pid")
        return Looked(seen, None if seen is None else self._processes.attempt_of(pid, asker))

    def _looked(self, pid: int | Looked) -> Looked:
        return pid if isinstance(pid, Looked) else self.look(pid, "this process")

    def _checked(self, caller: Caller, looked: Looked, gpus: int, key: str) -> tuple[Principal, Seen]:
        """Who asks for which process. What is checked and what is leased are one look: its number, its start time and
        its account were read together."""
        seen = looked.seen
        if seen is None:
            raise NotAlive("pid not alive", "pid")
        _must_be_leasable(seen)
        _must_be_own(caller, seen)
        self._must_fit(gpus, key)
        asked_by = "" if caller.uid is None else self._processes.account(caller.uid).name
        seen = replace(seen, holder=replace(seen.holder, asked_by=asked_by))
        if caller.who is not None:
            return caller.who, seen
        if not seen.has_account:
            raise Forbidden(NO_ACCOUNT.format(pid=seen.holder.pid, uid=seen.uid), "pid")
        if seen.user == self._service.accounts.run_as:
            raise Forbidden(SHARED.format(pid=seen.holder.pid, account=seen.user), "pid")
        # A run does not keep who sent it, so a process of any run may be an agent's: as on the unix socket, it has its
        # account, but not all the powers of that account's person.
        role = Role.USER if looked.attempt is None else Role.AGENT
        # root asks for somebody: the lease is that one's, and the ledger says who asked
        return Principal(asked_by or seen.user, role, acts_for=seen.user if asked_by != seen.user else ""), seen

    def _known(self, who: Principal, seen: Seen, gpus: int, key: str) -> _Lease | None:
        """With the lock held: the lease of this key. Refuses who asks for something else, and one too many."""
        if self._closed:
            raise Unavailable(STOPPING)
        lease = self._by_key.get((who.owner, key)) if key else None
        if lease is None:
            if self._waiters >= MAX_WAITERS:
                raise Full(f"{MAX_WAITERS} requests are waiting already; try again later")
            if self._of_owner[who.owner] >= MAX_OF_ONE:
                raise Full(f"{who.owner} has {MAX_OF_ONE} leases, held or waited for, and may not have more at a time")
        elif (lease.holder, lease.gpus) != (seen.holder, gpus):
            raise Conflict(f"key: {key!r} is another process's, or was used for another number of GPUs", "key")
        return lease

    def _must_fit(self, gpus: int, key: str) -> None:
        if isinstance(gpus, bool) or not isinstance(gpus, int):
            raise Invalid(f"num_gpus: {gpus!r} is not a whole number", "num_gpus")
        if gpus < 0:
            raise Invalid(f"num_gpus: {gpus} is negative; ask for 0 or more", "num_gpus")
        total = sum(len(node.gpus) for node in self._service.nodes().values())
        if gpus > total:
            raise Invalid(f"requested {gpus} GPU(s) but only {total} available on this machine", "num_gpus")
        if len(key) > MAX_KEY:
            raise Invalid(f"key: has {len(key)} characters, use at most {MAX_KEY}", "key")

    def _spec(  # noqa: PLR0917 - what was asked for, in the order in which it was
        self, who: Principal, looked: Looked, gpus: int, key: str, name: str, argv: Sequence[str]
    ) -> Spec:
        seen = looked.seen
        assert seen is not None, "it was checked"
        words, own = tuple(argv) or seen.command, self._may_end(who.owner, seen, looked.attempt)
        return Spec(
            name=name or made_visible(words[0].rpartition("/")[2][:100]) or "lease",
            argv=words,
            workdir=seen.workdir if own else "/",  # where somebody else's process is, is not to be found out here
            request=Request(gpus=gpus, span=True),
            max_retries=0,
            labels={KEY: key} if key else {},
            holder=seen.holder if own else replace(seen.holder, uid=NOT_TO_END),
        )

    def _may_end(self, owner: str, seen: Seen, attempt: str | None) -> bool:
        """May a cancel of the lease end its process? Root may name any process, and a token any of the caller's own, so
        only one that has the account of the lease's owner, and is no part of a run of somebody else, where runs of
        several people have that account. Elsewhere a mark, which any process can have, does not keep it from ending."""
        if seen.user != owner:
            return False
        if attempt is None or self._service.accounts.is_personal(seen.user):
            return True
        try:
            return bool(attempt) and self._service.run(run_of(attempt)).user == owner
        except NotFound:  # another server's
            return False

    def _begin(self, who: Principal, spec: Spec, key: str) -> _Lease:
        assert spec.holder is not None
        lease = _Lease(who.owner, spec.holder, spec.request.gpus, key)
        self._watch(lease, may_look=False)  # it was looked at, and nothing waits here
        self._of_owner[lease.owner] += 1
        if key:
            self._by_key[lease.owner, key] = lease
        return lease

    def _submitted(self, lease: _Lease, done: Future[Run]) -> None:
        """It is durable, or refused. On the loop's thread; or, when the loop was quicker than whoever asked, on that
        one's: what became of the run may then have been told already, so it is looked at here."""
        error = done.exception()
        if error is not None:
            self._over(lease, error if isinstance(error, Refused) else Unavailable(f"it could not be stored: {error}"))
            return
        with self._lock:
            lease.run_id = done.result().id
            self._by_run[lease.run_id] = lease
            if lease.deserted:
                self._withdraw(lease)
        if self._closed:  # it came in with the last turn
            self._over(lease, Unavailable(STOPPING))
        else:
            self._catch_up(lease)

    def _join(self, lease: _Lease, future: Future[Grant]) -> None:
        lease.visits += 1
        lease.deserted = ""
        _call_off(lease)
        if lease.grant is None and lease.over is None:
            lease.waiting.append(future)

    # -- leaving ----------------------------------------------------------------------------------------------------
    def _leave(self, lease: _Lease, future: Future[Grant]) -> None:
        with self._lock:
            if self._closed or lease.grant is not None or future not in lease.waiting:
                return
            lease.waiting.remove(future)
            if lease.waiting:
                return
            if lease.key:
                self._linger(lease, LINGER_S, "its client left")
            else:
                self._desert(lease, "its client left", lease.visits)

    def _give_back(self, lease: _Lease, future: Future[Grant]) -> None:
        with self._lock:
            self._leave(lease, future)
            if lease.grant is None or self._closed or lease.over is not None:
                return
            lease.told -= 1
            if lease.told:
                return
            lease.deserted = "its client was not welcome any more"
            self._withdraw(lease)

    def _linger(self, lease: _Lease, delay_s: float, why: str) -> None:
        visits = lease.visits
        lease.linger = self._after(delay_s, lambda: self._desert(lease, why, visits))

    def _desert(self, lease: _Lease, why: str, visits: int) -> None:
        """Nobody is there for it. One that was given meanwhile, unasked for, goes back; but not when somebody came just
        as its time ran out."""
        with self._lock:
            if self._closed or lease.visits != visits or lease.waiting or lease.over is not None:
                return
            lease.deserted = why
            if lease.run_id:
                self._withdraw(lease)

    def _withdraw(self, lease: _Lease) -> None:
        """It is on its way out: whoever comes with its key now begins anew."""
        self._strike(lease)
        if lease.grant is None:
            self._service.send(HOUSE, Withdraw(lease.run_id, lease.deserted)).add_done_callback(_heard)
        else:
            self._service.send(HOUSE, EndLease(lease.run_id)).add_done_callback(_heard)

    def _gone(self, lease: _Lease) -> None:
        """The process ended while it waited; once it has the lease, the backend sees to it."""
        with self._lock:
            if self._closed or lease.grant is not None:
                return
            futures, lease.waiting = lease.waiting, []
            self._desert(lease, "its process ended", lease.visits)
        for future in futures:
            _refuse(future, NotAlive("pid not alive", "pid"))

    # -- what becomes of it -----------------------------------------------------------------------------------------
    def _told(self, first: int, events: Sequence[e.Event]) -> None:
        """On the loop's thread, for every event there is: quick for all that are not about leases."""
        for event in events:
            match event:
                case e.AttemptPlanned(run_id=run_id) if run_id in self._by_run:
                    self._give(self._by_run[run_id])
                case e.RunEnded(run_id=run_id, why=why) if run_id in self._by_run:
                    self._over(self._by_run[run_id], Conflict(f"lease {run_id} was cancelled: {why}"))
                case e.AttemptEnded(run_id=run_id, why=why) if run_id in self._by_run:
                    self._over(self._by_run[run_id], Conflict(f"lease {run_id} is over{': ' + why if why else ''}"))

    def _give(self, lease: _Lease) -> None:
        """Its GPUs are taken in the ledger, durably, and its process is known: there is nothing more to wait for."""
        run = self._service.run(lease.run_id)
        if run.state in ENDED:  # and its end is among the events that follow
            return
        with self._lock:
            if lease.grant is not None or lease.over is not None:  # it was seen elsewhere first
                return
            grant = lease.grant = Grant(run.id, tuple(Flat(self._service.nodes().values()).numbers(run)))
            futures, lease.waiting = lease.waiting, []
            lease.told = len(futures)
            self._let_go(lease)
            if lease.deserted:  # its withdrawal comes too late now
                self._withdraw(lease)
        for future in futures:
            _answer(future, grant)

    def _over(self, lease: _Lease, error: Refused) -> None:
        with self._lock:
            if lease.over is None:
                self._of_owner[lease.owner] -= 1
                if not self._of_owner[lease.owner]:
                    del self._of_owner[lease.owner]
            futures, lease.waiting, lease.over = lease.waiting, [], error
            self._let_go(lease)
            _call_off(lease)
            self._by_run.pop(lease.run_id, None)
            self._strike(lease)
        for future in futures:
            _refuse(future, error)

    def _strike(self, lease: _Lease) -> None:
        if self._by_key.get((lease.owner, lease.key)) is lease:
            del self._by_key[lease.owner, lease.key]

    def _catch_up(self, lease: _Lease) -> None:
        """It may have moved on before it was known here."""
        try:
            now = self._service.run(lease.run_id)
        except StoreError:  # only what has ended is looked up there
            self._over(lease, Unavailable(f"lease {lease.run_id} is over, but cannot be read; ask again"))
            return
        if now.state in ACTIVE:
            self._give(lease)
        elif now.state in ENDED:
            self._over(lease, Conflict(f"lease {lease.run_id} is over{': ' + now.why if now.why else ''}"))

    def _let_go(self, lease: _Lease) -> None:
        """It does not wait any more."""
        if lease.unwatch is not None:
            lease.unwatch()
            lease.unwatch = None
            self._waiters -= 1

    def _watch(self, lease: _Lease, *, may_look: bool) -> None:
        try:
            lease.unwatch = self._processes.watch(lease.holder, lambda: self._gone(lease), may_look=may_look)
            self._waiters += 1
        except OSError as error:
            raise Unavailable(error.strerror or str(error)) from error

    # -- after a start ----------------------------------------------------------------------------------------------
    def _find_again(self, run: Run, epoch: int) -> None:
        holder, key = run.spec.holder, run.spec.labels.get(KEY, "")
        assert holder is not None
        lease = _Lease(run.user, holder, run.spec.request.gpus, key, run.id)
        with self._lock:
            self._by_run[run.id] = lease
            self._of_owner[lease.owner] += 1
            if key:
                self._by_key[lease.owner, key] = lease
            if run.state in WAITING:
                self._watch_when_possible(lease)
            if run.state in WAITING or (run.attempt is not None and run.attempt.fence == epoch):
                # Its client was never told. With a key it can come back for it; without one it can only ask anew, and
                # must not find its own old place before it.
                self._linger(lease, REJOIN_S if key else 0.0, "its client did not come back")
        self._catch_up(lease)

    def _watch_when_possible(self, lease: _Lease) -> None:
        """One that cannot be watched for want of a descriptor must not keep the server from its work."""
        with self._lock:
            if self._closed or lease.grant is not None or lease.over is not None:
                return
            try:
                self._watch(lease, may_look=True)
            except Unavailable as error:
                log.warning("lease %s: %s; trying again", lease.run_id, error)
                self._after(WATCH_AGAIN_S, lambda: self._watch_when_possible(lease))


def _must_be_leasable(seen: Seen) -> None:
    """A lease lasts as long as its process: what never ends would hold GPUs for ever."""
    pid = seen.holder.pid
    if pid == FIRST_PROCESS or seen.kernel:
        what = "a thread of the kernel" if seen.kernel else "the first process of this machine"
        raise Invalid(f"pid: {pid} is {what}, which never ends; name the process that is to use the GPUs", "pid")


def _must_be_own(caller: Caller, seen: Seen) -> None:
    """A lease is paid for by its owner's share and ends with its process, so only the account of that process asks for
    it, or root, as the kernel tells of the connection; or, where a connection says little (it comes through a proxy),
    a person whose own token names the same account. An agent's name is nobody's account."""
    if caller.uid in (seen.uid, ROOT):
        return
    person = caller.who if caller.own_token else None
    if person is not None and person.role in (Role.ADMIN, Role.USER) and person.name == seen.user:
        return
    pid = seen.holder.pid
    if caller.uid is None:
        raise Forbidden(
            f"the kernel cannot tell which account this call is from (it came through a proxy, out of a container or "
            f"from another machine, or is bound to a network device), so process {pid} cannot be taken for yours; call "
            "the lease port or the unix socket on this machine itself, or show a token of the account the "
            "process belongs to",
            "pid",
        )
    raise Forbidden(f"process {pid} is another account's; ask from the account it belongs to, or as root", "pid")


def _call_off(lease: _Lease) -> None:
    if lease.linger is not None:
        lease.linger()
        lease.linger = None


def _answer(future: Future[Grant], grant: Grant) -> None:
    with contextlib.suppress(InvalidStateError):  # its client has gone meanwhile
        future.set_result(grant)


def _refuse(future: Future[Grant], error: Refused) -> None:
    with contextlib.suppress(InvalidStateError):  # as above
        future.set_exception(error)


def _heard(done: Future[Run]) -> None:
    error = done.exception()
    if error is not None and not isinstance(error, Conflict):  # a conflict: it has ended by itself
        log.warning("a lease nobody waits for could not be withdrawn: %s", error)
