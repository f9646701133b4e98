"""Whatever happens: no GPU is promised twice, what is promised is there, and the log lived again promises the same."""

from __future__ import annotations

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from rota.core.check import check
from rota.core.grace import longest_s
from rota.core.place import place
from rota.core.reservation import collisions
from rota.core.reserving import choose, room_from
from rota.core.resources import Request, bits, gpu_count
from rota.core.run import ENDED
from rota.core.state import State
from tests.props.bookings import BOOKINGS, WANTED, Booked, bookings
from tests.props.stories import Picker
from tests.props.test_decide import facts
from tests.props.test_reduce import comparable, replayed

requests = st.sampled_from([one for one in WANTED if one.gpus])
ahead = st.sampled_from([0.0, 5.0, 60.0, 400.0])
lengths = st.sampled_from([60.0, 90.0, 1000.0])


@settings(max_examples=75)
@given(bookings(), requests, ahead, lengths)
def test_what_is_chosen_is_there_is_what_was_asked_for_and_nobody_elses(
    story: Booked, request_: Request, later: float, length: float
) -> None:
    """(The state is checked after every event of the story: two that share a GPU would have been found there.)"""
    state = story.state
    now = max(story.now, state.at)
    start, end = now + later, now + later + length
    spot = choose(state, request_, start, end, now)
    event(f"{len(state.calendar)} reserved before, {'placed' if spot else 'no room'}")
    if spot is None:
        assert room_from(state, request_, start, length) != start
        return
    assert gpu_count(spot) == request_.gpus
    assert len({part.node for part in spot}) == len(spot)
    for part in spot:
        node = state.nodes[part.node]
        assert part.gpus & ~node.usable == 0, "in service"
        kinds = {gpu.index: gpu.type.lower() for gpu in node.gpus}
        assert all(request_.gpu_type.lower() in kinds[index] for index in bits(part.gpus))
        if request_.nodes > 1:
            assert part.gpus.bit_count() == request_.gpus // request_.nodes
    for one in state.calendar:
        if one.meets(start, end):
            kept = {part.node: part.gpus for part in one.placement}
            assert not any(kept.get(part.node, 0) & part.gpus for part in spot), "another has it then"


@settings(max_examples=50)
@given(bookings(), requests, ahead)
def test_where_it_could_be_free_at_its_start_it_is(story: Booked, request_: Request, later: float) -> None:
    """If the request fits onto GPUs that nobody has reserved and nobody is expected to hold by then, it gets such."""
    state = story.state
    now = max(story.now, state.at)
    start, end = now + later, now + later + 60.0
    free = state.board.copy()
    for expected_end, placement in state.timeline.given_back():
        if expected_end <= start and start > now:
            free.give(placement)
    for one in state.calendar:
        if one.meets(start, end):
            free.take(one.placement)
    assume(place(free, request_) is not None)
    spot = choose(state, request_, start, end, now)
    assert spot is not None
    assert all(free.holds(part) for part in spot)


@settings(max_examples=50)
@given(bookings(), requests, ahead, lengths)
def test_the_next_room_is_room_and_there_is_none_before_it(
    story: Booked, request_: Request, later: float, length: float
) -> None:
    state = story.state
    now = max(story.now, state.at)
    start = now + later
    found = room_from(state, request_, start, length)
    event("never" if found is None else "at once" if found == start else "later")
    if found is None:
        assert choose(state, request_, now + 1e9, now + 1e9 + length, now) is None
        return
    assert choose(state, request_, found, found + length, now) is not None
    edges = {start, *(edge for one in state.calendar for edge in (one.start, one.end, one.start - length))}
    for moment in sorted(edge for edge in edges if start <= edge < found):
        assert choose(state, request_, moment, moment + length, now) is None


@settings(max_examples=75)
@given(bookings(max_size=40), st.integers(0, 2**40))
def test_what_starts_keeps_off_what_is_kept_for_others(story: Booked, number: int) -> None:
    """A run that names a reservation starts in its time and on its GPUs; any other only where it is gone by the start
    of whoever has reserved them, its grace after its limit included, or can be stopped then."""
    story.reserves(Picker(number))
    story.submits_with_a_long_grace(Picker(number))
    now = story.snap().now
    starts = story.plan().starts
    named = 0
    for start in starts:
        run = story.run(start.run_id)
        mine = story.state.reservation_of(run)
        spot = {part.node: part.gpus for part in start.placement}
        if mine is not None:
            named += 1
            kept = {part.node: part.gpus for part in mine.placement}
            assert mine.active(now) and not any(gpus & ~kept.get(node, 0) for node, gpus in spot.items())
            continue
        for one in story.state.calendar:
            if any(spot.get(part.node, 0) & part.gpus for part in one.placement) and now < one.end:
                assert now < one.start, "it has begun"
                assert run.spec.preemptible or now + longest_s(story.state.policy, run) <= one.start
    event(f"{min(len(starts), 3)} start, {min(named, 2)} of them by a reservation")


@settings(max_examples=80)
@given(bookings(max_size=45))
def test_the_log_lived_again_promises_the_same(story: Booked) -> None:
    again = replayed(story.log)
    latest = max(story.latest, story.state.at)
    again.wake(latest)
    story.state.wake(latest)
    assert (again.reservations, again.calendar) == (story.state.reservations, story.state.calendar)
    assert comparable(again) == comparable(story.state)
    loaded = State()
    loaded.policy, loaded.at, loaded.caps = story.state.policy, story.state.at, dict(story.state.caps)
    loaded.nodes, loaded.usage = dict(story.state.nodes), dict(story.state.usage)
    loaded.runs = {run.id: run for run in story.state.runs.values() if run.state not in ENDED}
    loaded.reservations = dict(reversed(story.state.reservations.items()))
    loaded.index_all()
    assert loaded.calendar == story.state.calendar
    assert check(loaded) == check(again) == []


@settings(max_examples=60)
@given(bookings(), st.lists(st.tuples(st.integers(0, len(BOOKINGS) - 1), st.integers(0, 2**40)), max_size=15))
def test_what_happens_to_a_fork_does_not_happen_to_the_original(story: Booked, more: list[tuple[int, int]]) -> None:
    fork, before = story.state.fork(), (facts(story.state), dict(story.state.reservations), story.state.calendar)
    assert (facts(fork), fork.reservations, fork.calendar) == before
    original, story.state = story.state, fork
    for what, number in more:
        story.happen(what, number)
    assert (facts(original), original.reservations, original.calendar) == before
    assert not list(collisions(fork.calendar))
