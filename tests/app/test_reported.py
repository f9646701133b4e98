"""Runs that are carried elsewhere: whoever carries them reports, Rota keeps the books and touches nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rota.adapters.clock import ManualClock
from rota.app import report
from rota.app.commands import Cancel, Drain, Report, Submit
from rota.app.errors import Forbidden, Full, Invalid, NoSpace, NotFound
from rota.app.ports import Absent
from rota.core import events as e
from rota.core.check import check
from rota.core.policy import Limits
from rota.core.run import ENDED, TABLE, WAITING, Cause, Dependency, Run, RunState, When
from rota.core.state import State
from tests.app.house import ANN, BOB, ROOT, House, with_policy

S = RunState
MARK = "this line must never run"


def waiting(house: House, *, held: bool = True, **more: Any) -> str:
    """A run that Rota has not started: held back, or with no room for it."""
    gpus = 1 if held else 8
    return house.submit(f"echo {MARK}", gpus, held=held, **more)


def tell(house: House, run_id: str, state: RunState, **more: Any) -> Run:
    run: Run = house.do(Report(run_id, state, **more), ANN)
    assert house.rota.ask(lambda state, now: check(state)) == []
    return run


def test_the_whole_life_of_a_run_that_is_carried_elsewhere(house):
    run_id = waiting(house)
    starting = tell(house, run_id, S.STARTING)
    assert starting.attempt is not None
    assert (starting.state, starting.attempt.reported, starting.attempt.placement) == (S.STARTING, True, ())
    assert house.free() == 8, "no GPU of ours"
    running = tell(house, run_id, S.RUNNING, labels={"tmux_pane": "%3"})
    assert (running.state, running.spec.labels["tmux_pane"]) == (S.RUNNING, "%3")
    ended = tell(house, run_id, S.SUCCEEDED, exit_code=0)
    assert (ended.state, ended.past[-1].exit.code, ended.past[-1].gpu_s) == (S.SUCCEEDED, 0, 0.0)
    assert house.output(run_id) == "", "its command was never run here"
    assert house.loop.backend.observe(f"{run_id}-1") == Absent()


def test_a_queued_run_may_be_taken_elsewhere_too(house):
    house.running(8)
    run_id = waiting(house, held=False)
    assert tell(house, run_id, S.RUNNING).state is S.RUNNING
    assert house.free() == 0
    assert tell(house, run_id, S.FAILED, exit_code=3).why == "exit code 3"


@pytest.mark.parametrize("end", [S.SUCCEEDED, S.FAILED, S.CANCELLED])
@pytest.mark.parametrize("before", [None, S.STARTING, S.RUNNING])
def test_an_end_may_be_the_first_that_is_heard(house, before, end):
    run_id = waiting(house)
    if before is not None:
        tell(house, run_id, before)
    ended = tell(house, run_id, end, error="so it was said")
    assert ended.state is end
    assert house.run(run_id).ended_at is not None
    kinds = [type(stored.event) for stored in house.store.events(0, 100, run_id)]
    assert len(kinds) == len(set(kinds)), "every step once"


def test_a_success_with_a_code_is_a_failure(house):
    ended = tell(house, waiting(house), S.SUCCEEDED, exit_code=2)
    assert (ended.state, ended.past[-1].exit.code) == (S.FAILED, 2)


def test_a_failure_is_not_tried_again_here(house):
    run_id = waiting(house, retry_failures=True, max_retries=5)
    ended = tell(house, run_id, S.FAILED, exit_code=1, error="CUDA out of memory")
    assert (ended.state, ended.why, ended.past[-1].exit.message) == (
        S.FAILED,
        "CUDA out of memory",
        "CUDA out of memory",
    )
    said = tell(house, waiting(house), S.FAILED, exit_code=0)
    assert (said.state, said.past[-1].exit.ok, said.why) == (S.FAILED, False, "reported as failed by ann")


def test_a_long_story_is_cut_and_kept(house):
    ended = tell(house, waiting(house), S.FAILED, error="x" * 100_000 + "\0")
    assert len(ended.why) == report.MAX_ERROR
    assert ended.why.startswith("xxx") and ended.why.endswith("x [cut, 100,001 characters]")
    waited = tell(house, waiting(house), S.CANCELLED, error="y\0" * 5_000)
    assert waited.why.startswith("y y ") and waited.why.endswith(" [cut, 10,000 characters]")
    whole = tell(house, waiting(house), S.FAILED, error="z" * report.MAX_ERROR)
    assert whole.why == "z" * report.MAX_ERROR


def test_saying_the_same_again_is_harmless(house):
    run_id = waiting(house)
    for state in (S.STARTING, S.RUNNING, S.FAILED):
        first = tell(house, run_id, state)
        version = house.rota.ask(lambda state, now: state.version)
        again = tell(house, run_id, state)
        assert again.state is first.state
        assert house.rota.ask(lambda state, now: state.version) == version


@pytest.mark.parametrize("target", list(S))
@pytest.mark.parametrize("now", [S.HELD, S.STARTING, S.RUNNING, S.SUCCEEDED, S.CANCELLED])
def test_every_other_move_is_refused_by_name(house, now, target):
    run_id = waiting(house)
    if now is not S.HELD:
        tell(house, run_id, now)
    reachable = {S.STARTING, S.RUNNING, S.SUCCEEDED, S.FAILED, S.CANCELLED} if now not in ENDED else set()
    if now is S.RUNNING:
        reachable.discard(S.STARTING)
    if target is now or target in reachable:
        assert tell(house, run_id, target).state is target
        return
    with pytest.raises(Invalid) as refused:
        tell(house, run_id, target)
    assert f"from {now} to {target}" in refused.value.message
    assert refused.value.field == "status"
    assert house.run(run_id).state is now
    assert target not in TABLE[now] or now in (S.HELD, S.STARTING, S.RUNNING)


def test_what_rota_runs_itself_is_not_moved_by_words(house):
    run_id = house.running()
    assert tell(house, run_id, S.RUNNING, labels={"wandb_dir": "/x"}).spec.labels["wandb_dir"] == "/x"
    for state in (S.SUCCEEDED, S.FAILED, S.CANCELLED, S.STARTING):
        with pytest.raises(Invalid, match="Rota runs this itself"):
            tell(house, run_id, state)
    assert house.run(run_id).state is S.RUNNING


def test_only_its_owner_reports_and_only_on_what_is_known(house):
    run_id = waiting(house)
    with pytest.raises(Forbidden, match="bob may not report on what belongs to ann"):
        house.do(Report(run_id, S.RUNNING), BOB)
    with pytest.raises(NotFound):
        house.do(Report("000000000000", S.RUNNING), ANN)
    with pytest.raises(Invalid, match="exit_code"):
        house.do(Report(run_id, S.FAILED, exit_code=1 << 40), ANN)
    with pytest.raises(Invalid):
        house.do(Report(run_id, "running wild"), ANN)  # type: ignore[arg-type]
    assert house.run(run_id).state is S.HELD
    assert house.do(Report(run_id, S.RUNNING), ROOT).state is S.RUNNING


def test_it_outlives_the_server_and_its_rounds(house):
    run_id = waiting(house)
    tell(house, run_id, S.RUNNING)
    house.reopen()
    house.loop._next_reconcile = 0.0  # a round now
    house.wait(house.submit("true"))
    assert house.run(run_id).state is S.RUNNING
    assert tell(house, run_id, S.SUCCEEDED).state is S.SUCCEEDED


def test_it_outlives_the_machine(build):
    house, clock = build(), ManualClock(now=time.time(), tick=1e9, boot_id="one")
    house.clock = lambda: clock
    house.open()
    run_id = waiting(house)
    tell(house, run_id, S.RUNNING)
    house.close()
    clock.reboot("two", tick=12.0)
    house.open()
    assert house.run(run_id).state is S.RUNNING


def test_a_cancel_ends_it_at_once(house):
    run_id = waiting(house)
    tell(house, run_id, S.RUNNING)
    ended = house.do(Cancel(run_id, why="enough"), ANN)
    assert (ended.state, ended.why, ended.past[-1].exit.cause) == (S.CANCELLED, "enough", Cause.CANCELLED)
    with pytest.raises(Invalid, match="has ended as cancelled"):
        tell(house, run_id, S.RUNNING)


def test_those_who_wait_for_it_go_on_or_end_with_it(house):
    good, bad = waiting(house), waiting(house)
    after_good = house.submit("true", depends_on=(Dependency(good),))
    after_bad = house.submit("true", depends_on=(Dependency(bad),))
    anyway = house.submit("true", depends_on=(Dependency(bad, When.ENDED),))
    tell(house, good, S.SUCCEEDED)
    tell(house, bad, S.FAILED)
    assert house.wait(after_good).state is S.SUCCEEDED
    assert house.wait(anyway).state is S.SUCCEEDED
    assert house.wait(after_bad).state is S.CANCELLED


def test_it_takes_nothing_of_the_number_of_runs_that_may_be_active(house):
    with_policy(house, max_concurrent=2, user_limits={"ann": Limits(running=1)})
    for _ in range(3):
        tell(house, waiting(house, preemptible=True), S.RUNNING)
    assert house.wait(house.submit("true", who=BOB)).state is S.SUCCEEDED
    assert house.wait(house.submit("true", who=ANN)).state is S.SUCCEEDED
    assert house.loop.window.counts()[S.RUNNING] == 3, "they are shown as running all the same"


def test_it_can_neither_be_stopped_for_others_nor_counts_in_a_plan(house):
    away = waiting(house, preemptible=True, group="sweep")
    tell(house, away, S.RUNNING)
    state = house.rota.ask(lambda state, now: state.fork())
    assert (state.active, list(state.timeline), list(state.stoppable), state.load) == (0, [], [], {})
    assert (list(state.elsewhere), state.groups) == ([away], {"sweep": 1})
    behind = house.submit("true", depends_on=(Dependency(away),), time_limit_s=60.0)
    assert house.rota.eta(behind) is not None, "it is expected to end all the same"
    tell(house, away, S.SUCCEEDED)
    assert house.rota.ask(lambda state, now: (list(state.elsewhere), state.groups)) == ([], {})


def test_it_does_not_stand_in_the_way_of_nodes(house):
    """With no placement it is on no node: draining and looking for nodes must not stumble over it."""
    run_id = waiting(house)
    tell(house, run_id, S.RUNNING)
    house.do(Drain("node1"))
    house.rota.see_nodes(house.rota.ask(lambda state, now: tuple(state.nodes.values()))[:1])
    assert house.rota.eta(waiting(house)) is None
    assert house.rota.explain(run_id).reasons == ()


def spent(house: House) -> None:
    """Use up ann's budget of the ledger."""
    budget = house.loop.budget
    put = e.RecordPut(at=0.0, by="ann", kind="alert", id="a", parent="", body="x" * budget.quotas.ledger)
    house.rota.ask(lambda state, now: budget.charge(ANN, [put, put], 0, now))


class NoRoom:
    """A disk below its floor."""

    def shortage(self) -> str:
        return "the disk is below its floor"

    def relieve(self) -> bool:
        return False


def below_the_floor(house: House) -> None:
    def shut(state: State, now: float) -> None:
        house.loop.space, house.loop.shortage = NoRoom(), NoRoom().shortage()  # type: ignore[assignment]

    house.rota.ask(shut)  # on the loop's thread, which looks at the disk itself


@pytest.mark.parametrize(("use_up", "refusal"), [(spent, Full), (below_the_floor, NoSpace)])
def test_without_room_a_report_writes_ends_and_what_runs_and_nothing_else(house, use_up, refusal):
    held, starting, running, other = (waiting(house) for _ in range(4))
    tell(house, starting, S.STARTING)
    tell(house, running, S.RUNNING, labels={"tmux_pane": "%1"})
    ended = tell(house, other, S.FAILED).id
    use_up(house)
    events = len(house.events(e.Event))
    for run_id, state in ((held, S.HELD), (running, S.RUNNING), (ended, S.FAILED)):
        with pytest.raises(refusal):
            tell(house, run_id, state, labels={"wandb_dir": "/" + "x" * 4000})
    for state in (S.STARTING, S.RUNNING):
        with pytest.raises(refusal):
            tell(house, held, state)
    tell(house, running, S.RUNNING, labels={"tmux_pane": "%1"})  # says nothing new, so there is nothing to refuse
    assert len(house.events(e.Event)) == events
    assert tell(house, starting, S.RUNNING).state is S.RUNNING
    for run_id in (held, starting, running):
        end = tell(house, run_id, S.FAILED, error="x" * 100_000, labels={"wandb_dir": "/x"})
        assert (end.state, len(end.why), end.spec.labels.get("wandb_dir")) == (S.FAILED, report.MAX_ERROR_SHORT, None)


def test_the_open_runs_of_a_person_that_are_carried_elsewhere_are_bounded(house, monkeypatch):
    monkeypatch.setattr(report, "MAX_ELSEWHERE", 2)
    first, second, third = (waiting(house) for _ in range(3))
    tell(house, first, S.STARTING)
    tell(house, second, S.RUNNING)
    with pytest.raises(Full, match="ann has 2 runs that are carried elsewhere and have not ended, the limit is 2"):
        tell(house, third, S.RUNNING)
    assert tell(house, first, S.RUNNING).state is S.RUNNING
    assert tell(house, third, S.FAILED).state is S.FAILED, "an end is always taken"
    assert house.do(Report(house.submit("true", who=BOB, held=True), S.RUNNING), BOB).state is S.RUNNING
    tell(house, first, S.SUCCEEDED)
    fourth = waiting(house)
    assert tell(house, fourth, S.RUNNING).state is S.RUNNING
    house.reopen()
    fifth = waiting(house)
    with pytest.raises(Full):
        tell(house, fifth, S.RUNNING)
    assert house.do(Report(fifth, S.RUNNING), ROOT).state is S.RUNNING, "admins have no budget"


def test_a_report_and_the_scheduler_in_one_turn_make_one_attempt(house):
    """Whoever is first in the batch has it: never both."""
    with house.occupied():
        submits = [house.rota.send(ANN, Submit(house.spec("true"), held=False)) for _ in range(3)]
    ids = [future.result(60).id for future in submits]
    for run_id in ids:
        assert house.wait(run_id).attempts_made == 1
    blocker = house.running(8)
    queued = waiting(house, held=False)
    with house.occupied():
        cancel = house.rota.send(ROOT, Cancel(blocker, grace_s=0.0))
        told = house.rota.send(ANN, Report(queued, S.RUNNING))
    cancel.result(60)
    assert told.result(60).attempt.reported
    house.wait(blocker)
    planned = house.events(e.AttemptPlanned, queued)
    assert [event.reported for event in planned] == [True]
    assert house.run(queued).state not in WAITING
