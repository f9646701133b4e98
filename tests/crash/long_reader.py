"""Run inside a mount namespace with a small tmpfs: a reader holds the ledger's log on a full disk."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from rota.adapters.store.open import open_store
from rota.adapters.store.sqlite import driver
from rota.app.ports import StoreFull
from tests.contract.house import House, cluster

MOST = 5_000


def main(disk: str, _: str) -> None:
    house = House(open_store(Path(disk) / "rota.db"))
    cluster(house)
    house.commit()
    house.store.keep_room(house.state, 1 << 20)
    reader = driver().connect(f"file:{disk}/rota.db?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM events").fetchone()
    with open(f"{disk}/filler", "wb", buffering=0) as filler:
        for size in (1 << 20, 4096):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError:
                continue
    stored = _store(house)
    reader.execute("COMMIT")
    _store(house, stored + 1)  # the one that finds the log at its end
    facts = {"stored": stored, "later": _store(house, stored + 50) - stored, "left": os.statvfs(disk).f_bavail}
    print(json.dumps(facts))


def _store(house: House, most: int = MOST) -> int:
    """Commit until it fails; how many runs there are then."""
    try:
        while len(house.state.runs) < most:
            house.submit()
            house.commit()
    except StoreFull:
        house.pending, house.state = [], house.store.load()
    return len(house.state.runs)


if __name__ == "__main__":
    main(*sys.argv[1:])
