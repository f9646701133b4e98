"""Tokens of people and agents: random, shown once, kept only as a hash."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rota.app.authz import Principal, Role
from rota.app.commands import Draft
from rota.app.errors import Conflict, Invalid

PREFIX = "rota_"
KIND = "token"
NAME = re.compile(r"[A-Za-z0-9_.@+-]{1,64}")
LONGEST_S = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Token:
    """What is remembered of a token; never the token."""

    id: str
    user: str
    role: Role
    hash: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    acts_for: str = ""
    note: str = ""

    @property
    def principal(self) -> Principal:
        return Principal(self.user, self.role, self.acts_for)

    def valid(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def public(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "user": self.user,
            "role": self.role.value,
            "acts_for": self.acts_for,
            "note": self.note,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "revoked_at": self.revoked_at,
        }

    def draft(self) -> Draft:
        body = {**self.public(), "hash": self.hash}
        del body["id"]
        return Draft(KIND, self.id, json.dumps(body))


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def make(
    user: str, role: str, now: float, *, expires_s: float | None = None, acts_for: str = "", note: str = ""
) -> tuple[str, Token]:
    """A new token: its secret, to be shown once, and what is kept of it."""
    if role not in tuple(Role):
        raise Invalid(f"role: {role[:50]!r} is not one of {', '.join(Role)}", "role")
    for field, name in (("user", user), ("acts_for", acts_for)):
        if (name or field == "user") and not NAME.fullmatch(name):
            raise Invalid(f"{field}: use 1 to 64 letters, digits and _ . @ + -, not {name[:80]!r}", field)
    if (role == Role.AGENT) != bool(acts_for):
        raise Invalid("acts_for: an agent acts for a person, and only an agent does", "acts_for")
    if user in ("rota", "shared", "anonymous"):
        raise Invalid(f"user: {user!r} is the house's own name; choose another", "user")
    if expires_s is not None and not 0 < expires_s <= LONGEST_S:
        raise Invalid("expires: give a time above 0 and below ten years, such as 30d", "expires")
    if len(note) > 200:
        raise Invalid("note: use at most 200 characters", "note")
    secret = PREFIX + secrets.token_urlsafe(32)
    expires_at = None if expires_s is None else now + expires_s
    token = Token(secrets.token_hex(4), user, Role(role), hash_of(secret), now, expires_at, None, acts_for, note)
    return secret, token


def must_be_told_apart(new: Token, others: Iterable[Token]) -> None:
    """A name is one person's, or an agent's of one person: under one name, one would get the answers to the other's
    requests (an idempotency key counts per name) and use up the other's calls, and nobody could read from an event who
    it was. Older versions let agents of two people share a name; those tokens stay valid until they are revoked."""
    valid = [token for token in others if token.valid(new.created_at)]
    agents = {token.user for token in valid if token.role is Role.AGENT}
    people = {token.acts_for or token.user for token in (*valid, new)}
    if new.role is Role.AGENT and new.user in people:
        raise Conflict(f"user: {new.user!r} is a person here; call the agent something else", "user")
    if new.role is not Role.AGENT and new.user in agents:
        raise Conflict(f"user: {new.user!r} is an agent here; revoke its tokens first, or choose another name", "user")
    shared = {token.acts_for for token in valid if token.role is Role.AGENT and token.user == new.user}
    if new.role is Role.AGENT and shared - {new.acts_for}:
        others_own = ", ".join(sorted(shared - {new.acts_for}))
        raise Conflict(
            f"user: {new.user!r} is an agent of {others_own} here; choose another name, such as "
            f"{f'{new.acts_for}-{new.user}'[:64]!r}",
            "user",
        )
    if new.acts_for in agents:
        raise Conflict(f"acts_for: {new.acts_for!r} is an agent here; an agent acts for a person", "acts_for")


def read(token_id: str, body: Mapping[str, Any]) -> Token:
    known = {name: body.get(name) for name in ("created_at", "expires_at", "revoked_at")}
    return Token(
        id=token_id,
        user=body["user"],
        role=Role(body["role"]),
        hash=body["hash"],
        acts_for=body.get("acts_for", ""),
        note=body.get("note", ""),
        **known,  # type: ignore[arg-type]
    )
