"""The doors' documents through the front of the house."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rota.app import records
from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Draft, PutRecord, Submit
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound, Unavailable
from rota.app.ports import Record, StoreBusy
from rota.app.retention import Retention, Tidying
from tests.app.house import ANN, BOB, ROOT, until


def put(house, kind: str = "alert", name: str = "a", body: object = None, who: Principal = ANN, **more: Any) -> Record:
    text = body if isinstance(body, str) else json.dumps(body or {})
    record: Record = house.do(PutRecord(Draft(kind, name, text, more.pop("parent", "")), **more), who)
    return record


def test_a_record_is_written_changed_and_taken_away(house):
    made = put(house, body={"message": "loss is NaN"}, parent="run1")
    assert (made.by, made.body, made.parent) == ("ann", {"message": "loss is NaN"}, "run1")
    assert house.rota.record("alert", "a") == made
    changed = put(house, body={"message": "fine"}, who=ROOT, owner="ann", parent="run1")
    assert (changed.seq, changed.at, changed.by) == (made.seq, made.at, "ann"), "made once"
    assert house.rota.record("alert", "a") == changed
    house.reopen()
    assert house.rota.records("alert", parent="run1") == [changed]
    put(house, body="")
    assert house.rota.record("alert", "a") is None
    with pytest.raises(NotFound):
        put(house, body="")


def test_a_fresh_one_is_made_once_however_many_try(house):
    with house.occupied():
        sent = [
            house.rota.send(ANN, PutRecord(Draft("sweep", "s", json.dumps({"n": n})), fresh=True)) for n in range(5)
        ]
    won = [n for n, future in enumerate(sent) if future.exception(60) is None]
    assert won == [0], "the first of the batch, the others see it"
    assert all(isinstance(future.exception(), Conflict) for future in sent[1:])
    assert house.rota.record("sweep", "s").body == {"n": 0}
    assert sent[0].result() == house.rota.record("sweep", "s")


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "1",
        "null",
        '"x"',
        "{",
        "{'a': 1}",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": ' + "1" * 5000 + "}",
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"a": "' + "x" * (1 << 20) + '"}',
        '{"a": "' + "é" * (1 << 19) + '"}',
        '{"a": "\n"}',
    ],
    ids=lambda body: body[:12],
)
def test_a_body_that_is_no_object_or_too_large(house, body):
    with pytest.raises(Invalid) as refusal:
        put(house, body=body)
    assert refusal.value.field == "body"
    assert len(refusal.value.message) < 1000
    assert house.rota.records("alert") == []


def test_odd_but_right_bodies_come_back(house):
    for n, body in enumerate([{"a": "\0\ud800é\x1f"}, {"": [1.5, None, True, {"x": []}]}, {"n": 2**63}]):
        put(house, name=f"r{n}", body=json.dumps(body))
        assert house.rota.record("alert", f"r{n}").body == body


@pytest.mark.parametrize("name", ["", "x" * 501, "a\0b", "\ud800"])
def test_names_that_make_no_sense(house, name):
    for draft in (Draft("alert", name, "{}"), Draft(name, "a", "{}")):
        with pytest.raises(Invalid):
            house.do(PutRecord(draft), ANN)


def test_tokens_are_for_admins(house):
    for role in (Role.USER, Role.AGENT, Role.VIEWER):
        with pytest.raises(Forbidden):
            put(house, "token", "t", who=Principal("ann", role))
    put(house, "token", "t", {"hash": "h"}, who=ROOT)
    with pytest.raises(Invalid, match="tokens"):
        house.do(Submit(house.spec("true"), records=(Draft("token", "t", "{}"),)), ROOT)


def test_others_records_are_not_mine(house):
    with pytest.raises(Forbidden):
        put(house, who=BOB, owner="ann")
    with pytest.raises(Forbidden):
        put(house, who=Principal("eve", Role.VIEWER))


def test_there_is_an_end_to_the_records_of_a_kind(house, monkeypatch):
    monkeypatch.setattr(records, "MAX_OF_A_KIND", 3)
    for n in range(3):
        put(house, name=f"r{n}")
    with pytest.raises(Full, match="kind alert"):
        put(house, name="r3")
    put(house, name="r1", body={"changed": True})
    put(house, kind="sweep", name="r3")
    put(house, name="r0", body="")
    put(house, name="r3")
    with house.occupied():
        put_more = [house.rota.send(ANN, PutRecord(Draft("journey", f"j{n}", "{}"))) for n in range(5)]
    refused = [future for future in put_more if isinstance(future.exception(60), Full)]
    assert len(refused) == 2, "also within one batch"


def test_records_that_come_with_a_run(house):
    drafts = (Draft("workspace", "", '{"commit":"c0ffee"}'), Draft("journey", "j1", "{}", ""))
    run = house.do(Submit(house.spec("true", gpus=0), records=drafts, held=True), ANN)
    workspace = house.rota.record("workspace", run.id)
    assert (workspace.parent, workspace.body) == (run.id, {"commit": "c0ffee"})
    assert [record.id for record in house.rota.records("journey", parent=run.id)] == ["j1"]
    with pytest.raises(Invalid) as refusal:
        house.do(Submit(house.spec("true"), records=(Draft("workspace", "", "nonsense"),)), ANN)
    assert refusal.value.field == "body"
    with pytest.raises(Invalid):
        house.do(Submit(house.spec("true"), records=drafts * 51), ANN)
    assert len(house.rota.records("workspace")) == 1


def test_records_are_counted_once_however_many_come(house, monkeypatch):
    counted = []
    count = house.store.count_records

    def counting(kind, most, by=""):
        counted.append((kind, by))
        return count(kind, most, by)

    monkeypatch.setattr(house.store, "count_records", counting)
    for n in range(20):
        put(house, name=f"r{n}")
    house.do(Submit(house.spec("true", gpus=0), records=(Draft("alert", "with a run", "{}"),), held=True), ROOT)
    assert counted == [("alert", ""), ("alert", "ann")], "of all, and of one caller"
    assert house.loop.kinds["alert", ""] == 21 == count("alert", 1000)
    put(house, name="r0", body="")
    put(house, name="r1", body={"changed": True})
    house.rota.try_out(ANN, PutRecord(Draft("alert", "dry", "{}")))
    assert house.loop.kinds["alert", ""] == 20 == count("alert", 1000)
    assert house.loop.kinds["alert", "ann"] == 19 == count("alert", 1000, "ann")


def test_what_was_not_stored_does_not_count(house, monkeypatch):
    put(house, name="first")
    append = house.store.append

    def fails_once(*args, **more):
        monkeypatch.setattr(house.store, "append", append)
        raise StoreBusy("not now")

    monkeypatch.setattr(house.store, "append", fails_once)
    with pytest.raises(Unavailable):
        put(house, name="lost")
    until(lambda: not house.loop.degraded, "writing works again")
    put(house, name="second")
    assert house.loop.kinds["alert", ""] == 2


def test_what_comes_with_a_run_is_bounded_too(house, monkeypatch):
    monkeypatch.setattr(records, "MOST", {"workspace": 2})
    submit = Submit(house.spec("true", gpus=0), records=(Draft("workspace", "", "{}"),), held=True)
    for _ in range(2):
        house.do(submit, ROOT)
    with pytest.raises(Full, match="kind workspace"):
        house.do(submit, ROOT)


def test_room_is_made_by_what_grows_old(house, monkeypatch):
    monkeypatch.setattr(records, "MAX_OF_A_KIND", 2)
    put(house, "alert", "a")
    put(house, "sweep", "s")
    run = house.do(Submit(house.spec("true", gpus=0), records=(Draft("alert", "b", "{}"),), held=True), ROOT)
    with pytest.raises(Full):
        put(house, "alert", "c")
    put(house, "token", "t", who=ROOT)
    Tidying(house.loop, Retention(runs_days=0.0)).round()
    assert [record.id for record in house.rota.records("alert")] == ["b"], f"{run.id} is still there"
    assert house.rota.record("sweep", "s") is None
    assert house.rota.record("token", "t") is not None
    put(house, "alert", "c")


def test_metrics_of_a_run_that_was_dropped_go_from_the_disk(house):
    kept = house.do(Submit(house.spec("true", gpus=0), held=True), ROOT).id
    gone = house.do(Submit(house.spec("true", gpus=0), held=True), ROOT).id
    for run_id in (kept, gone):
        house.parts.samples.append(run_id, [{"loss": 1.0}])
    house.do(Cancel(gone))
    Tidying(house.loop, Retention(runs_days=-1.0), house.parts.samples).round()
    until(lambda: not house.parts.samples.series(gone), "its metrics are gone")
    assert house.parts.samples.series(kept)


def test_one_caller_leaves_room_for_others(house, monkeypatch):
    monkeypatch.setattr(records, "MAX_OF_ONE", 3)
    for number in range(3):
        house.do(PutRecord(Draft("note", f"a{number}", "{}")), ANN)
    with pytest.raises(Full, match="ann has written 3 records of kind note, the limit is 3"):
        house.do(PutRecord(Draft("note", "a3", "{}")), ANN)
    house.do(PutRecord(Draft("note", "a0", '{"changed":1}')), ANN)
    house.do(PutRecord(Draft("other", "a3", "{}")), ANN)
    house.do(PutRecord(Draft("note", "b0", "{}")), BOB)
    house.reopen()
    with pytest.raises(Full):
        house.do(PutRecord(Draft("note", "a3", "{}")), ANN)
    house.do(PutRecord(Draft("note", "a0", "")), ANN)
    house.do(PutRecord(Draft("note", "a3", "{}")), ANN)
