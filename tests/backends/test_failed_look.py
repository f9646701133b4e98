"""A supervisor that fails over what a job's processes look like ends the attempt all the same, as it was asked to."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.app.ports import StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, command_lines, patched_launcher

# One function fails in every supervisor.
FAILING = """
from rota.adapters.backends import procs
def fail(*args):
    raise ValueError("made to fail")
procs.{} = fail
"""


@pytest.fixture(params=["caught", "origin"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> LocalRig:
    """`caught`: whom to signal cannot be told; `origin`: nor what is left of it."""
    prefix = patched_launcher(FAILING.format(request.param))
    return LocalRig(tmp_path, zygote_prefix=prefix, cgroups=request.param == "caught")


def noted(rig: LocalRig, attempt_id: str) -> str:
    return rig.path(attempt_id, "shim.log").read_text()


def test_at_its_time_limit(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    order = rig.order("last for ever", time_limit_s=0.5, grace_s=0.5, warn_signal=signal.SIGUSR1, warn_s=0.3)
    backend.launch(order)
    assert rig.end_of(reports, order).cause is Cause.TIME_LIMIT
    said = noted(rig, order.attempt_id)
    assert "could not warn it: ValueError: made to fail" in said
    assert "could not send it SIGTERM: ValueError: made to fail" in said


def test_when_it_is_cancelled(rig: LocalRig, backend: LocalBackend, reports: Reports) -> None:
    mark = f"unseen{id(reports)}"
    order = rig.order("succeed", argv=("sh", "-c", "trap '' TERM; sleep 1000; :", mark))
    backend.launch(order)
    rig.start_of(reports, order)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGTERM, 0.5))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert command_lines(mark) == []
    assert noted(rig, order.attempt_id).count("made to fail") <= 3, "said once, however often it is looked"
    after = rig.order("succeed")
    backend.launch(after)
    assert rig.end_of(reports, after).ok
