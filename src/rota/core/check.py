"""check(state): everything that must hold after every event, as a list of what does not."""

from __future__ import annotations

from rota.core.resources import gpu_count
from rota.core.run import ACTIVE, ENDED, RunState
from rota.core.state import State


def check(state: State) -> list[str]:
    return [*_runs(state), *_ledger(state), *_indices(state)]


def _runs(state: State) -> list[str]:
    wrong = []
    for run in state.runs.values():
        if (run.attempt is not None) != (run.state in ACTIVE):
            wrong.append(f"{run.id}: {run.state} with attempt {run.attempt}")
        if (run.ended_at is not None) != (run.state in ENDED):
            wrong.append(f"{run.id}: {run.state} with ended_at {run.ended_at}")
        if run.attempt is not None:
            if run.attempt.number != run.attempts_made:
                wrong.append(f"{run.id}: live attempt {run.attempt.number} of {run.attempts_made} made")
            if gpu_count(run.attempt.placement) != run.spec.request.gpus:
                wrong.append(f"{run.id}: holds {gpu_count(run.attempt.placement)} of {run.spec.request.gpus} GPUs")
        numbers = [past.number for past in run.past]
        if numbers != sorted(set(numbers)) or (numbers and numbers[-1] > run.attempts_made):
            wrong.append(f"{run.id}: past attempts {numbers}")
        if any(past.gpu_s < 0 for past in run.past):
            wrong.append(f"{run.id}: negative GPU-seconds")
    return wrong


def _ledger(state: State) -> list[str]:
    """A GPU is held by at most one live attempt, and free + held = installed."""
    wrong = []
    held: dict[str, int] = dict.fromkeys(state.nodes, 0)
    cpus: dict[str, int] = dict.fromkeys(state.nodes, 0)
    for run in state.runs.values():
        for part in run.attempt.placement if run.attempt else ():
            if part.node not in held:
                continue
            if held[part.node] & part.gpus:
                wrong.append(f"{part.node}: GPUs {held[part.node] & part.gpus:#b} held twice, by {run.id} too")
            held[part.node] |= part.gpus
            cpus[part.node] += part.cpus
    for n, node in enumerate(state.board.layout.nodes):
        if node is not state.nodes.get(node.id):
            wrong.append(f"{node.id}: the board shows another node")
        if state.board.free[n] != node.usable & ~held[node.id]:
            wrong.append(f"{node.id}: free {state.board.free[n]:#b}, usable {node.usable:#b}, held {held[node.id]:#b}")
        if state.board.cpus[n] != node.cpus - cpus[node.id]:
            wrong.append(f"{node.id}: {state.board.cpus[n]} CPUs free of {node.cpus}, {cpus[node.id]} held")
        for count, bucket in enumerate(state.board.buckets[state.board.layout.kind_of[n]]):
            here = node.alive and not node.drained and count == state.board.free[n].bit_count()
            if bool(bucket >> n & 1) != here:
                wrong.append(f"{node.id}: bucket {count} is wrong")
    if len(state.board.layout.nodes) != len(state.nodes):
        wrong.append("the board does not show every node")
    return wrong


def _indices(state: State) -> list[str]:
    wrong = []
    waiting = [run for run in state.runs.values() if run.state in (RunState.QUEUED, RunState.HELD)]
    active = [run for run in state.runs.values() if run.state in ACTIVE]
    if (state.waiting, state.active) != (len(waiting), len(active)):
        wrong.append(f"counts {state.waiting} waiting, {state.active} active; {len(waiting)} and {len(active)} there")
    if {run_id for _, run_id in state.timeline} != {run.id for run in active}:
        wrong.append("the timeline is not the active runs")
    delayed = {run_id for _, run_id in state.delayed}
    for run in waiting:
        eligible = run.state is RunState.QUEUED and not run.waiting_on
        if eligible != ((run.id in state.queue) != (run.id in delayed)):
            wrong.append(f"{run.id}: {run.state}, in queue {run.id in state.queue}, delayed {run.id in delayed}")
    if len(state.queue) + len(delayed) > len(waiting):
        wrong.append("the queue holds runs that do not wait")
    for lane in state.queue.lanes():
        if lane.runs != sorted(lane.runs):
            wrong.append(f"lane of {lane.user} is not in order")
    for user, load in state.load.items():
        mine = [run for run in active if run.user == user]
        gpus = sum(gpu_count(run.attempt.placement) for run in mine if run.attempt)
        if (load.running, load.gpus) != (len(mine), gpus):
            wrong.append(f"load of {user}: {load}, {len(mine)} runs and {gpus} GPUs there")
    return wrong
