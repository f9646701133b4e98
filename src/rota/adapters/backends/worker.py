"""A worker: a process that waits, warm, for an order, is that attempt's shim, and waits again.

Forking Python for every attempt would cost several times what the command itself does. A worker has forked once;
between orders it even has the next claim's directory, lock and log ready. It is reused only after a clean end, when
it has no child left, every descriptor is closed and nothing to speak of is charged to its memory group; after any
surprise it dies instead, and the attempt it carried is found deserted.
"""

# ruff: noqa: SIM105 - contextlib would be one more import in every shim

from __future__ import annotations

import json
import os
import signal
import sys

from rota.adapters.backends import confine, procs, records, task
from rota.adapters.backends.limits import WorkerGroups
from rota.adapters.backends.oom import LEFT_OVER
from rota.adapters.backends.shim import HEARD, House, Shim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
DONE, RETIRES, NOT_MINE = "done", "retires", "not-mine"  # what a worker says of an order
MAX_ATTEMPTS = 500  # then it retires: whatever leaks is bounded


def serve(house: House, name: str, orders: int, answers: int) -> int:
    """Live as a worker; the exit status. `orders` ends when the zygote dies or dismisses us."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    # A worker that is stopped when the zygote dies would never see the end of its orders.
    task.libc.prctl(task.PR_SET_PDEATHSIG, signal.SIGCONT, 0, 0, 0)
    os.setsid()
    task.libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    task.libc.prctl(PR_SET_NAME, b"rota-shim", 0, 0, 0)
    house.start = procs.start_time("self") or 0
    own_stat = os.open("/proc/self/stat", os.O_RDONLY | os.O_CLOEXEC)
    house.groups = _enter(house, name)
    facts = {
        "boot_id": house.boot_id,
        "shim": os.getpid(),
        "start": house.start,
        "serial": procs.own_serial(),
        "cgroup": house.group,
        "limits": house.groups.names(),
    }
    ready: Ready | None = None
    for _ in range(MAX_ATTEMPTS):
        try:
            ready = ready or Ready(facts)
        except OSError as error:
            if error.errno not in records.FULL:
                raise
            print(f"no room for another attempt: {error}", file=sys.stderr, flush=True)
            _leave(house)
            return 1
        order = _receive(orders)
        if order is None:
            break
        if records.claim(".", ready.claim, order["id"]):
            shim = Shim(house, order["id"], order, ready.log)
            shim.run()
            ready.close()
            ready = None
            # The next attempt here may be another person's, and would have what is left counted against its bound.
            # So would it have a defunct process that is still our child among its own, or that of somebody outside.
            retires = shim.left_over > LEFT_OVER or shim.over or house.groups.has_foreign_processes(own_stat)
            answer = RETIRES if retires else DONE
        else:
            answer = NOT_MINE
        os.write(answers, f"{os.getpid()} {answer}\n".encode())
        if answer == RETIRES:
            break
    if ready is not None:
        records.discard(ready.claim.path, ready.claim.live)
    _leave(house)
    return 0


class Ready:
    """A claim and a log without an attempt."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.claim = records.prepare(".", facts)
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC
        try:
            self.log = os.open(f"{self.claim.path}/log", flags, 0o600)
        except OSError:
            records.discard(self.claim.path, self.claim.live)
            raise

    def close(self) -> None:
        os.close(self.log)
        os.close(self.claim.lock)


def _receive(orders: int) -> dict[str, Any] | None:
    head = _read_exactly(orders, 4)
    if head is None:
        return None
    body = _read_exactly(orders, int.from_bytes(head, "big"))
    if body is None:
        return None
    order: dict[str, Any] = json.loads(body.partition(b"\n")[2])
    return order


def _read_exactly(fd: int, length: int) -> bytes | None:
    content = b""
    while len(content) < length:
        chunk = os.read(fd, length - len(content))
        if not chunk:
            return None
        content += chunk
    return content


def _enter(house: House, name: str) -> WorkerGroups:
    groups = WorkerGroups(house.bounds.found, name)
    try:
        groups.enter(house.bounds)
    except OSError as error:
        print(f"no cgroup for this worker: {error}", file=sys.stderr, flush=True)
        return WorkerGroups(confine.Hierarchies(), name)
    return groups


def _leave(house: House) -> None:
    """Go back to where the server was, so that our groups can be removed; the bases only if we are the last."""
    found, groups = house.bounds.found, house.groups
    homes = {group: os.path.dirname(os.path.dirname(group)) for group in groups.separate}
    if groups.unified:
        homes[groups.unified] = found.home
    for group, home in homes.items():
        base = os.path.dirname(group)
        try:
            confine.join(home)
        except OSError:
            continue  # the next zygote clears it
        for empty in (groups.leaf if group == groups.unified else group, group):
            try:
                os.rmdir(empty)
            except OSError:
                pass  # in use, or gone
        confine.try_remove_base(base)
