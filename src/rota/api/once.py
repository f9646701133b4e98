"""Names for the doors' own documents, so that the same `Idempotency-Key` from the same caller names the same one."""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from rota.app.authz import Principal
from rota.app.errors import Conflict
from rota.app.ports import Record

REQUEST = "request"  # in a document's body: what was asked for when it was made, as a hash


def name_for(kind: str, who: Principal, key: str | None, size: int) -> str:
    """`size` hex characters: by chance, or the ones that belong to this key."""
    if not key:
        return secrets.token_hex((size + 1) // 2)[:size]
    return hash_of([kind, who.keeps_keys_as, key])[:size]


def hash_of(asked: Any) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def same(known: Record, asked: str, key: str) -> Record:
    """What the key made before, if it was the same request."""
    if known.body.get(REQUEST) != asked:
        raise Conflict(f"key {key[:100]!r} was used for another request ({known.id}); use a new key", "key")
    return known
