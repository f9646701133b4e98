"""The log is the truth: lived again it gives the same state, and a copy of a state is equal and its own (B8)."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rota.core import events as e
from rota.core.check import check
from rota.core.decide import decide
from rota.core.reduce import reduce
from rota.core.run import ENDED
from rota.core.snapshot import snapshot
from rota.core.state import State
from tests.props.stories import HAPPENINGS, Story, stories
from tests.props.test_decide import facts


def replayed(log: list[e.Event]) -> State:
    state = State()
    for event in log:
        body = json.loads(json.dumps(e.encode(event)))
        reduce(state, e.decode(e.type_of(event), event.VERSION, body))
    return state


@settings(max_examples=100)
@given(stories(max_size=50))
def test_the_log_lived_again_gives_the_same_state(story):
    again = replayed(story.log)
    again.wake(max(story.latest, story.state.at))
    story.state.wake(max(story.latest, story.state.at))
    assert comparable(again) == comparable(story.state)
    assert {k: list(v.newest) for k, v in again.history._known.items()} == {
        k: list(v.newest) for k, v in story.state.history._known.items()
    }
    assert check(again) == []
    assert decide(snapshot(again, story.now)) == decide(story.snap())


def comparable(state: State) -> list:
    """Facts without what depends on when a pass happened to look: lanes and their numbers come and go."""
    known = list(facts(state))
    known[6] = sorted(((lane.user, repr(lane.request), lane.group), lane.runs) for lane in state.queue.lanes())
    return known


@settings(max_examples=100)
@given(stories(max_size=40))
def test_the_indices_are_what_the_facts_say(story):
    """A server that loads rows builds every index anew; it must arrive where the events had led."""
    loaded = State()
    loaded.policy, loaded.at, loaded.caps = story.state.policy, story.state.at, dict(story.state.caps)
    loaded.nodes, loaded.usage = dict(story.state.nodes), dict(story.state.usage)
    loaded.runs = {run.id: run for run in story.state.runs.values() if run.state not in ENDED}
    loaded.index_all()
    loaded.wake(max(story.latest, story.state.at))
    story.state.wake(max(story.latest, story.state.at))
    assert check(loaded) == []
    for index in (3, 4, 5, 7, 8, 9, 10):  # usage, loads, board, timeline, delayed, dependents, groups
        assert facts(loaded)[index] == facts(story.state)[index]
    assert comparable(loaded)[6] == comparable(story.state)[6]


@settings(max_examples=100)
@given(
    stories(max_size=30), st.lists(st.tuples(st.integers(0, len(HAPPENINGS) - 1), st.integers(0, 2**40)), max_size=15)
)
def test_a_fork_is_equal_and_independent(story, more):
    fork = story.state.fork()
    before = facts(story.state)
    assert facts(fork) == before
    assert check(fork) == []
    original, story.state = story.state, fork
    for what, number in more:
        story.happen(what, number)
    assert facts(original) == before, "what happens to the copy does not happen to the original"
    assert check(original) == []


@settings(max_examples=100)
@given(stories(max_size=40))
def test_gpu_seconds_are_recorded_once_for_every_attempt_made(story: Story):
    ended = [event for event in story.log if isinstance(event, e.AttemptEnded)]
    for run in story.state.runs.values():
        mine = [event for event in ended if event.run_id == run.id]
        assert [past.gpu_s for past in run.past] == [event.gpu_s for event in mine]
        assert run.attempts_made == len(mine) + (run.attempt is not None)
