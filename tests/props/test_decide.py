"""What holds for every decision on every reachable state (B7)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from rota.core.board import Board, Layout
from rota.core.decide import decide
from rota.core.place import place
from rota.core.plan import Plan
from rota.core.policy import Backfill, Ordering, Policy
from rota.core.resources import Placement, Request, Slice, bits, gpu_count
from rota.core.run import TABLE, Run, RunState
from rota.core.snapshot import snapshot
from rota.core.state import State
from tests.props.stories import Story, stories
from tests.unit.core.kit import Lab, node

MANY = 1500  # stories, about 5,000 decisions; test_world judges as many again. The soak makes half a million


class Ledger:
    """What is free, kept anew from the facts: GPU by GPU, knowing nothing of boards, buckets and kinds."""

    def __init__(self, state: State) -> None:
        self.nodes = dict(state.nodes)
        self.gpus = {(n.id, gpu.index): gpu for n in state.nodes.values() for gpu in n.gpus if on(n) and gpu.healthy}
        self.cpus = {n.id: n.cpus for n in state.nodes.values()}
        self.memory = {n.id: round(n.memory_gb * 2**20) for n in state.nodes.values()}
        for run in state.runs.values():
            for part in run.attempt.placement if run.attempt else ():
                if part.node in self.nodes:
                    for index in bits(part.gpus):
                        self.gpus.pop((part.node, index), None)
                    self.cpus[part.node] -= part.cpus
                    self.memory[part.node] -= round(part.memory_gb * 2**20)

    def take(self, request: Request, placement: Placement) -> None:
        """Fails unless every part of the placement is free and fits what was asked for."""
        for part in placement:
            assert on(self.nodes[part.node])
            for index in bits(part.gpus):
                gpu = self.gpus.pop((part.node, index))  # KeyError: held, sick, drained, or given twice
                assert request.gpu_type.lower() in gpu.type.lower()
                assert gpu.memory_gb >= request.gpu_memory_gb
            assert (part.cpus, part.memory_gb) == (request.cpus, request.memory_gb)
            self.cpus[part.node] -= part.cpus
            self.memory[part.node] -= round(part.memory_gb * 2**20)
            assert not request.cpus or self.cpus[part.node] >= 0
            assert not request.memory_gb or self.memory[part.node] >= 0

    def one_node_has_room(self, request: Request) -> bool:
        for n in self.nodes.values():
            free = [
                gpu
                for (where, _), gpu in self.gpus.items()
                if where == n.id and request.gpu_type.lower() in gpu.type.lower()
                if gpu.memory_gb >= request.gpu_memory_gb
            ]
            enough = len(free) >= request.gpus and on(n)
            cpus = not request.cpus or self.cpus[n.id] >= request.cpus
            memory = not request.memory_gb or self.memory[n.id] >= round(request.memory_gb * 2**20)
            if enough and cpus and memory:
                return True
        return False


def on(n) -> bool:
    return n.alive and not n.drained


def all_or_nothing(request: Request, placement: Placement) -> None:
    shares = [part.gpus.bit_count() for part in placement]
    assert sum(shares) == request.gpus
    assert len({part.node for part in placement}) == len(placement) >= 1
    if request.nodes:
        assert shares == [request.gpus // request.nodes] * request.nodes
    elif request.gpus <= 1:
        assert len(placement) == 1


def within_limits(state: State, plan: Plan) -> None:
    runs, gpus = Counter[str](), Counter[str]()
    for run in state.runs.values():
        if run.attempt is not None and not run.attempt.reported:  # else it is carried elsewhere
            runs[run.user] += 1
            gpus[run.user] += gpu_count(run.attempt.placement)
    active = runs.total()
    groups = Counter(run.spec.group for run in state.runs.values() if run.attempt is not None)
    for start in plan.starts:
        run = state.runs[start.run_id]
        limits = state.policy.limits_of(run.user)
        runs[run.user] += 1
        gpus[run.user] += run.spec.request.gpus
        active += 1
        groups[run.spec.group] += 1
        cap = state.caps.get(run.spec.group)
        assert cap is None or groups[run.spec.group] <= cap
        assert not limits.running or runs[run.user] <= limits.running
        assert not limits.gpus or not run.spec.request.gpus or gpus[run.user] <= limits.gpus
        assert not state.policy.max_concurrent or active <= state.policy.max_concurrent


def may_start(run: Run, now: float) -> bool:
    return run.state is RunState.QUEUED and not run.waiting_on and run.not_before <= now


def facts(state: State) -> tuple:
    """All of a state, as values that can be compared."""
    board = state.board
    return (
        [
            getattr(state, name)
            for name in ("version", "at", "epoch", "next_seq", "policy", "paused", "active", "waiting", "held")
        ],
        list(state.nodes.items()),
        list(state.runs.items()),
        list(state.usage.items()),
        {user: (load.queued, load.running, load.gpus) for user, load in state.load.items()},
        (board.free[:], board.cpus[:], board.memory_kib[:], [bucket[:] for bucket in board.buckets], board.free_gpus),
        [(lane.user, lane.request, lane.group, lane.shape, lane.runs[:]) for lane in state.queue.lanes()],
        list(state.timeline),
        list(state.delayed),
        {key: set(waiters) for key, waiters in state.dependents.items()},
        (dict(state.caps), dict(state.groups)),
    )


def judge(story: Story) -> None:
    """As `sound`, and tells Hypothesis what kind of decision it was."""
    plan = sound(story)
    event(f"starts: {min(len(plan.starts), 3)}")
    if plan.reserve is not None:
        event("reservation")
    if plan.preempts:
        event("preemption")


def sound(story: Lab) -> Plan:
    """Everything that must hold for the next decision."""
    state, snap = story.state, story.snap()
    before = facts(state)
    plan = decide(snap)
    assert facts(state) == before, "deciding changes nothing"
    assert decide(story.snap()) == plan, "and says the same again"
    if state.paused:
        assert plan == Plan(state.version)
    ledger = Ledger(state)
    for start in plan.starts:
        run = state.runs[start.run_id]
        assert may_start(run, snap.now)
        assert RunState.STARTING in TABLE[run.state]
        ledger.take(run.spec.request, start.placement)
        all_or_nothing(run.spec.request, start.placement)
    assert len({start.run_id for start in plan.starts}) == len(plan.starts)
    within_limits(state, plan)
    judge_preempts(story, plan)
    if plan.reserve is not None:
        assert plan.reserve.at >= snap.now
        assert may_start(state.runs[plan.reserve.run_id], snap.now)
        assert plan.reserve.run_id not in {start.run_id for start in plan.starts}
        all_or_nothing(state.runs[plan.reserve.run_id].spec.request, plan.reserve.placement)
    return plan


def judge_preempts(story: Lab, plan: Plan) -> None:
    assert not plan.preempts or story.state.policy.preemption
    assert len({preempt.run_id for preempt in plan.preempts}) == len(plan.preempts)
    for preempt in plan.preempts:
        victim, gainer = story.run(preempt.run_id), story.run(preempt.for_run)
        assert victim.attempt is not None
        assert victim.attempt.id == preempt.attempt_id
        assert victim.attempt.stop is None
        assert victim.spec.preemptible
        assert victim.priority < gainer.priority
        assert may_start(gainer, story.snap().now)


@settings(max_examples=MANY)
@given(stories(watch=judge))
def test_every_decision_of_every_story_is_sound(story):
    judge(story)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(max_examples=100_000)
@given(stories(watch=judge, max_size=60))
def test_every_decision_of_every_story_is_sound_at_length(story):
    judge(story)


@settings(max_examples=250)
@given(stories(), st.randoms(use_true_random=False))
def test_the_order_in_which_things_came_to_be_known_does_not_matter(story, chance):
    """The same facts, loaded in another order, make the same plan."""
    old, new = story.state, State()
    new.policy, new.paused, new.at, new.version = old.policy, old.paused, old.at, old.version
    new.caps = dict(old.caps)
    new.nodes = dict(old.nodes)  # the order of the nodes is their numbering: it is meant
    for name in ("runs", "usage"):
        items = list(getattr(old, name).items())
        chance.shuffle(items)
        getattr(new, name).update(items)
    new.index_all()
    assert decide(snapshot(new, story.now)) == decide(story.snap())


@settings(max_examples=250)
@given(stories(backfill=Backfill.SKIP, preemption=False))
def test_nothing_that_fits_is_left_waiting_when_anything_may_pass(story):
    state, plan = story.state, story.plan()
    if state.paused:
        return
    ledger, board = Ledger(state), state.board.copy()
    for start in plan.starts:
        ledger.take(state.runs[start.run_id].spec.request, start.placement)
        board.take(start.placement)
        story.begin(start.run_id, f"{start.run_id}-{story.run(start.run_id).attempts_made + 1}", start.placement)
    policy, now = state.policy, story.snap().now
    for run in [run for run in state.runs.values() if may_start(run, now)]:
        request, limits = run.spec.request, policy.limits_of(run.user)
        load = state.load.get(run.user)
        full = policy.max_concurrent and state.active >= policy.max_concurrent
        over_runs = limits.running and load and load.running >= limits.running
        over_gpus = limits.gpus and request.gpus and load and load.gpus + request.gpus > limits.gpus
        cap = state.caps.get(run.spec.group)
        at_cap = cap is not None and state.groups.get(run.spec.group, 0) >= cap
        if not (full or over_runs or over_gpus or at_cap):
            assert place(board, request) is None
            assert request.nodes > 1 or not ledger.one_node_has_room(request)


@settings(max_examples=200)
@given(stories(max_size=40))
def test_a_cap_changes_nothing_for_those_it_does_not_concern(story):
    """The capped run is passed over as if it were not there: what else starts is what would start without it."""
    state, now = story.state.fork(), story.snap().now
    state.caps = {"s1": max(1, state.groups.get("s1", 0))}
    if state.groups.get("s1", 0) < state.caps["s1"]:
        return
    without = state.fork()
    for run in [run for run in without.runs.values() if run.spec.group == "s1" and run.id in without.queue]:
        without.queue.remove(run.id)
    with_cap, alone = decide(snapshot(state, now)), decide(snapshot(without, now))
    assert with_cap.starts == alone.starts
    assert with_cap.preempts == alone.preempts
    assert with_cap.reserve == alone.reserve


@settings(max_examples=150)
@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 20), st.sampled_from(Ordering), st.sampled_from(Backfill))
def test_never_worse_than_the_seed_formula(gpus, running, queued, ordering, backfill):
    """Runs of one GPU on one node of g, r running, q queued: max(0, min(q, g - r)) start."""
    lab = Lab(node("a", gpus), policy=Policy(ordering=ordering, backfill=backfill), checked=False)
    for n in range(min(running, gpus)):
        lab.submit(takes=1e6, user=f"u{n % 3}")
    lab.step()
    assert lab.state.active == min(running, gpus)
    for n in range(queued):
        lab.submit(user=f"u{n % 4}", priority=1 + n % 4, takes=1 + n)
    assert len(lab.plan().starts) == max(0, min(queued, gpus - min(running, gpus)))


# -- promises are kept -------------------------------------------------------------------------------------------------
SHAPES = [Request(1), Request(2), Request(4), Request(8), Request(16), Request(8, nodes=2), Request(1, cpus=40)]
SHAPES += [Request(3, span=True), Request(2, gpu_type="H100"), Request(0, cpus=30), Request(5), Request(12, span=True)]
arrivals = st.lists(
    st.tuples(st.sampled_from(SHAPES), st.integers(1, 200), st.integers(0, 40)), min_size=2, max_size=25
)


@settings(max_examples=200)
@given(arrivals, st.booleans())
def test_a_reservation_is_never_put_off(coming, mixed):
    """In order of arrival, with runs that take what they may: whoever once held a reservation starts by then."""
    nodes = (node("a", kind="A100"), node("b")) if mixed else (node("a"), node("b"))
    lab = Lab(*nodes, policy=Policy(ordering=Ordering.FCFS), checked=False)
    promised: dict[str, float] = {}
    step = lab.step

    def noting() -> Plan:
        reserve = lab.plan().reserve
        if reserve is not None:
            promised.setdefault(reserve.run_id, reserve.at)
        return step()

    lab.step = noting  # type: ignore[method-assign]
    for n, (request, takes, later) in enumerate(coming):
        lab.submit(request=request, takes=takes + 2.0**-n, time_limit_s=takes + 2.0**-n)
        lab.until(lab.now + later)
    lab.until(1e9)
    assert lab.all_ended()
    for run, at in promised.items():
        start = lab.first_start(run)
        assert start is not None
        assert start <= at


# -- placing -----------------------------------------------------------------------------------------------------------
@settings(max_examples=150)
@given(st.integers(0, 2**30), st.sampled_from(SHAPES))
def test_what_fits_still_fits_when_more_is_free(seed, request_):
    """Reservations lean on this: an end never makes a run unplaceable."""
    chance = random.Random(seed)
    nodes = [node(f"n{i}", chance.choice([2, 4, 8]), chance.choice(["A100", "H100"])) for i in range(3)]
    less = Board(Layout(nodes))
    held = []
    for n in nodes:
        for index in range(len(n.gpus)):
            if chance.random() < 0.5:
                held.append((n.id, index))
                less.take(slice_of(n.id, index))
    more = less.copy()
    for name, index in chance.sample(held, len(held) // 2):
        more.give(slice_of(name, index))
    if place(less, request_) is not None:
        assert place(more, request_) is not None


def slice_of(name: str, index: int) -> Placement:
    return (Slice(name, 1 << index),)
