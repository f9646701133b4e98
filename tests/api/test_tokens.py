"""Tokens: what is made, what is kept of it, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.api import tokens
from rota.api.answers import dumps
from rota.api.guard import Guard
from rota.api.server import make_app
from rota.app.authz import Principal, Role
from rota.app.errors import Conflict, Invalid
from tests.api.kit import acall, opened

NOW = 1_000.0


def test_only_a_hash_is_kept() -> None:
    secret, token = tokens.make("ann", "user", NOW, note="laptop")
    kept = token.draft().body
    assert secret not in kept
    assert secret.removeprefix("rota_") not in kept
    assert token.hash in kept
    assert token.hash not in json.dumps(token.public())
    assert len(secret) > 40


def test_no_two_are_alike() -> None:
    made = [tokens.make("ann", "user", NOW) for _ in range(100)]
    assert len({secret for secret, _ in made}) == len({token.id for _, token in made}) == 100


def test_what_is_written_reads_back() -> None:
    _, token = tokens.make("bot", "agent", NOW, expires_s=60, acts_for="ann", note="x")
    draft = token.draft()
    assert draft.kind == "token"
    assert tokens.read(draft.id, json.loads(draft.body)) == token
    assert token.principal == Principal("bot", Role.AGENT, "ann")


def test_its_time() -> None:
    _, token = tokens.make("ann", "user", NOW, expires_s=60)
    assert token.valid(NOW + 59.9)
    assert not token.valid(NOW + 60)
    _, lasting = tokens.make("ann", "user", NOW)
    assert lasting.valid(NOW + 1e9)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("user", {"user": ""}), ("user", {"user": "a" * 65}), ("user", {"user": "ann ben"}), ("user",
        {"user": "ann\n"}),
        ("user", {"user": "аnn"}), ("user", {"user": "ann/.."}), ("user", {"user": "$(id)"}), ("user",
        {"user": "a\0b"}),
        ("user", {"user": "rota"}), ("user", {"user": "shared"}), ("user", {"user": "anonymous"}),
        ("role", {"role": "root"}), ("role", {"role": "ADMIN"}), ("role", {"role": ""}),
        ("acts_for", {"role": "agent"}), ("acts_for", {"role": "user", "acts_for": "ben"}),
        ("acts_for", {"role": "agent", "acts_for": "be n"}),
        ("expires", {"expires_s": 0}), ("expires", {"expires_s": -1}), ("expires", {"expires_s": 1e12}),
        ("expires", {"expires_s": float("nan")}), ("expires", {"expires_s": float("inf")}),
        ("note", {"note": "x" * 201}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_field(field: str, given: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        tokens.make(**{"user": "ann", "role": "user", "now": NOW, **given})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert field in caught.value.message


def made(user: str, role: str = "user", acts_for: str = "", expires_s: float | None = None) -> tokens.Token:
    return tokens.make(user, role, NOW, acts_for=acts_for, expires_s=expires_s)[1]


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (made("ann", "agent", "ben"), "user"),  # ann is a person
        (made("ben", "agent", "ann"), "user"),  # so is ben: an agent acts for him
        (made("carl", "agent", "carl"), "user"),  # and whoever it acts for itself
        (made("bot", "agent", "ann"), "user"),  # bot is ben's
        (made("bot"), "user"),
        (made("bot", "admin"), "user"),
        (made("helper", "agent", "bot"), "acts_for"),
    ],
)
def test_nobody_bears_the_name_of_an_agent_nor_an_agent_a_persons(new: tokens.Token, field: str) -> None:
    others = [made("ann"), made("bot", "agent", "ben")]
    with pytest.raises(Conflict) as caught:
        tokens.must_be_told_apart(new, others)
    assert caught.value.field == field


def test_a_second_token_of_the_same_is_fine_and_so_is_a_name_that_is_free_again() -> None:
    others = [made("ann"), made("bot", "agent", "ben")]
    for new in (made("ann", "admin"), made("bot", "agent", "ben"), made("dora"), made("helper", "agent", "ann")):
        tokens.must_be_told_apart(new, others)
    _, taken = tokens.make("bot", "agent", NOW + 100, acts_for="ann")
    tokens.must_be_told_apart(taken, [made("bot", "agent", "ben", expires_s=60)])
    _, later = tokens.make("ann", "agent", NOW + 100, acts_for="ben")
    tokens.must_be_told_apart(later, [made("ann", expires_s=60)])


@given(st.text(max_size=80))
def test_a_name_is_plain_or_refused(name: str) -> None:
    try:
        _, token = tokens.make(name, "user", NOW)
    except Invalid:
        return
    assert token.user == name
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set(" /\\'\"$`;&|<>(){}[]*?!#~:,")


@given(st.binary(max_size=100))
def test_any_header_can_be_hashed(raw: bytes) -> None:
    assert len(tokens.hash_of(raw.decode("utf-8", "surrogateescape"))) == 64


def test_of_two_that_are_made_at_once_one_has_the_name(tmp_path: Path) -> None:
    """A person's and an agent's of one name: whichever is second is refused."""

    async def both(guard: Guard) -> list[int]:
        head = {"x-auth-token": "open sesame", "content-type": "application/json"}
        bodies = ({"user": "kim", "role": "user"}, {"user": "kim", "role": "agent", "acts_for": "ann"})
        asked = (acall(guard, "/tokens", "POST", head, [json.dumps(body).encode()]) for body in bodies)
        return sorted(answer.status for answer in await asyncio.gather(*asked))

    with opened(tmp_path, shared_token="open sesame") as house:
        assert asyncio.run(both(Guard(make_app(house), house))) == [200, 409]
        assert [token.user for token in house.gate.all_tokens()] == ["kim"]


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"user": "z", "expires": "7d"}, {"expires": "expires_seconds"}),
        ({"user": "z", "ttl": 60}, {"ttl": "expires_seconds"}),
        ({"user": "z", "rolle": "viewer"}, {"rolle": "role"}),
        ({"usr": "z", "actsFor": "ann", "role": "agent"}, {"usr": "user", "actsFor": "acts_for"}),
        ({"user": "z", "zzz": None}, {"zzz": None}),
        ({"user": "z", "\ud800": 1}, {"\ud800": None}),
    ],
)
def test_a_misspelt_field_makes_no_token(tmp_path: Path, sent: dict[str, object], meant: dict[str, str | None]) -> None:
    """Else one that was to live for a week never expires."""
    with opened(tmp_path) as house:
        guard = Guard(make_app(house), house)
        refused = asyncio.run(acall(guard, "/tokens", "POST", {"content-type": "application/json"}, [dumps(sent)]))
        assert refused.status == 422, refused.body
        said = {fault["loc"][-1]: fault["msg"] for fault in refused.json["detail"]}
        assert set(said) == set(meant)
        for name, known in meant.items():
            assert (f"did you mean {known}?" if known else "there is no such field here") in said[name]
        assert house.gate.all_tokens() == []


def test_a_dry_run_in_the_body_makes_no_token(tmp_path: Path) -> None:
    with opened(tmp_path) as house:
        sent = [dumps({"user": "z", "dryRun": True})]
        guard = Guard(make_app(house), house)
        refused = asyncio.run(acall(guard, "/tokens", "POST", {"content-type": "application/json"}, sent))
        assert refused.status == 422 and "?dry_run=true" in refused.json["detail"][0]["msg"]
        assert house.gate.all_tokens() == []
