"""Looking must be short: the one writer stands still while it looks."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from rota.adapters.backends import procs, records
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import Live
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, look_here, wait_for


def test_what_does_not_die_holds_nobody_up_and_is_buried_in_the_end(tmp_path: Path) -> None:
    rig, reports = LocalRig(tmp_path, cgroups=False), Reports()
    order = rig.order("last for ever")
    first = rig.backend()
    first.open(reports)
    first.launch(order)
    rig.start_of(reports, order)
    record = records.read(str(rig.path(order.attempt_id, "pid")))
    assert record is not None
    first.close()
    real, writer, allowed_s = procs.kill_marked, threading.get_ident(), list[float]()

    def in_vain(attempt_id: str, uid: int, deadline: float, installation: str = "") -> bool:
        """As with a process in uninterruptible sleep."""
        if threading.get_ident() == writer:
            allowed_s.append(deadline - time.monotonic())
        time.sleep(max(0.0, deadline - time.monotonic()))
        return False

    second, later = LocalBackend(rig.root / "backend", cgroups=False), Reports()
    with pytest.MonkeyPatch.context() as patched:
        look_here(patched)
        patched.setattr(procs, "kill_marked", in_vain)
        os.kill(record["pid"], signal.SIGKILL)
        wait_for(lambda: procs.start_time(record["pid"]) is None, "its supervisor is dead")
        second.open(later)
        seen = second.observe(order.attempt_id)
        waited_s = sum(allowed_s)
    assert seen == Live(None), "what does not die, lives"
    assert allowed_s, "it was tried"
    assert waited_s < 1.0, "the one writer does not stand still for it"
    assert procs.kill_marked is real
    try:
        end = rig.end_of(later, order)
        assert end.cause is Cause.LOST, "the undertaker went on with it"
        assert isinstance(second.observe(order.attempt_id), Exit)
    finally:
        second.close()


def test_jobs_keep_the_limit_of_descriptors_the_server_was_started_with(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    rig, reports = LocalRig(tmp_path), Reports()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1000), hard))
    try:
        backend = rig.backend()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # as a server does that expects many clients
        backend.open(reports)
        order = rig.order("say hello", argv=("sh", "-c", "ulimit -Sn"))
        backend.launch(order)
        rig.end_of(reports, order)
        assert backend.read_log(order.attempt_id, 0, 100).content == b"%d\n" % min(soft, 1000)
        backend.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
