"""The whole core in a faulty world, seed by seed: sound after every event, and in the end everything ends (B6)."""

from __future__ import annotations

import pytest

from rota.core import events as e
from rota.core.run import ENDED
from tests.props.test_decide import facts
from tests.props.test_reduce import replayed
from tests.props.world import World

SEEDS_PER_COMMIT, EVENTS_PER_COMMIT = 25, 2_000
SEEDS_PER_SOAK, EVENTS_PER_SOAK = 1_000, 10_000


def live(seed: int, events: int) -> World:
    """Fails with the seed in the message: `live(seed, events)` in a Python shell is the same history again."""
    world = World(seed)
    try:
        world.live(events)
        world.settle_down()
        judge(world)
    except Exception as error:
        raise AssertionError(
            f"seed {seed}, event {len(world.log)} of {events}, at {world.now:.2f} s: {error}"
        ) from error
    return world


def judge(world: World) -> None:
    """Everything ended once; every GPU is back; no process lives; the log lived again says the same."""
    state = world.state
    assert all(run.state in ENDED for run in state.runs.values())
    assert state.board.free_gpus == sum(len(node.gpus) for node in state.nodes.values())
    assert (state.active, state.waiting, len(state.queue), state.load) == (0, 0, 0, {})
    assert all(process.over is not None or process.vanished for process in world.processes.values())
    submitted = {event.run_id for event in world.log if isinstance(event, e.RunSubmitted)}
    assert len(submitted) == len(state.runs) + world.retired
    planned = [event.attempt_id for event in world.log if isinstance(event, e.AttemptPlanned)]
    ended = [event.attempt_id for event in world.log if isinstance(event, e.AttemptEnded)]
    assert len(set(planned)) == len(planned)
    assert sorted(planned) == sorted(ended), "each attempt planned once and ended once"
    again = replayed(world.log)
    assert {run.id: run for run in again.runs.values() if run.id in state.runs} == state.runs
    assert facts(again)[5] == facts(state)[5], "the board"
    assert again.usage == state.usage


@pytest.mark.parametrize("five", range(SEEDS_PER_COMMIT // 5))
def test_the_world_stays_sound_and_everything_ends(five):
    for seed in range(5 * five, 5 * five + 5):
        live(seed, EVENTS_PER_COMMIT)


def test_the_same_seed_is_the_same_history():
    assert live(3, 500).log == live(3, 500).log


def test_the_world_is_a_rough_place():
    """The simulation is worth something only if what it is meant to stir up does happen."""
    causes: set[str] = set()
    kinds: set[str] = set()
    lost_and_again = preempted = 0
    for seed in range(100, 110):
        world = live(seed, 1_000)
        kinds |= {e.type_of(event) for event in world.log}
        for event in world.log:
            if isinstance(event, e.AttemptEnded):
                causes.add(event.exit.cause.value)
                lost_and_again += event.counts
            preempted += isinstance(event, e.StopRequested) and bool(event.for_run)
    assert causes >= {"exited", "cancelled", "preempted", "launch_failed", "never_started", "lost"}
    elsewhere = {"NodeRemoved", "ServerStarted", "ReservationMade", "ReservationEnded"}  # the last two: bookings.py
    assert kinds >= set(e.TYPES) - elsewhere
    assert lost_and_again > 10
    assert preempted > 5


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("hundreds", range(SEEDS_PER_SOAK // 100))
def test_the_world_stays_sound_for_long(hundreds):
    for seed in range(1000 + 100 * hundreds, 1000 + 100 * hundreds + 100):
        live(seed, EVENTS_PER_SOAK)
