"""The doors' small documents, seen by who may see them. Each carries the name of its owner as `user`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rota.api import once
from rota.api.act import act
from rota.api.house import House
from rota.api.lookups import look_up
from rota.api.person_answers import TRIES
from rota.app.authz import Principal
from rota.app.commands import Draft, PutRecord
from rota.app.errors import Conflict
from rota.app.ports import PAGE_BYTES, Record

NAME = re.compile(r"[\w-]{1,100}", re.ASCII)
AT_ONCE = 50  # read and decoded together
MOST_READ = 10_000  # looked through for one answer, however few of them are wanted


def owner_of(record: Record) -> str:
    return str(record.body.get("user") or record.by)


class Shelf:
    def __init__(self, house: House, who: Principal, owner: str = "") -> None:
        self._house = house
        self._who = who
        self.owner = owner or who.owner

    def may_see(self, record: Record) -> bool:
        return self._house.may_see_of(self._who, owner_of(record))

    def find(self, kind: str, record_id: str) -> Record | None:
        record = self._house.service.record(kind, record_id) if NAME.fullmatch(record_id) else None
        return record if record is not None and self.may_see(record) else None

    def page(
        self,
        kind: str,
        limit: int,
        cursor: int | None = None,
        *,
        parent: str | None = None,
        wanted: Callable[[Record], bool] = lambda record: True,
    ) -> tuple[list[Record], int | None]:
        """The newest ones first, and the cursor of the next page; None = that was all. A page is shorter than `limit`
        where its documents are large."""
        found: list[Record] = []
        size = read = 0
        at_once = min(limit + 1, AT_ONCE)  # more where few of them are wanted
        while read < MOST_READ:
            records = self._house.service.records(
                kind, parent=parent, before=cursor, limit=at_once, most_bytes=PAGE_BYTES
            )
            for record in records:
                if self.may_see(record) and wanted(record):
                    size += record.size
                    if len(found) == limit or (found and size > PAGE_BYTES):
                        return found, found[-1].seq
                    found.append(record)
            if len(records) < at_once and sum(record.size for record in records) < PAGE_BYTES:
                return found, None
            cursor, read, at_once = records[-1].seq, read + len(records), AT_ONCE
        return found, cursor

    async def add(
        self, draft: Draft, body: dict[str, Any], asked: dict[str, Any], key: str | None, dry_run: bool
    ) -> Record:
        """A new document; the one the key has made already, if it was for the same."""
        request = once.hash_of(asked)
        text = json.dumps({**body, "user": body.get("user") or self.owner, once.REQUEST: request})
        command = PutRecord(replace(draft, body=text), owner=self.owner, fresh=True)
        left = TRIES if key else 1
        while True:
            known = await self._known(draft) if key else None
            if known is not None:
                return once.same(known, request, key or "")
            try:
                made: Record = await act(self._house, self._who, command, dry_run)
            except Conflict:
                left -= 1
                if not left:
                    raise
                continue  # the same key twice at once: the other one's document may not be in the store yet
            return made

    async def _known(self, draft: Draft) -> Record | None:
        return await look_up(self._house, self._who, self._house.service.record, draft.kind, draft.id)
