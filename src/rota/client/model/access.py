"""Who one is, and the tokens that say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rota.client.model.base import Wire, build, rows


@dataclass(frozen=True, slots=True)
class Whoami(Wire):
    raw: Mapping[str, Any]
    name: str = ""
    role: str = ""  # admin user agent viewer
    acts_for: str = ""
    known_by: str = ""  # how the server knows: token shared cookie socket open
    token_id: str = ""  # of the token that was shown; "shared" for the shared one
    sees_all: bool | None = None  # whether other people's runs are shown to you; None = an older server does not say


@dataclass(frozen=True, slots=True)
class Token(Wire):
    """A token as the server knows it. Its secret is there only in the answer that made it."""

    raw: Mapping[str, Any] = field(repr=False)
    id: str = ""
    user: str = ""
    role: str = ""
    acts_for: str = ""
    note: str = ""
    created_at: float | None = None
    expires_at: float | None = None
    revoked_at: float | None = None
    token: str | None = field(default=None, repr=False)


def whoami(data: Any) -> Whoami:
    return build(Whoami, data)


def token(data: Any) -> Token:
    return build(Token, data)


def tokens(data: Any) -> list[Token]:
    return [token(item) for item in rows(data["tokens"] if isinstance(data, dict) else data)]
