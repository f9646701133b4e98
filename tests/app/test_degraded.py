"""P7: when the store does not take it, nothing is acknowledged, nothing launched, what runs runs on, and it heals."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, cast
from unittest.mock import patch

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.adapters.store.store import SqlStore
from rota.app import loop as loop_module
from rota.app.commands import Cancel, Resume, Submit
from rota.app.errors import CannotStart, Unavailable
from rota.app.ports import Fenced, Store, StoreBroken, StoreBusy, StoreFull
from rota.app.retention import Retention, Tidying
from rota.core import events as e
from rota.core.run import RunState
from tests.app.house import ANN, PATIENCE_S, House, alive, attempts_in, locked, until, with_policy

PASSING = [StoreBusy("database is locked"), StoreFull("no space left on device")]
FATAL = [Fenced("a newer server owns the store"), StoreBroken("disk I/O error")]


class Flaky:
    """The real store, which can be told to fail."""

    def __init__(self, real: SqlStore) -> None:
        self.real = real
        self.append_error: Exception | None = None
        self.read_error: Exception | None = None
        self.tried_at: list[float] = []

    def append(self, *args: Any) -> None:
        if self.append_error is not None:
            self.tried_at.append(time.monotonic())
            raise self.append_error
        self.real.append(*args)

    def run(self, run_id: str) -> Any:
        if self.read_error is not None:
            raise self.read_error
        return self.real.run(run_id)

    def load(self) -> Any:
        if self.read_error is not None:
            raise self.read_error
        return self.real.load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def shaky(build: Callable[..., House]) -> tuple[House, Flaky]:
    house = build()
    made: list[Flaky] = []

    def wrap(real: SqlStore) -> Store:
        made.append(Flaky(real))
        return cast(Store, made[-1])

    house.wrap = wrap
    house.open()
    return house, made[0]


def healed(house: House) -> None:
    until(lambda: not house.loop.degraded, "writing works again by itself")


@pytest.mark.parametrize("error", PASSING, ids=["busy", "full"])
def test_nothing_is_taken_in_or_launched_and_it_heals_by_itself(shaky, error):
    house, store = shaky
    store.append_error = error
    before = attempts_in(house.data / "attempts")
    for _ in range(3):
        with pytest.raises(Unavailable, match=str(error)):
            house.submit("echo never", key="k")
    assert house.loop.degraded == str(error)
    assert attempts_in(house.data / "attempts") == before
    store.append_error = None
    healed(house)
    assert house.events(e.RunSubmitted) == [], "a refused submit left nothing behind"
    run_id = house.submit("true", key="k")
    assert house.submit("true", key="k") == run_id
    assert house.wait(run_id).state is RunState.SUCCEEDED


@pytest.mark.parametrize("error", PASSING, ids=["busy", "full"])
def test_what_runs_runs_on_and_its_end_is_found(shaky, error):
    house, store = shaky
    ends, gate = house.gated(2, after="exit 6")
    stays = house.running(1)
    waiting = house.submit("true", 8)
    pid = house.run(house.in_state(ends, RunState.RUNNING)).attempt.pid
    store.append_error = error
    gate.open()
    until(lambda: not alive(pid), "it has ended")
    until(lambda: house.loop.degraded, "the end could not be written down")
    with pytest.raises(Unavailable):
        house.do(Cancel(stays), ANN)
    assert house.run(ends).state is RunState.RUNNING, "only what is durable is told"
    assert house.run(stays).attempt.stop is None
    store.append_error = None
    healed(house)
    run = house.wait(ends)
    assert (run.state, run.past[-1].exit.code, len(house.store.attempts(ends))) == (RunState.FAILED, 6, 1)
    assert house.run(stays).state is RunState.RUNNING
    house.do(Cancel(stays, grace_s=0.0), ANN)
    assert house.wait(waiting).state is RunState.SUCCEEDED
    assert house.starts() == [ends, stays, waiting], "nothing was lost or doubled"


def test_a_whole_batch_is_refused_together(shaky):
    house, store = shaky
    store.append_error = PASSING[0]
    sent = [house.rota.send(ANN, Submit(house.spec("true"), key=f"k{i}")) for i in range(40)]
    assert all(isinstance(future.exception(PATIENCE_S), Unavailable) for future in sent)
    store.append_error = None
    healed(house)
    runs = [house.submit("true", key=f"k{i}") for i in range(40)]
    assert len(set(runs)) == 40
    assert {run.state for run in house.wait_all(runs)} == {RunState.SUCCEEDED}
    assert len(house.events(e.RunSubmitted)) == 40


def test_it_does_not_spin_while_it_cannot_write(shaky):
    """Also when a back-off is over meanwhile: it is tried about once a second."""
    import signal

    house, store = shaky
    with_policy(house, retry_base_s=0.5, retry_cap_s=0.5)
    run_id = house.running()

    def fill_up(first: int, events: Sequence[e.Event]) -> None:
        if any(isinstance(event, e.AttemptEnded) for event in events):
            store.append_error = PASSING[1]

    house.rota.subscribe(fill_up)  # in the turn in which its back-off begins
    os.kill(house.shim_of(run_id), signal.SIGKILL)
    until(lambda: store.append_error, "it backs off")
    until(lambda: len(store.tried_at) >= 3, "three tries")
    assert store.tried_at[2] - store.tried_at[0] > 0.9
    store.append_error = None
    until(lambda: house.run(run_id).attempts_made == 2, "the retry comes once it can be written")


def test_trouble_in_the_middle_of_the_recovery_is_not_the_end(shaky):
    house, store = shaky
    ends, gate = house.gated()
    pid = house.run(house.in_state(ends, RunState.RUNNING)).attempt.pid
    store.append_error = PASSING[1]
    gate.open()
    until(lambda: not alive(pid) and house.loop.degraded, "the end could not be written down")
    real, calls = store.real.append, [0]

    def first_yes_then_no(*args: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:  # the first is the try, the second what reconcile found
            raise StoreFull("full again")
        real(*args)

    with patch.object(store.real, "append", first_yes_then_no):
        store.append_error = None
        until(lambda: calls[0] >= 4, "it tried once more")
    assert house.wait(ends).state is RunState.SUCCEEDED


def test_a_store_that_can_not_even_be_read(shaky):
    house, store = shaky
    run_id, gate = house.gated()
    house.in_state(run_id, RunState.RUNNING)
    store.append_error = store.read_error = StoreBusy("the server closed the connection")
    gate.open()
    until(lambda: house.loop.degraded, "it noticed")
    with pytest.raises(Unavailable):
        house.submit("true")
    store.append_error = store.read_error = None
    healed(house)
    assert house.wait(run_id).state is RunState.SUCCEEDED


def test_a_read_that_fails_is_the_callers_to_repeat(shaky):
    house, store = shaky
    run_id = house.submit("true")
    house.wait(run_id)
    store.read_error = PASSING[0]
    with pytest.raises(Unavailable):
        house.do(Cancel("0" * 12), ANN)
    waiting, gate = house.gated()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(house.wait, waiting)
        until(lambda: house.rota._waiters, "somebody waits")
        gate.open()
        with pytest.raises(Unavailable, match="ask again"):
            asked.result(PATIENCE_S)
    store.read_error = None
    assert house.wait(waiting).state is RunState.SUCCEEDED


@pytest.mark.parametrize("error", FATAL, ids=["fenced", "broken"])
@pytest.mark.parametrize("degraded", [False, True], ids=["at once", "while degraded"])
def test_a_store_that_is_gone_for_good_ends_the_loop(shaky, error, degraded):
    house, store = shaky
    run_id = house.running(3)
    pid = house.run(run_id).attempt.pid
    told: list[BaseException] = []
    whole = house.loop.on_fatal

    def tell(problem: BaseException) -> None:
        told.append(problem)
        whole(problem)

    house.loop.on_fatal = tell
    if degraded:
        store.append_error = PASSING[0]
        with pytest.raises(Unavailable):
            house.submit("true")
    with ThreadPoolExecutor(1) as pool:
        waiting = None if degraded else pool.submit(house.rota.wait, run_id)
        if waiting is not None:
            until(lambda: house.rota._waiters, "somebody waits")
        store.append_error = error
        with pytest.raises(Unavailable):
            house.do(Submit(house.spec("true")), ANN)
        until(lambda: not house.loop._thread.is_alive(), "the loop has ended")
        assert told == [error]
        if waiting is not None:
            with pytest.raises(Unavailable):
                waiting.result(PATIENCE_S)
    with pytest.raises(Unavailable):
        house.submit("true")
    with pytest.raises(Unavailable):
        house.rota.wait(run_id, PATIENCE_S)
    assert alive(pid), "what runs runs on"
    store.append_error = None
    house.reopen()
    assert house.run(run_id).state is RunState.RUNNING


def test_a_store_that_fails_at_the_opening(build):
    house = build()
    house.open()
    house.close()

    def wrap(real: SqlStore) -> Store:
        flaky = Flaky(real)
        flaky.append_error = PASSING[1]
        return cast(Store, flaky)

    house.wrap = wrap
    with pytest.raises(CannotStart, match="no space left"):
        house.open()
    house.wrap = None
    house.open()


def test_a_database_that_another_process_locks(house):
    """A9, with SQLite's own locks."""
    run_id, gate = house.gated()
    house.in_state(run_id, RunState.RUNNING)
    with locked(house.data / "rota.db"):
        with pytest.raises(Unavailable, match="lock"):
            house.submit("true", key="k")
        gate.open()
        assert house.run(run_id).state is RunState.RUNNING
        assert house.rota.log(run_id).content == b""
    healed(house)
    assert house.wait(run_id).state is RunState.SUCCEEDED
    assert house.wait(house.submit("true", key="k")).state is RunState.SUCCEEDED


def test_a_decide_that_raises_pauses_scheduling_and_nothing_else(house, monkeypatch):
    def defect(snap: object) -> None:
        raise ZeroDivisionError("a defect of the policy")

    stays = house.running()
    with monkeypatch.context() as patched:
        patched.setattr(loop_module, "decide", defect)
        run_id = house.submit("true")
        other = house.submit("true")
        assert house.rota.ask(lambda s, now: s.pause_why) == (
            "the scheduler failed: ZeroDivisionError('a defect of the policy')"
        )
        assert house.rota.explain(other).reasons[0].code == "paused"
        house.do(Cancel(other), ANN)
        assert house.run(stays).state is RunState.RUNNING
        assert house.run(run_id).state is RunState.QUEUED
    house.do(Resume())
    assert house.wait(run_id).state is RunState.SUCCEEDED
    assert len(house.events(e.SchedulingPaused)) == 1


@pytest.mark.parametrize("act", ["launch", "stop", "forget"])
def test_a_full_disk_under_the_backend_is_not_the_end(house, act, monkeypatch):
    """What was durable and could not be done is done by the next reconcile."""
    monkeypatch.setattr(loop_module, "RECONCILE_S", 0.2)
    house.reopen()
    real = getattr(LocalBackend, act)
    failed: list[str] = []

    def full(self: LocalBackend, *args: Any) -> None:
        if not failed:
            failed.append(act)
            raise OSError(28, "No space left on device")
        real(self, *args)

    monkeypatch.setattr(LocalBackend, act, full)
    run_id = house.sleeper()
    house.loop._next_reconcile = 0.0
    house.in_state(run_id, RunState.RUNNING)
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED
    until(lambda: failed, "it had failed once")
    until(lambda: not attempts_in(house.data / "live"), "and is forgotten in the end")


def test_futures_that_were_given_up_harm_nobody(shaky):
    """Cancelled while they wait for their turn, in good times and in bad."""
    house, store = shaky
    for works in (True, False):
        entered, go_on = Event(), Event()

        def slow(*args: Any) -> None:
            entered.set()  # noqa: B023
            assert go_on.wait(PATIENCE_S)  # noqa: B023
            if not works:  # noqa: B023
                raise PASSING[0]
            store.real.append(*args)

        with patch.object(store, "append", slow):
            first = house.rota.send(ANN, Submit(house.spec("true"), held=True))
            assert entered.wait(PATIENCE_S)
            given_up = [house.rota.send(ANN, Submit(house.spec("true"), held=True)) for _ in range(20)]
            assert all(future.cancel() for future in given_up)
            last = house.rota.send(ANN, Submit(house.spec("true"), held=True))
            go_on.set()
            for future in (first, last):
                if works:
                    assert future.result(PATIENCE_S).state is RunState.HELD
                else:
                    assert isinstance(future.exception(PATIENCE_S), Unavailable)
    healed(house)
    assert len(house.events(e.RunSubmitted)) == 2


def test_tidying_goes_between_two_turns_whatever_came_before_it_in_the_batch(house):
    house.wait(house.submit("true"))
    with ThreadPoolExecutor(1) as pool:
        with house.occupied():
            house.rota.send(ANN, Submit(house.spec("true"), held=True))
            tidying = Tidying(house.loop, Retention(events_days=-1.0, runs_days=400.0, logs_days=400.0))
            tidied = pool.submit(tidying.round)
            until(lambda: len(house.loop._inbox) >= 2, "the tidying waits behind a submit")
        assert tidied.result(PATIENCE_S) > 0
    house.reopen()
    assert len(house.store.load().runs) == 1


def test_a_subscriber_hears_nothing_that_was_not_stored(shaky):
    house, store = shaky
    heard: list[e.Event] = []
    house.rota.subscribe(lambda first, events: heard.extend(events))
    store.append_error = PASSING[0]
    with pytest.raises(Unavailable):
        house.submit("true")
    store.append_error = None
    healed(house)
    house.submit("true", held=True)
    house.settled()
    assert [type(event) for event in heard if isinstance(event, e.RunEvent)] == [e.RunSubmitted]
