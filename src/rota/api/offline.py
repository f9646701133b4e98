"""Tokens of a data directory that no server has open: made, listed and revoked as a server would do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rota.api import tokens
from rota.app.commands import Draft
from rota.app.errors import NotFound
from rota.app.ports import Record, Store

PAGE = 1000


class OfflineTokens:
    """`put` makes one record durable."""

    def __init__(self, store: Store, put: Callable[[Draft], None]) -> None:
        self._store = store
        self._put = put

    def create(
        self, *, user: str, role: str, expires_s: float | None = None, acts_for: str = "", note: str = ""
    ) -> Mapping[str, Any]:
        secret, token = tokens.make(user, role, time.time(), expires_s=expires_s, acts_for=acts_for, note=note)
        tokens.must_be_told_apart(token, (tokens.read(record.id, record.body) for record in self._records()))
        self._put(token.draft())
        return {**token.public(), "token": secret}

    def list(self) -> Sequence[Mapping[str, Any]]:
        found = [tokens.read(record.id, record.body) for record in self._records()]
        return [token.public() for token in sorted(found, key=lambda token: token.created_at)]

    def revoke(self, token_id: str) -> Mapping[str, Any]:
        record = self._store.record(tokens.KIND, token_id)
        if record is None:
            raise NotFound(f"no token {token_id[:50]!r}; see: rota token list", "token_id")
        token = tokens.read(record.id, record.body)
        if token.revoked_at is None:
            token = replace(token, revoked_at=time.time())
            self._put(token.draft())
        return token.public()

    def _records(self) -> Iterator[Record]:
        before: int | None = None
        while found := self._store.records(tokens.KIND, before=before, limit=PAGE):
            yield from found
            before = found[-1].seq
