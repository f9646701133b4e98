"""check(state): everything that must hold after every event, as a list of what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rota.core import order
from rota.core.board import kib
from rota.core.node import Node
from rota.core.reservation import by_start, collisions
from rota.core.resources import Placement, Slice, gpu_count
from rota.core.run import ACTIVE, ENDED, WAITING, Run, RunState
from rota.core.state import State
from rota.core.usage import Load
from rota.core.weight import Weights


def check(state: State) -> list[str]:
    waiting = [run for run in state.runs.values() if run.state in WAITING]
    everywhere = [run for run in state.runs.values() if run.state in ACTIVE]
    active = [run for run in everywhere if not run.is_elsewhere]
    return [
        *_runs(state),
        *_ledger(state),
        *_counts(state, waiting, active),
        *_elsewhere(state, everywhere),
        *_queue(state, waiting),
        *_loads(state, [*waiting, *active]),
        *_weights(state, [*waiting, *everywhere]),
        *_reservations(state),
    ]


def _runs(state: State) -> Iterator[str]:
    for run in state.runs.values():
        if (run.attempt is not None) != (run.state in ACTIVE):
            yield f"{run.id}: {run.state} with attempt {run.attempt}"
        if (run.ended_at is not None) != (run.state in ENDED):
            yield f"{run.id}: {run.state} with ended_at {run.ended_at}"
        if run.attempt is not None:
            if run.attempt.number != run.attempts_made:
                yield f"{run.id}: live attempt {run.attempt.number} of {run.attempts_made} made"
            if not run.attempt.reported and gpu_count(run.attempt.placement) != run.spec.request.gpus:
                yield f"{run.id}: holds {gpu_count(run.attempt.placement)} of {run.spec.request.gpus} GPUs"
        numbers = [past.number for past in run.past]
        if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > run.attempts_made):
            yield f"{run.id}: past attempts {numbers}"
        if any(past.gpu_s < 0 for past in run.past):
            yield f"{run.id}: negative GPU-seconds"


def _ledger(state: State) -> Iterator[str]:
    """A GPU is held by at most one live attempt, and free + held = installed."""
    held: dict[str, list[Slice]] = {node_id: [] for node_id in state.nodes}
    for run in state.runs.values():
        for part in run.attempt.placement if run.attempt else ():
            held.get(part.node, []).append(part)
    for n, node in enumerate(state.board.layout.nodes):
        if node is not state.nodes.get(node.id):
            yield f"{node.id}: the board shows another node"
        yield from _node(state, n, node, held.get(node.id, []))
    if state.board.free_gpus != sum(mask.bit_count() for mask in state.board.free):
        yield f"{state.board.free_gpus} GPUs free in all is not the sum of the nodes"
    if len(state.board.layout.nodes) != len(state.nodes):
        yield "the board does not show every node"


def _node(state: State, n: int, node: Node, parts: list[Slice]) -> Iterator[str]:
    board = state.board
    held = 0
    for part in parts:
        if held & part.gpus:
            yield f"{node.id}: GPUs {held & part.gpus:#b} held twice"
        held |= part.gpus
    if board.free[n] != node.usable & ~held:
        yield f"{node.id}: free {board.free[n]:#b}, usable {node.usable:#b}, held {held:#b}"
    cpus, memory = sum(part.cpus for part in parts), sum(kib(part.memory_gb) for part in parts)
    if board.cpus[n] != node.cpus - cpus:
        yield f"{node.id}: {board.cpus[n]} CPUs free of {node.cpus}, {cpus} held"
    if board.memory_kib[n] != kib(node.memory_gb) - memory:
        yield f"{node.id}: {board.memory_kib[n]} KiB free of {node.memory_gb} GB, {memory} KiB held"
    for count, bucket in enumerate(board.buckets[board.layout.kind_of[n]]):
        here = node.alive and not node.drained and count == board.free[n].bit_count()
        if bool(bucket >> n & 1) != here:
            yield f"{node.id}: bucket {count} is wrong"


def _counts(state: State, waiting: list[Run], active: list[Run]) -> Iterator[str]:
    if (state.waiting, state.active) != (len(waiting), len(active)):
        yield f"counts {state.waiting} waiting, {state.active} active; {len(waiting)} and {len(active)} there"
    if state.held != (held := sum(run.state is RunState.HELD for run in waiting)):
        yield f"counts {state.held} held; {held} there"
    if any(cap < 1 for cap in state.caps.values()):
        yield f"caps that let nobody start: {state.caps}"
    ends = sorted((run.attempt.expected_end, run.id) for run in active if run.attempt)
    if list(state.timeline) != ends:
        yield "the timeline is not the active runs"
    elif [placement for _, placement in state.timeline.given_back()] != [_placement(state, run) for _, run in ends]:
        yield "the timeline gives back what the runs do not hold"
    dependents: dict[str, set[str]] = {}
    for run in waiting:
        for dependency in run.waiting_on:
            dependents.setdefault(dependency.run_id, set()).add(run.id)
    if state.dependents != dependents:
        yield "the dependents are not those that wait"


def _elsewhere(state: State, everywhere: list[Run]) -> Iterator[str]:
    """What is carried elsewhere is apart, but counts in its group."""
    elsewhere = {run.id for run in everywhere if run.is_elsewhere}
    if state.elsewhere.keys() != elsewhere:
        yield f"elsewhere {list(state.elsewhere)}; {sorted(elsewhere)} there"
    by_user = Counter(run.user for run in everywhere if run.is_elsewhere)
    if state.elsewhere_by_user != by_user:
        yield f"elsewhere by user {state.elsewhere_by_user}; {dict(by_user)} there"
    stoppable = {run.id for run in everywhere if run.spec.stoppable} - elsewhere
    if state.stoppable.keys() != stoppable:
        yield f"may be stopped {list(state.stoppable)}; {sorted(stoppable)} there"
    groups = Counter(run.spec.group for run in everywhere if run.spec.group)
    if state.groups != groups:
        yield f"groups {state.groups}; {dict(groups)} there"


def _queue(state: State, waiting: list[Run]) -> Iterator[str]:
    delayed = {run_id for _, run_id in state.delayed}
    for run in waiting:
        eligible = run.state is RunState.QUEUED and not run.waiting_on
        if (run.id in state.queue) + (run.id in delayed) != eligible:
            yield f"{run.id}: {run.state}, in queue {run.id in state.queue}, delayed {run.id in delayed}"
    if not {run_id for _, _, run_id in state.queue.entries()} | delayed <= {run.id for run in waiting}:
        yield "the queue holds runs that do not wait"
    for lane, key, run_id in state.queue.entries():
        if run_id in state.runs and key != order.key(state.policy, state.runs[run_id]):
            yield f"{run_id}: stands at {key} in the queue"
        if run_id in state.runs and lane.group != state.runs[run_id].spec.group:
            yield f"{run_id}: stands in the lane of group {lane.group!r}"
    for lane in state.queue.lanes():
        if lane.runs != sorted(lane.runs):
            yield f"lane of {lane.user} is not in order"


def _loads(state: State, runs: list[Run]) -> Iterator[str]:
    loads: dict[str, Load] = {}
    for run in runs:
        load = loads.setdefault(run.user, Load())
        if run.attempt is None:
            load.queued += 1
            load.held += run.state is RunState.HELD
            load.edges += len(run.waiting_on)
        else:
            load.running += 1
            load.gpus += gpu_count(run.attempt.placement)
    for user in sorted(loads.keys() | state.load.keys()):
        if loads.get(user) != state.load.get(user):
            yield f"load of {user}: {state.load.get(user)}, there is {loads.get(user)}"


def _weights(state: State, runs: list[Run]) -> Iterator[str]:
    weights = Weights()
    for run in runs:
        weights.add(run.user, run.spec)
    if weights.shapes_by_user != state.weights.shapes_by_user:
        yield f"requests that differ: {state.weights.shapes_by_user}, there are {weights.shapes_by_user}"
    if weights.by_user != state.weights.by_user:
        yield f"bytes of specs: {state.weights.by_user}, there are {weights.by_user}"


def _reservations(state: State) -> Iterator[str]:
    """A GPU is kept for at most one at a time, and a promise has a beginning and an end."""
    for one, other in collisions(state.calendar):
        yield f"reservations {one.id} and {other.id} keep the same GPU at the same time"
    for key, one in state.reservations.items():
        if key != one.id or not one.start < one.end or not one.gpus:
            yield f"reservation {key}: {one}"
    for key, one in state.past_reservations.items():
        if key != one.id or one.counted_until is None or key in state.reservations:
            yield f"past reservation {key}: {one}"
    if state.calendar != by_start(state.reservations.values()):
        yield "the calendar is not the reservations by their start"


def _placement(state: State, run_id: str) -> Placement | None:
    attempt = state.runs[run_id].attempt
    return None if attempt is None else attempt.placement
