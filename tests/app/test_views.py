"""What is shown to those who only look: one moment, durable, in order, and cheap."""

from __future__ import annotations

from dataclasses import replace
from threading import Event, Thread

import pytest

from rota.app.authz import Principal, Role
from rota.app.commands import Archive, Cancel, Edit, Hold, Pause, Release, Reprioritise, Rerun, Resume, Submit
from rota.app.ports import StoreBusy
from rota.app.views import Window
from rota.core import events as e
from rota.core.node import simulated_cluster
from rota.core.policy import HOUR_S, Ordering, Policy
from rota.core.rank import position
from rota.core.reduce import reduce
from rota.core.run import Dependency, RunState, Spec
from rota.core.snapshot import snapshot
from rota.core.state import State
from rota.core.usage import Usage
from tests.app.house import ANN, BOB, until, with_policy


def test_a_view_is_one_moment(house):
    first = house.rota.view()
    assert house.rota.view() is first, "nothing happened: the same view"
    run_id = house.submit("true", held=True)
    later = house.rota.view()
    assert run_id not in first.runs
    assert run_id in later.runs
    assert later.version > first.version
    house.do(Cancel(run_id), ANN)
    assert run_id in later.runs, "a view does not move"
    assert run_id not in house.rota.view().runs


def test_who_has_an_answer_sees_it(house):
    for _ in range(50):
        run_id = house.submit("true", held=True)
        assert run_id in house.rota.view().runs
        assert house.do(Release(run_id), ANN).id
        assert all(run.id != run_id for run in house.rota.view().held())


def test_an_agents_estimate_of_a_second_passes_nobody_of_higher_priority(house):
    house.running(8)
    important = house.sleeper(1, BOB, priority=3, time_limit_s=8 * HOUR_S)
    bot = Principal("bot", Role.AGENT, acts_for="ann")
    said, bounded = house.sleeper(1, bot, estimate_s=1.0), house.sleeper(1, bot, time_limit_s=1.0)
    assert house.rota.run(said).spec.estimate_s == 1.0
    assert [run.id for run in house.rota.view().queue()] == [bounded, important, said]
    # nor where the person starts what the agent wrote, or the agent writes another command into the person's run
    draft = house.do(Submit(house.spec("sleep 60", estimate_s=1.0), author=Role.AGENT), ANN).id
    persons = house.sleeper(1, ANN, estimate_s=1.0)
    assert [run.id for run in house.rota.view().queue()] == [bounded, persons, important, said, draft]
    house.do(Edit(persons, argv=("/bin/sleep", "61")), bot)
    assert [run.id for run in house.rota.view().queue()] == [bounded, important, said, draft, persons]
    house.do(Edit(persons, argv=("/bin/sleep", "62")), ANN)
    order = [run.id for run in house.rota.view().queue()]
    assert order == [bounded, important, said, draft, persons], "no estimate was given with this command"
    house.reopen()
    assert [run.id for run in house.rota.view().queue()] == order


def test_a_persons_rerun_or_edit_does_not_make_an_agents_estimate_believed(house):
    house.running(8)
    important = house.sleeper(1, BOB, priority=3, time_limit_s=8 * HOUR_S)
    bot = Principal("bot", Role.AGENT, acts_for="ann")
    agents, persons = house.sleeper(1, bot, estimate_s=1.0), house.sleeper(1, ANN, estimate_s=1.0)
    again, of_a_person = house.do(Rerun(agents), ANN).id, house.do(Rerun(persons), ANN).id
    expected = [persons, of_a_person, important, agents, again]
    assert [run.id for run in house.rota.view().queue()] == expected
    for run_id in (agents, again, persons):
        house.do(Edit(run_id, workdir="/"), ANN)
    house.reopen()
    twice = house.do(Rerun(again), ANN).id
    assert [run.id for run in house.rota.view().queue()] == [*expected, twice]
    # an agent writes another command into the person's run, and the person then only changes its directory
    house.do(Edit(persons, argv=("/bin/sleep", "61")), bot)
    house.do(Edit(persons, workdir="/tmp"), ANN)
    after = [run.id for run in house.rota.view().queue()]
    assert after.index(important) < after.index(persons)


def test_earlier_short_runs_let_no_run_of_an_agent_pass_a_higher_priority(house):
    """Of the same command with other numbers, and of the same width."""
    bot = Principal("bot", Role.AGENT, acts_for="ann")
    house.wait_all([house.submit(("/bin/sleep", "0"), 1, bot) for _ in range(5)])
    house.running(8)
    important = house.sleeper(1, BOB, priority=3, time_limit_s=8 * HOUR_S)
    agents, persons = house.sleeper(1, bot), house.sleeper(1, ANN)
    bounded = house.sleeper(1, bot, time_limit_s=1.0)

    def passed() -> set[str]:
        order = [run.id for run in house.rota.view().queue()]
        return set(order[: order.index(important)])

    assert passed() == {bounded, persons}, "a person's run is believed to be like those before"
    house.do(Rerun(agents), ANN), house.do(Rerun(persons), bot)
    house.do(Edit(agents, workdir="/"), ANN)
    house.do(Edit(persons, argv=("/bin/sleep", "61")), bot)
    house.reopen()
    assert passed() == {bounded}


def test_queue_active_held_and_the_gpus(house):
    running = house.running(3)
    wide, also = house.sleeper(8), house.sleeper(6)
    held = house.submit("true", held=True)
    view = house.rota.view()
    assert [run.id for run in view.active()] == [running]
    assert [run.id for run in view.queue()] == [wide, also]
    assert [run.id for run in view.held()] == [held]
    assert (view.total_gpus(), view.free_gpus()) == (8, 5)
    assert {run.id for run in view.holders().values()} == {running}
    assert len(view.holders()) == 3
    assert [view.position(run_id) for run_id in (wide, also, held, running, "0" * 12)] == [1, 2, None, None, None]
    house.do(Reprioritise(also, 4), ANN)
    assert house.rota.view().position(also) == 1
    house.do(Hold(also), ANN)
    assert house.rota.view().position(also) is None
    assert (house.rota.view().paused, house.do(Pause("lunch")), house.rota.view().pause_why) == (False, True, "lunch")
    house.do(Resume())


def test_a_restart_shows_the_same(house):
    house.running(8)
    for n in range(20):
        house.submit("true", 1, (ANN, BOB)[n % 2], priority=1 + n % 4)
    with_policy(house, ordering=Ordering.FAIR_SHARE)
    before = house.rota.view()
    house.reopen()
    after = house.rota.view()
    assert [run.id for run in after.queue()] == [run.id for run in before.queue()]
    assert after.runs == before.runs
    assert after.nodes == before.nodes


def test_what_is_not_durable_is_not_shown(house):
    """The store fails in the middle: nobody has seen what was lost."""
    seen: set[str] = set()
    stop = Event()

    def watch() -> None:
        while not stop.is_set():
            seen.update(house.rota.view().runs)

    watcher = Thread(target=watch)
    watcher.start()
    append, failing = house.store.append, [True]

    def broken(*args: object, **more: object) -> None:
        if failing[0]:
            raise StoreBusy("not now")
        append(*args, **more)

    house.store.append = broken
    try:
        for _ in range(5):
            with pytest.raises(Exception, match="not stored"):
                house.submit("true", held=True)
    finally:
        failing[0] = False
        until(lambda: not house.loop.degraded, "writing works again")
        stop.set()
        watcher.join()
    assert seen == set()
    run_id = house.submit("true", held=True)
    assert list(house.rota.view().runs) == [run_id]


# -- the window alone -------------------------------------------------------------------------------------------------
def many(count: int, ordering: Ordering) -> tuple[State, Window]:
    state, window = State(), Window()
    for node in simulated_cluster(2, 8):
        reduce(state, e.NodeSeen(at=0, node=node))
    reduce(state, e.PolicySet(at=0, policy=Policy(ordering=ordering)))
    for n in range(count):
        submit(state, n)
    window.show(state)
    state.touched.clear()
    return state, window


@pytest.mark.parametrize("ordering", [Ordering.AUTO, Ordering.PRIORITY, Ordering.FAIR_SHARE])
def test_a_window_after_loading_is_as_one_that_saw_everything(ordering: Ordering) -> None:
    state, window = many(300, ordering)
    waits = replace(state.runs[f"{1:012x}"], waiting_on=(Dependency(f"{0:012x}"),))
    later = replace(state.runs[f"{2:012x}"], not_before=1e9)
    held, archived = state.runs[f"{3:012x}"], replace(state.runs[f"{4:012x}"], archived_at=5.0)
    for run in (waits, later, replace(held, state=RunState.HELD), archived):
        state.put(run)
    state.version += 1
    window.show(state)
    loaded = Window()
    loaded.reset(state)
    for name in ("runs", "active", "held", "lines", "people", "archived", "policy", "version"):
        assert getattr(loaded, name) == getattr(window, name), name


def submit(state: State, n: int) -> None:
    spec = Spec(name="t", argv=("true",), workdir="/", priority=1 + n % 4)
    reduce(
        state,
        e.RunSubmitted(
            at=float(n),
            run_id=f"{n:012x}",
            seq=n + 1,
            user=f"u{n % 40}",
            spec=spec,
            held=False,
            waiting_on=(),
            expected_s=60.0 + n % 7,
            expected_from="default",
        ),
    )


@pytest.mark.parametrize("ordering", list(Ordering))
def test_the_order_is_the_one_that_is_decided_by(ordering):
    state, window = many(300, ordering)
    for n in range(0, 300, 3):
        user = f"u{n % 40}"
        state.usage[user] = replace(state.usage[user], gpu_s=float(n)) if user in state.usage else _usage(n)
    window.reset(state)
    view = window.view()
    snap = snapshot(state, view.at)
    for run in view.queue():
        assert view.position(run.id) == position(snap, run.id)
    assert [view.position(run.id) for run in view.queue()] == list(range(1, 301))


def _usage(gpu_s: float) -> Usage:
    return Usage(float(gpu_s), 1.0)


def test_a_new_policy_is_a_new_order():
    state, window = many(100, Ordering.PRIORITY)
    first = [run.id for run in window.view().queue()]
    reduce(state, e.PolicySet(at=100, policy=Policy(ordering=Ordering.FCFS)))
    submit(state, 100)
    window.show(state)
    assert [run.seq for run in window.view().queue()] == list(range(1, 102))
    assert first != [run.id for run in window.view().queue()][:100]


def test_a_place_in_the_queue_is_found_without_sorting_it_and_an_order_is_made_once():
    """How long that takes is measured by the benchmarks."""
    state, window = many(10_000, Ordering.PRIORITY)
    submit(state, state.next_seq)
    window.show(state)
    view = window.view()
    newest = max(view.runs.values(), key=lambda run: run.seq)
    place = view.position(newest.id)
    assert "_order" not in vars(view)
    assert place == [run.id for run in view.queue()].index(newest.id) + 1
    order = vars(view)["_order"]
    view.queue()
    assert vars(view)["_order"] is order


# -- the tally --------------------------------------------------------------------------------------------------------
def test_the_tally_counts_what_ended_and_what_lives(house):
    done = [house.submit("true") for _ in range(3)]
    failed = house.submit("false")
    house.wait_all([*done, failed])
    house.submit("true", held=True)
    running = house.running()
    cancelled = house.submit("true", held=True)
    house.do(Cancel(cancelled), ANN)
    house.settled()
    tally = house.rota.tally()
    wanted = {"held": 1, "running": 1, "succeeded": 3, "failed": 1, "cancelled": 1}
    assert {state.value: count for state, count in tally.counts.items() if count} == wanted
    assert (tally.scheduled, tally.completed, tally.failed) == (5, 3, 1)
    assert tally.ended_last_hour == 5
    assert 0 <= tally.average_wait_s < 60
    assert tally.passes > 0
    assert tally.last_pass_at is not None
    assert tally.counts == house.store.counts()
    for archived in (done[0], running):
        house.do(Archive(archived), ANN)
    house.settled()
    assert house.rota.tally().counts == house.store.counts()
    assert house.rota.tally().counts[RunState.RUNNING] == 0
    house.do(Archive(running, archived=False), ANN)
    house.do(Archive(done[0], archived=False), ANN)
    house.settled()
    assert house.rota.tally().counts == tally.counts


def test_what_is_archived_and_ends_in_one_batch(house):
    runs = [house.submit("true", held=True) for _ in range(3)]
    with house.occupied():
        house.rota.send(ANN, Archive(runs[0]))
        house.rota.send(ANN, Cancel(runs[0]))
        house.rota.send(ANN, Cancel(runs[1]))
        house.rota.send(ANN, Archive(runs[1]))
        last = house.rota.send(ANN, Cancel(runs[2]))
    last.result(60)
    until(lambda: house.rota.tally().counts == house.store.counts(), "told of all of them")
    assert house.rota.tally().counts[RunState.CANCELLED] == 1


def test_a_restart_keeps_the_figures_that_are_not_this_servers_own(house):
    house.wait_all([house.submit("true") for _ in range(4)])
    house.wait(house.submit("false"))
    before = house.rota.tally()
    house.reopen()
    after = house.rota.tally()
    assert after.counts == before.counts
    assert (after.scheduled, after.completed, after.failed) == (0, 0, 0)
    assert after.average_wait_s == pytest.approx(before.average_wait_s)


def test_the_tally_is_right_after_the_store_failed(house):
    append = house.store.append

    def committed_but_unanswered(*args: object, **more: object) -> None:
        append(*args, **more)
        house.store.append = append
        raise StoreBusy("the answer was lost")

    house.store.append = committed_but_unanswered
    with pytest.raises(Exception, match="not stored"):
        house.rota.do(ANN, Submit(house.spec("true"), held=True), 60)
    until(lambda: not house.loop.degraded, "writing works again")
    assert house.rota.tally().counts == house.store.counts()
    assert house.rota.tally().counts[RunState.HELD] == 1
