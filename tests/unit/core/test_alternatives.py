"""What would start it sooner: every promise is kept when the change is made."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core.alternatives import TRIED, Alternative, alternatives
from rota.core.forecast import forecast
from rota.core.policy import Policy
from rota.core.presets import named
from rota.core.reservation import Reservation
from rota.core.resources import Request, Slice
from rota.core.run import Run
from rota.core.state import State
from rota.core.times import seconds
from tests.unit.core.kit import Lab, node, spec, two_by_eight

EASY = named("easy")


def offered(lab: Lab, run_id: str) -> dict[str, Alternative]:
    found = alternatives(lab.state, lab.now, lab.run(run_id))
    assert list(found) == sorted(found, key=lambda one: one.start), "best first"
    assert len(found) <= TRIED
    return {one.words: one for one in found}


def changed(run: Run, words: str) -> Run:
    """The run as the words would have it."""
    request, spec_ = run.spec.request, run.spec
    if found := re.fullmatch(r"with a time limit of (.+)", words):
        limit = seconds(found[1].replace(" ", ""))
        return replace(run, spec=replace(spec_, time_limit_s=limit), expected_s=min(run.expected_s, limit))
    if found := re.fullmatch(r"with (\d+) GPUs?", words):
        return replace(run, spec=replace(spec_, request=replace(request, gpus=int(found[1]))))
    if words == "with priority high":
        return replace(run, priority=3, spec=replace(spec_, priority=3))
    other = {
        "split over nodes": replace(request, span=True),
        "with any type of GPU": replace(request, gpu_type=""),
        "with any size of GPU memory": replace(request, gpu_memory_gb=0.0),
        "without asking for CPUs and memory": replace(request, cpus=0, memory_gb=0.0),
        "without a number of nodes": replace(request, nodes=0),
    }
    if words in other:
        return replace(run, spec=replace(spec_, request=other[words]))
    assert words == "as preemptible"
    return replace(run, spec=replace(spec_, preemptible=True))


def lived(lab: Lab, run_id: str, words: str) -> float:
    """When it really starts once the change is made: the same house lived on, by the passes of the house itself."""
    other = Lab(checked=False)
    other.state, other.now, other.true_s = lab.state.fork(), lab.now, dict(lab.true_s)
    other.state.put(changed(lab.run(run_id), words))
    other.until(1e9)
    start = other.first_start(run_id)
    assert start is not None, "it never starts"
    return start


def test_fewer_gpus_a_higher_priority_and_what_each_is_worth():
    lab = Lab(node("a"), policy=named("priority"))
    lab.submit(6, user="bob", takes=3600, expected=3600)
    lab.step()
    lab.submit(8, user="bob", takes=7200, expected=7200)
    run = lab.submit(4, takes=7200, expected=7200)
    found = offered(lab, run)
    assert "with a time limit of 1 h" not in found, "two are free, whatever its time"
    assert found["with priority high"].start == 3600
    assert found["with priority high"].sooner_s == 7200
    assert not found["with priority high"].now


def test_what_fits_before_the_reservation_starts_now():
    lab = Lab(node("a"), policy=EASY)
    lab.submit(4, user="bob", takes=3600)
    lab.step()
    lab.submit(8, user="bob")
    run = lab.submit(2, takes=7200)
    found = offered(lab, run)
    assert found["with a time limit of 1 h"].now
    assert "with 1 GPU" not in found, "that would help nothing"


def test_the_hole_before_what_somebody_reserved_is_found_too():
    lab = Lab(node("a"), policy=EASY)
    kept = Reservation("r1", "bob", "demo", 3600.0, 9000.0, (Slice("a", 0xFF),), 0.0)
    lab.tell(e.ReservationMade(at=0.0, reservation=kept))
    run = lab.submit(2, takes=7200)
    assert offered(lab, run)["with a time limit of 59 min"].now


def test_the_usual_time_of_such_runs_is_tried_as_a_limit():
    lab = Lab(node("a"), policy=EASY)
    for _ in range(8):
        lab.state.history.learn("ann", spec(2), 1500.0)
    lab.submit(4, user="bob", takes=3600)
    lab.step()
    lab.submit(8, user="bob")
    run = lab.submit(2, takes=1500, expected=8000)
    assert offered(lab, run)["with a time limit of 30 min"].now


def test_another_type_or_another_shape_is_offered_where_it_helps():
    lab = Lab(node("a"), node("b", kind="A100"), policy=EASY)
    lab.submit(7, user="bob", takes=3600)
    lab.step()
    wants_type = lab.submit(request=Request(4, gpu_type="H100"))
    assert offered(lab, wants_type)["with any type of GPU"].now
    lab.step()
    lab.submit(6, user="bob", takes=3600)
    lab.step()
    assert offered(lab, lab.submit(3, takes=50))["split over nodes"].now


def test_what_nothing_would_start_is_told_what_would():
    lab = Lab(node("a"))
    run = lab.submit(request=Request(2, gpu_type="TPU"))
    (only,) = offered(lab, run).values()
    assert (only.words, only.sooner_s, only.now) == ("with any type of GPU", None, True)


def test_who_starts_within_a_minute_is_not_bothered():
    lab = Lab(node("a"))
    lab.submit(8, takes=50)
    lab.step()
    assert offered(lab, lab.submit(8)) == {}


@pytest.mark.parametrize("name", ["easy", "priority", "auto", "fcfs-strict"])
def test_promises_are_kept(name):
    """As long as runs take what they are expected to take, each change starts the run when it was said to."""
    kept = 0
    for seed in range(25):
        chance = random.Random(seed)
        lab = Lab(*two_by_eight(), policy=named(name, Policy(preemption=False)), checked=False)
        lab.set(replace(lab.state.policy, preemption=False))
        for n in range(14):
            lab.submit(
                request=Request(chance.choice([1, 2, 4, 8, 12]), gpu_type=chance.choice(["", "", "H100"])),
                user=chance.choice(["ann", "bob", "cid"]),
                takes=chance.choice([300, 3000, 30000]) + 2.0**-n,
                priority=chance.choice([1, 2]),
            )
            lab.until(lab.now + chance.choice([0, 0, 50]))
        waiting = sorted(run.id for run in lab.state.runs.values() if run.id in lab.state.queue)
        for run_id in chance.sample(waiting, min(3, len(waiting))):
            as_it_is = forecast(lab.state, lab.now, [run_id])[run_id]
            for words, one in offered(lab, run_id).items():
                start = lived(lab, run_id, words)
                assert start == one.start, (seed, words)
                assert one.sooner_s == as_it_is - start > 60
                kept += 1
    assert kept > 20


def test_looking_for_them_changes_nothing():
    lab = Lab(node("a"), policy=EASY)
    lab.submit(6, takes=3600)
    lab.step()
    run = lab.submit(4)
    before: State = lab.state
    version, runs = before.version, dict(before.runs)
    offered(lab, run)
    assert (before.version, before.runs) == (version, runs)
