"""Looking must be short: the one writer stands still while it looks."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends import claims, local, procs, records
from rota.adapters.backends.local import LocalBackend
from rota.adapters.backends.lookers import Lookers
from rota.app.ports import LaunchOrder, Live, StopOrder
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

    def in_vain(attempt_id: str, uid: int, deadline: float, installation: str = "", *, thorough: bool = True) -> bool:
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


def deserted(rig: LocalRig, count: int) -> list[LaunchOrder]:
    """Attempts that have something left, and whose supervisors were killed while no server was there."""
    reports, orders = Reports(), [rig.order("last for ever") for _ in range(count)]
    backend = rig.backend()
    backend.open(reports)
    backend.launch(*orders)
    for order in orders:
        rig.start_of(reports, order)
    shims = [(records.read(str(rig.path(order.attempt_id, "pid"))) or {})["pid"] for order in orders]
    backend.close()
    for pid in shims:
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: procs.start_time(pid) is None, "its supervisor is dead")  # type: ignore[misc]
    return orders


def test_the_writer_waits_its_turn_at_no_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many attempts have something that does not die: each is tried once, and is the undertaker's then."""
    rig = LocalRig(tmp_path, cgroups=False)
    orders = deserted(rig, 4)
    real, writer = Lookers.call, threading.get_ident()
    asked: list[tuple[bool, float]] = []

    def call(self: Lookers, party: int | str, look: Any, *args: Any, **more: Any) -> Any:
        if threading.get_ident() == writer:
            asked.append((more.get("in_turn", True), more["within_s"]))
        return (False, []) if look is claims.end_all else real(self, party, look, *args, **more)

    second, later = LocalBackend(rig.root / "backend", cgroups=False), Reports()
    with monkeypatch.context() as patched:
        patched.setattr(Lookers, "call", call)
        second.open(later)
        try:
            for order in orders:
                assert second.observe(order.attempt_id) == Live(None)
            assert asked == [(False, local.AT_ONCE_S)] * len(orders)
            wait_for(lambda: all(each.burying for each in second._known.values()), "all are the undertaker's")
            for order in orders:
                assert second.observe(order.attempt_id) == Live(None)
                second.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
            assert len(asked) == len(orders)
        except BaseException:
            second.close()
            raise
    try:
        for order in orders:
            assert rig.end_of(later, order).cause is Cause.LOST
    finally:
        second.close()


def test_attempts_that_do_not_die_hold_up_no_other_accounts_and_are_tried_again_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = LocalRig(tmp_path, cgroups=False)
    orders = deserted(rig, 10)
    real, writer, theirs = LocalBackend._buried, threading.get_ident(), orders[-1].attempt_id
    they_are_gone, tried = threading.Event(), set[str]()

    def buried(self: LocalBackend, name: str, timeout_s: float, *, within_s: float, in_turn: bool) -> Exit | None:
        if threading.get_ident() == writer:
            return None
        if name != theirs and name not in tried:
            tried.add(name)
            they_are_gone.wait(60)
            raise OverflowError
        return real(self, name, timeout_s, within_s=within_s, in_turn=in_turn)

    monkeypatch.setattr(LocalBackend, "_buried", buried)
    looked = Counter[str]()

    def account_of(root: str, name: str) -> int:
        looked[name] += 1
        if looked[name] == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return 7 if name == theirs else 6

    monkeypatch.setattr(claims, "account_of", account_of)
    monkeypatch.setattr(local, "BURY_AGAIN_S", 2.0**-local.DOUBLED / 10)
    second, later = LocalBackend(rig.root / "backend", cgroups=False), Reports()
    second.open(later)
    try:
        for order in orders:
            assert second.observe(order.attempt_id) == Live(None)
            second._known[order.attempt_id].resists = 2000
        rig.end_of(later, orders[-1])
        assert len(tried) == 1, "one account has one thread"
        they_are_gone.set()
        for order in orders:
            assert rig.end_of(later, order).cause is Cause.LOST
        assert len(tried) == len(orders) - 1
    finally:
        they_are_gone.set()
        second.close()


def test_the_writer_looks_at_no_supervisor_that_is_overdue(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = rig.order("last for ever")
    backend.launch(order)
    rig.start_of(reports, order)
    real, looked = Lookers.call, list[int]()

    def call(self: Lookers, *args: Any, **more: Any) -> Any:
        looked.append(threading.get_ident())
        return real(self, *args, **more)

    monkeypatch.setattr(Lookers, "call", call)
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED
    assert threading.get_ident() not in looked


def test_a_supervisor_hears_its_stop_though_nobody_can_look_at_it(
    rig: LocalRig, backend: LocalBackend, reports: Reports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a job has all the processes that the account of the server may have."""
    if not procs.own_serial():
        pytest.skip("before Linux 6.9 a look tells that it is the supervisor")
    order = rig.order("succeed", argv=("sh", "-c", "kill -STOP $PPID; echo stopped; sleep 1000; :"))
    backend.launch(order)
    wait_for(lambda: backend.read_log(order.attempt_id, 0, 100).content == b"stopped\n", "its supervisor to be stopped")

    def refuse(*args: Any, **more: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    backend._lookers.close()
    backend._lookers = Lookers()
    backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGKILL, 0.0, overdue=True))
    assert rig.end_of(reports, order).cause is Cause.CANCELLED


def test_who_is_late_to_wake_a_watcher_writes_to_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A burial may end after the server has closed; its descriptor may be somebody else's by then."""
    backend, written = LocalRig(tmp_path).backend(), list[int]()
    backend.open(Reports())
    watcher = backend._watcher
    assert watcher is not None
    backend.close()
    monkeypatch.setattr(os, "eventfd_write", lambda fd, value: written.append(fd))
    watcher.post(lambda: None)
    assert written == []


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
