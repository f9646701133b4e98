"""A dry run answers what the real thing would answer, and leaves no trace."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event, current_thread

import pytest

from rota.app.budget import Quotas
from rota.app.commands import (
    Archive,
    Cancel,
    CapGroup,
    Draft,
    Drain,
    Edit,
    Hold,
    Pause,
    PutRecord,
    Release,
    Reprioritise,
    Rerun,
    Reshape,
    SetPolicy,
    Submit,
    SubmitMany,
)
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound, Refused
from rota.app.ports import RunFilter
from rota.app.service import HANDLERS
from rota.app.submit import submit_many
from rota.core.policy import Policy
from rota.core.run import RunState
from rota.core.state import State
from tests.app.house import ANN, BOB, PATIENCE_S, ROOT


def tried(house, command, who=ROOT):
    return house.rota.try_out(who, command)


@pytest.fixture
def still(house):
    """A house in which nothing may change."""
    house.running(2)
    house.submit("true", held=True)
    house.wait(house.submit("true"))
    before, view = house.store.load(), house.rota.view()
    yield house
    assert house.store.load().version == before.version
    assert house.rota.ask(lambda state, now: state.version) == before.version
    assert house.rota.view() is view


def test_every_command_can_be_tried(still):
    running, held = still.rota.view().active()[0].id, still.rota.view().held()[0].id
    ended = next(run.id for run in still.rota.runs(RunFilter()) if run.state is RunState.SUCCEEDED)
    spec = still.spec("true")
    assert tried(still, Submit(spec, held=True)).state is RunState.HELD
    assert [run.spec for run in tried(still, SubmitMany((Submit(spec), Submit(spec))))] == [spec, spec]
    assert tried(still, Cancel(held)).state is RunState.CANCELLED
    assert tried(still, Cancel(running)).attempt.stop is not None
    assert tried(still, Release(held)).state is RunState.QUEUED
    assert tried(still, Hold(held)).state is RunState.HELD
    assert tried(still, Reprioritise(held, 4)).priority == 4
    assert tried(still, Rerun(ended)).spec.labels == {"parent_run_id": ended}
    assert tried(still, Edit(ended, name="n")).spec.name == "n"
    assert tried(still, Archive(ended)).archived_at is not None
    assert tried(still, CapGroup("s", 3)) == 3
    assert tried(still, PutRecord(Draft("alert", "a", '{"x":1}'))).body == {"x": 1}
    assert tried(still, SetPolicy(Policy(max_queue=7))).max_queue == 7
    assert tried(still, Pause()) is True
    assert tried(still, Drain("node1")).drained is True
    assert still.rota.record("alert", "a") is None
    assert still.run(ended).spec.name == "t"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (Cancel("0" * 12), NotFound),
        (CapGroup("s", -1), Invalid),
        (PutRecord(Draft("alert", "a", "[]")), Invalid),
        (Reshape(3, 3), Conflict),
    ],
    ids=str,
)
def test_it_is_refused_as_the_real_thing_is(still, command, kind):
    with pytest.raises(kind) as dry:
        tried(still, command)
    with pytest.raises(kind) as real:
        still.do(command)
    assert dry.value.message == real.value.message
    with pytest.raises(Refused):
        tried(still, replace(Submit(still.spec("true")), user="ann"), BOB)


def test_a_key_is_looked_up_and_not_used_up(house):
    first = house.submit("true", key="k", held=True)
    assert tried(house, Submit(house.spec("true"), key="k", held=True), ANN).id == first
    with pytest.raises(Conflict):
        tried(house, Submit(house.spec("false"), key="k"), ANN)
    dry = tried(house, Submit(house.spec("true"), key="new", held=True), ANN)
    with pytest.raises(NotFound):
        house.run(dry.id)
    assert house.submit("false", key="new", held=True), "for whatever request"


def test_it_sees_what_was_sent_before_it(house):
    with ThreadPoolExecutor(2) as threads, house.occupied():
        sent = house.rota.send(ANN, PutRecord(Draft("sweep", "s", "{}")))
        with_key = house.rota.send(ANN, Submit(house.spec("true"), key="k", held=True))
        dry = threads.submit(tried, house, PutRecord(Draft("sweep", "s", "{}"), fresh=True), ANN)
        same = threads.submit(tried, house, Submit(house.spec("true"), key="k", held=True), ANN)
    assert sent.result(60).id == "s"
    assert isinstance(dry.exception(60), Conflict)
    assert same.result(60).id == with_key.result(60).id


def test_the_writer_goes_on_while_something_is_tried(house, monkeypatch):
    """It would hold up everybody's commands else, and nothing that is written bounds how much is tried."""
    begun, go_on = Event(), Event()

    def slow(desk, who, command):
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return submit_many(desk, who, command)

    monkeypatch.setitem(HANDLERS, SubmitMany, slow)
    with ThreadPoolExecutor(1) as threads:
        dry = threads.submit(tried, house, SubmitMany((Submit(house.spec("true"), held=True),)), ANN)
        try:
            assert begun.wait(PATIENCE_S)
            other = house.rota.send(BOB, Submit(house.spec("true"), held=True)).result(PATIENCE_S)
            assert not dry.done()
        finally:
            go_on.set()
        assert dry.result(PATIENCE_S)[0].id != other.id, "its name was not given to another meanwhile"
    assert list(house.rota.view().runs) == [other.id]


def test_the_writer_copies_the_state_once_for_all_that_is_tried_between_two_changes(house, monkeypatch):
    copies, fork = Counter[str](), State.fork

    def counted(state):
        copies[current_thread().name] += 1
        return fork(state)

    house.submit("true", held=True)
    monkeypatch.setattr(State, "fork", counted)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda n: tried(house, Submit(house.spec("true"), held=True), ANN), range(40)))
        assert {run.state for run in found} == {RunState.HELD}
        assert copies["rota-loop"] == 1
        changed = house.submit("true", held=True)
        assert tried(house, Cancel(changed), ANN).state is RunState.CANCELLED, "what was answered is there"
        assert copies["rota-loop"] == 2


def test_it_is_refused_where_the_budget_is_spent(house):
    """The same words as in earnest."""
    house.parts.service._loop.budget.quotas = Quotas(ledger=1)
    house.do(Submit(house.spec("true"), held=True), ANN)
    with pytest.raises(Full) as dry:
        tried(house, Submit(house.spec("true"), held=True), ANN)
    with pytest.raises(Full) as real:
        house.do(Submit(house.spec("true"), held=True), ANN)
    assert dry.value.message.partition(" send ")[0] == real.value.message.partition(" send ")[0]


def test_a_trial_teaches_the_predictions_nothing(house):
    for _ in range(4):
        house.wait(house.submit("true"))
    real = house.do(Submit(house.spec("true"), held=True), ANN)
    dry = tried(house, Submit(house.spec("true"), held=True), ANN)
    assert (dry.expected_s, dry.expected_from) == (real.expected_s, real.expected_from)
    assert dry.expected_from == "history"


def test_nobody_tries_what_they_may_not_do(house):
    with pytest.raises(Forbidden):
        tried(house, Pause(), ANN)
