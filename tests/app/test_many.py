"""Many at once, all or none; caps on sweeps; and the queue that is full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.app import budget, sweeps
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, CapGroup, Draft, Edit, PutRecord, Rerun, Submit, SubmitMany
from rota.app.errors import Conflict, Forbidden, Full, Invalid
from rota.app.ports import RunFilter
from rota.core import events as e
from rota.core.policy import Limits
from rota.core.run import Dependency, RunState
from tests.app.house import ANN, BOB, ROOT, until, with_policy


def cells(house, count: int, group: str = "s", **more: object) -> tuple[Submit, ...]:
    return tuple(
        Submit(replace(house.spec(f"echo {n}", group=group), name=f"s #{n}"), **more)  # type: ignore[arg-type]
        for n in range(count)
    )


def test_a_sweep_and_its_runs_are_one_transaction(house):
    command = SubmitMany(cells(house, 5, held=True), (Draft("sweep", "s", '{"name":"grid"}'),))
    runs = house.do(command, ANN)
    assert [run.spec.name for run in runs] == [f"s #{n}" for n in range(5)]
    stored = house.store.events(0, 100)
    seqs = [s.seq for s in stored if isinstance(s.event, (e.RunSubmitted, e.RecordPut))]
    assert seqs == list(range(seqs[0], seqs[0] + 6))
    record = house.rota.record("sweep", "s")
    assert (record.body, record.by) == ({"name": "grid"}, "ann")
    assert [run.id for run in house.rota.runs(RunFilter(group="s"))] == [run.id for run in reversed(runs)]


def test_what_was_changed_meanwhile_is_not_written_over(house):
    house.do(PutRecord(Draft("sweep", "s", '{"draft": true}')), ANN)
    now = Draft("sweep", "s", '{"draft": false}', seen='{"draft":true}')
    assert len(house.do(SubmitMany(cells(house, 2, held=True), (now,)), ANN)) == 2
    before = house.store.load().version
    with pytest.raises(Conflict, match="sweep s was changed meanwhile"):
        house.do(SubmitMany(cells(house, 2, held=True), (now,)), ANN)
    with pytest.raises(Conflict, match="changed meanwhile"):
        house.do(PutRecord(now), ANN)
    with pytest.raises(Conflict, match="changed meanwhile"):
        house.do(PutRecord(Draft("sweep", "gone", "{}", seen="{}")), ANN)
    assert house.store.load().version == before
    assert house.do(PutRecord(replace(now, seen='{"draft": false}')), ANN).body == {"draft": False}


@pytest.mark.parametrize("bad", ["spec", "record", "user", "room", "key"])
def test_one_that_is_wrong_and_there_is_none(house, bad):
    submits, records = list(cells(house, 4)), (Draft("sweep", "s", "{}"),)
    match bad:
        case "spec":
            submits[3] = replace(submits[3], spec=replace(submits[3].spec, name=""))
        case "record":
            records = (Draft("sweep", "s", "[1]"),)
        case "user":
            submits[3] = replace(submits[3], user="bob")
        case "room":
            with_policy(house, max_queue=3)
        case "key":
            submits = [replace(one, key="same") for one in submits]
    before = house.store.load().version
    with pytest.raises((Invalid, Forbidden, Full)):
        house.do(SubmitMany(tuple(submits), records), ANN)
    assert house.store.load().version == before
    assert house.rota.record("sweep", "s") is None
    assert house.rota.runs(RunFilter()) == []


def test_more_than_ten_thousand_are_too_many(house):
    with pytest.raises(Invalid, match="10000") as refusal:
        house.do(SubmitMany(cells(house, 1) * 10_001), ANN)
    assert refusal.value.field == "submits"
    runs = house.do(SubmitMany(cells(house, 1, held=True) * 2_000), ANN)
    assert len({run.id for run in runs}) == 2_000
    house.do(Cancel(runs[0].id))
    for run in runs[1:]:
        house.rota.send(ANN, Cancel(run.id))
    until(lambda: not house.rota.view().runs, "all cancelled")


def test_a_persons_share_of_the_queue_counts_those_of_the_same_command(house):
    with_policy(house, limits=Limits(queued=3))
    with pytest.raises(Full, match="the limit is 3"):
        house.do(SubmitMany(cells(house, 4, held=True)), ANN)
    assert len(house.do(SubmitMany(cells(house, 3, held=True)), ANN)) == 3


@pytest.mark.parametrize(
    ("max_queue", "others", "role", "share"),
    [
        (200_000, 0, Role.USER, 100_000),
        (200_000, 100_000, Role.USER, 50_000),
        (200_000, 199_999, Role.USER, 10_000),
        (200_000, 0, Role.AGENT, 20_000),
        (200_000, 170_000, Role.AGENT, 15_000),
        (50_000, 0, Role.AGENT, 10_000),
        (3, 0, Role.USER, 3),
        (3, 2, Role.AGENT, 3),
    ],
)
def test_one_person_has_half_of_what_others_leave(max_queue, others, role, share):
    assert budget.share(max_queue, others, role) == share


def test_one_person_does_not_fill_the_queue(house, monkeypatch):
    monkeypatch.setattr(budget, "SURE_PLACES", 3)
    with_policy(house, max_queue=40)
    bot = Principal("bot", Role.AGENT, acts_for="ann")
    with pytest.raises(Full, match=r"ann has 4 runs waiting, the limit is 4 of the 40 .* while an agent submits;"):
        house.do(SubmitMany(cells(house, 5, held=True)), bot)
    runs = house.do(SubmitMany(cells(house, 4, held=True)), bot)
    with pytest.raises(Full, match="ann has 4 runs waiting"):
        house.submit("true", who=bot, held=True)
    house.do(SubmitMany(cells(house, 16, held=True)), ANN)
    with pytest.raises(Full, match=r"ann has 20 runs waiting, the limit is 20 of the 40 .* raise max_queue") as refusal:
        house.submit("true", who=ANN, held=True)
    assert refusal.value.code == "full"
    house.do(SubmitMany(cells(house, 10, held=True)), BOB)
    with pytest.raises(Full, match="bob has 10 runs waiting, the limit is 10"):
        house.submit("true", who=BOB, held=True)
    house.do(SubmitMany(cells(house, 10, held=True, user="ann")))
    with pytest.raises(Full, match=r"Queue is full .max 40 jobs."):
        house.do(SubmitMany(cells(house, 1, held=True)))
    # what was taken in stays, although it is over the share now
    with_policy(house, max_queue=50)
    house.reopen()
    assert house.rota.ask(lambda state, now: state.load["ann"].queued) == 30
    for run in runs[:2]:
        house.do(Cancel(run.id), bot)
    with pytest.raises(Full, match="ann has 28 runs waiting, the limit is 20 of the 50"):
        house.submit("true", who=ANN, held=True)
    assert house.submit("true", who=BOB, held=True)


# -- keys -------------------------------------------------------------------------------------------------------------
def test_many_with_keys_are_the_same_many(house):
    submits = tuple(replace(one, key=f"k{n}") for n, one in enumerate(cells(house, 3, held=True)))
    command = SubmitMany(submits, (Draft("sweep", "s", "{}"),))
    first = house.do(command, ANN)
    assert house.do(command, ANN) == first
    assert len(house.events(e.RunSubmitted)) == 3
    assert len(house.events(e.RecordPut)) == 1
    with pytest.raises(Conflict, match=first[0].id):
        house.do(SubmitMany((*submits, replace(submits[0], key="k9"))), ANN)
    with pytest.raises(Conflict):
        house.do(SubmitMany((replace(submits[0], held=False),)), ANN)
    assert len(house.events(e.RunSubmitted)) == 3


def test_a_rerun_with_a_key_is_one_rerun(house):
    run_id = house.submit("true", held=True)
    again = house.do(Rerun(run_id, held=True, key="r"), ANN)
    assert house.do(Rerun(run_id, held=True, key="r"), ANN).id == again.id
    house.do(Edit(run_id, name="renamed meanwhile"), ANN)
    assert house.do(Rerun(run_id, held=True, key="r"), ANN).id == again.id, "it is the same request still"
    for other in (Rerun(run_id, key="r"), Rerun(run_id, held=True, labels={"a": "b"}, key="r")):
        with pytest.raises(Conflict):
            house.do(other, ANN)
    with pytest.raises(Conflict):
        house.submit("true", key="r")


# -- full -------------------------------------------------------------------------------------------------------------
def test_the_caller_may_bound_the_queue_and_held_runs_do_not_count(house):
    house.running(4)
    house.running(4)
    for _ in range(5):
        house.submit("true", held=True)
    waiting = [house.do(Submit(house.spec("true"), max_waiting=2), ANN).id for _ in range(2)]
    with pytest.raises(Full) as refusal:
        house.do(Submit(house.spec("true"), max_waiting=2), ANN)
    assert refusal.value.message == "Queue is full (max 2 jobs)"
    assert house.do(Submit(house.spec("true"), max_waiting=3), ANN).state is RunState.QUEUED
    house.do(Cancel(waiting[0]), ANN)
    house.do(Cancel(waiting[1]), ANN)
    house.do(Submit(house.spec("true"), max_waiting=2), ANN)


def test_who_fills_a_bounded_queue_leaves_an_equal_part_to_each_of_the_others(house):
    house.running(4)
    house.running(4)
    first = house.submit("true", held=True)
    for _ in range(6):
        house.submit("true", depends_on=(Dependency(first),))  # they wait for what never starts

    def fits(who: Principal) -> bool:
        try:
            house.do(Submit(house.spec("true"), max_waiting=6), who)
        except Full as refusal:
            assert refusal.message == "Queue is full (max 6 jobs)"
            return False
        return True

    assert [fits(ANN), fits(Principal("bot", Role.AGENT, acts_for="ann"))] == [False, False]
    assert [fits(BOB) for _ in range(4)] == [True, True, True, False]
    assert [fits(ROOT) for _ in range(3)] == [True, True, False]
    assert not fits(BOB)


# -- caps -------------------------------------------------------------------------------------------------------------
def test_a_cap_is_kept_refilled_by_the_house_and_by_the_next_one(house):
    assert house.do(CapGroup("s", 2), ANN) == 2
    made = [house.gated(group="s") for _ in range(5)]
    other = house.running()

    def active() -> list[str]:
        return [run.id for run in house.rota.view().active() if run.spec.group == "s"]

    until(lambda: len(active()) == 2, "two of the sweep run")
    waiting = [run_id for run_id, _ in made if run_id not in active()]
    (reason,) = [r for r in house.rota.explain(waiting[0]).reasons if r.code == "group"]
    assert reason.text == "2 of its sweep's runs are active, the cap is 2"
    house.reopen()
    assert house.rota.view().caps == {"s": 2}
    for _, gate in made:
        gate.open()
    house.wait_all([run_id for run_id, _ in made])
    most, now = 0, 0
    names = {run_id for run_id, _ in made}
    for stored in house.store.events(0, 10_000):
        if isinstance(stored.event, e.RunEvent) and stored.event.run_id in names:
            now += isinstance(stored.event, e.AttemptPlanned)
            now -= isinstance(stored.event, e.AttemptEnded)
            most = max(most, now)
    assert most == 2
    assert house.run(other).state is RunState.RUNNING
    assert house.do(CapGroup("s", 0), ANN) == 0
    assert house.rota.view().caps == {}


@pytest.mark.parametrize(("group", "limit", "field"), [("", 1, "group"), ("s", -1, "limit"), ("s", 2**63, "limit")])
def test_caps_that_make_no_sense(house, group, limit, field):
    with pytest.raises(Invalid) as refusal:
        house.do(CapGroup(group, limit), ANN)
    assert refusal.value.field == field
    with pytest.raises(Invalid):
        house.do(CapGroup("s", True), ANN)


def test_the_caps_of_sweeps_that_are_over_make_room(house, monkeypatch):
    monkeypatch.setattr(sweeps, "MAX_CAPS", 3)
    monkeypatch.setattr(sweeps, "FOR_ADMINS", 0)
    house.submit("true", group="busy", held=True)
    for group in ("busy", "over1", "over2"):
        house.do(CapGroup(group, 1), ANN)
    house.do(CapGroup("new", 1), ANN)
    assert house.rota.view().caps == {"busy": 1, "new": 1}
    for group in ("new", "third"):
        house.submit("true", group=group, held=True)
    house.do(CapGroup("third", 1), ANN)
    with pytest.raises(Full, match="3 sweeps"):
        house.do(CapGroup("fourth", 1), ANN)
    assert house.do(CapGroup("busy", 5), ANN) == 5, "one that is there may change"


def test_one_person_takes_a_part_of_the_caps_only(house, monkeypatch):
    monkeypatch.setattr(sweeps, "MAX_CAPS", 5)
    monkeypatch.setattr(sweeps, "MAX_OF_ONE", 2)
    monkeypatch.setattr(sweeps, "FOR_ADMINS", 1)
    bot, boss = Principal("bot", Role.AGENT, acts_for="ann"), Principal("boss", Role.ADMIN)

    def sweep(group: str, who: Principal) -> str:
        run_id: str = house.submit("true", who=who, group=group, held=True)
        house.do(CapGroup(group, 1), who)
        return run_id

    first = sweep("a1", ANN)
    sweep("a2", bot)
    for who in (ANN, bot):
        with pytest.raises(Full, match=r"2 sweeps of ann with runs have a cap.*parallel=0.*rota release"):
            sweep("a3", who)
    assert house.do(CapGroup("a1", 7), ANN) == 7, "one that is there may change"
    house.do(Cancel(first), ANN)
    sweep("a4", ANN)  # a sweep that is over does not count
    house.do(CapGroup("a4", 0), ANN)
    sweep("a5", bot)  # nor one whose cap was lifted
    sweep("b1", BOB)
    sweep("b2", BOB)
    with pytest.raises(Full, match="4 sweeps with runs have a cap already, the limit is 4"):
        sweep("c1", Principal("cid", Role.USER))
    sweep("d1", boss)
    assert house.rota.view().caps == {"a2": 1, "a5": 1, "b1": 1, "b2": 1, "d1": 1}
    with pytest.raises(Full, match="5 sweeps"):
        sweep("d2", boss)


def test_another_persons_sweep_is_not_mine_to_cap(house):
    with pytest.raises(Forbidden):
        house.do(CapGroup("s", 1, owner="ann"), BOB)
    with pytest.raises(Forbidden):
        house.do(CapGroup("s", 1), Principal("eve", Role.VIEWER))
