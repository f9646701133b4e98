"""Idempotency keys: the same key is the same run, through any number of sends and restarts."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from rota.api import once
from rota.app.authz import Principal, Role
from rota.app.commands import Reserve, Submit, SubmitMany
from rota.app.errors import Conflict
from rota.core import events as e
from rota.core.run import RunState
from tests.app.house import ANN, BOB, PATIENCE_S


def test_the_same_key_is_the_same_run(house):
    first = house.submit("true", key="k")
    assert house.submit("true", key="k") == first
    house.wait(first)
    assert house.submit("true", key="k") == first, "also after it has ended"
    assert len(house.events(e.RunSubmitted)) == 1


def test_fifty_parallel_sends_are_one_run(house):
    command = Submit(house.spec("echo ran"), key="only once")
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: house.rota.do(ANN, command, PATIENCE_S).id, range(50)))
    assert len(set(answers)) == 1
    assert house.wait(answers[0]).state is RunState.SUCCEEDED
    assert house.output(answers[0]) == "ran\n"
    assert len(house.events(e.RunSubmitted)) == 1


def test_the_same_key_for_another_request_is_a_conflict(house):
    first = house.submit("true", key="k")
    for change in ({"line": "false"}, {"line": "true", "gpus": 2}, {"line": "true", "held": True}):
        with pytest.raises(Conflict, match=first) as refusal:
            house.submit(key="k", **change)
        assert refusal.value.field == "key"
    assert len(house.events(e.RunSubmitted)) == 1


def test_keys_are_each_principals_own(house):
    assert house.submit("true", key="k") != house.submit("true", who=BOB, key="k")


OF_ANN, OF_BOB = (Principal("bot", Role.AGENT, acts_for=person) for person in ("ann", "bob"))


def submit_many(house, who: Principal, key: str) -> str:
    (run,) = house.do(SubmitMany((Submit(house.spec("true"), key=key),)), who)
    return str(run.id)


def test_a_key_of_an_agent_is_not_that_of_another_persons_agent_of_the_same_name(house):
    first, second = (house.submit("true", who=agent, key="k") for agent in (OF_ANN, OF_BOB))
    assert house.run(second).user == "bob"
    assert house.submit("false", who=Principal("bot", Role.USER), key="k") not in (first, second)
    house.reopen()
    for send in (submit_many, lambda house, who, key: house.submit("true", who=who, key=key)):
        assert (send(house, OF_ANN, "k"), send(house, OF_BOB, "k")) == (first, second)
    assert once.name_for("sweep", OF_ANN, "k", 12) != once.name_for("sweep", OF_BOB, "k", 12)
    assert once.name_for("sweep", ANN, "k", 12) == once.hash_of(["sweep", "ann", "k"])[:12], "as in older versions"


def test_a_key_of_an_agent_from_an_older_version_stays_good(house, monkeypatch):
    """Such keys were kept by the agent's name alone."""
    reserve = Reserve(gpus=1, start=time.time() + 3600, length_s=60.0, key="r")
    with monkeypatch.context() as older:
        older.setattr(Principal, "keeps_keys_as", property(lambda who: who.name))
        first, other = (house.submit("true", who=OF_ANN, key=key) for key in ("k", "l"))
        lent = house.do(reserve, OF_ANN)
    house.reopen()
    assert house.submit("true", who=OF_ANN, key="k") == first
    assert submit_many(house, OF_ANN, "k") == first
    assert house.submit("true", who=OF_BOB, key="k") != first
    assert submit_many(house, OF_BOB, "l") != other
    assert house.do(reserve, OF_ANN).id == lent.id
    assert house.do(reserve, OF_BOB).id != lent.id


def test_a_key_whose_digest_has_what_the_server_filled_in_stays_good(house):
    """Older versions kept such digests."""
    spec = house.spec("true")
    sent = replace(spec, workdir="")
    first = house.do(Submit(spec, key="k"), ANN).id
    assert house.do(Submit(spec, key="k", sent=sent), ANN).id == first
    (many,) = house.do(SubmitMany((Submit(spec, key="k", sent=sent),)), ANN)
    assert many.id == first
    for other in (house.spec("false"), house.spec("true", 2)):
        with pytest.raises(Conflict, match=first):
            house.do(Submit(other, key="k", sent=replace(other, workdir="")), ANN)


def test_a_key_survives_a_restart(house):
    first = house.submit("true", key="k")
    house.wait(first)
    house.reopen()
    assert house.submit("true", key="k") == first
    with pytest.raises(Conflict):
        house.submit("false", key="k")


def test_a_refused_submit_does_not_use_its_key_up(house):
    from rota.app.errors import Invalid

    with pytest.raises(Invalid):
        house.submit("true", 99, key="k")
    assert house.submit("true", 1, key="k")


def test_without_a_key_every_send_is_a_run(house):
    assert house.submit("true") != house.submit("true")


@pytest.mark.parametrize("key", ["ключ", "a\x00b", "\ud800", "x" * 200, "'; DROP TABLE keys; --"])
def test_odd_keys_are_kept_as_they_are_or_refused(house, key):
    from rota.app.errors import Invalid

    try:
        first = house.submit("true", key=key)
    except Invalid as refusal:
        assert refusal.field == "key"
    else:
        assert house.submit("true", key=key) == first


def test_a_huge_key_is_refused(house):
    from rota.app.errors import Invalid

    with pytest.raises(Invalid) as refusal:
        house.submit("true", key="x" * 1_000_000)
    assert refusal.value.field == "key"
