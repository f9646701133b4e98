"""Bytes that one person may take: of live runs, of the ledger in a day, of one command."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from rota.app import budget
from rota.app.budget import MAX_MANY_BYTES, MIB, Budget, Quotas
from rota.app.commands import (
    Cancel,
    CancelReservation,
    Draft,
    Edit,
    PutRecord,
    Reprioritise,
    Reserve,
    Submit,
    SubmitMany,
)
from rota.app.errors import Full, Invalid
from rota.core import events as e
from rota.core import order
from rota.core.policy import Policy
from rota.core.resources import Request
from rota.core.run import Cause, Exit, Run, RunState, Spec
from tests.app.house import ANN, BOB, ROOT, House

ENV = {f"VARIABLE_{n}": "x" * 90 for n in range(100)}
ENV_BYTES = sum(len(name) + len(value) for name, value in ENV.items())


@pytest.fixture
def bounded(build: Callable[..., House]) -> House:
    """A house where a person may have 1 MiB of live specs."""
    house = build()
    house.settings = replace(house.settings, person_live_mb=1)
    return house.open()


def long_line(kib: int) -> str:
    return f"true #{'x' * kib * 1024}"


def used(house: House, user: str = "ann") -> int:
    return house.rota.ask(lambda state, now: state.weights.of(user))


def test_live_specs_are_bounded_and_a_cancel_frees_them(bounded: House) -> None:
    runs = [bounded.submit(long_line(100), held=True) for _ in range(10)]
    with pytest.raises(Full) as refusal:
        bounded.submit(long_line(100), held=True)
    assert re.search(r"ann's runs that have not ended take 1,0\d\d\.", str(refusal.value))
    # the rest is the path of the directory, which may be long
    assert re.search(r"this would add 10\d\.\d KiB; the limit is 1\.0 MiB", str(refusal.value))
    assert "cancel some" in str(refusal.value)
    bounded.submit("true", who=BOB)
    bounded.submit(long_line(100), who=ROOT, held=True)
    bounded.do(Cancel(runs[0]), ANN)
    runs[0] = bounded.submit(long_line(100), held=True)
    with pytest.raises(Full):
        bounded.submit(long_line(100), held=True)
    bounded.reopen()
    with pytest.raises(Full):
        bounded.submit(long_line(100), held=True)
    for run_id in runs:
        bounded.do(Cancel(run_id), ANN)
    assert used(bounded) == 0


def test_many_at_once_count_together(bounded: House) -> None:
    many = tuple(Submit(bounded.spec(long_line(100)), held=True) for _ in range(11))
    with pytest.raises(Full, match=r"this would add 1\.1 MiB"):
        bounded.do(SubmitMany(many), ANN)
    assert bounded.events(e.RunSubmitted) == []
    assert len(bounded.do(SubmitMany(many[:10]), ANN)) == 10


def test_the_different_requests_of_a_person_are_bounded(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs every pass of the scheduler its time. One that a live run has already is none more."""
    monkeypatch.setattr(budget, "MAX_SHAPES", 3)
    runs = [house.submit("true", gpus=gpus, held=True) for gpus in (1, 2, 3)]
    with pytest.raises(Full, match="ann's runs that have not ended ask for 3 different amounts") as refusal:
        house.submit("true", gpus=4, held=True)
    assert "Round what they ask for" in str(refusal.value)
    house.submit("true", gpus=3, held=True)
    house.submit("true", gpus=4, who=BOB, held=True)
    house.submit("true", gpus=4, who=ROOT, held=True)
    house.do(Cancel(runs[0]), ANN)
    spec = house.spec("true")
    several = [Submit(replace(spec, request=Request(gpus)), held=True) for gpus in (3, 4, 4, 5)]
    with pytest.raises(Full):
        house.do(SubmitMany(tuple(several)), ANN)
    house.do(SubmitMany(tuple(several[:3])), ANN)
    house.reopen()
    with pytest.raises(Full):
        house.submit("true", gpus=5, held=True)


def test_the_different_requests_of_a_person_times_the_bands_of_a_policy_are_few() -> None:
    """A pass costs its time for each band of length and priority within a shape."""
    bands = set()
    for seconds, priority in product((1.22**k for k in range(75)), (1, 2, 3, 4)):
        spec = Spec("t", ("true",), "/", Request(1), time_limit_s=seconds, priority=priority)
        run = Run("a" * 12, 1, "ann", spec, RunState.QUEUED, priority, 0.0, seconds, "limit")
        bands.add(order.band(Policy(), run))
    assert budget.MAX_SHAPES * len(bands) <= 60_000


def test_an_edit_counts_as_what_it_makes_of_the_spec(bounded: House) -> None:
    run_id = bounded.submit("true", held=True)
    before = used(bounded)
    bounded.do(Edit(run_id, argv=("/bin/sh", "-c", long_line(100))), ANN)
    assert used(bounded) > before + 100 * 1024
    bounded.do(Edit(run_id, argv=("/bin/sh", "-c", "true")), ANN)
    assert used(bounded) == before
    others = [bounded.submit(long_line(100), held=True) for _ in range(10)]
    with pytest.raises(Full, match="this would add 100"):
        bounded.do(Edit(run_id, argv=("/bin/sh", "-c", long_line(100))), ANN)
    bounded.do(Edit(others[0], argv=("/bin/sh", "-c", "true")), ANN)
    bounded.do(Edit(run_id, argv=("/bin/sh", "-c", long_line(100))), ANN)


def test_equal_environments_are_one_object_and_counted_once(bounded: House) -> None:
    first = bounded.submit("true", held=True, env=dict(ENV))
    one = used(bounded)
    assert one > ENV_BYTES
    others = [bounded.submit("true", held=True, env=dict(ENV)) for _ in range(9)]
    assert used(bounded) < one + 9 * 1000
    runs = bounded.rota.view().runs
    assert len({id(runs[run_id].spec.env) for run_id in (first, *others)}) == 1
    bounded.reopen()
    runs = bounded.rota.view().runs
    assert len({id(runs[run_id].spec.env) for run_id in (first, *others)}) == 1, "also when they are read again"
    assert used(bounded) < one + 9 * 1000
    turned = dict(reversed(ENV.items()))
    run_id = bounded.submit("true", held=True, env=turned)
    assert list(bounded.run(run_id).spec.env) == list(turned), "shown in the order it was given in"


def test_short_words_and_variables_count_as_what_they_take_in_memory(bounded: House) -> None:
    """Of a short string the text is the least part."""
    words = tuple(f"{n:x}" for n in range(4000))
    bounded.do(Submit(replace(bounded.spec("true"), argv=("true", *words)), held=True), ANN)
    assert used(bounded) > sum(map(sys.getsizeof, words))
    for n in range(2):
        bounded.submit("true", held=True, env={f"V{n}_{name}": "x" for name in words[:1000]})
    before = used(bounded)
    bounded.submit("true", held=True, env={f"V{1}_{name}": "x" for name in words[:1000]})
    assert used(bounded) < before + 1000, "an environment counts once"
    bounded.submit("true", held=True, env={f"V2_{name}": "x" for name in words[:1000]})
    assert used(bounded) > before + 100_000
    with pytest.raises(Full, match="cancel some"):
        for _ in range(4):
            bounded.do(Submit(replace(bounded.spec("true"), argv=("true", *words)), held=True), ANN)


def test_the_bound_of_one_command_is_for_texts(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand runs with 30 short words each fit into it."""
    monkeypatch.setattr(budget, "MAX_MANY_BYTES", MAX_MANY_BYTES // 100)
    one = Submit(replace(house.spec("true"), argv=("true", *["--option"] * 30)), held=True)
    assert len(house.do(SubmitMany((one,) * 100), ANN)) == 100


@pytest.mark.parametrize("what", ["command", "records"])
def test_one_command_is_bounded_for_everybody(house: House, what: str) -> None:
    if what == "command":
        one = Submit(house.spec(long_line(120)), held=True)
    else:
        one = Submit(
            house.spec("true"), held=True, records=(Draft("workspace", "", f'{{"diff":"{"x" * 120 * 1024}"}}'),)
        )
    count = MAX_MANY_BYTES // (120 * 1024) + 1
    with pytest.raises(Invalid) as refusal:
        house.do(SubmitMany((one,) * count), ROOT)
    assert f"{count} runs of 120." in str(refusal.value)
    assert "one request may take 16.0 MiB" in str(refusal.value)
    assert house.events(e.RunSubmitted) == []


def test_what_is_added_to_the_ledger_in_a_day_is_bounded(build) -> None:
    """Submit and cancel in a circle keeps nothing live, and every round stays in the ledger for months."""
    house = build()
    house.settings = replace(house.settings, person_ledger_mb=1)
    house.open()
    with pytest.raises(Full, match=r"ann has added .* to the ledger within a day, the limit is 1.0 MiB a person"):
        for _ in range(20):
            run_id = house.submit(long_line(100), held=True)
            house.do(Cancel(run_id), ANN)
    assert len(house.events(e.RunSubmitted)) == 11, "the one that spends it is let through"
    house.submit("true", who=BOB)
    left = house.submit("true", who=ROOT, held=True)
    with pytest.raises(Full):
        house.do(PutRecord(Draft("alert", "a", "{}")), ANN)
    house.do(Reprioritise(left, 3), ROOT)
    house.do(Cancel(left), ROOT)


def test_reservations_count_with_the_names_in_them(build) -> None:
    house = build()
    house.settings = replace(house.settings, person_ledger_mb=1)
    house.open()
    names = tuple(f"{number:0100}" for number in range(100))
    with pytest.raises(Full, match="to the ledger within a day"):
        for _ in range(200):
            one = house.do(Reserve(1, start=house.rota.now() + 2 * 86400, length_s=60.0, users=names), ANN)
            house.do(CancelReservation(one.id), ANN)
    assert 40 <= len(house.events(e.ReservationMade)) <= 60
    made = house.events(e.ReservationMade)
    with pytest.raises(Full, match="to the ledger within a day"):
        for _ in range(200):  # a character outside ASCII is written as up to 12 bytes
            more = tuple(f"{name[-2:]}{chr(0x1F600) * 98}" for name in names)
            one = house.do(Reserve(1, start=house.rota.now() + 2 * 86400, length_s=60.0, users=more), BOB)
            house.do(CancelReservation(one.id), BOB)
    assert 4 <= len(house.events(e.ReservationMade)) - len(made) <= 6
    with pytest.raises(Invalid, match="users: a name has 100 characters at most"):
        house.do(Reserve(1, length_s=60.0, users=("x" * 101,)), ROOT)


def test_ends_are_taken_in_with_the_ledgers_budget_spent(build) -> None:
    house = build()
    house.settings = replace(house.settings, person_ledger_mb=1)
    house.open()
    run_id = house.running()
    with pytest.raises(Full):
        for _ in range(20):
            house.submit(long_line(100), held=True)
    house.do(Cancel(run_id, grace_s=0.0), ANN)
    assert house.wait(run_id).state is RunState.CANCELLED


def test_the_ledgers_amount_drains_within_a_day() -> None:
    budget = Budget(Quotas(ledger=1 * MIB))
    put = e.RecordPut(at=0.0, by="ann", kind="alert", id="a", parent="", body="x" * MIB)
    budget.charge(ANN, [put, put], 0, now=0.0)
    for now in (0.0, 0.9 * 86400.0):
        with pytest.raises(Full, match="send it again in"):
            budget.must_fit_ledger(ANN, now)
    budget.must_fit_ledger(ANN, 1.01 * 86400.0)
    budget.must_fit_ledger(BOB, 0.0)


def test_the_texts_of_ends_and_holds_are_charged() -> None:
    of_run: dict[str, Any] = {"at": 0.0, "by": "ann", "run_id": "a" * 12}
    attempt: dict[str, Any] = {"attempt_id": "a-1", "gpu_s": 0.0, "next": RunState.FAILED}
    long = "x" * 1000
    for event in (
        e.RunHeld(**of_run, why=long),
        e.RunEnded(**of_run, state=RunState.CANCELLED, why=long),
        e.AttemptEnded(**of_run, **attempt, exit=Exit(Cause.EXITED, code=1), why=long),
        e.AttemptEnded(**of_run, **attempt, exit=Exit(Cause.EXITED, code=1, message=long)),
    ):
        budget = Budget(Quotas(ledger=2 * 1000))
        budget.charge(ANN, [event], 0, now=0.0)
        with pytest.raises(Full):
            budget.must_fit_ledger(ANN, 0.0)
