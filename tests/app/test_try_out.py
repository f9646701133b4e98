"""A dry run answers what the real thing would answer, and leaves no trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
from rota.app.errors import Conflict, Forbidden, Invalid, NotFound, Refused
from rota.app.ports import RunFilter
from rota.core.policy import Policy
from rota.core.run import RunState
from tests.app.house import ANN, BOB, PATIENCE_S, ROOT


def tried(house, command, who=ROOT):
    return house.rota.try_out(who, command).result(PATIENCE_S)


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


def test_what_was_tried_sees_the_rest_of_its_batch(house):
    with house.occupied():
        sent = house.rota.send(ANN, PutRecord(Draft("sweep", "s", "{}")))
        dry = house.rota.try_out(ANN, PutRecord(Draft("sweep", "s", "{}"), fresh=True))
        with_key = house.rota.send(ANN, Submit(house.spec("true"), key="k", held=True))
        same = house.rota.try_out(ANN, Submit(house.spec("true"), key="k", held=True))
    assert sent.result(60).id == "s"
    assert isinstance(dry.exception(60), Conflict)
    assert same.result(60).id == with_key.result(60).id


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
