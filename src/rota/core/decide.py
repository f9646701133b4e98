"""decide(snapshot) -> Plan: total, deterministic, the same live and in simulation.

One pass, in policy order (core/turns.py):

1. Runs start as long as they can be placed; under auto long ones that nobody can stop leave a few GPUs to short ones
   (core/headroom.py).
2. One that cannot may stop less urgent work that said it may be stopped (core/preempt.py). What is free of the room
   that is being made for it is kept for it; at the end of the pass short runs may use it meanwhile (core/kept.py).
3. The first that can do neither gets a reservation: the earliest moment at which it will fit (backfill.reserve).
4. Behind it others still start if they will be done by then, keep off the reserved GPUs, or can be stopped when the
   time comes. Under conservative backfill everybody who waits has a reservation instead (core/conservative.py).
5. Fillers come last, on whatever nobody else could use.
6. The pass ends when nothing is free or nobody is left. When the depth is used up it goes on with those people of
   whose runs few were looked at, so that the backlog of one person hides nobody else.

Resources only shrink during a pass, so a shape that could not be placed once is never tried again, and a pass over a
hundred thousand waiting runs touches few of them. Where GPUs are reserved by people, each run sees only those that it
may have (core/zones.py).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from rota.core import order
from rota.core.backfill import exchange, outside, reserve
from rota.core.board import Board
from rota.core.conservative import Profile
from rota.core.going import worth_s
from rota.core.grace import longest_s, planned_s
from rota.core.headroom import Headroom
from rota.core.kept import Kept, kept_until, meet
from rota.core.order import Key
from rota.core.overdue import given_up
from rota.core.place import place
from rota.core.plan import Plan, Preempt, Reserve, Start
from rota.core.policies import las
from rota.core.policy import Backfill, Ordering
from rota.core.preempt import Making, Stopping
from rota.core.progress import charged_s, left_of
from rota.core.protect import from_higher_if_started_s, from_reservation_until
from rota.core.queue import Kind, Lane
from rota.core.quota import Over, over
from rota.core.resources import Placement, Slice
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.turns import Entry, Turns
from rota.core.underestimate import late_passers, looked_at_again, may_be_late, revised_ends
from rota.core.usage import Load, Shares
from rota.core.zones import EVERYWHERE, Zone, Zones

PUT_OFF = 2.0  # waited so many times what it declared: from then on nobody puts its reservation off
PREEMPTION_TRIES = 64  # blocked shapes per pass for which victims are looked for
TRIES_OF_ONE = 12  # of them for one person's: several people together leave some to the others
FRUITLESS = 64  # times per pass that a reservation is looked for in vain
FRUITLESS_OF_ONE = 12  # for one person's
LOOKS_OF_EACH = 25  # runs of each person that are looked at although the depth is used up


def decide(snap: Snapshot) -> Plan:
    if snap.paused:
        return Plan(snap.version)
    return _Pass(snap).run()


class _Pass:
    def __init__(self, snap: Snapshot) -> None:
        self.snap = snap
        self.policy = snap.policy
        self.zones = Zones(snap)
        self.board = self.zones.main
        self.outside: Board | None = None  # what is left beside the reservation
        self.reserve: Reserve | None = None
        self.reserved_standing = 0.0  # of who has it
        self.at_last: Board | None = None  # what is free when all have ended that are believed to
        self.unreservable: set[tuple[object, ...]] = set()  # shapes that do not fit even then, with so many to spare
        self.fruitless = Counter[str]()  # by person
        self.vague = False  # its moment rests on a run that is late
        self.late: frozenset[str] | None = None  # people whose runs passed it and are late; None = not looked up
        self.profile: Profile | None = None  # under conservative backfill, from the first that cannot start
        self.newest: int | None = None  # of those that run, the last to have come
        self.starts: list[Start] = []
        self.ends: list[tuple[float, Placement]] = []  # of this pass's starts
        self.preempts: list[Preempt] = []
        self.stopping: Stopping | None = None
        self.kept: Kept | None = None  # what is free of the room that is being made for the first, for use meanwhile
        self.kept_opens_at = math.inf  # to the next that may
        self.has_room: set[str] = set()  # runs for which room is being made
        self.tries = PREEMPTION_TRIES if snap.fillers or (snap.stoppable and self.policy.preemption) else 0
        self.firm: dict[tuple[int, Zone], int] = {}  # shapes for which nobody can be stopped, up to which priority
        self.unplaceable: set[tuple[int, Zone]] = set()
        self.too_long: set[tuple[int, Zone]] = set()  # shapes that fit only into the reservation's hole
        self.closed: set[str] = set()  # users of whom no more runs can start in this pass
        self.in_group: dict[str, int] = {}  # active runs of capped groups, with this pass's starts
        self.load: dict[str, Load] = {}
        self.ordering = self.policy.ordering
        self.moves = self.ordering is Ordering.FAIR_SHARE  # a start changes who is next
        self.shares = Shares(snap.usage, snap.load, snap.now, self.policy.half_life_s, snap.board.layout.gpus)
        self.turns = Turns(snap, self.shares, self.at_cap)
        self.room = self.policy.max_concurrent - snap.active if self.policy.max_concurrent else 1 << 62
        self.depth = self.policy.backfill_depth
        self.looked: dict[str, int] = {}  # runs of each user that used up depth
        self.tried: dict[str, int] = {}  # and those that used up tries
        self.used_up_depth = self.narrowed = False
        self.examined = 0
        self.stopped = False
        self.headroom = Headroom(snap)
        self.left_alone_until = math.inf  # when the next one has had its time of those whose GPUs are reserved

    def run(self) -> Plan:
        self.clear_reservations()
        lines, needs_gpu = self.turns.line_up()
        first = [(line[0], shape) for shape, line in lines.items()]  # the next of each shape
        heapify(first)
        while first and self.room > 0 and not self.stopped:
            if needs_gpu and self.used_up():
                break
            if self.used_up_depth and not self.narrowed:
                first = self.narrow(lines, first)
                continue
            (standing, key, run_id, lane, at), shape = heappop(first)
            line = lines[shape]
            heappop(line)
            if isinstance(lane, Kind):
                if self.reserve is None or not self.headroom.all_stand_back(lane, self.board.free_gpus):
                    for entry in self.turns.unfold(lane):
                        heappush(line, entry)
            elif self.moves and (fresh := self.turns.entry(lane, at))[:2] != (standing, key):
                heappush(line, fresh)  # somebody started something since
            elif self.consider(self.snap.runs[run_id], lane, standing):
                following = self.next_in(lane, at + 1)
                if following < len(lane.runs):
                    heappush(line, self.turns.entry(lane, following))
            if line and not self.hopeless(shape):
                heappush(first, (line[0], shape))
        if self.kept is not None:
            self.use_kept(self.kept)
        return Plan(
            self.snap.version,
            tuple(self.starts),
            tuple(self.preempts),
            self.reserve,
            self.examined,
            self.look_again_at(),
        )

    def narrow(self, lines: dict[int, list[Entry]], first: list[tuple[Entry, int]]) -> list[tuple[Entry, int]]:
        """The depth is used up: go on without those people whose runs used it up."""
        self.narrowed = True
        self.closed.update(user for user, looked in self.looked.items() if looked >= LOOKS_OF_EACH)
        left = []
        for _, shape in first:
            line = lines[shape] = [entry for entry in lines[shape] if self.is_open(entry[3])]
            heapify(line)
            left += [(line[0], shape)] if line else []
        heapify(left)
        return left

    def is_open(self, lane: Lane | Kind) -> bool:
        if isinstance(lane, Kind):
            return any(one.user not in self.closed for one in lane.lanes.values())
        return lane.user not in self.closed

    def hopeless(self, shape: int) -> bool:
        """Nobody of this shape can start in this pass, whoever it is."""
        if self.reserve is None or self.tries or self.zones.calendar or self.profile is not None:
            return False
        return (shape, EVERYWHERE) in self.unplaceable

    # -- what becomes of one ----------------------------------------------------------------------------------------
    def used_up(self) -> bool:
        """Nothing is free, and nobody left could change that."""
        if self.board.free_gpus or self.tries:
            return False
        return self.reserve is not None or self.policy.backfill is Backfill.SKIP

    def consider(self, run: Run, lane: Lane, standing: float) -> bool:
        """Start it if it can be. False = no other run of this lane can start in this pass either."""
        zone = self.zones.of(run)
        if zone is None or lane.user in self.closed or (lane.group and self.at_cap(lane.group)):
            return False
        where = (lane.shape, zone)
        full = where in self.unplaceable and self.profile is None  # with a profile everybody is booked
        if full and self.reserve is not None and (not self.tries or run.priority <= self.firm.get(where, -1)):
            return self.look_further(lane.user)
        self.examined += 1
        over_limit = over(self.policy.limits_of(run.user), self.load_of(run.user), lane.request.gpus)
        if over_limit is not Over.NOTHING:
            if over_limit is Over.RUNS:
                self.closed.add(run.user)
            return False
        if not run.spec.filler and (self.profile is not None or self.was_passed(run)):
            return self.book(run)
        if self.headroom.stands_back(run, lane, self.board.free_gpus) and self.has_a_time(run, standing):
            return False
        if self.reserve is not None and not self.may_be_stopped(run, standing):
            return self.pass_by(run, lane, zone, standing)
        spot = None if full else place(self.zones.board(zone), lane.request, self.snap.packer)
        if spot is not None:
            self.start(run, spot)
            return True
        self.unplaceable.add(where)
        if self.make_room(run, where, standing):
            return True
        if self.reserve is None and not run.spec.filler:
            self.block(run, standing)
        return self.look_further(lane.user)

    def look(self, user: str) -> bool:
        """Count a run that is looked at behind the reservation. False = that is enough of this user's."""
        self.depth -= 1
        looked = self.looked[user] = self.looked.get(user, 0) + 1
        return self.depth >= 0 or looked <= min(LOOKS_OF_EACH, self.policy.backfill_depth)

    def had_enough(self, user: str) -> bool:
        """Count a run that is looked at; True = no more of this user's runs are, and the depth is used up."""
        if self.look(user):
            return False
        self.closed.add(user)
        self.used_up_depth = True
        return True

    def look_further(self, user: str) -> bool:
        """One could not be placed. The next of its lane is of the same shape; it fares better only where GPUs are
        reserved, and it is done before they are needed. Under conservative backfill everybody is looked at."""
        more = self.look(user)
        return (bool(self.zones.calendar) and more) or self.profile is not None

    def may_be_stopped(self, run: Run, standing: float) -> bool:
        """It need not keep off a reservation: whoever has that is more urgent, and can stop it when the time comes."""
        if run.spec.filler:
            return True
        able = self.ordering is Ordering.AUTO and self.policy.preemption and run.saves and run.spec.stoppable
        if not able or self.reserve is None:
            return able
        if self.vague:  # the moment may come at once, and a stop costs more than it brought
            return False
        head, ahead = self.snap.runs[self.reserve.run_id], self.reserve.at - self.snap.now
        if run.priority > head.priority or ahead < self.policy.min_run_s:  # nobody can stop it sooner
            return False
        if run.priority < head.priority and ahead < from_higher_if_started_s(self.policy, run):
            return False
        if self.turns.owed(run) is not None:  # or it would be back before that one, if only it may pass
            return False
        if self.snap.now - head.submitted_at - head.attained_s < PUT_OFF * planned_s(self.policy, head):
            return True
        # it gets on until then, and must not have become the more urgent of the two, or all who pass do so in turn
        left = 1.0 - ahead / max(1.0, planned_s(self.policy, run))
        return standing * left > self.policy.margin * self.reserved_standing

    def pass_by(self, run: Run, lane: Lane, zone: Zone, standing: float) -> bool:
        """Behind the reservation: only what does not delay it."""
        assert self.reserve is not None
        assert self.outside is not None
        if self.had_enough(lane.user):
            return False
        where = (lane.shape, zone)
        if where in self.unplaceable:
            # room is made only for one that may then use it, or who made way would be back, and be stopped again
            return not self.is_over_by_then(run) or self.make_room(run, where, standing)
        if self.is_over_by_then(run):
            spot = place(self.zones.board(zone), lane.request, self.snap.packer)
            if spot is None:
                self.unplaceable.add(where)
                return self.make_room(run, where, standing)
            self.start(run, spot)
            if not self.zones.calendar:  # else it might be exchanged for GPUs that the reserved run may not have
                request = self.snap.runs[self.reserve.run_id].spec.request
                self.reserve = exchange(self.reserve, request, spot, self.board, self.outside)
            return True
        free = self.outside if zone == EVERYWHERE else self.zones.seen(self.outside, zone)
        spot = None if where in self.too_long else place(free, lane.request, self.snap.packer)
        if spot is None:
            self.too_long.add(where)
        else:
            self.start(run, spot)
        return True

    def is_over_by_then(self, run: Run) -> bool:
        """Whether it will have ended when the reserved GPUs are needed, as far as it can be believed."""
        assert self.reserve is not None
        return self.snap.now + planned_s(self.policy, run) <= self.reserve.at and not self.may_be_late(run)

    def may_be_late(self, run: Run) -> bool:
        if self.reserve is None:
            return False
        head = self.snap.runs[self.reserve.run_id]
        if self.late is None:
            self.late = late_passers(self.snap, head)
        return may_be_late(run, head, self.late)

    def next_in(self, lane: Lane, at: int) -> int:
        """Where to look next in a lane; long runs of a shape that only fits into the hole are passed over here."""
        if self.reserve is None or (lane.shape, EVERYWHERE) not in self.too_long or self.zones.calendar:
            return at
        while at < len(lane.runs) and self.depth > 0:
            key, run_id = lane.runs[at]
            run = self.snap.runs[run_id]
            if self.is_over_by_then(run) or self.may_be_stopped(run, self.turns.standing_of(lane, key)):
                break
            at += 1
            self.look(lane.user)
        return at

    def has_a_time(self, run: Run, standing: float) -> bool:
        """Who stands back, or somebody before it, has a reservation. Else it would wait for what may never come."""
        if self.reserve is None:
            self.block(run, standing, self.headroom.missing())
        return self.reserve is not None

    def block(self, run: Run, standing: float, spare: int = 0) -> None:
        """The first that cannot start. `spare` GPUs must be free beside it when it does."""
        if self.policy.backfill is Backfill.NONE:
            self.stopped = True
        elif self.policy.backfill is Backfill.CONSERVATIVE:
            self.book(run)
        elif self.policy.backfill is Backfill.EASY and self.may_have_a_time(run, spare):
            yielding = self.stopping.yielding(run, standing) if self.stopping is not None else None
            self.reserved_standing = standing
            self.reserve = reserve(self.snap, self.board, run, self.ends, self.zones, yielding=yielding, spare=spare)
            if self.reserve is None:
                self.fruitless[run.user] += 1
                self.unreservable.add(self.looks_for(run, spare))
            else:
                self.outside = outside(self.board, self.reserve)
                self.vague = self.reserve.at in revised_ends(self.snap).values()
                # it will need its user's share of the limits then: those who pass must leave it that
                load = self.load[run.user] = self.load_of(run.user).copy()
                load.running += 1
                load.gpus += run.spec.request.gpus
                self.join_group(run.spec.group)

    def may_have_a_time(self, run: Run, spare: int) -> bool:
        """Whether it is worth while to look for its reservation, which walks over all ends. Where a node is out of
        service, whole lanes of runs wait that have none."""
        key = (self.snap.queue.lane_of(run.id).shape, spare)
        if key not in self.unreservable:
            if self.at_last is None:
                undying, _ = given_up(self.snap)
                both = zip(self.snap.timeline, self.snap.timeline.given_back(), strict=True)
                held = [placement for (_, run_id), (_, placement) in both if run_id not in undying]
                self.at_last = self.board.after(held + [placement for _, placement in self.ends])
            request = run.spec.request
            if place(self.at_last, request) is None or self.at_last.free_gpus - request.gpus < spare:
                self.unreservable.add(key)
        if key in self.unreservable or self.looks_for(run, spare) in self.unreservable:
            return False
        return self.fruitless[run.user] < FRUITLESS_OF_ONE and self.fruitless.total() < FRUITLESS

    def looks_for(self, run: Run, spare: int) -> tuple[object, ...]:
        """What decides whether a run finds a time: its shape, and where there is a calendar what it may use of that."""
        key = (self.snap.queue.lane_of(run.id).shape, spare)
        if not self.zones.calendar:
            return key
        return (*key, run.spec.reservation, None if run.spec.stoppable else longest_s(self.policy, run))

    def was_passed(self, run: Run) -> bool:
        """Under conservative backfill: somebody who came later was let by, and what was promised to this one holds."""
        if self.policy.backfill is not Backfill.CONSERVATIVE or self.ordering is not Ordering.FCFS:
            return False
        if self.newest is None:
            self.newest = max((self.snap.runs[run_id].seq for _, run_id in self.snap.timeline), default=0)
        return self.newest > run.seq

    def book(self, run: Run) -> bool:
        """Under conservative backfill: start it if its reservation is for now."""
        if self.profile is None:
            self.profile = Profile(self.snap, self.zones, self.ends, {victim.run_id for victim in self.preempts})
        if self.reserve is not None and self.profile.over():
            return False
        if self.had_enough(run.user):
            return False
        doubted = self.may_be_late(run)
        booked = self.profile.book(run, only_beside=doubted)
        if booked is None:
            return doubted  # another of its lane may have a time limit
        if self.reserve is None and booked.at > self.snap.now:
            self.reserve = booked  # of the first: what is told to people
        if booked.at <= self.snap.now:
            self.start(run, booked.placement)
        elif self.snap.fillers and (making := self.profile.way(run, booked, self.stops())) is not None:
            self.preempts += making.victims
            self.keep(run, making)
        return True

    # -- who has to go ----------------------------------------------------------------------------------------------
    def make_room(self, run: Run, where: tuple[int, Zone], standing: float) -> bool:
        """Stop less urgent work for it, or wait for what is stopping already. False = nobody can be stopped for a run
        of this shape that is no more urgent."""
        tried = self.tried.get(run.user, 0)
        if self.tries <= 0 or tried >= TRIES_OF_ONE or run.priority <= self.firm.get(where, -1):
            return False
        self.tries -= 1
        self.tried[run.user] = tried + 1
        mine = standing if self.ordering is Ordering.AUTO else self.stops().standing(run)
        making = self.stops().choose(self.zones.board(where[1]), run, mine, self.zones.hidden(where[1]))
        if making is None:
            self.firm[where] = run.priority
            return False
        self.preempts += making.victims
        self.keep(run, making)
        if self.policy.backfill is Backfill.CONSERVATIVE:
            self.ends.append((self.snap.now + left_of(run), making.spot))  # as good as started to those who are booked
        return True

    def stops(self) -> Stopping:
        if self.stopping is None:
            self.stopping = Stopping(self.snap, self.shares, {victim.run_id for victim in self.preempts})
        return self.stopping

    def keep(self, run: Run, making: Making) -> None:
        """Nobody else gets what is free of the room that is being made."""
        self.has_room.add(run.id)
        free = []
        for part in making.spot:
            n = self.board.layout.index[part.node]
            free.append(Slice(part.node, part.gpus & self.board.free[n], part.cpus, part.memory_gb))
        self.take(tuple(free))
        self.stops().drop(making)
        first = self.reserve is None and len(self.stops().promised) == 1  # if somebody goes early, it is reserved then
        if first and self.policy.backfill is Backfill.EASY and not making.awaited:
            self.kept = kept_until(run.id, making.spot, free, self.stops().going)

    def use_kept(self, kept: Kept) -> None:
        """Start short runs, in their turn, on what is kept for another that does not need it yet."""
        full: set[tuple[int, Zone]] = set()
        passed_over = self.has_room | {start.run_id for start in self.starts}
        for _, run_id, lane in sorted(self.short_enough(kept), key=lambda one: one[:2]):
            run = self.snap.runs[run_id]
            zone = self.zones.of(run)
            if self.room <= 0 or run_id in passed_over or zone is None or not self.within_limits(run):
                continue
            if (lane.shape, zone) in full or not self.is_gone_before_reservation(kept, run):
                continue
            free = kept.seen(self.board)
            spot = place(free if zone == EVERYWHERE else self.zones.seen(free, zone), lane.request)
            if spot is None:
                full.add((lane.shape, zone))
            else:
                self.start(run, spot)
                kept.take(spot)
                if self.is_head(run):
                    self.reserve = None

    def short_enough(self, kept: Kept) -> Iterator[tuple[tuple[float, Key], str, Lane]]:
        """Those who wait and may use what is kept by how long they last at most, a few of each person's."""
        most_s, looked = worth_s(self.policy), Counter[str]()
        for lane in self.snap.queue.lanes():
            if not lane.request.gpus or order.is_filler(lane.band) or looked[lane.user] >= LOOKS_OF_EACH:
                continue
            for key, run_id in lane.runs[:LOOKS_OF_EACH]:
                run = self.snap.runs[run_id]
                looked[lane.user] += 1
                lasts_s = longest_s(self.policy, run)
                if run.spec.time_limit_s is None or lasts_s > most_s or self.snap.now + lasts_s > kept.by:
                    continue
                if self.turns.owed(run) is not None:  # it must not be back before the one that it was stopped for
                    continue
                opens_at = kept.opens_at(lasts_s)
                if opens_at > self.snap.now:
                    self.kept_opens_at = min(opens_at, self.kept_opens_at)
                else:
                    yield self.turns.turn_of(lane, key, run), run_id, lane

    def is_gone_before_reservation(self, kept: Kept, run: Run) -> bool:
        """Somebody has a reservation for when the victims are gone: it must not find its GPUs taken."""
        if self.reserve is None or self.is_head(run):
            return True
        request = run.spec.request
        if not meet(kept.parts, self.reserve.placement) and not request.cpus and not request.memory_gb:
            return True
        return self.snap.now + longest_s(self.policy, run) <= self.reserve.at

    def within_limits(self, run: Run) -> bool:
        if self.is_head(run):  # counted when it got its reservation
            return True
        if run.spec.group and self.at_cap(run.spec.group):
            return False
        return over(self.policy.limits_of(run.user), self.load_of(run.user), run.spec.request.gpus) is Over.NOTHING

    def is_head(self, run: Run) -> bool:
        return self.reserve is not None and self.reserve.run_id == run.id

    def clear_reservations(self) -> None:
        """A reservation begins: what can be stopped on its GPUs is, unless it is the reservation's own. Who started
        before it was made is left alone for its time (`protect`)."""
        asked: set[str] = set()
        for one in self.snap.reservations:
            if not one.active(self.snap.now):
                continue
            kept = {part.node: part.gpus for part in one.placement}
            for run_id in self.snap.stoppable:
                run = self.snap.runs[run_id]
                attempt = run.attempt
                assert attempt is not None
                there = any(kept.get(part.node, 0) & part.gpus for part in attempt.placement)
                if there and attempt.stop is None and run.spec.reservation != one.id and run_id not in asked:
                    until = from_reservation_until(self.policy, run, one.made_at)
                    if until > self.snap.now:
                        self.left_alone_until = min(until, self.left_alone_until)
                        continue
                    asked.add(run_id)
                    self.preempts.append(Preempt(run_id, attempt.id, one.id))

    def look_again_at(self) -> float | None:
        moments = [self.left_alone_until, self.kept_opens_at]
        if self.reserve is not None:
            moments += [given_up(self.snap)[1], looked_at_again(self.snap, self.reserve.at)]
        if self.headroom.until is not None:
            moments.append(self.headroom.until)
        if self.stopping is not None:
            moments += [*self.stopping.protected.values(), self.stopping.look_again_at]
        if self.ordering is Ordering.LAS and len(self.snap.queue) > len(self.starts):
            for run_id in self.snap.stoppable:
                at = las.changes_at(self.policy, self.snap.runs[run_id], self.snap.now)
                if at is not None:
                    moments.append(at)
        soonest = min(moments, default=math.inf)
        return soonest if soonest < math.inf else None

    # -- bookkeeping ------------------------------------------------------------------------------------------------
    def take(self, spot: Placement) -> None:
        self.zones.take(spot)
        if self.outside is not None:
            self.outside.take(spot)

    def start(self, run: Run, spot: Placement) -> None:
        self.take(spot)
        self.starts.append(Start(run.id, spot))
        self.room -= 1
        gpus = run.spec.request.gpus
        self.ends.append((self.snap.now + left_of(run), spot))
        load = self.load.get(run.user)
        if load is None:
            load = self.load[run.user] = self.load_of(run.user).copy()
        load.running += 1
        load.gpus += gpus
        self.join_group(run.spec.group)
        self.headroom.started(run)
        if self.moves:
            self.shares.add(run.user, gpus * charged_s(run))

    def at_cap(self, group: str) -> bool:
        cap = self.snap.caps.get(group)
        return cap is not None and self.active_in(group) >= cap

    def join_group(self, group: str) -> None:
        if group in self.snap.caps:
            self.in_group[group] = self.active_in(group) + 1

    def active_in(self, group: str) -> int:
        known = self.in_group.get(group)
        return self.snap.groups.get(group, 0) if known is None else known

    def load_of(self, user: str) -> Load:
        return self.load.get(user) or self.snap.load.get(user) or Load()
