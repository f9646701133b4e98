"""When memory runs out the kernel takes a process. It takes no supervisor, a job that asked for memory last, and a run
is to blame only for a bound of its own."""

from __future__ import annotations

import ctypes
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota.adapters.backends import oom, procs
from rota.app.ports import LaunchOrder, Live, StopOrder
from rota.core.run import Cause, Exit
from tests.backends.helpers import wait_for
from tests.backends.test_limits import TAKE, Host, host, take

HOLD = f"{TAKE}; import time; time.sleep(1000)"
# One process after the other, each small, until there are so many; then they stay.
MANY_SMALL = (
    "import os, sys, time\n"
    "for _ in range(int(sys.argv[1])):\n"
    "    if os.fork() == 0:\n"
    "        taken = bytearray(int(sys.argv[2]) << 20)\n"
    "        time.sleep(1000)\n"
    "    time.sleep(0.002)\n"
    "print('made', flush=True)\n"
    "time.sleep(1000)"
)


def hold(mib: int) -> tuple[str, ...]:
    return ("python3", "-c", HOLD, str(mib))


def test_a_supervisor_is_not_taken_before_a_job(tmp_path: Path, enforced: frozenset[str]) -> None:
    """Nor is the launcher; and a run that asked for memory, which has a bound of its own, comes after one that did not.
    Both ways into a command, spawned and forked, and what it forks in turn."""
    command = ("sh", "-c", "cat /proc/self/oom_score_adj; sleep 1000")
    with host(tmp_path) as here:
        scores = []
        for changes in ({}, {"memory_gb": 1.0}, {"terminal": True}):
            order = here.launch(command, **changes)
            wait_for(lambda order=order: here.log(order).strip(), "its score")  # type: ignore[misc]
            (supervisor,) = {procs.parent(task) for task in _tasks(here, order)}
            assert _score(supervisor) == _score(os.getpid()), "a supervisor has the score of the server"
            assert _score(procs.parent(supervisor or 0)) == _score(os.getpid()), "and so has the launcher"
            scores.append(int(here.log(order)))
        plain, asked, terminal = scores
        assert min(plain, asked) > _score(os.getpid())
        assert plain == terminal and (asked < plain or "memory" not in enforced)


def test_many_small_processes_hurt_no_run_that_keeps_to_what_it_asked_for(
    tmp_path: Path, needs: Callable[..., None]
) -> None:
    """All memory for jobs is used up by processes that are smaller than any supervisor."""
    needs("memory")
    with host(tmp_path, memory_bytes=256 << 20) as here:
        asked = here.launch(hold(60), memory_gb=0.15)
        small = here.launch(("sleep", "1000"))
        for order in (asked, small):
            here.rig.start_of(here.reports, order)
        wait_for(lambda: "MiB" in here.log(asked), "its memory")
        greedy = here.launch(("python3", "-c", MANY_SMALL, "150", "3"))
        wait_for(lambda: "made" in here.log(greedy) or _end(here, greedy) is not None, "all memory to be used")
        here.backend.stop(greedy.attempt_id, StopOrder("cancelled", 9, 0.0))
        end = here.rig.end_of(here.reports, greedy)
        assert end.oom or end.machine_oom, "it met a bound"
        for order in (asked, small):
            assert isinstance(here.backend.observe(order.attempt_id), Live), "and nobody else did"


def test_a_run_below_its_own_bound_is_not_to_blame(tmp_path: Path, needs: Callable[..., None]) -> None:
    """Two runs keep to what they asked for, which together is more than there is: the kernel takes the larger."""
    needs("memory")
    with host(tmp_path, memory_bytes=256 << 20) as here:
        larger = here.launch(hold(150), memory_gb=0.25)
        wait_for(lambda: "MiB" in here.log(larger), "its memory")
        end = here.run(take(130), memory_gb=0.25)
        killed = here.rig.end_of(here.reports, larger)
        assert (killed.cause, killed.signal) == (Cause.EXITED, signal.SIGKILL)
        assert (killed.oom, killed.machine_oom) == (False, True)
        assert end.ok and not end.oom and not end.machine_oom, "the other one has what was freed"
        own = here.run(take(400), memory_gb=0.1)
        assert (own.oom, own.machine_oom) == (True, False), "the shortage before is not counted again"


def test_a_run_alone_that_takes_all_memory_meets_a_bound_of_its_own(tmp_path: Path, needs: Callable[..., None]) -> None:
    """It asked for no amount; it is to blame all the same, and must not be tried again in vain."""
    needs("memory")
    with host(tmp_path, memory_bytes=512 << 20) as here:
        end = here.run(take(800))
        assert (end.signal, end.oom, end.machine_oom) == (signal.SIGKILL, True, False)
        assert here.run(take(440)).ok, "nearly all of it is there for one"


# a file in memory that outlives its process, as a killed data loader leaves one
LEAVE = "import sys; open(sys.argv[1], 'wb').write(bytes(int(sys.argv[2]) << 20))"


# SysV messages: each of one byte takes far more of the kernel's memory
LEAVE_MESSAGES = """
import ctypes, struct, sys
libc, message = ctypes.CDLL(None), struct.pack('lc', 1, b'x')
with open(sys.argv[1], 'w') as file:
    for _ in range(int(sys.argv[2])):
        queue = libc.msgget(0, 0o600)
        print(queue, file=file, flush=True)
        while libc.msgsnd(queue, message, ctypes.c_size_t(1), 0o4000) == 0:
            pass
"""
IPC_RMID = 0


@pytest.fixture
def left() -> Iterator[str]:
    path = f"/dev/shm/rota-test-{os.urandom(6).hex()}"
    yield path
    Path(path).unlink(missing_ok=True)


@pytest.fixture
def left_queues(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "queues"
    yield path
    for line in path.read_text().split() if path.exists() else ():
        ctypes.CDLL(None).msgctl(int(line), IPC_RMID, None)


@pytest.mark.parametrize("what", ["shared memory", "messages"])
@pytest.mark.parametrize("changes", [{}, {"memory_gb": 0.5}], ids=["no amount", "an amount"])
def test_nobody_runs_in_a_group_with_what_another_run_left_in_memory(  # noqa: PLR0917 - fixtures
    tmp_path: Path, needs: Callable[..., None], left: str, left_queues: Path, changes: dict[str, object], what: str
) -> None:
    """It would count against the bound of the next run there, which then would be to blame."""
    needs("memory")
    mib = 28 + (oom.AHEAD >> 20)
    queues = 12 + (oom.AHEAD >> 20)  # each of 1 MiB at least
    program = f'"{LEAVE}" {left} {mib}' if what == "shared memory" else f'"{LEAVE_MESSAGES}" {left_queues} {queues}'
    leave = f"cat /proc/self/cgroup; exec python3 -c {program}"

    def groups(order: LaunchOrder) -> set[str]:
        return {line for line in here.log(order).splitlines() if f"/{here.backend.group_name}/" in line}

    with host(tmp_path) as here:
        order = here.launch(("sh", "-c", leave), **changes)
        assert here.rig.end_of(here.reports, order).ok, here.log(order)
        spoilt = groups(order)
        assert spoilt
        for _ in range(6):
            order = here.launch(("cat", "/proc/self/cgroup"), **changes)
            assert here.rig.end_of(here.reports, order).ok
            assert not groups(order) & spoilt


@pytest.mark.parametrize("unified", [True, False])
def test_what_cpus_keep_charged_ahead_was_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unified: bool
) -> None:
    """A directory stands in for the group of a machine with 64 CPUs."""
    monkeypatch.setattr(oom, "AHEAD", 16 << 20)
    used = tmp_path / ("memory.current" if unified else "memory.usage_in_bytes")
    used.write_text("0\n")
    watch = oom.OomWatch(str(tmp_path), unified=unified)
    watch.begin([])
    used.write_text(f"{19 << 20}\n")
    assert watch.left_over() <= oom.LEFT_OVER
    used.write_text(f"{21 << 20}\n")
    assert watch.left_over() > oom.LEFT_OVER


def test_a_shortage_of_all_jobs_names_what_ended_runs_left_in_memory(
    tmp_path: Path, needs: Callable[..., None], left: str
) -> None:
    needs("memory")
    with host(tmp_path, memory_bytes=512 << 20) as here:
        assert here.run(("python3", "-c", LEAVE, left, "200")).ok
        end = here.run(take(440))
        assert (end.oom, end.machine_oom) == (False, True)
        assert re.search(r"\b(19\d|20\d) MiB of .* shared memory .* ended runs", end.message), end.message
        Path(left).unlink()
        assert here.run(take(440)).ok, "it is free again"


@pytest.mark.parametrize(
    ("events", "struck"),
    [
        ("oom 0\noom_kill 0\n", ""),
        ("oom 1\noom_kill 2\n", oom.OWN),
        ("oom 0\noom_kill 1\n", oom.MACHINE),
        ("oom 3\noom_kill 0\n", ""),
    ],
)
def test_in_v2_the_group_says_at_whose_bound_it_was(tmp_path: Path, events: str, struck: str) -> None:
    """A directory stands in for the group. The kernel counts `oom` where the bound is, and `oom_kill` where the process
    was."""
    watch = oom.OomWatch(str(tmp_path), unified=True)
    watch.begin([])
    (tmp_path / "memory.events").write_text(f"low 0\nhigh 0\nmax 7\n{events}oom_group_kill 0\n")
    assert watch.end() == struck
    watch.begin([])
    assert watch.end() == "", "each is counted once"


class Told:
    """What the kernel tells a v1 group; `then` happens after the next look."""

    told = True

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.number, self.then = 0, then

    def count(self) -> int:
        number, self.number = self.number, 0
        self.then()
        return number


def test_in_v1_a_shortage_of_all_at_the_begin_of_a_run_is_not_blamed_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups are looked at one after the other, and it may come in between."""
    looks = []

    def strike() -> None:
        looks.append(1)
        if len(looks) == 1:
            of_all.number += 1
            of_worker.number += 1

    of_all, of_worker = Told(strike), Told(strike)
    watch = oom.OomWatch(str(tmp_path), unified=True)
    for name, value in {"_unified": False, "_all": of_all, "_worker": of_worker}.items():
        monkeypatch.setattr(watch, name, value)
    watch.begin([])
    (tmp_path / "memory.oom_control").write_text("oom_kill 1\n")
    assert watch.end() == oom.MACHINE


def _end(here: Host, order: LaunchOrder) -> Exit | None:
    seen = here.backend.observe(order.attempt_id)
    return seen if isinstance(seen, Exit) else None


def _tasks(here: Host, order: LaunchOrder) -> list[int]:
    def seen() -> list[int]:
        observed = here.backend.observe(order.attempt_id)
        return [observed.pid] if isinstance(observed, Live) and observed.pid is not None else []

    return wait_for(seen, "its pid")  # type: ignore[no-any-return]


def _score(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_a_supervisor_carries_runs_of_one_account_alone(tmp_path: Path) -> None:
    """What a run leaves in memory may not be seen when it ends, and counts in the groups of its supervisor."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run jobs as other accounts")
    carried: dict[int, set[str]] = {}
    with host(tmp_path) as here:
        for account in ("nobody", "daemon", "", "nobody", "daemon", "", "nobody"):
            order = here.launch(("sh", "-c", "ps -o ppid= -p $$"), account=account or None, workdir="/")
            assert here.rig.end_of(here.reports, order).ok, here.log(order)
            carried.setdefault(int(here.log(order)), set()).add(account)
    assert len(carried) >= 3
    assert all(len(accounts) == 1 for accounts in carried.values()), carried


def test_supervisors_that_wait_for_one_account_are_no_spares_of_another(tmp_path: Path) -> None:
    """Else each start of the other one would fork, and make groups, before its order is carried out."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run jobs as other accounts")
    with host(tmp_path) as here:
        carried: list[int] = []

        def hold_two(account: str) -> list[LaunchOrder]:
            orders = [here.launch(("sleep", "1000"), account=account, workdir="/") for _ in range(2)]
            for order in orders:
                carried.extend(procs.parent(task) or 0 for task in _tasks(here, order))
            return orders

        for order in hold_two("daemon"):
            here.backend.stop(order.attempt_id, StopOrder("cancelled", 9, 0.0))
            here.rig.end_of(here.reports, order)
        hold_two("nobody")
        zygote = procs.parent(carried[-1]) or 0
        wait_for(lambda: len(set(procs.children(zygote)) - set(carried)) >= 2, "spares for anybody")
