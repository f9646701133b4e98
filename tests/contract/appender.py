"""A process that appends batches to a store and says so after each: `ack <version>`. Tests kill, starve and cheat it.

python -m tests.contract.appender PATH BATCHES
"""

from __future__ import annotations

import sys

from rota.adapters.store.open import open_store
from rota.app.ports import StoreError
from rota.core.resources import Request
from tests.contract.house import House, cluster


def main(path: str, batches: int) -> None:
    house = House(open_store(path))
    if not house.state.nodes:
        cluster(house, 2, 8)
    for n in range(batches):
        house.now += 1
        for _ in range(1 + n % 5):
            house.submit(request=Request(gpus=1), labels={"batch": str(n)})
        for run in [run for run in house.state.runs.values() if run.attempt]:
            house.finish(run.id)
        house.plan()
        house.commit()
        print("ack", house.state.version, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]))
    except StoreError as error:
        print("refused", type(error).__name__, error, flush=True)
        sys.exit(1)
