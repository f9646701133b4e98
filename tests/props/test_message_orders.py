"""Cancel, start, finish, preempt and loss in every order they can arrive in: one end, and every GPU freed once (B4)."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from rota.core import events as e
from rota.core.check import check
from rota.core.policy import Policy
from rota.core.reduce import reduce
from rota.core.resources import gpu_count
from rota.core.run import ENDED, Cause, Exit, RunState
from tests.unit.core.kit import OK, Lab, node

MESSAGES = ("pass", "started", "finished", "cancel", "preempt", "lost")


class Desk(Lab):
    """What the service does with each message, and no more: old news about dead attempts is dropped."""

    def __init__(self) -> None:
        super().__init__(node("a"), policy=Policy(retry_base_s=0), checked=False)
        self.id = self.submit(3)
        self.cancelled = False
        self.starts_after_cancel = 0

    def take(self, message: str) -> None:
        self.now += 1
        getattr(self, f"on_{message}")()
        assert check(self.state) == []

    def on_pass(self) -> None:
        for start in self.plan().starts:
            name = f"{start.run_id}-{self.run(start.run_id).attempts_made + 1}"
            self.starts_after_cancel += self.cancelled
            self.tell(
                e.AttemptPlanned(
                    at=self.now, run_id=start.run_id, attempt_id=name, tick=self.now, fence=1, placement=start.placement
                )
            )

    def on_started(self) -> None:
        run = self.run(self.id)
        if run.attempt is not None and run.state is RunState.STARTING:
            self.tell(e.AttemptStarted(at=self.now, run_id=run.id, attempt_id=run.attempt.id, pid=1))

    def on_finished(self) -> None:
        self.dead(OK)

    def on_lost(self) -> None:
        self.dead(Exit(Cause.LOST))

    def on_cancel(self) -> None:
        run = self.run(self.id)
        if run.state in ENDED:
            return
        self.cancelled = True
        if run.attempt is None:
            self.tell(e.RunEnded(at=self.now, run_id=run.id, state=RunState.CANCELLED, why="asked"))
        else:
            self.stop(run.id, Cause.CANCELLED)

    def on_preempt(self) -> None:
        run = self.run(self.id)
        if run.attempt is not None and run.attempt.stop is None:
            self.stop(run.id, Cause.PREEMPTED, for_run="somebody")

    def dead(self, exit: Exit) -> None:
        run = self.run(self.id)
        if run.attempt is None:
            return
        stop = run.attempt.stop
        self.end(run.id, exit if exit.ok or stop is None else Exit(stop.cause))

    def to_the_end(self) -> None:
        """No more surprises: whatever was asked to stop stops, whatever runs finishes."""
        for _ in range(10):
            for message in ("pass", "started"):
                self.take(message)
            run = self.run(self.id)
            if run.attempt is not None:
                self.take("lost" if run.attempt.stop else "finished")
            if run.state in ENDED:
                return


def live(order: tuple[str, ...]) -> None:
    desk = Desk()
    for message in order:
        desk.take(message)
    desk.to_the_end()
    run = desk.run(desk.id)
    ends = [
        ev for ev in desk.log if isinstance(ev, e.RunEnded) or (isinstance(ev, e.AttemptEnded) and ev.next in ENDED)
    ]
    assert len(ends) == 1, "exactly one end"
    assert run.state in ENDED
    assert desk.state.board.free_gpus == 8
    planned = [ev for ev in desk.log if isinstance(ev, e.AttemptPlanned)]
    freed = [ev for ev in desk.log if isinstance(ev, e.AttemptEnded)]
    assert [ev.attempt_id for ev in freed] == [ev.attempt_id for ev in planned], "each attempt is freed once, in turn"
    assert desk.starts_after_cancel == 0
    if desk.cancelled:
        assert run.state in (RunState.CANCELLED, RunState.SUCCEEDED)
    else:
        assert run.state is RunState.SUCCEEDED
    for past, begun, gone in zip(run.past, planned, freed, strict=True):
        assert past.gpu_s == gpu_count(past.placement) * (gone.at - begun.at), "the interval held, no more, no less"
    # Once it has ended, nothing brings it back.
    for message in MESSAGES:
        before = run
        desk.take(message)
        assert desk.run(desk.id) == before


@pytest.mark.parametrize("first", MESSAGES)
def test_every_order_of_the_six_messages(first):
    for rest in permutations([m for m in MESSAGES if m != first]):
        live((first, *rest))


@pytest.mark.parametrize("first", MESSAGES)
def test_every_sequence_of_five_messages_with_repeats(first):
    for rest in product(MESSAGES, repeat=4):
        live((first, *rest))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", MESSAGES)
def test_every_sequence_of_seven_messages_with_repeats(first):
    for rest in product(MESSAGES, repeat=6):
        live((first, *rest))


def test_a_message_about_an_attempt_that_is_gone_is_refused_by_reduce_itself():
    """The desk drops old news; should it ever not, reduce is the second lock on the door."""
    desk = Desk()
    for message in ("pass", "started", "lost", "pass"):
        desk.take(message)
    old = f"{desk.id}-1"
    for event in (
        e.AttemptStarted(at=9, run_id=desk.id, attempt_id=old, pid=1),
        e.AttemptEnded(at=9, run_id=desk.id, attempt_id=old, exit=OK, gpu_s=1, next=RunState.SUCCEEDED),
        e.StopRequested(at=9, run_id=desk.id, attempt_id=old, cause=Cause.CANCELLED, signal=15, grace_s=1),
        e.RunEnded(at=9, run_id=desk.id, state=RunState.CANCELLED, why="past the live attempt"),
    ):
        with pytest.raises(Exception, match=desk.id):
            reduce(desk.state, event)
        assert check(desk.state) == []
