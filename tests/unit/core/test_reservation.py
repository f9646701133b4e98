"""Which GPUs a reservation gets, when there is room for one, and what its end means to those who name it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rota.core import codec
from rota.core import events as e
from rota.core.check import check
from rota.core.explain import explain
from rota.core.node import Node
from rota.core.policy import Ordering, Policy
from rota.core.reason import Reason
from rota.core.reservation import Reservation, collisions
from rota.core.reserving import choose, could_hold, room_from
from rota.core.resources import Placement, Request, Slice
from rota.core.run import Cause
from rota.core.snapshot import snapshot
from tests.unit.core.kit import Lab as AnyLab
from tests.unit.core.kit import broken, node, two_by_eight, where

HOUR = 3600.0


class Lab(AnyLab):
    """First come, first served: who holds what is then plain to see."""

    def __init__(self, *nodes: Node, checked: bool = True) -> None:
        super().__init__(*nodes, policy=Policy(ordering=Ordering.FCFS), checked=checked)


def book(lab: Lab, name: str, placement: Placement, start: float, end: float) -> Reservation:
    made = Reservation(name, "ann", "", start, end, placement, lab.now)
    lab.tell(e.ReservationMade(at=lab.now, by="ann", reservation=made))
    return made


def gpus(node_id: str, *numbers: int) -> Placement:
    return (Slice(node_id, sum(1 << number for number in numbers)),)


def chosen(lab: Lab, request: Request | int, start: float, end: float) -> dict[str, list[int]] | None:
    wanted = Request(request) if isinstance(request, int) else request
    return where(choose(lab.state, wanted, start, end, lab.now))


# -- the choice -------------------------------------------------------------------------------------------------------
def test_on_an_empty_cluster_it_is_placed_like_a_run() -> None:
    lab = Lab(*two_by_eight())
    assert chosen(lab, 2, HOUR, 2 * HOUR) == {"a": [0, 1]}
    assert chosen(lab, 16, HOUR, 2 * HOUR) == {"a": [*range(8)], "b": [*range(8)]}
    assert chosen(lab, Request(4, nodes=2), HOUR, 2 * HOUR) == {"a": [0, 1], "b": [0, 1]}


def test_what_another_has_at_that_time_is_not_to_be_had_and_before_and_after_it_is() -> None:
    lab = Lab(*two_by_eight())
    book(lab, "r1", gpus("a", *range(8)), 10.0, 20.0)
    assert chosen(lab, 8, 15.0, 25.0) == {"b": [*range(8)]}
    assert chosen(lab, 12, 15.0, 25.0) is None
    assert chosen(lab, 12, 20.0, 25.0) == {"a": [*range(8)], "b": [0, 1, 2, 3]}, "its end is not part of it"
    assert chosen(lab, 12, 5.0, 10.0) is not None, "nor what is before its start"
    assert chosen(lab, 12, 5.0, 10.5) is None


def test_gpus_that_will_be_free_by_then_are_better_than_busy_ones() -> None:
    lab = Lab(*two_by_eight())
    long = lab.submit(8, takes=10 * HOUR)
    short = lab.submit(8, takes=HOUR)
    lab.step()
    assert (lab.held_gpus(long), lab.held_gpus(short)) == ({"a": [*range(8)]}, {"b": [*range(8)]})
    assert chosen(lab, 4, 2 * HOUR, 3 * HOUR) == {"b": [0, 1, 2, 3]}, "what is expected to end by then"
    assert chosen(lab, 4, 0.5 * HOUR, 3 * HOUR) == {"b": [0, 1, 2, 3]}, "or else what comes free first"
    assert chosen(lab, 8, 11 * HOUR, 12 * HOUR) == {"a": [*range(8)]}


def test_a_run_that_is_late_holds_its_gpus_now_but_not_for_ever() -> None:
    lab = Lab(node("a", 2), node("b", 2))
    lab.submit(2, takes=HOUR, expected=60.0)
    lab.step()
    lab.now = 120.0
    assert chosen(lab, 2, 120.0, 300.0) == {"b": [0, 1]}
    assert chosen(lab, 2, 200.0, 300.0) == {"a": [0, 1]}


def test_preemptible_work_makes_way_before_other_work_ends() -> None:
    lab = Lab(*two_by_eight())
    lab.submit(8, takes=HOUR)
    lab.submit(8, takes=100 * HOUR, preemptible=True)
    lab.step()
    assert chosen(lab, 4, 10.0, 20.0) == {"b": [0, 1, 2, 3]}


def test_as_few_as_possible_are_busy() -> None:
    """Seven of the eight are free on one node: the one that must be waited for is the one that ends first."""
    lab = Lab(*two_by_eight())
    lab.submit(8, takes=5 * HOUR)
    lab.submit(1, takes=2 * HOUR)
    lab.step()
    assert chosen(lab, 8, HOUR, 2 * HOUR) == {"b": [*range(8)]}


def test_what_is_busy_and_reserved_by_another_is_not_given_by_its_end() -> None:
    lab = Lab(node("a", 4))
    lab.submit(2, takes=HOUR)
    lab.step()
    book(lab, "r1", gpus("a", 0, 1), 2 * HOUR, 3 * HOUR)
    assert chosen(lab, 2, 0.5 * HOUR, 4 * HOUR) == {"a": [2, 3]}
    assert chosen(lab, 3, 0.5 * HOUR, 4 * HOUR) is None


def test_types_and_what_is_out_of_service() -> None:
    lab = Lab(node("a", 2, "A100"), broken(node("b", 4, "H100"), 0, 1), node("c", 4, "H100", drained=True))
    assert chosen(lab, Request(2, gpu_type="h100"), 10.0, 20.0) == {"b": [2, 3]}
    assert chosen(lab, Request(3, gpu_type="h100"), 10.0, 20.0) is None
    assert room_from(lab.state, Request(3, gpu_type="h100"), 10.0, 10.0) is None, "it would never be"


def test_where_there_is_no_room_the_next_moment_is_told() -> None:
    lab = Lab(node("a", 4))
    book(lab, "r1", gpus("a", 0, 1), 10.0, 20.0)
    book(lab, "r2", gpus("a", 2, 3), 15.0, 30.0)
    book(lab, "r3", gpus("a", 0, 1, 2, 3), 36.0, 40.0)
    assert room_from(lab.state, Request(2), 5.0, 10.0) == 5.0
    assert room_from(lab.state, Request(4), 8.0, 5.0) == 30.0
    assert room_from(lab.state, Request(4), 8.0, 6.0) == 30.0
    assert room_from(lab.state, Request(4), 8.0, 7.0) == 40.0, "the hole before the last one is too short"
    assert room_from(lab.state, Request(2), 12.0, 20.0) == 40.0


@pytest.mark.parametrize(
    ("request_", "fits"),
    [
        (Request(4), True),
        (Request(0), True),
        (Request(5), False),
        (Request(6), False),
        (Request(6, span=True), True),
        (Request(4, nodes=2), True),
        (Request(3, nodes=3), False),
        (Request(1, gpu_type="A100"), False),
    ],
)
def test_which_runs_fit_into_a_reservation(request_: Request, fits: bool) -> None:
    lab = Lab(*two_by_eight(), node("c", 8, "A100"))
    kept = book(lab, "r1", (*gpus("a", 4, 5, 6, 7), *gpus("b", 0, 1)), 10.0, 20.0)
    assert could_hold(lab.state.board.layout, kept, request_) is fits


def test_whether_it_fits_is_not_judged_by_what_is_out_of_service() -> None:
    lab = Lab(*two_by_eight())
    kept = book(lab, "r1", gpus("a", 0, 1), 10.0, 20.0)
    lab.tell(e.NodeDrained(at=lab.now, node_id="a"))
    assert could_hold(lab.state.board.layout, kept, Request(2))
    lab.tell(e.NodeRemoved(at=lab.now, node_id="a"))
    assert could_hold(lab.state.board.layout, kept, Request(2))


# -- its life ---------------------------------------------------------------------------------------------------------
def test_the_calendar_is_by_start_and_the_edges_follow_one_another() -> None:
    lab = Lab(*two_by_eight())
    state = lab.state
    assert state.next_reservation_edge(0.0) is None
    late = book(lab, "r1", gpus("a", 0), 100.0, 200.0)
    early = book(lab, "r2", gpus("a", 0), 50.0, 100.0)
    assert snapshot(state, 0.0).reservations == state.calendar == (early, late)
    edges = [state.next_reservation_edge(at) for at in (0.0, 50.0, 99.0, 100.0, 150.0, 500.0)]
    assert edges == [50.0, 100.0, 100.0, 100.0, 100.0, 100.0], "what is over is due until it is ended"
    lab.tell(e.ReservationEnded(at=100.0, reservation_id="r2", why="over"))
    assert [state.next_reservation_edge(at) for at in (100.0, 500.0)] == [200.0, 200.0]
    assert not early.active(49.9) and early.active(50.0) and not early.active(100.0)


def test_a_run_that_names_one_that_is_over_is_a_run_like_any_other() -> None:
    lab = Lab(*two_by_eight())
    kept = book(lab, "r1", gpus("a", 0), 100.0, 200.0)
    queued = lab.submit(1, reservation="r1")
    held = lab.submit(1, reservation="r1", held=True)
    assert lab.state.reservation_of(lab.run(queued)) == kept
    lab.tell(e.ReservationEnded(at=lab.now, reservation_id="r1", why="not needed"))
    assert lab.state.reservation_of(lab.run(queued)) is None
    assert lab.run(queued).spec.reservation == lab.run(held).spec.reservation == "r1", "what was asked for stays"
    assert queued in lab.state.queue and held not in lab.state.queue
    lab.step()
    assert lab.first_start(queued) == lab.now


def test_a_fork_has_reservations_of_its_own() -> None:
    lab = Lab(*two_by_eight())
    book(lab, "r1", gpus("a", 0), 100.0, 200.0)
    twin = lab.state.fork()
    assert (twin.reservations, twin.calendar) == (lab.state.reservations, lab.state.calendar)
    twin.unbook("r1")
    assert twin.calendar == () and len(lab.state.calendar) == len(lab.state.reservations) == 1


def test_it_is_written_and_read_as_it_was() -> None:
    placement = (Slice("a", 0b11), Slice("b", 1 << 63))
    full = Reservation("r1", "ann", "demo", 10.0, 20.5, placement, 5.0, "because", ("ben", "cid"))
    assert codec.decode(Reservation, codec.encode(full)) == full
    bare = replace(full, why="", users=())
    assert set(codec.encode(bare)) == {"id", "user", "name", "start", "end", "placement", "made_at"}
    assert codec.decode(Reservation, codec.encode(bare)) == bare


def test_a_run_that_waits_for_its_reservation_says_so() -> None:
    lab = Lab(*two_by_eight())
    book(lab, "r1", gpus("a", 0), 100.0, 200.0)
    run_id = lab.submit(1, reservation="r1", held=True)
    lab.now = 39.7
    reasons = {reason.code: reason for reason in explain(lab.state, lab.now, run_id).reasons}
    assert set(reasons) == {"held", "window"}
    assert reasons["window"].text == "waits for its reservation r1, which begins in 60 s"
    assert reasons["window"].until == 100.0
    assert [reason.code for reason in explain(lab.state, 100.0, run_id).reasons] == ["held"]


def reasons_of(lab: Lab, run_id: str) -> dict[str, Reason]:
    return {reason.code: reason for reason in explain(lab.state, lab.now, run_id).reasons}


def test_a_reservation_says_whom_it_keeps_out_and_who_is_still_on_it() -> None:
    lab = Lab(*two_by_eight())
    book(lab, "r1", gpus("a", 0, 1), 0.0, 9 * HOUR)
    for wanted in (6, 8):
        lab.submit(wanted, takes=20 * HOUR)
    lab.step()
    alone = reasons_of(lab, lab.submit(1))["reserved"]
    assert alone.text.startswith("1 GPU is free, but kept for a reservation (r1)")
    all_of_it = reasons_of(lab, lab.submit(16))
    assert all_of_it["resources"].runs
    assert (
        all_of_it["reserved"].text == "with 2 of 16 GPUs kept for a reservation (r1) the rest has no room for 16 GPUs"
    )
    assert all_of_it["reserved"].until == 9 * HOUR
    assert "reserved" not in reasons_of(lab, lab.submit(8)), "it only has to wait for another one's end"
    book(lab, "r2", gpus("b", 0), 0.0, 5 * HOUR)
    assert reasons_of(lab, lab.submit(16))["reserved"].until == 9 * HOUR, "both must be over"
    assert reasons_of(lab, lab.submit(8))["reserved"].until == 5 * HOUR, "one of them will do"


def test_who_is_on_the_gpus_of_a_reservation_is_named() -> None:
    lab = Lab(*two_by_eight())
    book(lab, "r1", gpus("a", 0, 1), 0.0, 9 * HOUR)
    mine = lab.submit(2, reservation="r1", takes=2 * HOUR)
    lab.step()
    second = reasons_of(lab, lab.submit(1, reservation="r1"))["reserved"]
    assert (second.text, second.runs) == ("the GPUs of its reservation r1 have no room for 1 GPU now", (mine,))


# -- what must hold ---------------------------------------------------------------------------------------------------
def test_a_gpu_that_is_promised_twice_is_found() -> None:
    lab = Lab(*two_by_eight(), checked=False)
    one = book(lab, "r1", gpus("a", 0, 1), 10.0, 20.0)
    other = book(lab, "r2", gpus("a", 1, 2), 19.0, 30.0)
    book(lab, "r3", gpus("b", 1, 2), 19.0, 30.0)
    assert list(collisions(lab.state.calendar)) == [(one, other)]
    assert check(lab.state) == ["reservations r1 and r2 keep the same GPU at the same time"]


def test_one_without_time_or_gpus_is_found() -> None:
    for wrong in ({"end": 10.0}, {"placement": ()}):
        lab = Lab(*two_by_eight(), checked=False)
        made = replace(Reservation("r1", "ann", "", 10.0, 20.0, gpus("a", 0), 0.0), **wrong)
        lab.tell(e.ReservationMade(at=0.0, reservation=made))
        assert [line.partition(":")[0] for line in check(lab.state)] == ["reservation r1"]


def test_preempted_work_still_counts_as_going() -> None:
    """What was asked to stop is expected to be gone after its grace."""
    lab = Lab(node("a", 2), node("b", 2))
    victim = lab.submit(2, takes=100 * HOUR, grace_s=30.0)
    lab.step()
    lab.stop(victim, Cause.CANCELLED)
    assert chosen(lab, 2, lab.now + 60.0, HOUR) == {"a": [0, 1]}
