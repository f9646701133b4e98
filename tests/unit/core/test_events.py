"""Events go to the log as JSON and come back equal, old rows as well; what cannot be read is said, never guessed."""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from enum import Enum
from typing import Any, ClassVar, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core import codec
from rota.core import events as e
from rota.core.node import Gpu
from rota.core.policy import Limits, Ordering, Policy
from rota.core.presets import NAMES, named
from rota.core.reduce import _RULES
from rota.core.resources import Request, Slice
from rota.core.run import Cause, Exit, RunState, Spec
from tests.unit.core.kit import node, spec

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**62), 2**62),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=20),
    bool: st.booleans(),
}


def any_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint, made from the hint alone: an event type added later is covered without a change here."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (Union, types.UnionType):
        return st.none() | any_of(next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return st.lists(any_of(args[0]), max_size=3).map(tuple)
    if origin is not None and issubclass(origin, Mapping):
        return st.dictionaries(any_of(args[0]), any_of(args[1]), max_size=3)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    assert dataclasses.is_dataclass(hint), hint
    make: Any = hint
    hints = get_type_hints(hint)
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for field in dataclasses.fields(hint):
        has_default = (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING)
        (optional if has_default else required)[field.name] = any_of(hints[field.name])
    return st.fixed_dictionaries(required, optional=optional).map(lambda known: make(**known))


@pytest.mark.parametrize("kind", sorted(e.TYPES))
def test_every_event_survives_the_log(kind):
    @given(any_of(e.TYPES[kind]))
    def survives(event: e.Event) -> None:
        body = json.loads(json.dumps(e.encode(event)))
        assert e.decode(e.type_of(event), event.VERSION, body) == event

    survives()


def test_every_event_has_a_name_and_a_rule():
    defined = {cls for cls in vars(e).values() if isinstance(cls, type) and issubclass(cls, e.Event)}
    assert set(e.TYPES.values()) == defined - {e.Event, e.RunEvent} == set(_RULES)
    assert all(kind == cls.__name__ for kind, cls in e.TYPES.items())


def test_what_is_at_its_default_is_left_out_at_every_depth():
    submitted = e.RunSubmitted(
        at=1.0,
        run_id="r",
        seq=1,
        user="ann",
        spec=spec(request=Request(gpus=2)),
        held=False,
        waiting_on=(),
        expected_s=60.0,
        expected_from="estimate",
    )
    assert e.encode(submitted) == {
        "at": 1.0,
        "run_id": "r",
        "seq": 1,
        "user": "ann",
        "spec": {"name": "t", "argv": ["train"], "workdir": "/w", "request": {"gpus": 2}},
        "held": False,  # has no default: written
        "waiting_on": [],
        "expected_s": 60.0,
        "expected_from": "estimate",
    }


def test_an_enum_is_written_as_its_word_and_a_mask_as_a_number():
    ended = e.AttemptEnded(at=2.0, run_id="r", attempt_id="r-1", exit=Exit(Cause.LOST), gpu_s=1.0, next=RunState.LOST)
    assert json.loads(json.dumps(e.encode(ended)))["exit"] == {"cause": "lost"}
    planned = e.AttemptPlanned(at=2.0, run_id="r", attempt_id="r-1", tick=0.0, fence=1, placement=(Slice("a", 0b101),))
    assert e.encode(planned)["placement"] == [{"node": "a", "gpus": 5}]


def test_bytes_from_before_a_field_existed_read_back_with_its_default():
    """A row of the first release knew neither `by`, `for_run` nor the GPU's `why`."""
    stop = {"at": 5.0, "run_id": "r", "attempt_id": "r-1", "cause": "cancelled", "signal": 15, "grace_s": 1.0}
    assert e.decode("StopRequested", 1, stop) == e.StopRequested(
        at=5.0, by="rota", run_id="r", attempt_id="r-1", cause=Cause.CANCELLED, signal=15, grace_s=1.0, for_run=""
    )
    seen = e.encode(e.NodeSeen(at=0.0, node=node("a", gpus=1)))
    assert set(seen["node"]["gpus"][0]) == {"index", "uuid", "type", "memory_gb"}
    read = e.decode("NodeSeen", 1, seen)
    assert isinstance(read, e.NodeSeen)
    assert read.node.gpus == (Gpu(0, "a-0", "H100", 80.0, healthy=True, why=""),)


def test_a_policy_keeps_its_limits_by_name():
    policy = Policy(user_limits={"ann": Limits(gpus=4)}, limits=Limits(running=2))
    body = e.encode(e.PolicySet(at=0.0, policy=policy))
    chosen = {"ordering": "auto", "preemption": True, "corrects": True}  # whose defaults have changed once
    assert body["policy"] == {"limits": {"running": 2}, "user_limits": {"ann": {"gpus": 4}}, **chosen}
    assert e.decode("PolicySet", 1, body) == e.PolicySet(at=0.0, policy=policy)


def test_a_policy_of_an_older_version_means_what_it_meant_then():
    """It left out what was the default then: the order by priority, nobody stopped, nothing corrected."""
    read = e.decode("PolicySet", 1, {"at": 0.0, "policy": {"max_concurrent": 3}})
    assert isinstance(read, e.PolicySet)
    assert (read.policy.ordering, read.policy.preemption, read.policy.corrects) == (Ordering.PRIORITY, False, False)
    unset = e.decode("PolicySet", 1, {"at": 0.0, "policy": {}})
    assert unset == e.PolicySet(at=0.0, policy=Policy()), "nobody ever chose anything: the defaults of today"


@pytest.mark.parametrize("name", NAMES)
def test_a_policy_comes_back_as_it_was_set(name):
    was_set = e.PolicySet(at=0.0, policy=named(name))
    assert e.decode("PolicySet", 1, e.encode(was_set)) == was_set


def test_defaults_that_are_mappings_are_not_shared_between_two_reads():
    one, two = codec.decode(Spec, codec.encode(spec())), codec.decode(Spec, codec.encode(spec()))
    assert one == two
    assert one.env is not two.env


GOOD = {"at": 1.0, "run_id": "r", "seq": 1, "user": "a", "spec": {"name": "n", "argv": [], "workdir": "/"}}
GOOD |= {"held": False, "waiting_on": [], "expected_s": 1.0, "expected_from": "limit"}


@pytest.mark.parametrize(
    ("kind", "version", "body"),
    [
        ("RunTeleported", 1, {}),  # from a newer Rota
        ("RunHeld", 2, {"at": 1.0, "run_id": "r"}),  # of a newer version
        ("RunHeld", 0, {"at": 1.0, "run_id": "r"}),  # of a version nobody ever wrote
        ("RunHeld", 1, {"at": 1.0}),  # a field is missing
        ("RunHeld", 1, {"at": 1.0, "run_id": "r", "mood": "blue"}),  # one too many
        ("RunHeld", 1, []),
        ("RunHeld", 1, None),
        ("RunHeld", 1, "RunHeld"),
        ("RunHeld", 1, 7),
        ("RunSubmitted", 1, GOOD | {"spec": None}),
        ("RunSubmitted", 1, GOOD | {"spec": {"name": "n"}}),
        ("RunSubmitted", 1, GOOD | {"waiting_on": 3}),
        ("RunSubmitted", 1, GOOD | {"waiting_on": [{"run_id": "x", "when": "someday"}]}),
        ("RunEnded", 1, {"at": 1.0, "run_id": "r", "state": "asleep", "why": ""}),
        ("PolicySet", 1, {"at": 1.0, "policy": {"ordering": "by_mood"}}),
        ("PolicySet", 1, {"at": 1.0, "policy": {"user_limits": []}}),
        ("PolicySet", 1, {"at": 1.0, "policy": {"user_limits": "none"}}),
        ("NodeSeen", 1, {"at": 1.0, "node": {"id": "a"}}),
    ],
)
def test_what_cannot_be_read_is_an_unknown_event(kind, version, body):
    with pytest.raises(e.UnknownEvent, match=kind):
        e.decode(kind, version, body)


def test_the_good_row_of_the_damaged_ones_is_good():
    assert isinstance(e.decode("RunSubmitted", 1, GOOD), e.RunSubmitted)


def test_an_old_version_is_lifted_step_by_step_to_the_new_one(monkeypatch):
    """Once a node was drained by its `host`; version 2 called it `node`, version 3 says `node_id` and wants a why."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class NodeDrained(e.Event):
        VERSION: ClassVar[int] = 3
        node_id: str
        why: str

    def rename(body: dict[str, Any]) -> dict[str, Any]:
        return {"at": body["at"], "node": body["host"]}

    def give_reason(body: dict[str, Any]) -> dict[str, Any]:
        return {"at": body["at"], "node_id": body["node"], "why": "not told"}

    monkeypatch.setattr(e, "TYPES", {"NodeDrained": NodeDrained})
    monkeypatch.setattr(e, "UPCASTS", {("NodeDrained", 1): rename, ("NodeDrained", 2): give_reason})
    lifted = NodeDrained(at=1.0, node_id="a", why="not told")
    assert e.decode("NodeDrained", 1, {"at": 1.0, "host": "a"}) == lifted
    assert e.decode("NodeDrained", 2, {"at": 1.0, "node": "a"}) == lifted
    assert e.decode("NodeDrained", 3, {"at": 1.0, "node_id": "a", "why": "hot"}).why == "hot"  # type: ignore[attr-defined]
    with pytest.raises(e.UnknownEvent, match="host"):
        e.decode("NodeDrained", 1, {"at": 1.0})
    with pytest.raises(e.UnknownEvent, match="version 4"):
        e.decode("NodeDrained", 4, {})


def test_only_what_can_be_read_back_can_be_written():
    @dataclass
    class Both:
        either: int | str

    @dataclass
    class Odd:
        thing: object

    for odd in (Both(1), Odd(object())):
        with pytest.raises(TypeError):
            codec.encode(odd)


# -- made quickly -----------------------------------------------------------------------------------------------------
def test_a_decoded_value_is_no_less_frozen_than_a_made_one() -> None:
    made = spec()
    read = codec.decode(Spec, codec.encode(made))
    assert (type(read), read, hash(read.request), repr(read)) == (Spec, made, hash(made.request), repr(made))
    assert replace(read, name="other") == replace(made, name="other")
    with pytest.raises(FrozenInstanceError):
        read.name = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del read.name
    assert not hasattr(read, "__dict__")


def test_values_made_in_bulk_are_as_those_made_one_by_one() -> None:
    made = [replace(spec(), name=name) for name in ("a", "b")]
    bulk = codec.bulk_maker(Spec)([getattr(one, field.name) for field in fields(Spec)] for one in made)
    assert [type(one) for one in bulk] == [Spec, Spec] and bulk == made
    with pytest.raises(FrozenInstanceError):
        bulk[0].name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError, match="argument"):
        codec.bulk_maker(Spec)([("a",)])


@pytest.mark.parametrize("wrong", [{}, {"name": "a"}, {**codec.encode(spec()), "colour": "red"}])
def test_what_lacks_a_field_or_has_one_too_many_is_not_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="argument"):
        codec.decode(Spec, wrong)


def test_equal_small_values_are_one_object_and_are_written_as_they_came() -> None:
    one, two = codec.decode(Request, {"gpus": 2}), codec.decode(Request, {"gpus": 2})
    assert one is two
    for memory in (1, 1.0):
        written = codec.encode(codec.decode(Request, {"gpus": 1, "memory_gb": memory}))
        assert str(written["memory_gb"]) == str(memory)
    for number in range(codec.MOST_SHARED + 10):
        assert codec.decode(Request, {"gpus": number}).gpus == number
