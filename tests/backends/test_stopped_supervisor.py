"""On a server of an ordinary account a job can stop its supervisor: limits and cancels hold all the same."""

from __future__ import annotations

import contextlib
import os
import signal

from rota.adapters.backends import records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, wait_for

# From its first moment, before its supervisor could record a pid.
STOP_IT = "kill -STOP $PPID; echo stopped; sleep 1000; :"


def launch(rig: LocalRig, backend: LocalBackend, line: str) -> tuple[LaunchOrder, str]:
    mark = f"stopper{os.urandom(4).hex()}"
    order = rig.order("succeed", argv=("sh", "-c", line, mark))
    backend.launch(order)
    wait_for(lambda: b"stopped" in backend.read_log(order.attempt_id, 0, 100).content, "the job to stop its supervisor")
    return order, mark


def test_a_cancel_continues_a_stopped_supervisor(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order, mark = launch(rig, backend, STOP_IT)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert command_lines(mark) == []


def test_one_that_is_stopped_again_and_again_is_killed_when_its_end_is_overdue(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """Another process of the account does it, so that the supervisor never gets to do anything."""
    order, mark = launch(rig, backend, STOP_IT)
    lock = records.read(str(rig.path(order.attempt_id, "lock"))) or {}
    shim = os.pidfd_open(lock["shim"])
    stopper = os.fork()
    if stopper == 0:
        with contextlib.suppress(OSError):  # until it is gone
            while True:
                signal.pidfd_send_signal(shim, signal.SIGSTOP)
        os._exit(0)
    try:

        def over() -> bool:
            backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
            return reports.exit(order.attempt_id) is not None

        wait_for(over, "its end")
    finally:
        os.kill(stopper, signal.SIGKILL)
        os.waitpid(stopper, 0)
        os.close(shim)
    assert command_lines(mark) == []
