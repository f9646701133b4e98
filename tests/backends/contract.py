"""What every backend promises, as tests. A backend joins by subclassing BackendContract and giving it a `rig`.

The rig says how to make a backend, how to say "a command that fails" to it, and how to let time pass until something
is true: a real backend waits, a simulated one advances its clock.
"""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import pytest

from rota.app.ports import Absent, Backend, Ended, LaunchOrder, Live, Report, Started, StopOrder, Task
from rota.core.run import Cause, Exit

Kind = Literal["succeed", "fail with 3", "last for ever", "ignore TERM", "say hello", "exit 5 on USR1"]


class Reports:
    """All that a backend reported, in order; filled from any thread."""

    def __init__(self) -> None:
        self._all: list[Report] = []
        self._lock = threading.Lock()

    def __call__(self, report: Report) -> None:
        with self._lock:
            self._all.append(report)

    def of(self, attempt_id: str) -> list[Report]:
        with self._lock:
            return [each for each in self._all if each.attempt_id == attempt_id]

    def started(self, attempt_id: str) -> Started | None:
        return next((each for each in self.of(attempt_id) if isinstance(each, Started)), None)

    def exit(self, attempt_id: str) -> Exit | None:
        return next((each.exit for each in self.of(attempt_id) if isinstance(each, Ended)), None)


def is_over(backend: Backend, attempt_id: str) -> bool:
    return isinstance(backend.observe(attempt_id), Exit)


class Rig(ABC):
    @abstractmethod
    def backend(self) -> Backend:
        """A new one, not opened, over the same lasting state as the last."""

    @abstractmethod
    def argv(self, kind: Kind) -> tuple[str, ...]: ...

    @abstractmethod
    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Let time pass until the condition gives something true; that something. Fails loudly when it does not
        come."""

    @abstractmethod
    def workdir(self) -> str: ...

    def order(self, kind: Kind, **changes: Any) -> LaunchOrder:
        fields: dict[str, Any] = {
            "attempt_id": f"{os.urandom(6).hex()}-1",
            "argv": self.argv(kind),
            "env": {"PATH": "/usr/bin:/bin"},
            "workdir": self.workdir(),
            "tasks": (Task("here", ()),),
        }
        return LaunchOrder(**{**fields, **changes})

    def end_of(self, reports: Reports, order: LaunchOrder) -> Exit:
        end = self.until(lambda: reports.exit(order.attempt_id), f"end of {order.attempt_id}")
        assert isinstance(end, Exit)
        return end

    def start_of(self, reports: Reports, order: LaunchOrder) -> Started:
        started = self.until(lambda: reports.started(order.attempt_id), f"start of {order.attempt_id}")
        assert isinstance(started, Started)
        return started


class BackendContract:
    @pytest.fixture
    def reports(self) -> Reports:
        return Reports()

    @pytest.fixture
    def backend(self, rig: Rig, reports: Reports) -> Iterator[Backend]:
        backend = rig.backend()
        backend.open(reports)
        yield backend
        for stray in backend.strays():
            backend.stop(stray, StopOrder("cancelled", 9, 0.0))
            rig.until(partial(is_over, backend, stray), f"clean-up of {stray}")
        backend.close()

    def test_a_command_runs_and_its_end_is_reported_once(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("succeed")
        backend.launch(order)
        end = rig.end_of(reports, order)
        assert (end.cause, end.code, end.signal, end.ok) == (Cause.EXITED, 0, None, True)
        assert end.started_tick is not None and end.ended_tick is not None and end.ended_tick >= end.started_tick
        assert len([each for each in reports.of(order.attempt_id) if isinstance(each, Ended)]) == 1

    def test_an_exit_code_comes_back(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("fail with 3")
        backend.launch(order)
        assert (rig.end_of(reports, order).cause, rig.end_of(reports, order).code) == (Cause.EXITED, 3)

    def test_a_lasting_command_is_reported_started_and_seen_live(
        self, rig: Rig, backend: Backend, reports: Reports
    ) -> None:
        order = rig.order("last for ever")
        backend.launch(order)
        started = rig.start_of(reports, order)
        assert backend.observe(order.attempt_id) == Live(started.pid)
        assert reports.exit(order.attempt_id) is None

    def test_a_cancel_ends_it_with_its_cause(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("last for ever")
        backend.launch(order)
        rig.start_of(reports, order)
        backend.stop(order.attempt_id, StopOrder("preempted"))
        end = rig.end_of(reports, order)
        assert (end.cause, end.signal) == (Cause.PREEMPTED, 15)
        assert isinstance(reports.of(order.attempt_id)[0], Started), "a start is never reported after the end"

    def test_who_ignores_the_polite_signal_is_killed(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("ignore TERM")
        backend.launch(order)
        rig.start_of(reports, order)
        rig.until(lambda: backend.read_log(order.attempt_id, 0, 100).content == b"deaf\n", "deafness")
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.2))
        end = rig.end_of(reports, order)
        assert (end.cause, end.code, end.signal) == (Cause.CANCELLED, None, 9)

    def test_a_stop_right_after_the_launch_is_not_lost(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        orders = [rig.order("last for ever") for _ in range(10)]
        for order in orders:
            backend.launch(order)
            backend.stop(order.attempt_id, StopOrder("cancelled"))
        for order in orders:
            assert rig.end_of(reports, order).cause in (Cause.CANCELLED, Cause.NEVER_STARTED)

    def test_stopping_the_unclaimed_vetoes_it_for_ever(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("say hello")
        assert backend.observe(order.attempt_id) == Absent()
        backend.stop(order.attempt_id, StopOrder("cancelled"))
        assert rig.end_of(reports, order).cause is Cause.NEVER_STARTED
        backend.launch(order)
        rig.until(lambda: len(reports.of(order.attempt_id)) >= 2, "a second report")
        assert reports.of(order.attempt_id)[-1] == Ended(order.attempt_id, rig.end_of(reports, order))
        assert backend.read_log(order.attempt_id, 0, 100).content == b""

    def test_launching_twice_starts_once(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("say hello")
        backend.launch(order)
        backend.launch(order)
        rig.end_of(reports, order)
        backend.launch(order)
        rig.until(lambda: len([e for e in reports.of(order.attempt_id) if isinstance(e, Ended)]) >= 2, "the answer")
        assert backend.read_log(order.attempt_id, 0, 100).content == b"hello\n"

    def test_the_end_is_the_same_for_ever(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("fail with 3")
        backend.launch(order)
        end = rig.end_of(reports, order)
        assert backend.observe(order.attempt_id) == backend.observe(order.attempt_id) == end
        backend.stop(order.attempt_id, StopOrder("cancelled"))
        assert backend.observe(order.attempt_id) == end

    def test_attempts_outlive_the_server_and_are_adopted(self, rig: Rig, reports: Reports) -> None:
        order, brief = rig.order("last for ever"), rig.order("succeed")
        first = rig.backend()
        first.open(reports)
        first.launch(order)
        first.launch(brief)
        started = rig.start_of(reports, order)
        rig.end_of(reports, brief)
        first.close()

        later = Reports()
        second = rig.backend()
        second.open(later)
        try:
            assert second.observe(order.attempt_id) == Live(started.pid)
            assert isinstance(second.observe(brief.attempt_id), Exit)
            assert {order.attempt_id, brief.attempt_id} <= set(second.strays())
            second.launch(order)  # a server that does not remember having launched it
            second.stop(order.attempt_id, StopOrder("cancelled"))
            assert rig.end_of(later, order).cause is Cause.CANCELLED
        finally:
            second.close()

    def test_what_is_forgotten_is_no_stray_and_keeps_its_log(
        self, rig: Rig, backend: Backend, reports: Reports
    ) -> None:
        order = rig.order("say hello")
        backend.launch(order)
        rig.end_of(reports, order)
        assert order.attempt_id in backend.strays()
        backend.forget(order.attempt_id)
        backend.forget(order.attempt_id)
        assert order.attempt_id not in backend.strays()
        assert backend.read_log(order.attempt_id, 0, 100).content == b"hello\n"
        assert isinstance(backend.observe(order.attempt_id), Exit)

    def test_a_log_is_read_by_cursor_from_either_end(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("say hello")
        assert backend.read_log(order.attempt_id, 0, 100).size == 0
        backend.launch(order)
        rig.end_of(reports, order)
        head = backend.read_log(order.attempt_id, 0, 3)
        assert (head.content, head.offset, head.size) == (b"hel", 0, 6)
        assert backend.read_log(order.attempt_id, 3, 100).content == b"lo\n"
        assert backend.read_log(order.attempt_id, -3, 100).content == b"lo\n"
        assert backend.read_log(order.attempt_id, 6, 100).content == b""
        assert backend.read_log(order.attempt_id, 600, 100).content == b""

    def test_a_time_limit_ends_it(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("last for ever", time_limit_s=0.3)
        backend.launch(order)
        end = rig.end_of(reports, order)
        assert (end.cause, end.signal) == (Cause.TIME_LIMIT, 15)
        assert end.started_tick is not None and end.ended_tick is not None
        assert end.ended_tick - end.started_tick >= 0.3

    def test_who_has_a_handler_is_warned_before_the_limit(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("exit 5 on USR1", time_limit_s=600.0, warn_signal=signal.SIGUSR1, warn_s=598.0)
        backend.launch(order)
        end = rig.end_of(reports, order)
        assert (end.cause, end.code, end.warned, end.killed) == (Cause.EXITED, 5, True, False)
        assert end.started_tick is not None and end.ended_tick is not None
        assert end.ended_tick - end.started_tick >= 2.0

    def test_a_warning_ends_nobody_who_never_heard_of_it(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("last for ever", time_limit_s=0.4, warn_signal=signal.SIGUSR1, warn_s=0.3)
        backend.launch(order)
        end = rig.end_of(reports, order)
        assert (end.cause, end.signal, end.warned) == (Cause.TIME_LIMIT, 15, False)

    def test_a_program_that_saves_and_leaves_when_stopped_was_stopped(
        self, rig: Rig, backend: Backend, reports: Reports
    ) -> None:
        order = rig.order("exit 5 on USR1", time_limit_s=1000.0, warn_signal=signal.SIGUSR1, warn_s=60.0)
        backend.launch(order)
        rig.until(lambda: backend.read_log(order.attempt_id, 0, 100).content == b"ready\n", "its handler")
        backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGUSR1, 1000.0))
        end = rig.end_of(reports, order)
        assert (end.cause, end.code, end.signal) == (Cause.PREEMPTED, 5, None)
        assert (end.killed, end.message, end.warned) == (False, "", False)

    def test_who_had_to_be_killed_is_told_of(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("ignore TERM", time_limit_s=1000.0)
        backend.launch(order)
        rig.until(lambda: backend.read_log(order.attempt_id, 0, 100).content == b"deaf\n", "deafness")
        backend.stop(order.attempt_id, StopOrder("preempted", grace_s=0.2))
        end = rig.end_of(reports, order)
        assert (end.cause, end.killed) == (Cause.PREEMPTED, True)
        assert end.message == "it ignored SIGTERM and was killed after its grace of 0.2 s"

    def test_who_was_to_save_and_cannot_is_told_of(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        for signum in (signal.SIGUSR1, signal.SIGTERM):
            order = rig.order("last for ever")
            backend.launch(order)
            rig.start_of(reports, order)
            backend.stop(order.attempt_id, StopOrder("preempted", signum, 1000.0, saves=True))
            end = rig.end_of(reports, order)
            assert (end.cause, end.signal, end.killed) == (Cause.PREEMPTED, signum, True)
            assert end.message == f"nothing of it had a handler for {signum.name}, so it ended without saving"

    def test_nobody_is_said_to_have_ignored_what_left_no_time(
        self, rig: Rig, backend: Backend, reports: Reports
    ) -> None:
        order = rig.order("last for ever")
        backend.launch(order)
        rig.start_of(reports, order)
        backend.stop(order.attempt_id, StopOrder("preempted", signal.SIGKILL, 0.0))
        end = rig.end_of(reports, order)
        assert (end.cause, end.signal, end.killed, end.message) == (Cause.PREEMPTED, 9, False, "")

    def test_a_second_stop_may_hasten_the_end(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        order = rig.order("ignore TERM")
        backend.launch(order)
        rig.start_of(reports, order)
        rig.until(lambda: backend.read_log(order.attempt_id, 0, 100).content == b"deaf\n", "deafness")
        backend.stop(order.attempt_id, StopOrder("preempted", grace_s=3600.0))
        backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.1))
        assert rig.end_of(reports, order).cause is Cause.CANCELLED, "somebody does not want it back"

    def test_purging_takes_what_is_over_forgotten_and_old(self, rig: Rig, backend: Backend, reports: Reports) -> None:
        kept, gone, lasting = rig.order("say hello"), rig.order("say hello"), rig.order("last for ever")
        for order in (kept, gone, lasting):
            backend.launch(order)
        for order in (kept, gone):
            rig.end_of(reports, order)
        rig.start_of(reports, lasting)
        backend.forget(gone.attempt_id)
        assert backend.purge(0.0) == 0, "nothing is that old"
        assert backend.purge(1e12) == 1
        assert backend.read_log(gone.attempt_id, 0, 100).content == b""
        assert backend.read_log(kept.attempt_id, 0, 100).content == b"hello\n"
        assert isinstance(backend.observe(lasting.attempt_id), Live)

    def test_ids_are_not_paths(self, backend: Backend) -> None:
        for wrong in ("../../etc/passwd", "", "000000000001", "000000000001-0", "000000000001-1\n", "/etc", "a\0b"):
            for act in (backend.observe, backend.forget, lambda name: backend.read_log(name, 0, 10)):
                with pytest.raises(ValueError, match="attempt id"):
                    act(wrong)
