"""check(state) is the alarm: every kind of damage must set it off, and it must name what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from rota.core import events as e
from rota.core import order
from rota.core.check import check
from rota.core.queue import Place
from rota.core.resources import Request, Slice
from rota.core.run import Attempt, Cause, Exit, Run, RunState
from rota.core.state import State
from tests.unit.core.kit import Lab, node

RUNNING, LOST_ONCE, QUEUED, HELD, BEHIND, ENDED, BACKING_OFF = (f"{n:012x}" for n in range(1, 8))


def held(state: State) -> Attempt:
    attempt = state.runs[RUNNING].attempt
    assert attempt is not None
    return attempt


def lived() -> State:
    """A little of everything: running, queued, held, behind another, ended, backing off; two nodes, one drained."""
    lab = Lab(node("a"), node("b", drained=True))
    lab.submit(request=Request(2, cpus=4, memory_gb=10.5))
    lab.submit(1, user="bob")
    lab.step()
    lab.end(LOST_ONCE, Exit(Cause.LOST))
    lab.now = 100
    lab.step()
    lab.submit(8)
    lab.submit(held=True)
    lab.submit(after=[QUEUED])
    lab.submit()
    lab.submit()
    lab.step()
    lab.end(ENDED)
    lab.end(BACKING_OFF, Exit(Cause.LOST))
    assert lab.run(LOST_ONCE).state is RunState.RUNNING
    return lab.state


def change(run_id: str, **fields) -> Callable[[State], None]:
    """Put a run into another shape behind the indices' back."""

    def harm(state: State) -> None:
        state.runs[run_id] = replace(state.runs[run_id], **fields)

    return harm


def live(state: State, run_id: str = RUNNING) -> Attempt:
    attempt = state.runs[run_id].attempt
    assert attempt is not None
    return attempt


def reattempt(run_id: str, **fields) -> Callable[[State], None]:
    return lambda state: change(run_id, attempt=replace(live(state, run_id), **fields))(state)


def shuffle_lane(state: State) -> None:
    lane = next(iter(state.queue.lanes()))
    lane.runs += [((-1e12, 0), "early")]


def place_of(state: State, run: Run) -> Place:
    return (run.user, run.spec.request, run.spec.group, order.band(state.policy, run))


def misplace(state: State) -> None:
    run = state.runs[QUEUED]
    state.queue.remove(QUEUED)
    state.queue.add(QUEUED, place_of(state, run), (5.0, 5))


def move_lane(state: State, group: str) -> None:
    run, key = state.runs[QUEUED], state.queue.key_of(QUEUED)
    state.queue.remove(QUEUED)
    user, request, _, band = place_of(state, run)
    state.queue.add(QUEUED, (user, request, group, band), key)


def bump(path: str, by: int = 1) -> Callable[[State], None]:
    """Add to a number somewhere: bump("board.cpus.0")."""

    def harm(state: State) -> None:
        *way, last = path.split(".")
        at: object = state
        for name in way:
            at = at[name] if isinstance(at, dict) else getattr(at, name)
        if isinstance(at, list):
            at[int(last)] += by
        else:
            setattr(at, last, getattr(at, last) + by)

    return harm


def rough(past: tuple, **fields) -> tuple:
    return tuple(replace(one, **fields) for one in past)


DAMAGES: dict[str, tuple[Callable[[State], object], str]] = {
    "an attempt on a waiting run": (lambda s: change(QUEUED, attempt=live(s))(s), "with attempt"),
    "no attempt on a running run": (change(RUNNING, attempt=None), "with attempt"),
    "an end on a running run": (change(RUNNING, ended_at=1.0), "ended_at"),
    "no end on an ended run": (change(ENDED, ended_at=None), "ended_at"),
    "an attempt nobody made": (change(RUNNING, attempts_made=2), "of 2 made"),
    "more GPUs than asked for": (reattempt(RUNNING, placement=(Slice("a", 0b11111, 4, 10.5),)), "holds 5 of 2"),
    "past attempts twice": (lambda s: change(ENDED, past=s.runs[ENDED].past * 2)(s), "past attempts [1, 1]"),
    "past attempts of the future": (change(ENDED, attempts_made=0), "past attempts [1]"),
    "negative GPU-seconds": (lambda s: change(ENDED, past=rough(s.runs[ENDED].past, gpu_s=-1.0))(s), "negative"),
    "one GPU held twice": (reattempt(LOST_ONCE, placement=(Slice("a", 0b1),)), "held twice"),
    "a held GPU that is free": (lambda s: s.board.give((Slice("a", 1),)), "free 0b"),
    "a free GPU that is lost": (lambda s: s.board.take((Slice("a", 0b1000_0000),)), "free 0b"),
    "a drained GPU that is free": (bump("board.free.1"), "b: free 0b1"),
    "CPUs gone": (bump("board.cpus.0", -1), "CPUs"),
    "memory gone": (bump("board.memory_kib.0", -1), "KiB"),
    "a sum that does not add up": (bump("board.free_gpus"), "sum"),
    "an empty bucket": (lambda s: s.board.buckets[0].__setitem__(s.board.free[0].bit_count(), 0), "bucket"),
    "a drained node on offer": (lambda s: s.board.buckets[0].__setitem__(0, 0b10), "bucket 0"),
    "another node on the board": (lambda s: s.nodes.__setitem__("b", node("b", drained=True)), "another node"),
    "a node that is not on the board": (lambda s: s.nodes.__setitem__("c", node("c")), "every node"),
    "a node that is only on the board": (lambda s: s.nodes.pop("b"), "another node"),
    "one too many waiting": (bump("waiting"), "counts"),
    "one too few active": (bump("active", -1), "counts"),
    "one too many held": (bump("held"), "held"),
    "a run here that is elsewhere": (lambda s: s.elsewhere.update({RUNNING: None}), "elsewhere"),
    "a run that may be stopped and is not there": (lambda s: s.stoppable.update({QUEUED: None}), "may be stopped"),
    "a group with a ghost": (lambda s: s.groups.update(s1=1), "groups"),
    "a cap that lets nobody start": (lambda s: s.caps.update(s1=0), "caps"),
    "a run in the lane of another group": (lambda s: move_lane(s, "s1"), "lane of group 's1'"),
    "a timeline with a gap": (lambda s: s.timeline.drop(RUNNING), "timeline"),
    "a timeline with a ghost": (lambda s: s.timeline.put(QUEUED, 5.0, ()), "timeline"),
    "other GPUs to come back": (lambda s: s.timeline.put(RUNNING, held(s).expected_end, ()), "hold"),
    "an end at another time": (lambda s: s.timeline.put(RUNNING, 5.0, held(s).placement), "timeline"),
    "a forgotten dependent": (lambda s: s.dependents.clear(), "dependents"),
    "a dependent of nobody": (lambda s: s.dependents.update(x={BEHIND}), "dependents"),
    "a queued run that is nowhere": (lambda s: s.queue.remove(QUEUED), "in queue False"),
    "a held run in the queue": (lambda s: s.queue.add(HELD, ("ann", Request(), "", ()), (0.0, 0)), "in queue True"),
    "a dependent in the queue": (lambda s: s.queue.add(BEHIND, ("ann", Request(), "", ()), (0.0, 0)), "in queue True"),
    "a run queued and delayed": (lambda s: s.delayed.append((999.0, QUEUED)), "delayed True"),
    "a delayed run that is nowhere": (lambda s: s.delayed.clear(), "delayed False"),
    "a running run in the queue": (lambda s: s.queue.add(RUNNING, ("ann", Request(), "", ()), (0.0, 0)), "do not wait"),
    "an ended run that is delayed": (lambda s: s.delayed.append((999.0, ENDED)), "do not wait"),
    "a lane out of order": (shuffle_lane, "not in order"),
    "a run in the wrong place of the queue": (misplace, "stands at"),
    "a load of runs that is wrong": (lambda s: setattr(s.load["ann"], "running", 7), "load of ann"),
    "a load of GPUs that is wrong": (lambda s: setattr(s.load["bob"], "gpus", 7), "load of bob"),
    "a load of waiting runs that is wrong": (lambda s: setattr(s.load["ann"], "queued", 7), "load of ann"),
    "a load of dependencies that is wrong": (lambda s: setattr(s.load["ann"], "edges", 7), "load of ann"),
    "a load that is missing": (lambda s: s.load.pop("bob"), "load of bob"),
    "a load of nobody": (lambda s: s.load.update(eve=s.load["ann"]), "load of eve"),
}


def test_a_sound_state_is_sound():
    assert check(lived()) == []
    assert check(State()) == []


@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_damage_is_seen_and_named(damage):
    harm, word = DAMAGES[damage]
    state = lived()
    harm(state)
    found = check(state)
    assert any(word in line for line in found), found


def test_a_run_on_a_node_that_was_removed_is_no_damage():
    state = lived()
    lab = Lab()
    lab.state = state
    lab.tell(e.NodeRemoved(at=100, node_id="a"))
    assert check(state) == []
