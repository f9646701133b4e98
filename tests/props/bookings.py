"""Stories in which GPUs are reserved, too, runs name reservations, and reservations end."""

from __future__ import annotations

from hypothesis import strategies as st

from rota.core import events as e
from rota.core.reservation import Reservation
from rota.core.reserving import choose
from rota.core.resources import Request
from tests.props.stories import CLUSTERS, HAPPENINGS, REQUESTS, USERS, Picker, Story, policy_of

WANTED = [request for request in REQUESTS if request == Request(request.gpus, request.nodes, gpu_type=request.gpu_type)]


class Booked(Story):
    def happen(self, what: int, number: int) -> None:
        BOOKINGS[what % len(BOOKINGS)](self, Picker(number))

    def reserves(self, pick: Picker) -> Reservation | None:
        """As the app does: GPUs are chosen, and then they are written down."""
        request = pick.of([one for one in WANTED if one.gpus])
        now = max(self.now, self.state.at)
        start = now + pick.of([0.0, 10.0, 50.0, 300.0])
        end = start + pick.of([60.0, 100.0, 600.0])
        spot = choose(self.state, request, start, end, now)
        if spot is None:
            return None
        name = f"r{len(self.log):x}"
        made = Reservation(name, pick.of(USERS), "", start, end, spot, now, users=(pick.of(USERS),))
        self.tell(e.ReservationMade(at=self.now, by=made.user, reservation=made))
        return made

    def gives_up(self, pick: Picker) -> None:
        if self.state.calendar:
            self.tell(e.ReservationEnded(at=self.now, reservation_id=pick.of(self.state.calendar).id, why="not needed"))

    def what_is_over_goes(self, pick: Picker) -> None:
        for one in self.state.calendar:
            if one.end <= self.now:
                self.tell(e.ReservationEnded(at=self.now, reservation_id=one.id, why="over"))

    def submits_into(self, pick: Picker) -> None:
        name = pick.of(self.state.calendar).id if self.state.calendar else ""
        self.submit(pick.of([1, 2, 4]), takes=pick.of([10.0, 300.0]), user=pick.of(USERS), reservation=name)

    def submits_with_a_long_grace(self, pick: Picker) -> None:
        """Its limit alone would let it be gone before many a reservation."""
        takes, grace_s = pick.of([5.0, 40.0, 200.0]), pick.of([40.0, 200.0, 86400.0])
        self.submit(pick.of([1, 2, 4]), takes=takes, user=pick.of(USERS), time_limit_s=takes, grace_s=grace_s)


BOOKINGS = [
    *HAPPENINGS,
    Booked.reserves,
    Booked.reserves,
    Booked.reserves,
    Booked.gives_up,
    Booked.what_is_over_goes,
    Booked.submits_into,
    Booked.submits_into,
    Booked.submits_with_a_long_grace,
]


def bookings(max_size: int = 30) -> st.SearchStrategy[Booked]:
    step = st.tuples(st.integers(0, len(BOOKINGS) - 1), st.integers(0, 2**40))
    steps = st.integers(0, max_size).flatmap(lambda size: st.lists(step, min_size=size, max_size=size))
    return st.builds(tell, st.integers(0, len(CLUSTERS) - 1), st.integers(0, 2**40), steps)


def tell(cluster: int, policy: int, told: list[tuple[int, int]]) -> Booked:
    story = Booked(*CLUSTERS[cluster], policy=policy_of(Picker(policy)))
    for what, number in told:
        story.happen(what, number)
    return story
