"""Whatever keeps a supervisor's look at processes from ending, the run ends when it has to, and starts go on."""

from __future__ import annotations

import os
import signal
from functools import partial

import pytest

from rota.adapters.backends import procs, stuck
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import is_over
from tests.backends.helpers import COMMANDS, command_lines, wait_for
from tests.backends.test_left_behind import Place, place, up

DEAF = "trap '' TERM; echo up; while :; do sleep 0.01; done"
NEVER_S = 10_000.0
LOOK = "TimeoutError: a look at its processes does not end"


def retires(here: Place, shim: int) -> None:
    """The lock of a process that has ended, but for a thread that waits, is free."""
    wait_for(lambda: procs.fields(shim) is None or (procs.fields(shim) or [b""])[0] == b"Z", "it retires")
    assert stuck.waits(shim), "it is still there, and waits"
    assert here.run()[1] != shim, "it carries no other attempt"
    here.let_go()
    wait_for(lambda: procs.start_time(shim) is None, "the supervisor is gone")


@pytest.mark.parametrize("cgroups", [True, False], ids=["cgroups", "no cgroups"])
def test_the_limit_comes_to_its_kill(cgroups: bool) -> None:
    with place("listdir", cgroups=cgroups) as here:
        here.hold()
        order = here.launch(
            argv=("sh", "-c", DEAF), time_limit_s=0.5, grace_s=1.0, warn_signal=signal.SIGUSR1, warn_s=0.1
        )
        shim = here.supervisor(order)
        end = here.rig.end_of(here.reports, order)
        assert (end.cause, end.signal) == (Cause.TIME_LIMIT, signal.SIGKILL)
        assert "could not be looked at" in end.message
        assert f"could not warn it: {LOOK}" in here.note(order)
        assert f"could not send it SIGTERM: {LOOK}" in here.note(order)
        retires(here, shim)


def test_a_cancel_at_once_is_heard_while_a_look_does_not_end() -> None:
    with place("listdir") as here:
        order = here.launch(argv=("sh", "-c", DEAF))
        up(here, order)
        here.hold()
        here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=NEVER_S))
        shim = here.supervisor(order)
        wait_for(lambda: stuck.waits(shim), "its look to wait")
        here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.0))
        assert here.rig.end_of(here.reports, order).signal == signal.SIGKILL
        retires(here, shim)


def test_a_program_with_a_handler_is_told_without_a_look() -> None:
    with place("listdir") as here:
        order = here.launch(argv=COMMANDS["exit 5 on USR1"])
        wait_for(lambda: b"ready" in here.backend.read_log(order.attempt_id, 0, 100).content, "its handler")
        here.hold()
        here.backend.stop(order.attempt_id, StopOrder("cancelled", signal.SIGUSR1, NEVER_S))
        assert here.rig.end_of(here.reports, order).code == 5


def test_one_without_a_handler_is_told_where_nothing_else_is_in_its_cgroup() -> None:
    with place("listdir") as here:
        order = here.launch(argv=COMMANDS["last for ever"])
        assert here.rig.start_of(here.reports, order)
        here.hold()
        here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=NEVER_S))
        assert here.rig.end_of(here.reports, order).signal == signal.SIGTERM


def test_a_launcher_is_not_told_as_its_program_would_be_killed_with_it() -> None:
    with place("listdir") as here:
        program = "trap 'sleep 0.2; exit 3' USR1; echo up; while :; do sleep 0.01; done"
        order = here.launch(argv=("sh", "-c", f'sh -c "{program}"; :'))
        up(here, order)
        here.hold()
        begun = procs.time_awake()
        here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=6.0))
        end = here.rig.end_of(here.reports, order)
        assert end.signal == signal.SIGKILL
        assert "could not be looked at" in end.message
        assert procs.time_awake() - begun >= 6.0


def test_what_ends_by_itself_is_not_looked_at() -> None:
    with place("listdir") as here:
        _, shim = here.run()
        here.hold()
        for _ in range(5):
            here.run(argv=("sh", "-c", "sleep 1000 & exit 0"))
        assert not stuck.waits(shim)


def test_more_looks_than_that_are_not_left_behind() -> None:
    with place("listdir", most_left=0) as here:
        order = here.launch(argv=("sh", "-c", DEAF))
        up(here, order)
        here.hold()
        here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.5))
        shim = here.supervisor(order)
        wait_for(lambda: not procs.children(shim), "all of it to be killed")
        wait_for(lambda: len(stuck.waits(shim)) >= 2, "it to ask what it waits for")
        assert not is_over(here.backend, order.attempt_id)
        here.let_go()
        assert here.rig.end_of(here.reports, order).cause is Cause.CANCELLED


def test_places_are_kept_until_the_look_has_ended() -> None:
    def is_cancelled(order: LaunchOrder) -> bool:
        return is_over(here.backend, order.attempt_id)

    with place("listdir", most_left=1) as here:
        orders = [here.launch(argv=("sh", "-c", DEAF)) for _ in range(2)]
        for order in orders:
            up(here, order)
        here.hold()
        for order in orders:
            here.backend.stop(order.attempt_id, StopOrder("cancelled", grace_s=0.5))
        wait_for(lambda: any(map(is_cancelled, orders)), "one to be left behind")
        other = next(order for order in orders if not is_cancelled(order))
        shim = here.supervisor(other)
        wait_for(lambda: not procs.children(shim) and len(stuck.waits(shim)) >= 2, "the other one to wait")
        assert not is_cancelled(other)
        here.let_go()
        wait_for(partial(is_cancelled, other), "its end")


def test_starts_go_on_while_somebody_holds_the_list_of_the_launchers_threads() -> None:
    mark = f"sleep\0{10_000 + os.getpid()}"
    with place("listdir", cgroups=False) as here:
        order = here.launch(argv=("sleep", mark.partition("\0")[2]))
        assert here.rig.start_of(here.reports, order)
        here.hold()
        os.kill(here.supervisor(order), signal.SIGKILL)
        assert here.rig.end_of(here.reports, order).cause is Cause.LOST
        assert command_lines(mark) == [], "the launcher has cleared up"
        assert here.run()
