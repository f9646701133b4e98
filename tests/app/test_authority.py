"""P6: who may do what. The table of the code against a table written down here, and both against the house."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.app.authz import HIGHEST_PRIORITY, MAY, Act, On, Principal, Role, authorise
from rota.app.commands import (
    Archive,
    Cancel,
    CapGroup,
    Command,
    Draft,
    Drain,
    Edit,
    Hold,
    Pause,
    PutRecord,
    Release,
    Report,
    Reprioritise,
    Rerun,
    Reserve,
    Reshape,
    Resume,
    SetPolicy,
    Submit,
    Undrain,
)
from rota.app.errors import Forbidden, Invalid
from rota.core.policy import Policy
from rota.core.run import RunState
from tests.app.house import ROOT, House, until

# act: who may do it to their own, who may do it to what is another's
TABLE: dict[Act, tuple[set[str], set[str]]] = {
    Act.SUBMIT: ({"admin", "user", "agent"}, {"admin"}),
    Act.CANCEL: ({"admin", "user", "agent"}, {"admin"}),
    Act.FORCE: ({"admin"}, {"admin"}),
    Act.HOLD: ({"admin", "user", "agent"}, {"admin"}),
    Act.RELEASE: ({"admin", "user", "agent"}, {"admin"}),
    Act.REPRIORITISE: ({"admin", "user"}, {"admin"}),
    Act.RERUN: ({"admin", "user", "agent"}, {"admin"}),
    Act.EDIT: ({"admin", "user", "agent"}, {"admin"}),
    Act.ARCHIVE: ({"admin", "user", "agent"}, {"admin"}),
    Act.CAP: ({"admin", "user", "agent"}, {"admin"}),
    Act.RESERVE: ({"admin", "user", "agent"}, {"admin"}),
    Act.RECORD: ({"admin", "user", "agent"}, {"admin"}),
    Act.DESCRIBE: ({"admin", "user"}, {"admin", "user"}),
    Act.REPORT: ({"admin", "user", "agent"}, {"admin"}),
    Act.SET_POLICY: ({"admin"}, {"admin"}),
    Act.PAUSE: ({"admin"}, {"admin"}),
    Act.DRAIN: ({"admin"}, {"admin"}),
    Act.RESHAPE: ({"admin"}, {"admin"}),
    Act.MANAGE_TOKENS: ({"admin"}, {"admin"}),
}
OF_THE_HOUSE = {Act.FORCE, Act.DESCRIBE, Act.SET_POLICY, Act.PAUSE, Act.DRAIN, Act.RESHAPE, Act.MANAGE_TOKENS}
CASES = [(role, act, own) for role in Role for act in Act for own in (True, False)]
NAMES = [f"{role}-{act}-{'own' if own else 'other'}" for role, act, own in CASES]


def allowed(role: Role, act: Act, own: bool) -> bool:
    return role.value in TABLE[act][0 if own else 1]


def test_every_act_and_role_is_in_the_table():
    assert set(TABLE) == set(Act)
    assert set(MAY) == set(Role)
    assert set(HIGHEST_PRIORITY) == set(Role)


@pytest.mark.parametrize(("role", "act", "own"), CASES, ids=NAMES)
def test_the_codes_table_says_the_same(role, act, own):
    scope = MAY[role].get(act, On.NOTHING)
    by_code = scope is On.ANY or (scope is On.OWN and own and act not in OF_THE_HOUSE)
    assert by_code == allowed(role, act, own)
    who = Principal("me", role)
    owner = None if act in OF_THE_HOUSE else ("me" if own else "you")
    if by_code:
        authorise(who, act, owner)
    else:
        with pytest.raises(Forbidden, match="me"):
            authorise(who, act, owner)


def attempts(house: House, act: Act, owner: str) -> list[Callable[[], Command]]:
    """Ways to try the act on something of `owner`'s."""

    def of(held: bool = True) -> str:
        run_id: str = house.do(Submit(house.spec("true"), user=owner, held=held)).id
        return run_id

    ways: dict[Act, list[Callable[[], Command]]] = {
        Act.SUBMIT: [lambda: Submit(house.spec("true"), user=owner, held=True)],
        Act.CANCEL: [lambda: Cancel(of())],
        Act.FORCE: [lambda: Cancel(of(), force=True)],
        Act.HOLD: [lambda: Hold(of())],
        Act.RELEASE: [lambda: Release(of())],
        Act.REPRIORITISE: [lambda: Reprioritise(of(), 1)],
        Act.RERUN: [lambda: Rerun(of(), held=True)],
        Act.EDIT: [lambda: Edit(of(), name="other")],
        Act.ARCHIVE: [lambda: Archive(of())],
        Act.CAP: [lambda: CapGroup("sweep", 1, owner=owner), lambda: CapGroup("sweep", 0, owner=owner)],
        Act.RESERVE: [lambda: Reserve(1, start=house.rota.now() + 86400, length_s=60.0, user=owner)],
        Act.RECORD: [lambda: PutRecord(Draft("alert", of(), "{}"), owner=owner)],
        Act.DESCRIBE: [lambda: PutRecord(Draft("cluster", "manual", "{}"), owner=owner)],
        Act.REPORT: [lambda: Report(of(), RunState.CANCELLED)],
        Act.SET_POLICY: [lambda: SetPolicy(Policy(max_queue=1234))],
        Act.PAUSE: [Pause, Resume],
        Act.DRAIN: [lambda: Drain("node1"), lambda: Undrain("node1")],
        Act.RESHAPE: [lambda: at_rest(house, Reshape(3, 2)), lambda: at_rest(house, Reshape(2, 4))],
        Act.MANAGE_TOKENS: [lambda: PutRecord(Draft("token", "t", "{}"), owner=owner)],
    }
    return ways[act]


def at_rest(house: House, command: Command) -> Command:
    """What other acts have started may still run; this one waits for nobody."""
    until(lambda: house.rota.ask(lambda state, now: not state.active), "no run is active")
    return command


def acts_of(house: House, who: Principal) -> int:
    return sum(stored.event.by == who.name for stored in house.store.events(0, 10_000))


@pytest.mark.parametrize("role", Role)
def test_the_house_does_as_the_table_says(house, role):
    who = Principal("robot", role, acts_for="me") if role is Role.AGENT else Principal("me", role)
    for act in Act:
        for own in (True, False):
            for make in attempts(house, act, "me" if own else "you"):
                command = make()
                before = acts_of(house, who)
                if allowed(role, act, own):
                    house.do(command, who)
                else:
                    with pytest.raises(Forbidden) as refusal:
                        house.do(command, who)
                    assert who.name in refusal.value.message
                    assert acts_of(house, who) == before, "a refusal changes nothing"
    house.do(Resume())


def test_what_an_agent_submits_is_its_persons(house):
    robot = Principal("robot", Role.AGENT, acts_for="ann")
    run_id = house.submit("true", who=robot)
    run = house.wait(run_id)
    assert (run.user, run.state) == ("ann", RunState.SUCCEEDED)
    events = house.store.events(0, 100, run_id)
    assert events[0].event.by == "robot", "the log says who it really was"
    ann = Principal("ann", Role.USER)
    again = house.do(Rerun(run_id, held=True), ann)
    assert house.do(Cancel(again.id), robot).state is RunState.CANCELLED


def test_an_agent_has_nothing_to_do_with_others_and_owns_nothing_in_its_own_name(house):
    robot = Principal("robot", Role.AGENT, acts_for="ann")
    mine = house.submit("true", who=Principal("robot", Role.USER), held=True)
    with pytest.raises(Forbidden):
        house.do(Cancel(mine), robot)
    with pytest.raises(Forbidden):
        house.do(Submit(house.spec("true"), user="robot"), robot)


@pytest.mark.parametrize(("role", "highest"), [(Role.ADMIN, 4), (Role.USER, 4), (Role.AGENT, 2)])
def test_how_high_a_priority_each_may_ask_for(house, role, highest):
    who = Principal("me", role)
    for priority in (1, 2, 3, 4):
        if priority <= highest:
            assert house.do(Submit(house.spec("true", priority=priority), held=True), who).priority == priority
        else:
            with pytest.raises(Invalid, match="above what you may ask for") as refusal:
                house.do(Submit(house.spec("true", priority=priority)), who)
            assert refusal.value.field == "priority"


def test_an_agents_rerun_of_an_important_run_is_no_way_around_its_cap(house):
    run_id = house.submit("true", who=Principal("ann", Role.USER), priority=4, held=True)
    with pytest.raises(Invalid, match="priority"):
        house.do(Rerun(run_id, held=True), Principal("robot", Role.AGENT, acts_for="ann"))


def test_only_an_admin_submits_for_others(house):
    for role in (Role.USER, Role.AGENT, Role.VIEWER):
        with pytest.raises(Forbidden):
            house.do(Submit(house.spec("true"), user="you"), Principal("me", role))
    assert house.do(Submit(house.spec("true"), user="you"), ROOT).user == "you"
