"""What is true outside, compared with what is recorded: at the start, after trouble, and now and then.

For every live attempt the backend is asked (files and locks, never memory):
absent -> launch it, the id is safe to use; live -> adopt; exit -> settle. What the backend carries but nobody
remembers as live is stopped and forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import sleep
from typing import TYPE_CHECKING

from rota.app import dispatch
from rota.app.desk import Desk
from rota.app.operate import see_nodes
from rota.app.ports import Absent, Ended, Live, Started, StopOrder
from rota.app.settle import settle, settle_from_before_reboot
from rota.core import events as e
from rota.core import overrun
from rota.core.ids import run_of
from rota.core.node import Node
from rota.core.overdue import has_outlived_kill
from rota.core.run import Cause, Exit, Run, RunState

if TYPE_CHECKING:
    from rota.app.loop import Loop

log = logging.getLogger(__name__)

LOOKED_AT = 200  # attempts per periodic round: a round must stay short
ROUND_S = 1.0
STRANGER_PAUSES_S = (0.0, 0.1, 0.4, 1.5)  # before each look at a stranger's attempt


def at_start(loop: Loop, epoch: int, nodes: Sequence[Node]) -> None:
    """Before the loop begins: record the new epoch and settle what happened while nobody looked."""
    last_seen, boot_before = loop.state.at, loop.state.boot_id
    desk = _desk(loop)
    boot_id = loop.clock.boot_id()
    desk.write(e.ServerStarted(at=desk.now, epoch=epoch, boot_id=boot_id))
    if boot_before and boot_before != boot_id:
        for run in _active(loop):
            assert run.attempt is not None
            # whatever the files say, its processes died with the machine; the veto keeps its id from being used again
            loop.backend.stop(run.attempt.id, StopOrder(cause=Cause.CANCELLED.value, grace_s=0.0))
            seen = loop.backend.observe(run.attempt.id)
            exit = seen if isinstance(seen, Exit) and seen.cause is not Cause.NEVER_STARTED else None
            settle_from_before_reboot(desk, run, run.attempt, exit, last_seen)
    if nodes:
        see_nodes(desk, nodes)
    loop.commit(desk)
    loop.settle_down()
    loop.tell(desk)
    everything(loop)


def everything(loop: Loop) -> None:
    """All live attempts and all strays: before the loop begins, and after trouble."""
    desk = _desk(loop)
    for run in _active(loop):
        with _despite(loop.unseen, run.id):
            _look(loop, desk, run)
            loop.unseen.discard(run.id)
    _stop_overruns(loop, desk)
    _strangers(loop, desk)
    loop.commit(desk)
    loop.settle_down()
    loop.tell(desk)
    act_again(loop)


def now_and_then(loop: Loop, desk: Desk) -> None:
    """A bounded round over some of the attempts, for news that never came. Only looks: `act_again` comes after the
    commit."""
    live = _active(loop)
    if loop.unseen:
        loop.unseen &= {run.id for run in live}
    start = loop.rounds * LOOKED_AT % max(1, len(live))
    loop.rounds += 1
    until = loop.clock.tick() + ROUND_S
    for run in live[start : start + LOOKED_AT]:
        with _despite(loop.unseen, run.id):
            _look(loop, desk, run)
            loop.unseen.discard(run.id)
        if loop.clock.tick() > until:
            break
    _stop_overruns(loop, desk)
    _strangers(loop, desk)


def _stop_overruns(loop: Loop, desk: Desk) -> None:
    """End at their limits those whose supervisors would give them more than the policy does, and be there when the next
    one reaches its own. Cut the grace of those that were stopped with more. Ask those to end that have outlived limit
    and grace, as when their supervisors were stopped."""
    awake, before, loop.past_limit = loop.clock.awake(), loop.past_limit, {}
    for run in _active(loop):
        past_s = 0.0
        if overrun.is_past_limit(run, desk.now, desk.tick):
            assert run.attempt is not None
            since = loop.past_limit[run.attempt.id] = before.get(run.attempt.id, awake)
            past_s = awake - since
        if overrun.has_outlived_limit(run, past_s):
            with _despite(loop.unseen, run.id):
                if _is_live(loop, run):
                    desk.write(overrun.request(desk.state.policy, run, desk.now))
            continue
        sooner = overrun.cut(desk.state.policy, run, desk.now)
        if sooner is not None:
            desk.write(sooner)
            continue
        left_s = overrun.limit_in_s(desk.state.policy, run, desk.now, desk.tick)
        if left_s is not None and left_s > 0:
            loop.reconcile_by(desk.tick + left_s)
        elif left_s is not None:
            desk.write(overrun.request(desk.state.policy, run, desk.now))


def _is_live(loop: Loop, run: Run) -> bool:
    """Whether it was begun: one that still waits for its launch has used nothing of its time."""
    assert run.attempt is not None
    return run.state is RunState.RUNNING or isinstance(loop.backend.observe(run.attempt.id), Live)


def act_again(loop: Loop) -> None:
    """Whatever is recorded and may not have been done: harmless where it was."""
    for run in _active(loop):
        attempt = run.attempt
        assert attempt is not None
        with _despite(loop.unseen, run.id):
            if attempt.stop is not None:
                overdue = has_outlived_kill(loop.state.policy, run, loop.now())
                dispatch.stop(loop.backend, run, overdue=overdue)
            elif _may_launch(run) and isinstance(loop.backend.observe(attempt.id), Absent):
                loop.backend.launch(dispatch.launch_order(loop.state, run, loop.site))
    _strays(loop)


@contextmanager
def _despite(said: set[str], name: str) -> Iterator[None]:
    """One attempt that cannot be looked at, as for want of a descriptor, keeps no other from being settled. Nothing is
    known of it then: it stays as it is recorded, and is looked at again in a later round. That is said once."""
    try:
        yield
    except OSError as error:
        if name not in said:
            said.add(name)
            log.error("run %s cannot be looked at now: %s", name, error)


def _may_launch(run: Run) -> bool:
    """A lease may be given again, whatever became of its record: its holder tells whether it lasts."""
    return run.state is RunState.STARTING or run.spec.holder is not None


def _look(loop: Loop, desk: Desk, run: Run) -> None:
    """Settle one attempt by what is there."""
    attempt = run.attempt
    assert attempt is not None
    seen = loop.backend.observe(attempt.id)
    match seen:
        case Absent():
            if run.state is RunState.RUNNING and run.spec.holder is None:
                loop.backend.sweep(attempt.id, run.spec.account)
                settle(desk, Ended(attempt.id, Exit(Cause.LOST, message="its record has vanished")))
        case Live(pid):
            if pid is not None:
                settle(desk, Started(attempt.id, pid))
        case Exit():
            settle(desk, Ended(attempt.id, seen))


def _strangers(loop: Loop, desk: Desk) -> None:
    """A living attempt of a run the store has never heard of: it was put back to an earlier day, or is another's.
    Its work is not ours to kill, nor its GPUs, whichever they are, to give away: stop launching and say why (P7). One
    that cannot be looked at may live."""
    if desk.state.paused:
        return
    for attempt_id in loop.backend.strays():
        run_id = run_of(attempt_id)
        if run_id in desk.state.runs or loop.store.run(run_id) is not None:
            continue
        if not (found := _stranger_is(loop, attempt_id)):
            continue
        why = f"attempt {attempt_id} {found}, but the store knows no such run: end it, or put the store right"
        log.error("scheduling is paused: %s", why)
        desk.write(e.SchedulingPaused(at=desk.now, why=why))
        return


def _stranger_is(loop: Loop, attempt_id: str) -> str:
    """Say whether it runs here; "" = it does not. A pause lasts until an admin ends it, so what is not clear at once,
    as while the machine is slow, is looked at again first."""
    found = ""
    for pause_s in STRANGER_PAUSES_S:
        sleep(pause_s)
        try:
            seen = loop.backend.observe(attempt_id)
        except OSError as error:
            found = f"may run here (it cannot be looked at: {error.strerror or error})"
            continue
        if not isinstance(seen, Live):
            return ""
        if seen.pid is not None:
            return "runs here"
        found = "may run here (something of it lives still, or it is only beginning)"
    return found


def _strays(loop: Loop) -> None:
    """Attempts the backend carries that nobody remembers as live: end them, or forget their records."""
    strays = loop.backend.strays()
    loop.unseen_strays.intersection_update(strays)
    for attempt_id in strays:
        run = loop.state.runs.get(run_of(attempt_id))
        if run is not None and run.attempt is not None and run.attempt.id == attempt_id:
            continue
        with _despite(loop.unseen_strays, attempt_id):
            if not isinstance(loop.backend.observe(attempt_id), Live):
                loop.strays.discard(attempt_id)
                loop.backend.forget(attempt_id)
            elif (known := loop.store.run(run_of(attempt_id))) is not None:  # else see _strangers
                _end_stray(loop, attempt_id, known)


def _end_stray(loop: Loop, attempt_id: str, run: Run) -> None:
    if run.spec.holder is not None:  # the process is not ours to end: only its lease is over
        loop.backend.stop(attempt_id, StopOrder(cause=Cause.RELEASED.value, grace_s=0.0))
        return
    if attempt_id not in loop.strays:  # it is ordered in every round for as long as they live, and said once
        loop.strays.add(attempt_id)
        log.warning("attempt %s is over by the records but its processes live: ending them", attempt_id)
    loop.backend.stop(attempt_id, StopOrder(cause=Cause.CANCELLED.value, signal=9, grace_s=0.0, overdue=True))


def _active(loop: Loop) -> list[Run]:
    """With an attempt of ours. What is carried elsewhere is neither looked at nor ended by what happens here."""
    return [run for run in loop.state.runs.values() if run.attempt is not None and not run.attempt.reported]


def _desk(loop: Loop) -> Desk:
    return Desk(loop.state, loop.store, loop.now(), loop.clock.tick(), loop.new_id, watched_from=loop.watched_from)
