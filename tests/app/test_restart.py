"""Close and open again: what ran ran on, what waited waits, and what was asked for is done."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
from unittest.mock import patch

import pytest

from rota.adapters.backends import records
from rota.adapters.backends.local import LocalBackend
from rota.adapters.clock import SystemClock
from rota.app import settle
from rota.app.commands import Cancel, Pause, Release, Resume, Submit
from rota.app.errors import CannotStart
from rota.app.ports import Unseen
from rota.config import Settings
from rota.core import events as e
from rota.core.run import Cause, Exit, RunState, Spec
from rota.main import open_rota
from tests.app.house import ANN, ROOT, House, alive, locked, until, with_policy

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 1000; done"


def test_what_ended_while_nobody_looked_is_charged_to_its_own_end(house, monkeypatch):
    """A weekend without a server is nobody's use of GPUs."""
    monkeypatch.setattr(settle, "LATE_S", 0.2)
    run_id, gate = house.gated(2)
    attempt = house.run(house.in_state(run_id, RunState.RUNNING)).attempt
    house.close()
    gate.open()
    end = until(lambda: records.read(f"{house.data}/attempts/{attempt.id}/exit"), "its end is recorded")
    assert end is not None
    ended = float(end["ended_tick"])
    until(lambda: SystemClock().tick() > ended + 0.3, "a while has gone by")
    house.open()
    run = house.wait(run_id)
    past = run.past[-1]
    assert past.gpu_s == pytest.approx(2 * (past.exit.ended_tick - attempt.planned_tick))
    (event,) = house.events(e.AttemptEnded, run_id)
    assert event.late_s >= 0.3
    assert run.ended_at == past.ended_at == pytest.approx(event.at - event.late_s)
    assert past.started_at <= past.ended_at


@pytest.mark.parametrize("name", ["pid", "exit", "lock", "stop", "dropped"])
@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\0" * 100, b'{"start": "x"}', b'{"cause": "exited"}'])
def test_a_server_starts_whatever_a_record_of_a_running_job_holds(house, name, content):
    run_id, gate = house.gated(2)
    house.in_state(run_id, RunState.RUNNING)
    attempt = house.run(run_id).attempt
    house.close()
    (house.data / "attempts" / attempt.id / name).write_bytes(content)
    house.open()
    assert house.run(run_id).state is RunState.RUNNING
    assert (alive(attempt.pid), house.free()) == (True, 6), "its GPUs are nobody else's while it lives"
    gate.open()
    run = house.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.SUCCEEDED, 1)
    assert house.free() == 8


def test_a_job_runs_on_while_nobody_looks_and_is_adopted(house):
    run_id, gate = house.gated(2, after="echo still here; exit 5")
    house.in_state(run_id, RunState.RUNNING)
    pid = house.run(run_id).attempt.pid
    house.close()
    assert alive(pid)
    house.open()
    assert house.run(run_id).state is RunState.RUNNING
    assert house.free() == 6
    gate.open()
    run = house.wait(run_id)
    assert (run.state, run.past[-1].exit.code, run.attempts_made) == (RunState.FAILED, 5, 1)
    assert house.output(run_id) == "still here\n"


def test_an_end_that_nobody_saw_is_found(house):
    runs = [house.gated(after=f"exit {code}") for code in (0, 7)]
    pids = [house.run(house.in_state(run_id, RunState.RUNNING)).attempt.pid for run_id, _ in runs]
    house.close()
    for _, gate in runs:
        gate.open()
    until(lambda: not any(map(alive, pids)), "both have ended")
    house.open()
    states = [run.state for run in house.wait_all([run_id for run_id, _ in runs])]
    assert states == [RunState.SUCCEEDED, RunState.FAILED]


def test_one_that_cannot_be_looked_at_keeps_no_other_from_being_found(house, caplog):
    """Nor the server from starting. Of itself nothing is known until it can be looked at."""
    (hidden, first), (seen, second) = [house.gated(after="exit 7") for _ in range(2)]
    runs = [house.run(house.in_state(run_id, RunState.RUNNING)) for run_id in (hidden, seen)]
    house.close()
    for gate in (first, second):
        gate.open()
    until(lambda: not any(alive(run.attempt.pid) for run in runs), "both have ended")
    observe = LocalBackend.observe

    def blind(backend, attempt_id):
        if attempt_id == runs[0].attempt.id:
            raise OSError(errno.EMFILE, "Too many open files")
        return observe(backend, attempt_id)

    with patch.object(LocalBackend, "observe", blind):
        house.open()
        assert house.wait(seen).state is RunState.FAILED
        for _ in range(3):
            house.loop.call(lambda desk: house.loop.reconcile_by(0.0)).result(60)
        assert house.loop.rounds >= 3
        assert house.run(hidden).state is RunState.RUNNING
        said = [one.getMessage() for one in caplog.records if "cannot be looked at" in one.getMessage()]
        assert len(said) == 1 and hidden in said[0], "once, not at every look: a shortage may last, and be of the disk"
    assert house.wait(hidden).past[-1].exit.code == 7


@pytest.mark.parametrize("act", ["observe", "stop"])
def test_one_left_over_that_cannot_be_looked_at_keeps_no_other_from_being_ended(house, caplog, act):
    """Nor the server from starting: its run is over, and its processes make whoever looks wait."""
    runs = [house.run(house.in_state(house.submit("sleep 100000"), RunState.RUNNING)) for _ in range(2)]
    pids = {run.attempt.id: run.attempt.pid for run in runs}
    real = getattr(LocalBackend, act)
    for run in runs:
        lost = Exit(Cause.LOST, message="nobody could look at it")
        house.loop.call(lambda desk, run=run, end=lost: settle.settle_by_force(desk, run, run.attempt, end)).result(60)
    house.close()
    hidden, seen = sorted(pids)

    def blind(backend, attempt_id, *given):
        if attempt_id == hidden:
            raise Unseen("a look does not end")
        return real(backend, attempt_id, *given)

    with patch.object(LocalBackend, act, blind):
        house.open()
        until(lambda: not alive(pids[seen]), "the other one has ended")
        for _ in range(3):
            house.loop.call(lambda desk: house.loop.reconcile_by(0.0)).result(60)
        assert alive(pids[hidden])
        said = [one.getMessage() for one in caplog.records if "cannot be looked at" in one.getMessage()]
        assert len(said) == 1 and hidden in said[0]
    until(lambda: not alive(pids[hidden]), "it is ended as soon as it can be looked at")


def test_a_supervisor_that_died_meanwhile_is_lost_and_tried_again(house):
    with_policy(house, retry_base_s=0.01, retry_cap_s=0.01)
    run_id = house.running(3)
    shim, pid = house.shim_of(run_id), house.run(run_id).attempt.pid
    house.close()
    os.kill(shim, signal.SIGKILL)
    house.open()
    until(lambda: house.run(run_id).attempts_made == 2, "a second attempt")
    assert not alive(pid)
    house.in_state(run_id, RunState.RUNNING)
    assert house.store.attempts(run_id)[0].exit.cause is Cause.LOST


def test_every_state_survives(house):
    with_policy(house, retry_base_s=1000.0, retry_cap_s=1000.0)
    backing_off = house.running(1)
    os.kill(house.shim_of(backing_off), signal.SIGKILL)
    house.in_state(backing_off, RunState.QUEUED)
    running = [house.running(4), house.running(3)]
    stopping = house.submit(STUBBORN, 1, grace_s=300.0)
    until(lambda: "ready" in house.output(stopping), "the job has set its trap")
    house.in_state(stopping, RunState.RUNNING)
    house.do(Cancel(stopping), ANN)
    held = house.submit("true", held=True)
    queued = [house.submit("true", 2) for _ in range(3)]
    everything = [backing_off, *running, stopping, held, *queued]
    before = [house.run(run_id) for run_id in everything]
    house.reopen()
    assert [house.run(run_id) for run_id in everything] == before
    assert house.rota.ask(lambda s, now: [run_id for _, run_id in s.delayed]) == [backing_off]
    assert [house.rota.explain(run_id).position for run_id in queued] == [1, 2, 3], "the order is kept"
    assert house.run(stopping).attempt.stop is not None
    house.do(Cancel(stopping, grace_s=0.0), ANN)
    assert house.wait(stopping).state is RunState.CANCELLED
    house.do(Release(held), ANN)
    house.do(Cancel(running[0], grace_s=0.0), ANN)
    assert {run.state for run in house.wait_all([held, *queued])} == {RunState.SUCCEEDED}
    assert len(house.starts()) == len(set(house.starts())), "nothing was started twice"


def test_a_back_off_that_ended_meanwhile_is_over(house):
    with_policy(house, retry_base_s=0.3, retry_cap_s=0.3)
    run_id = house.running(max_retries=1)
    os.kill(house.shim_of(run_id), signal.SIGKILL)
    until(lambda: house.events(e.AttemptEnded, run_id), "it is lost")
    house.reopen()
    until(lambda: house.run(run_id).attempts_made == 2, "the second attempt")


def test_a_job_cancelled_just_before_the_close_is_dead_after_the_opening(house):
    run_id = house.running()
    pid = house.run(run_id).attempt.pid
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    house.reopen()
    assert house.wait(run_id).state is RunState.CANCELLED
    assert not alive(pid)


def test_a_stop_that_was_recorded_but_never_given_is_given(house):
    run_id = house.running()
    with patch.object(LocalBackend, "stop", lambda self, attempt_id, order: None):
        house.do(Cancel(run_id, grace_s=0.0), ANN)
        house.close()
    house.open()
    assert house.wait(run_id).state is RunState.CANCELLED


def test_an_attempt_that_was_planned_but_never_launched_is_launched_under_its_own_id(house):
    with patch.object(LocalBackend, "launch", lambda self, order: None):
        run_id = house.submit("echo once")
        assert house.run(run_id).state is RunState.STARTING
        house.close()
    house.open()
    run = house.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.SUCCEEDED, 1)
    assert house.output(run_id) == "once\n"


def test_planned_and_cancelled_but_neither_done(house):
    with (
        patch.object(LocalBackend, "launch", lambda self, order: None),
        patch.object(LocalBackend, "stop", lambda self, attempt_id, order: None),
    ):
        run_id = house.submit("echo never")
        house.do(Cancel(run_id), ANN)
        house.close()
    house.open()
    assert house.wait(run_id).state is RunState.CANCELLED
    assert house.output(run_id) == ""


def test_a_vanished_record_of_a_running_attempt_is_a_loss(house):
    import shutil

    run_id = house.running(max_retries=0)
    attempt, shim = house.run(run_id).attempt, house.shim_of(run_id)
    house.close()
    os.kill(attempt.pid, signal.SIGKILL)
    until(lambda: not alive(shim), "its end is recorded, and nothing more will be")
    shutil.rmtree(house.data / "attempts" / attempt.id)
    house.open()
    run = house.wait(run_id)
    assert (run.state, "vanished" in run.why) == (RunState.LOST, True)


def test_epochs_go_up_and_nothing_else_changes(house):
    house.do(Pause())
    run_id = house.submit("true")
    epochs = []
    for _ in range(4):
        house.reopen()
        epochs.append(house.rota.ask(lambda state, now: state.epoch))
        assert house.run(run_id).state is RunState.QUEUED
    assert epochs == sorted(set(epochs))


def test_two_houses_on_one_directory(house):
    run_id = house.running()
    second = House(house.where)
    with pytest.raises(CannotStart, match=rf"pid {os.getpid()}\b"):
        second.open()
    assert house.run(run_id).state is RunState.RUNNING
    assert house.wait(house.submit("true")).state is RunState.SUCCEEDED, "the first is unharmed"


def test_a_locked_database_at_the_opening_is_said_plainly(house):
    house.close()
    with locked(house.data / "rota.db"), pytest.raises(CannotStart, match="lock"):
        house.open()
    house.open()


def test_a_file_that_is_no_database_is_refused_and_left_alone(build):
    house = build()
    house.data.mkdir(mode=0o700)
    (house.data / "rota.db").write_bytes(b"not a database" * 100)
    with pytest.raises(CannotStart, match="not a SQLite database"):
        house.open()
    assert (house.data / "rota.db").read_bytes() == b"not a database" * 100
    (house.data / "rota.db").unlink()


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_directory_that_had_a_store_gets_no_new_one_in_silence(house, how):
    """A new one would know no token, so the server would be open to everybody."""
    house.close()
    for name in os.listdir(house.data):
        if name.startswith("rota.db"):
            (house.data / name).unlink()
    if how == "emptied":
        (house.data / "rota.db").touch()
    with pytest.raises(CannotStart, match=r"rota\.db is gone or empty.*Restore it"):
        house.open()
    assert not (house.data / "rota.db").exists() or not (house.data / "rota.db").stat().st_size, "nothing was made"
    for path in list(house.data.iterdir()):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    house.open()


def test_the_store_of_another_directory_is_refused(house, build):
    other = build().open()
    other.close()
    house.close()
    own = (house.data / "rota.db").read_bytes()
    (house.data / "rota.db").write_bytes((other.data / "rota.db").read_bytes())
    with pytest.raises(CannotStart, match=r"not the one that .* had"):
        house.open()
    (house.data / "rota.db").write_bytes(own)
    (house.data / "store-made").unlink()  # as in a new directory for a backup
    house.open()


def test_a_directory_whose_store_had_no_name_yet_gets_one(house):
    """The file said so in words before it held a name."""
    house.close()
    made = house.data / "store-made"
    made.write_text("rota.db was made here\n")
    house.open()
    assert re.fullmatch(r"[0-9a-f]{32}\n", made.read_text())
    house.close()
    house.open()
    house.close()
    made.write_text("something else\n")
    with pytest.raises(CannotStart, match=r"store-made does not hold the name of a house; restore it, or remove it$"):
        house.open()
    made.unlink()
    house.open()


def test_work_the_store_has_never_heard_of_is_left_alone_and_nothing_is_launched_beside_it(house):
    """A backup of the database is put back while a job runs that was submitted after it."""
    house.close()
    backup = (house.data / "rota.db").read_bytes()
    house.open()
    run_id = house.running()
    pid = house.run(run_id).attempt.pid
    house.close()
    for name in os.listdir(house.data):
        if name.startswith("rota.db"):
            (house.data / name).unlink()
    (house.data / "rota.db").write_bytes(backup)
    house.open()
    assert alive(pid)
    paused, why = house.rota.ask(lambda state, now: (state.paused, state.pause_why))
    assert paused and run_id in why
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid), "somebody ended it")
    house.rota.do(ROOT, Resume())
    assert house.wait(house.submit("true")).state is RunState.SUCCEEDED


@pytest.mark.parametrize("looks", ["one fails", "none ends"])
def test_of_such_work_that_cannot_be_looked_at_it_is_thought_that_it_runs(house, looks):
    """At first it is looked at again: a pause lasts until an admin ends it."""
    house.close()
    backup = (house.data / "rota.db").read_bytes()
    house.open()
    attempt = house.run(house.running()).attempt
    house.close()
    for name in os.listdir(house.data):
        if name.startswith("rota.db"):
            (house.data / name).unlink()
    (house.data / "rota.db").write_bytes(backup)
    if looks == "one fails":  # its end is on record by then
        os.kill(attempt.pid, signal.SIGKILL)
        until((house.data / "attempts" / attempt.id / "exit").exists, "its end")
    observe, failed = LocalBackend.observe, list[str]()

    def blind(backend, attempt_id):
        if attempt_id == attempt.id and (looks == "none ends" or not failed):
            failed.append(attempt_id)
            raise Unseen("a look has not ended in time")
        return observe(backend, attempt_id)

    with patch.object(LocalBackend, "observe", blind):
        house.open()
        paused, why = house.rota.ask(lambda state, now: (state.paused, state.pause_why))
    assert failed
    if looks == "one fails":
        assert not paused
        return
    assert paused and f"{attempt.id} may run here (it cannot be looked at: a look has not ended in time)" in why
    os.kill(attempt.pid, signal.SIGKILL)
    until(lambda: not alive(attempt.pid), "somebody ended it")


def test_a_new_start_decides_on_the_nodes_of_today_not_on_those_of_the_last_server(tmp_path):
    """Yesterday there were two nodes, today there is one: nothing may start on what is gone."""
    data = tmp_path / "data"
    with open_rota(Settings(data, simulated=(2, 1))) as parts:
        rota = parts.service
        running = [rota.do(ROOT, Submit(Spec("x", ("sleep", "0.5"), "/"))).id for _ in range(2)]
        queued = [rota.do(ROOT, Submit(Spec("x", ("true",), "/"))).id for _ in range(4)]
        before = rota.ask(lambda state, now: state.version)
        until(lambda: all(rota.run(run_id).state is RunState.RUNNING for run_id in running), "both run")
    ends = [data / "attempts" / f"{run_id}-1" / "exit" for run_id in running]
    until(lambda: all(end.exists() for end in ends), "both have ended unseen: yesterday's two nodes look free")
    with open_rota(Settings(data, simulated=(1, 1))) as parts:
        rota = parts.service
        assert {rota.wait(run_id, 60).state for run_id in [*running, *queued]} == {"succeeded"}
        later = [stored.event for stored in rota._loop.store.events(before, 1000)]
    nodes = [event.placement[0].node for event in later if isinstance(event, e.AttemptPlanned)]
    assert nodes == ["node1"] * 4
