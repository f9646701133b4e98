"""Signals and forks: a program is asked to save once, and what it forked never runs the handler it inherited."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.adapters.backends.local import LocalBackend
from rota.app.ports import LaunchOrder, StopOrder
from rota.core.run import Cause
from tests.backends.contract import Reports
from tests.backends.helpers import LocalRig, wait_for

STEP = 2307
# argv: where it saves, by which signals it is asked, and how many data loaders it forks, as DataLoader does
TRAINS = f"""
import os, signal, sys, time
where, names, loaders = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
step, main = 0, os.getpid()

def save(number, frame):
    with open(where, "w") as file:
        file.write(str(step))
    with open(where + ".saves", "a") as file:
        file.write(f"{{'main' if os.getpid() == main else 'loader'}} {{step}}\\n")
    if os.getpid() == main:
        time.sleep(0.5)  # whatever was sent to the others as well has reached them by now
        sys.exit(75)

for name in names:
    signal.signal(signal.Signals["SIG" + name], save)
for _ in range(loaders):
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
step = {STEP}
os.write(1, b"ready\\n")  # not by print, which may not be entered twice: the signal may come inside it
while True:
    time.sleep(0.01)
"""
# argv: a program, then the words of each rank
LAUNCHES = """
import subprocess, sys
ranks = [subprocess.Popen([sys.executable, "-ISc", sys.argv[1], *words.split()]) for words in sys.argv[2:]]
sys.exit(max(rank.wait() for rank in ranks))
"""
PYTHON = (sys.executable, "-ISc")
READY_S = 6.0  # until a program has its handlers and its loaders, on a machine that has much else to do


@pytest.fixture
def rig(tmp_path: Path) -> LocalRig:
    return LocalRig(tmp_path, cgroups=False)  # cgroups hold those who are to be killed; who is asked is the same


def launched(
    rig: LocalRig, backend: LocalBackend, argv: tuple[str, ...], ready: int = 1, **changes: object
) -> LaunchOrder:
    order = rig.order("succeed", argv=argv, **changes)
    backend.launch(order)
    wait_for(lambda: said(backend, order).count("ready") == ready, "its handlers", 60.0)
    return order


def said(backend: LocalBackend, order: LaunchOrder) -> str:
    return backend.read_log(order.attempt_id, 0, 10_000).content.decode()


def saves(where: Path) -> list[str]:
    path = Path(f"{where}.saves")
    return path.read_text().splitlines() if path.exists() else []


WAYS = {
    "warned": Cause.EXITED,
    "at its limit": Cause.TIME_LIMIT,
    "preempted": Cause.PREEMPTED,
    "preempted by TERM": Cause.PREEMPTED,
    "cancelled": Cause.CANCELLED,
    "cancelled by INT": Cause.CANCELLED,
}
LIMITS: dict[str, dict[str, object]] = {
    "warned": {"time_limit_s": 600.0, "warn_signal": signal.SIGUSR2, "warn_s": 600.0 - READY_S},
    "at its limit": {"time_limit_s": READY_S, "grace_s": 600.0},
}
STOPS = {
    "preempted": StopOrder("preempted", signal.SIGUSR2, 600.0, saves=True),
    "preempted by TERM": StopOrder("preempted", signal.SIGTERM, 600.0, saves=True),
    "cancelled": StopOrder("cancelled", signal.SIGTERM, 600.0),
    "cancelled by INT": StopOrder("cancelled", signal.SIGINT, 600.0),
}


class Asked:
    """A command that was asked in one of the ways there are, and how it ended."""

    def __init__(
        self, rig: LocalRig, backend: LocalBackend, reports: Reports, way: str, *argv: str, ready: int = 1
    ) -> None:
        order = launched(rig, backend, argv, ready, **LIMITS.get(way, {}))
        if way in STOPS:
            backend.stop(order.attempt_id, STOPS[way])
        self.end = rig.end_of(reports, order)
        self.log = said(backend, order)


@pytest.mark.parametrize("way", WAYS)
def test_forked_loaders_do_not_save_over_their_parent(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    where = tmp_path / "state"
    end = Asked(rig, backend, reports, way, *PYTHON, TRAINS, str(where), "USR2,TERM,INT", "3").end
    assert saves(where) == [f"main {STEP}"]
    assert where.read_text() == str(STEP)
    assert (end.cause, end.code, end.killed) == (WAYS[way], 75, False)


@pytest.mark.parametrize("way", ["warned", "preempted", "preempted by TERM", "cancelled"])
def test_a_launcher_without_a_handler_is_passed_through_to_its_ranks(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    """Below a shell and a launcher each rank saves, and its loaders do not; both above live to see it."""
    ranks = [tmp_path / "rank0", tmp_path / "rank1"]
    words = [f"{rank} USR2,TERM 2" for rank in ranks]
    script = f'"{sys.executable}" -ISc "$0" "$@"; echo "left with $?"; exit 3'
    asked = Asked(rig, backend, reports, way, "sh", "-c", script, LAUNCHES, TRAINS, *words, ready=2)
    assert [saves(rank) for rank in ranks] == [[f"main {STEP}"]] * 2
    assert (asked.end.cause, asked.end.killed) == (WAYS[way], False)
    if way in ("warned", "preempted"):  # a polite end reaches a launcher that is slow to leave by itself
        assert "left with 75" in asked.log
        assert asked.end.code == 3


@pytest.mark.parametrize("way", ["preempted", "preempted by TERM", "cancelled"])
def test_a_fork_whose_program_has_ended_does_not_save_either(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    """The first program has died and its loaders live on, once as the supervisor's children and once as those of a
    launcher that takes orphans in. Both look like programs of their own."""
    dies = TRAINS.replace('os.write(1, b"ready\\n")', "os._exit(0)")
    for number, setup in enumerate(("pass", "import ctypes; ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)")):
        first, second = tmp_path / f"first{number}", tmp_path / f"second{number}"
        run = "subprocess.run([sys.executable, '-ISc', {}, {}, 'USR2,TERM', '2']).returncode"
        in_turn = f"import subprocess, sys\n{setup}\n"
        in_turn += run.format("sys.argv[1]", "sys.argv[2]") + "\n"
        in_turn += f"sys.exit({run.format('sys.argv[3]', 'sys.argv[4]')})"
        end = Asked(rig, backend, reports, way, *PYTHON, in_turn, dies, str(first), TRAINS, str(second)).end
        assert saves(first) == []
        assert saves(second) == [f"main {STEP}"]
        assert (end.cause, end.killed) == (WAYS[way], False)


def test_ranks_that_are_forks_of_a_launcher_without_a_handler_save(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    """As with torch.multiprocessing by fork: they have installed their handlers themselves."""
    forks = (
        "import os, sys\nranks = sys.argv[1:]\nfor rank in ranks:\n    if os.fork() == 0:\n"
        "        sys.argv[1:] = rank.split()\n        break\n"
        "else:\n    print([os.wait() for _ in ranks], flush=True)\n    sys.exit(3)\n"
    )
    ranks = [tmp_path / "rank0", tmp_path / "rank1"]
    words = [f"{rank} USR2,TERM 2" for rank in ranks]
    end = Asked(rig, backend, reports, "preempted", *PYTHON, forks + TRAINS, *words, ready=2).end
    assert [saves(rank) for rank in ranks] == [[f"main {STEP}"]] * 2
    assert (end.cause, end.code) == (Cause.PREEMPTED, 3)


FORWARDS = """
import signal, subprocess, sys, time
heard = []
for number in (signal.SIGUSR2, signal.SIGTERM):  # before the rank starts, which says when both are ready
    signal.signal(number, lambda number, frame: (heard.append(number), rank.send_signal(number)))
rank = subprocess.Popen([sys.executable, "-ISc", sys.argv[1], *sys.argv[2:]])
while (code := rank.poll()) is None:  # not by wait: a signal just before a blocking call is handled only after it
    time.sleep(0.01)
print("launcher heard", len(heard), flush=True)
sys.exit(code)
"""
# argv: "shell" where it is below one. A shell can lose a signal that comes between its fork and its wait, so the
# program says that it is ready only once its parent sleeps; after the fork a shell sleeps nowhere but in its wait.
COUNTS = """
import os, signal, sys, time
heard = []
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))

def parent_sleeps():
    with open(f"/proc/{os.getppid()}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "S"

while sys.argv[1:] == ["shell"] and not parent_sleeps():
    time.sleep(0.01)
print("ready", flush=True)
while not heard:
    time.sleep(0.01)
time.sleep(1)
print("rank heard", len(heard), flush=True)
sys.exit(75)
"""


def test_below_a_program_that_has_a_handler_nobody_is_told(
    rig: LocalRig, backend: LocalBackend, reports: Reports
) -> None:
    """A launcher such as `uv run` passes signals on: what it starts would hear each twice."""
    for way in ("preempted", "preempted by TERM"):
        asked = Asked(rig, backend, reports, way, *PYTHON, FORWARDS, COUNTS)
        assert asked.log.split("\n")[1:3] == ["rank heard 1", "launcher heard 1"]
        assert (asked.end.cause, asked.end.code) == (Cause.PREEMPTED, 75)


def test_a_shell_with_a_trap_passes_the_signal_on_itself(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    guide = Path(__file__).parents[2].joinpath("docs", "checkpointing.md").read_text()
    script = re.search(r"`(trap 'kill -USR2 .*)`", guide)
    assert script is not None
    line = script[1].replace("python train.py", f'"{sys.executable}" -ISc "$0" shell')
    for shell in ("sh", "bash"):
        asked = Asked(rig, backend, reports, "preempted", shell, "-c", line, COUNTS)
        assert "rank heard 1" in asked.log
        assert (asked.end.cause, asked.end.code) == (Cause.PREEMPTED, 75)


@pytest.mark.parametrize("way", ["warned", "preempted", "preempted by TERM", "cancelled"])
def test_a_bash_that_cleans_up_at_its_exit_is_a_launcher(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    """With a trap on EXIT bash catches every signal that would end it: to die of it, and not to save."""
    where = tmp_path / "state"
    script = f'trap "echo cleaned up" EXIT; "{sys.executable}" -ISc "$0" "$@"; exit $?'
    asked = Asked(rig, backend, reports, way, "bash", "-c", script, TRAINS, str(where), "USR2,TERM", "1")
    assert saves(where) == [f"main {STEP}"]
    assert asked.log.split("\n")[-2] == "cleaned up"
    assert (asked.end.cause, asked.end.killed) == (WAYS[way], False)


def test_a_bash_that_dies_of_the_signal_has_not_saved(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path
) -> None:
    # Bash can lose a signal that comes between its fork and its wait, and looks for it again after each command.
    script = 'trap "echo cleaned up" EXIT; echo ready; while :; do sleep 0.05; done'
    end = Asked(rig, backend, reports, "preempted", "bash", "-c", script).end
    assert (end.cause, end.killed) == (Cause.PREEMPTED, True)
    assert end.message == "nothing of it had a handler for SIGUSR2, so it ended without saving"


@pytest.mark.parametrize("way", ["preempted by TERM", "cancelled", "at its limit"])
def test_a_script_does_not_go_on_for_long_after_its_program_was_ended(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    """The shell outlives the program that was asked, so that this may save; it is told as soon as that has ended, and
    what it has started since is told with it."""
    where = tmp_path / "state"
    script = f'"{sys.executable}" -ISc "$0" "$@"; sleep 1000; echo never'
    asked = Asked(rig, backend, reports, way, "sh", "-c", script, TRAINS, str(where), "TERM", "1")
    assert saves(where) == [f"main {STEP}"]
    assert "never" not in asked.log
    assert (asked.end.cause, asked.end.signal, asked.end.killed) == (WAYS[way], signal.SIGTERM, False)


# What a handler does first so as not to be interrupted, and again to be ended by the next signal. It saves for longer
# than a launcher is given to leave by itself.
TAKES_OFF = TRAINS.replace(
    "def save(number, frame):\n",
    "def save(number, frame):\n"
    "    for name in names:\n"
    "        signal.signal(signal.Signals['SIG' + name], signal.{})\n"
    "    if os.getpid() == main:\n"
    "        print('saving', flush=True)\n"
    "        time.sleep(2.0)\n",
)


@pytest.mark.parametrize("loaders", [0, 2])
@pytest.mark.parametrize("disposition", ["SIG_IGN", "SIG_DFL"])
@pytest.mark.parametrize("way", ["preempted", "preempted by TERM", "cancelled", "at its limit"])
def test_a_handler_that_is_taken_off_while_it_saves_is_still_one(
    rig: LocalRig, backend: LocalBackend, reports: Reports, *, tmp_path: Path, way: str, disposition: str, loaders: int
) -> None:
    """The launchers above wait for it, and its loaders, which have the handler still, are not taken for programs."""
    where = tmp_path / "state"
    script = f'"{sys.executable}" -ISc "$0" "$@"; exit $?'
    program = TAKES_OFF.replace("signal.{}", f"signal.{disposition}")
    words = (str(where), "USR2,TERM", str(loaders))
    end = Asked(rig, backend, reports, way, "sh", "-c", script, program, *words).end
    assert saves(where) == [f"main {STEP}"]
    assert (end.cause, end.killed) == (WAYS[way], False)


@pytest.mark.parametrize("disposition", ["SIG_IGN", "SIG_DFL"])
@pytest.mark.parametrize("asked_again", [True, False])
def test_who_took_the_handler_off_at_a_warning_may_save_when_it_is_asked_again(
    rig: LocalRig, backend: LocalBackend, reports: Reports, *, tmp_path: Path, disposition: str, asked_again: bool
) -> None:
    """By a stop that lets it save it is not signalled; at the limit it is, as everything that is left."""
    where = tmp_path / "state"
    dies = not asked_again and disposition == "SIG_DFL"
    program = TAKES_OFF.replace("signal.{}", f"signal.{disposition}").replace("2.0", "1000" if dies else "2.0")
    limit_s = READY_S + (600.0 if asked_again else 1.0)
    warned: dict[str, Any] = {"time_limit_s": limit_s, "warn_signal": signal.SIGTERM, "warn_s": limit_s - READY_S}
    order = launched(rig, backend, (*PYTHON, program, str(where), "TERM", "2"), grace_s=600.0, **warned)
    wait_for(lambda: "saving" in said(backend, order), "the warning", 60.0)
    if asked_again:
        backend.stop(order.attempt_id, STOPS["preempted by TERM"])
    end = rig.end_of(reports, order)
    assert saves(where) == ([] if dies else [f"main {STEP}"])
    assert (end.code, end.killed) == (None if dies else 75, False)


@pytest.mark.parametrize("way", ["preempted", "preempted by TERM", "cancelled", "at its limit"])
def test_timeout_is_a_launcher(
    rig: LocalRig, backend: LocalBackend, reports: Reports, tmp_path: Path, way: str
) -> None:
    """It has a handler, and sends the signal to its whole group, loaders included."""
    where = tmp_path / "state"
    asked = Asked(rig, backend, reports, way, "timeout", "1000", *PYTHON, TRAINS, str(where), "USR2,TERM", "3")
    assert saves(where) == [f"main {STEP}"]
    assert (asked.end.cause, asked.end.code, asked.end.killed) == (WAYS[way], 75, False)
