"""One backend in front of two: jobs are carried by one, leases by the other.

An order with a holder goes to the leases; whatever else is asked goes where the record lies. An attempt of which there
is no record is vetoed, if need be, on the jobs' side, so a lease is looked up there before it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from rota.app.ports import Absent, Backend, LaunchOrder, LogChunk, Observation, Report, StopOrder
from rota.core.ids import run_of

UNSEEN = (
    "its processes cannot be looked at ({why}). Where that lasts, one of them, or another process, may hold a lock of "
    "the kernel (that of /proc/PID/task, say); an admin gives the GPUs back with rota cancel --force {run}"
)


class LeaseCarrier(Backend, Protocol):
    def carries(self, attempt_id: str) -> bool:
        """Is there any record of it here?"""


class RoutedBackend:
    def __init__(self, jobs: Backend, leases: LeaseCarrier) -> None:
        self._jobs, self._leases = jobs, leases

    def open(self, report: Callable[[Report], None]) -> None:
        self._jobs.open(report)
        self._leases.open(report)

    def launch(self, *orders: LaunchOrder) -> None:
        """Jobs first, and trouble with one keeps none of the others from being begun."""
        jobs = [order for order in orders if order.holder is None]
        errors: list[OSError] = []
        if jobs:
            self._trying(errors, self._jobs.launch, *jobs)
        for order in orders:
            if order.holder is not None:
                self._trying(errors, self._give, order)
        if errors:
            raise errors[0]

    def _give(self, order: LaunchOrder) -> None:
        vetoed = not isinstance(self._jobs.observe(order.attempt_id), Absent)
        (self._jobs if vetoed else self._leases).launch(order)

    def _trying(self, errors: list[OSError], launch: Callable[..., None], *orders: LaunchOrder) -> None:
        try:
            launch(*orders)
        except OSError as error:
            errors.append(error)

    def stop(self, attempt_id: str, order: StopOrder) -> None:
        self._of(attempt_id).stop(attempt_id, order)

    def observe(self, attempt_id: str) -> Observation:
        return self._of(attempt_id).observe(attempt_id)

    def stalled_by(self, attempt_id: str) -> str:
        """Look at the processes of an attempt. Where that fails, as they keep whoever looks waiting, it is said so: a
        forced end must not fail for want of its note."""
        try:
            return self._of(attempt_id).stalled_by(attempt_id)
        except OSError as error:
            return UNSEEN.format(why=error.strerror or error, run=run_of(attempt_id))

    def strays(self) -> Collection[str]:
        return [*self._jobs.strays(), *self._leases.strays()]

    def sweep(self, attempt_id: str, account: str | None) -> None:
        self._of(attempt_id).sweep(attempt_id, account)

    def forget(self, attempt_id: str) -> None:
        self._of(attempt_id).forget(attempt_id)

    def read_log(self, attempt_id: str, offset: int, limit: int) -> LogChunk:
        return self._of(attempt_id).read_log(attempt_id, offset, limit)

    def enforced(self) -> Collection[str] | None:
        """Of jobs: a lease's process was started by somebody else."""
        return self._jobs.enforced()

    def purge(self, before: float) -> int:
        return self._jobs.purge(before) + self._leases.purge(before)

    def close(self) -> None:
        self._jobs.close()
        self._leases.close()

    def _of(self, attempt_id: str) -> Backend:
        return self._leases if self._leases.carries(attempt_id) else self._jobs
