"""What a run asks for is what it gets: memory, CPU time and a number of processes, by cgroup v2 or v1."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from rota.adapters.backends import confine, limits
from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, Live, StopOrder, Task
from rota.core.run import Cause, Exit
from tests.backends.contract import Reports, is_over
from tests.backends.helpers import LocalRig, command_lines, wait_for

TAKE = "import sys; taken = bytearray(int(sys.argv[1]) << 20); print(len(taken) >> 20, 'MiB', flush=True)"


def take(mib: int) -> tuple[str, ...]:
    return ("python3", "-c", TAKE, str(mib))


class Host:
    """A backend with what was reported, closed and swept at the end."""

    def __init__(self, rig: LocalRig) -> None:
        self.rig, self.reports = rig, Reports()
        self.backend: LocalBackend = rig.backend()
        self.backend.open(self.reports)

    def launch(self, argv: tuple[str, ...], **changes: object) -> LaunchOrder:
        order = self.rig.order("succeed", argv=argv, **changes)
        self.backend.launch(order)
        return order

    def run(self, argv: tuple[str, ...], **changes: object) -> Exit:
        return self.rig.end_of(self.reports, self.launch(argv, **changes))

    def log(self, order: LaunchOrder) -> str:
        return self.backend.read_log(order.attempt_id, 0, 1 << 16).content.decode()

    def groups(self) -> list[str]:
        """Every group of this backend, in every hierarchy."""
        return [where for where, _, _ in os.walk("/sys/fs/cgroup") if f"/{self.backend.group_name}" in where]


@contextmanager
def hosting(root: Path, **settings: object) -> Iterator[Host]:
    """A server that comes and goes; its jobs stay."""
    opened = Host(LocalRig(root, **settings))
    try:
        yield opened
    finally:
        opened.backend.close()


@contextmanager
def host(root: Path, **settings: object) -> Iterator[Host]:
    opened = Host(LocalRig(root, **settings))
    try:
        yield opened
    finally:
        wait_for(lambda: opened.backend.enforced() is not None, "the launcher to be ready")
        for stray in opened.backend.strays():
            opened.backend.stop(stray, StopOrder("cancelled", 9, 0.0))
            wait_for(partial(is_over, opened.backend, stray), f"clean-up of {stray}")
        opened.backend.close()
        wait_for(lambda: not opened.groups(), "every group to be removed")


def test_more_memory_than_asked_for_is_killed_and_told_so(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("memory")
    with host(tmp_path) as here:
        end = here.run(take(400), memory_gb=0.1)
        assert (end.cause, end.signal, end.oom) == (Cause.EXITED, signal.SIGKILL, True)
        within = here.run(take(40), memory_gb=0.1)
        assert within.ok and not within.oom, "the end before must not be counted again"
        free = here.run(take(400))
        assert free.ok and not free.oom, "a limit does not stay with the worker"


def test_a_shell_above_the_killed_process_does_not_hide_it(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("memory")
    with host(tmp_path) as here:
        end = here.run(("sh", "-c", f'python3 -c "{TAKE}" 400; exit $?'), memory_gb=0.1)
        assert (end.code, end.oom) == (137, True)


def test_each_task_of_a_gang_has_its_own_memory(tmp_path: Path, needs: Callable[..., None]) -> None:
    """`memory_gb` is what a run asks for on each node, and a gang has one task on each."""
    needs("memory")
    tasks = (Task("a", (0,)), Task("b", (1,)))
    with host(tmp_path) as here:
        assert here.run(take(60), memory_gb=0.1, tasks=tasks).ok, "two of 60 MiB, 0.1 GB each"
        greedy = here.run(take(400), memory_gb=0.1, tasks=tasks)
        assert greedy.oom and not greedy.ok


def test_all_jobs_together_leave_memory_for_the_server(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("memory")
    with host(tmp_path, memory_bytes=256 << 20) as here:
        assert here.run(take(20)).ok
        end = here.run(take(600))
        assert not end.ok and end.oom, "no amount was asked for: the bound of all jobs holds"


def test_a_bound_that_changes_while_jobs_run_keeps_all_limits_on(tmp_path: Path, needs: Callable[..., None]) -> None:
    """A server restarts with more memory to give than before, then with less than its jobs use: none of them dies."""
    needs("memory", "pids", "cpu")
    rig, reports = LocalRig(tmp_path, memory_bytes=256 << 20), Reports()
    first = rig.backend()
    first.open(reports)
    hold = f"{TAKE}; import time; time.sleep(1000)"
    order = rig.order("succeed", argv=("python3", "-c", hold, "100"))
    first.launch(order)
    rig.until(lambda: b"MiB" in first.read_log(order.attempt_id, 0, 100).content, "its memory")
    first.close()
    try:
        for mib, bound in (512, 512), (256, 256), (64, 256), (300, 300):
            with hosting(tmp_path, memory_bytes=mib << 20) as here:
                wait_for(lambda here=here: here.backend.enforced() is not None, "the launcher to say what it may use")  # type: ignore[misc]
                assert here.backend.enforced() == frozenset({"memory", "pids", "cpu"}), f"{mib} MiB"
                assert _bound_of_all(here) == bound << 20, f"{mib} MiB"
                assert isinstance(here.backend.observe(order.attempt_id), Live)
                assert here.run(take(20)).ok
        said = (tmp_path / "backend" / "zygote.log").read_text()
        assert said.count("memory: ") == 1 and "64 MiB" in said and "256 MiB" in said, "of the one that was kept"
    finally:
        with host(tmp_path):
            pass  # which ends what runs


def _bound_of_all(here: Host) -> int:
    name = here.backend.group_name
    (base,) = [
        where
        for where in here.groups()
        if where.endswith(f"/{name}") and ("/memory" in where or os.path.exists(f"{where}/memory.max"))
    ]
    for file in ("memory.max", "memory.limit_in_bytes"):
        if os.path.exists(f"{base}/{file}"):
            return int(Path(f"{base}/{file}").read_text())
    raise AssertionError(base)


# What a program sees of the bound on itself: its controller, the file in v2, the files in v1.
LOOK = (
    "import sys\n"
    "controller, in_v2, *in_v1 = sys.argv[1:]\n"
    "mounts = [line.split(' - ') for line in open('/proc/self/mountinfo')]\n"
    "for line in open('/proc/self/cgroup'):\n"
    "    _, names, path = line.strip().split(':', 2)\n"
    "    for before, after in mounts:\n"
    "        kind, _, options = after.split(' ', 2)\n"
    "        where = before.split()[4] + path\n"
    "        if kind == 'cgroup' and controller in names.split(',') and controller in options.strip().split(','):\n"
    "            print(*(open(f'{where}/{name}').read().strip() for name in in_v1))\n"
    "        if kind == 'cgroup2' and not names:\n"
    "            try: print(open(f'{where}/{in_v2}').read().strip())\n"
    "            except FileNotFoundError: pass\n"
)


def test_cpus_are_a_share_of_time(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("cpu")
    look = ("python3", "-c", LOOK, "cpu", "cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")
    with host(tmp_path) as here:
        order = here.launch(look, cpus=1)  # a container may have no more
        assert here.rig.end_of(here.reports, order).ok, here.log(order)
        assert here.log(order) == "100000 100000\n"


def test_the_server_does_not_compete_with_each_process_of_a_run(tmp_path: Path, needs: Callable[..., None]) -> None:
    """In v1 each session outside a group weighs as much as the server, and a run can have thousands of them."""
    needs("cpu")
    with host(tmp_path) as here:
        for gpus, cpus in ((0, 0), (0, 1), (2, 0)):
            tasks = (Task("a", tuple(range(gpus))),)
            order = here.launch(
                ("sh", "-c", "cat /proc/self/cgroup; setsid cat /proc/self/cgroup"), cpus=cpus, tasks=tasks
            )
            assert here.rig.end_of(here.reports, order).ok
            lines = [line.split(":", 2) for line in here.log(order).splitlines()]
            at = {path for _, controllers, path in lines if "cpu" in controllers.split(",")}
            at = at or {path for _, controllers, path in lines if not controllers}
            assert len(at) == 1 and here.backend.group_name in at.pop()


def test_in_v1_all_runs_weigh_as_many_as_there_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    base = tmp_path / "cpu" / "rota-x"
    base.mkdir(parents=True)
    (base / "cpu.shares").write_text("1024")
    found = confine.Hierarchies(limits={"cpu": str(base)})
    assert limits.Bounds(found, None, None).apply() == []
    assert (base / "cpu.shares").read_text() == str(6 * 1024)
    groups = limits.WorkerGroups(found, "w")
    assert groups.any_group == "", "tasks that ask for CPUs leave it"
    (base / "w").mkdir()
    (base / "w" / "cpu.shares").write_text("1024")
    groups.weigh(3)
    assert (base / "w" / "cpu.shares").read_text() == str(3 * 1024)
    for rank, (asked, weight) in enumerate([(4, 4), (128, 6)]):
        task = Path(f"{base}-w-{rank}")
        task.mkdir()
        for file in ("cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"):
            (task / file).write_text("")
        groups.for_task(rank, 0, asked)
        assert (task / "cpu.shares").read_text() == str(weight * 1024)
        assert (task / "cpu.cfs_quota_us").read_text() == str(asked * 100_000)


def test_a_base_that_was_removed_is_made_anew_with_its_bounds(tmp_path: Path, needs: Callable[..., None]) -> None:
    """The last worker of an earlier server removes it, at any moment."""
    needs("memory", "pids", "cpu")
    with host(tmp_path) as here:
        assert here.run(("true",)).ok
        name = here.backend.group_name
    found = confine.probe(f"{name}-again")
    groups, bounds = limits.WorkerGroups(found, "w"), limits.Bounds(found, None, None)
    restore, removed = limits.Bounds.restore, list[str]()

    def then_remove(self: limits.Bounds) -> None:
        restore(self)
        if not removed:
            removed.extend(found.bases())
            for base in removed:
                confine.try_remove(base)

    child = os.fork()
    if child == 0:
        try:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(limits.Bounds, "restore", then_remove)
                groups.enter(bounds)
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
            os._exit(1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        base = found.limits["pids"]
        assert (Path(base) / "pids.max").read_text().strip() != "max"
        if found.cpu_v1():
            assert (Path(found.cpu_v1()) / "cpu.shares").read_text().strip() == str(1024 * len(os.sched_getaffinity(0)))
    finally:
        for base in (*found.bases(), found.devices):
            confine.discard(base)
            confine.clear(base)
            confine.try_remove_base(base)


def test_an_attempt_is_bounded_also_where_nothing_is_set(tmp_path: Path, needs: Callable[..., None]) -> None:
    """A fork bomb needs no request to be one."""
    needs("pids")
    # In v2 the bound is on the group above the one that the program is in.
    look = ("python3", "-c", LOOK, "pids", "../pids.max", "pids.max")
    with host(tmp_path) as here:
        order = here.launch(look)
        assert here.rig.end_of(here.reports, order).ok, here.log(order)
        assert 0 < int(here.log(order)) <= limits.processes_for(os.cpu_count() or 1)


def test_a_fork_bomb_stays_within_its_bound(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("pids")
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "while True:\n"
        "    try:\n"
        "        if os.fork() == 0: time.sleep(1000)\n"
        "    except OSError: break\n"
        "    made += 1\n"
        "    if made > 500: break\n"
        "print('made', made, flush=True)\n"
        "time.sleep(1000)"
    )
    mark = f"bomb{os.urandom(4).hex()}"
    with host(tmp_path, processes=60) as here:
        order = here.launch(("python3", "-c", bomb, mark))
        wait_for(lambda: "made" in here.log(order), "the bomb to reach its bound")
        assert 40 <= int(here.log(order).split()[1]) < 60
        assert here.run(("true",)).ok, "another run starts meanwhile"
        here.backend.stop(order.attempt_id, StopOrder("cancelled", 15, 0.0))
        assert here.rig.end_of(here.reports, order).cause is Cause.CANCELLED
        assert command_lines(mark) == []


def test_a_killed_supervisor_leaves_no_group(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("memory", "cpu")
    with host(tmp_path) as here:
        order = here.launch(("sleep", "1000"), memory_gb=1.0, cpus=1)
        here.rig.start_of(here.reports, order)
        before = [group for group in here.groups() if group.endswith(("/0", "-0"))]
        assert before, "it has groups of its own"
        shim = int(Path(here.rig.path(order.attempt_id, "pid")).read_text().split('"pid": ')[1].split(",")[0])
        os.kill(shim, signal.SIGKILL)
        assert here.rig.end_of(here.reports, order).cause is Cause.LOST
        wait_for(lambda: not any(os.path.exists(group) for group in before), "its groups to be gone")


def test_a_supervisor_killed_while_no_server_ran_leaves_no_group(tmp_path: Path, needs: Callable[..., None]) -> None:
    needs("memory")
    rig = LocalRig(tmp_path)
    first, reports = rig.backend(), Reports()
    first.open(reports)
    order = rig.order("last for ever", memory_gb=1.0)
    first.launch(order)
    rig.start_of(reports, order)
    first.close()
    shim = int(Path(rig.path(order.attempt_id, "pid")).read_text().split('"pid": ')[1].split(",")[0])
    os.kill(shim, signal.SIGKILL)
    with host(tmp_path) as here:
        assert isinstance(wait_for(lambda: _over(here, order), "its end"), Exit)
    # the host waits for every group to be gone


def _over(here: Host, order: LaunchOrder) -> Exit | None:
    seen = here.backend.observe(order.attempt_id)
    return seen if isinstance(seen, Exit) else None


def test_the_backend_says_what_it_bounds(tmp_path: Path, enforced: frozenset[str]) -> None:
    with host(tmp_path) as here:
        wait_for(lambda: here.backend.enforced() is not None, "the launcher to say what it may use")
        assert here.backend.enforced() == enforced
    with host(tmp_path, cgroups=False) as here:
        wait_for(lambda: here.backend.enforced() is not None, "the launcher to say what it may use")
        assert here.backend.enforced() == frozenset()


def test_without_cgroups_a_run_with_limits_runs_all_the_same(tmp_path: Path) -> None:
    with host(tmp_path, cgroups=False) as here:
        assert here.run(take(40), memory_gb=0.02, cpus=1).ok


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            2,
            {
                "memory.max": "2147483648",
                "memory.swap.max": "0",
                "pids.max": "100",
                "cpu.max": "400000 100000",
                "cpu.weight": "800",
            },
        ),
        (
            1,
            {
                "memory.limit_in_bytes": "2147483648",
                "memory.memsw.limit_in_bytes": "2147483648",
                "pids.max": "100",
                "cpu.cfs_period_us": "100000",
                "cpu.cfs_quota_us": "400000",
                "cpu.shares": "8192",
            },
        ),
    ],
)
def test_which_file_gets_which_text(tmp_path: Path, version: int, expected: dict[str, str]) -> None:
    """A directory stands in for a group: the kernel would make its files."""
    for name in expected:
        (tmp_path / name).touch()
    unified = version == 2
    limits.bound_memory(str(tmp_path), 2 << 30, unified=unified)
    limits.bound_processes(str(tmp_path), 100)
    limits.bound_cpus(str(tmp_path), 4, unified=unified)
    limits.weigh(str(tmp_path), 8, unified=unified)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == expected


@pytest.mark.parametrize(
    ("total_gib", "left_gib"), [(2, 1.5), (8, 7), (24, 22.8), (64, 60.8), (128, 121.6), (1024, 1016)]
)
def test_the_reserve_is_a_twentieth_within_bounds(total_gib: float, left_gib: float) -> None:
    assert limits.memory_for_jobs(int(total_gib * (1 << 30))) == pytest.approx(left_gib * (1 << 30), rel=1e-6)


def test_more_cpus_than_a_container_has_are_bounded_by_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """v1 refuses such a quota, and what an outer group allows holds all the same."""
    refusal = errno.EINVAL

    def write(path: str, text: str) -> None:
        if path.endswith("/cpu.cfs_quota_us"):
            raise OSError(refusal, os.strerror(refusal))

    monkeypatch.setattr(confine, "write", write)
    limits.bound_cpus(str(tmp_path), 64, unified=False)
    refusal = errno.EACCES
    with pytest.raises(PermissionError):
        limits.bound_cpus(str(tmp_path), 64, unified=False)


def test_a_bound_that_cannot_be_set_leaves_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories stand in for groups."""

    def refuses(group: str, cpus: int, *, unified: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(limits, "bound_cpus", refuses)
    found = confine.Hierarchies(unified="", devices="", limits={"cpu": str(tmp_path / "base")})
    with pytest.raises(PermissionError):
        limits.WorkerGroups(found, "worker").for_task(0, 0, 4)
    assert list(tmp_path.iterdir()) == []


def test_in_v2_a_bound_is_not_lowered_below_what_is_used(tmp_path: Path) -> None:
    """The kernel would kill jobs to get there. A directory stands in for the group."""
    for name, text in {"memory.max": str(8 << 30), "memory.swap.max": "max", "memory.current": str(5 << 30)}.items():
        (tmp_path / name).write_text(f"{text}\n")
    found = confine.Hierarchies(unified=str(tmp_path), limits={"memory": str(tmp_path)})
    (said,) = limits.Bounds(found, 4 << 30, 100).apply()
    assert "5120 MiB" in said and "4096 MiB" in said and "8192 MiB" in said
    assert int((tmp_path / "memory.max").read_text()) == 8 << 30
    assert found.limits == {"memory": str(tmp_path)}, "there is a bound"
    assert limits.Bounds(found, 6 << 30, 100).apply() == []
    assert int((tmp_path / "memory.max").read_text()) == 6 << 30


def test_a_controller_that_takes_no_bound_is_left_out_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = confine.write

    def write(path: str, text: str) -> None:
        if path.endswith("/memory.max"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        real(path, text)

    monkeypatch.setattr(confine, "write", write)
    for name in ("memory.max", "memory.current", "pids.max"):
        (tmp_path / name).write_text("max\n" if name != "memory.current" else "0\n")
    found = confine.Hierarchies(unified=str(tmp_path), limits=dict.fromkeys(("memory", "pids", "cpu"), str(tmp_path)))
    (said,) = limits.Bounds(found, 4 << 30, 100).apply()
    assert "memory" in said and "Permission denied" in said
    assert sorted(found.limits) == ["cpu", "pids"]
    assert (tmp_path / "pids.max").read_text() != "max\n"


@pytest.mark.parametrize(("cores", "processes"), [(2, 4096), (8, 4096), (16, 8192), (64, 32_768), (256, 32_768)])
def test_a_small_machine_bears_fewer_processes(cores: int, processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(limits, "_kernels", lambda name: 4_194_304)
    assert limits.Bounds(confine.Hierarchies(), None, None).processes == processes
    assert limits.Bounds(confine.Hierarchies(), None, 20_000).processes == 20_000, "a setting counts"
    monkeypatch.setattr(limits, "_kernels", lambda name: 6000)
    assert limits.Bounds(confine.Hierarchies(), None, None).processes == 3000, "half of what the kernel allows"
