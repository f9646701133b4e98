"""Saving and going on, warnings, fillers, and what is said of those who do not listen; with real processes."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from pathlib import Path

import pytest

from rota.adapters.checkpoints import CheckpointFiles
from rota.app.commands import Cancel, Submit
from rota.app.errors import Invalid
from rota.app.retention import Retention, Tidying
from rota.core import events as e
from rota.core.run import Cause, RunState
from rota.core.suspended import suspended
from tests.app.house import ANN, BOB, PATIENCE_S, House, until, with_policy

USR2 = 12
GUIDE = Path(__file__).parents[2] / "docs" / "checkpointing.md"


def preempt(house: House, run_id: str) -> None:
    """By something that is over at once."""
    important = house.submit("true", 4, BOB, priority=4)
    assert house.wait(important).state is RunState.SUCCEEDED
    until(lambda: house.run(run_id).attempt is None or house.run(run_id).attempts_made > 1, "it has given way")


def stoppable(house: House, line: str | tuple[str, ...], **more: object) -> str:
    said = {"priority": 1, "preemptible": True, "checkpoint_signal": USR2, "grace_s": 300.0, **more}
    run_id = house.submit(line, 4, **said)  # type: ignore[arg-type]
    until(lambda: house.output(run_id), "it has said something")
    return house.in_state(run_id, RunState.RUNNING)


@pytest.fixture
def small(build) -> House:
    """Four GPUs, all of which everybody here wants."""
    house: House = build(1, 4).open()
    with_policy(house, preemption=True)
    return house


def test_the_program_of_the_guide_saves_gives_way_and_goes_on(small, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[0])
    run_id = stoppable(small, (sys.executable, str(program), "100000"))
    preempt(small, run_id)
    first = small.store.attempts(run_id)[0].exit
    assert (first.cause, first.code, first.killed) == (Cause.PREEMPTED, 75, False)
    saved = small.data / "checkpoints" / run_id / "state.json"
    until(lambda: small.run(run_id).attempts_made == 2 and small.output(run_id, 2), "it was started again")
    step = json.loads(saved.read_text())["step"]
    assert step >= 1
    assert small.output(run_id, 2).startswith(f"from step {step}\n")


def test_the_next_attempt_knows_that_it_is_not_the_first(small):
    line = 'echo "$ROTA_ATTEMPT $ROTA_RESTART_COUNT $SLURM_RESTART_COUNT ${ROTA_PREEMPTED-no}"; '
    line += '[ "$ROTA_ATTEMPT" = 2 ] && exit 0; trap "exit 0" USR2; echo ready; while :; do sleep 0.01; done'
    run_id = stoppable(small, line)
    until(lambda: "ready" in small.output(run_id, 1), "its handler")
    preempt(small, run_id)
    run = small.wait(run_id)
    assert (run.state, run.attempts_made, run.retries) == (RunState.SUCCEEDED, 2, 0), "0 after a stop means saved"
    assert small.output(run_id, 1).startswith("1 0 0 no\n")
    assert small.output(run_id, 2) == "2 1 1 1\n"
    cost = suspended(run, small.store.attempts(run_id), now=0.0)
    assert cost.times == 1
    assert cost.seconds > 0
    assert cost.gpu_s >= 0


def test_who_was_through_when_it_was_stopped_says_so_and_is_finished(small):
    line = "trap 'touch \"$ROTA_CHECKPOINT_DIR/.finished\"; exit 0' USR2; echo ready; while :; do sleep 0.01; done"
    run_id = stoppable(small, line)
    preempt(small, run_id)
    run = small.wait(run_id)
    assert (run.state, run.attempts_made) == (RunState.SUCCEEDED, 1)


def test_who_ignores_its_checkpoint_signal_is_killed_after_its_grace_and_says_so(small):
    run_id = stoppable(small, "trap '' USR2; echo ready; while :; do sleep 1000; done", grace_s=0.3)
    important, gate = small.gated(4, BOB, priority=4)
    small.in_state(important, RunState.RUNNING)
    why = f"preempted for {important}; it ignored SIGUSR2 and was killed after its grace of 0.3 s"
    assert (small.run(run_id).state, small.run(run_id).why) == (RunState.QUEUED, why)
    assert small.events(e.AttemptEnded, run_id)[0].why == why
    assert small.store.attempts(run_id)[0].exit.killed
    small.do(Cancel(run_id), ANN)
    gate.open()


def test_who_cannot_save_says_so_and_keeps_nothing(small):
    run_id = stoppable(small, "echo ready; exec sleep 1000", saves=True)
    important, gate = small.gated(4, BOB, priority=4)
    small.in_state(important, RunState.RUNNING)
    run = small.run(run_id)
    why = f"preempted for {important}; nothing of it had a handler for SIGUSR2, so it ended without saving"
    assert (run.state, run.why, run.attained_s) == (RunState.QUEUED, why, 0.0)
    small.do(Cancel(run_id), ANN)
    gate.open()


def test_a_limit_warns_before_it_kills(house):
    line = "trap 'echo warned' USR2; echo ready; while :; do sleep 0.01; done"
    run = house.wait(house.submit(line, time_limit_s=4.0, warn_signal=USR2, warn_s=1.5))
    assert house.output(run.id) == "ready\nwarned\n"
    assert (run.state, run.past[-1].exit.cause) == (RunState.FAILED, Cause.TIME_LIMIT)
    assert run.why == "time limit of 4 s reached; it had been warned"


def test_who_leaves_at_the_warning_has_the_last_word(house):
    """By its checkpoint signal, since that is no TERM: nothing was said of a warning."""
    line = "trap 'exit 75' USR2; while :; do sleep 0.01; done"
    run = house.wait(house.submit(line, time_limit_s=600.0, checkpoint_signal=USR2, warn_s=597.5))
    assert (run.state, run.past[-1].exit.code) == (RunState.FAILED, 75)
    assert run.why == "exit code 75; it had been warned of its time limit"


def test_a_filler_is_killed_at_once_whatever_else_it_says(small):
    line = "trap '' TERM USR2; echo ready; while :; do sleep 1000; done"
    run_id = stoppable(small, line, filler=True, time_limit_s=60.0)
    spec = small.run(run_id).spec
    assert (spec.preemptible, spec.checkpoint_signal, spec.grace_s) == (True, 9, 0.0)
    important, gate = small.gated(4, BOB, priority=4)
    small.in_state(important, RunState.RUNNING)
    past = small.store.attempts(run_id)[0]
    assert (past.exit.cause, past.exit.signal, past.exit.killed) == (Cause.PREEMPTED, 9, False), "it was never asked"
    small.do(Cancel(run_id), ANN)
    gate.open()


@pytest.mark.parametrize(
    ("said", "field", "words"),
    [
        ({"filler": True}, "filler", "give a time limit, or an estimate, of at most 1 h"),
        ({"filler": True, "time_limit_s": 7200.0}, "filler", "this one says 2 h"),
        ({"warn_signal": USR2}, "warn_signal", "no time limit to warn of"),
        ({"warn_s": 5.0}, "warn_s", "no time limit to warn of"),
        ({"warn_s": 5.0, "time_limit_s": 60.0}, "warn_s", "give warn_signal as well"),
        ({"warn_s": 60.0, "warn_signal": USR2, "time_limit_s": 60.0}, "warn_s", "before the start"),
        ({"warn_s": -1.0, "warn_signal": USR2, "time_limit_s": 60.0}, "warn_s", "from 0 up"),
        ({"warn_s": float("nan"), "warn_signal": USR2, "time_limit_s": 60.0}, "warn_s", "from 0 up"),
        ({"warn_signal": 64, "time_limit_s": 60.0}, "warn_signal", "from 1 to 31"),
        ({"warn_signal": 9, "time_limit_s": 60.0}, "warn_signal", "no program can hear SIGKILL"),
    ],
)
def test_what_makes_no_sense_is_refused(house, said, field, words):
    with pytest.raises(Invalid, match=words) as caught:
        house.do(Submit(house.spec("true", **said)), ANN)
    assert caught.value.field == field
    assert house.rota.ask(lambda state, now: len(state.runs)) == 0


# -- what was saved is kept as long as its run ------------------------------------------------------------------------
def saved(house: House) -> Path:
    run_id = house.submit('echo kept > "$ROTA_CHECKPOINT_DIR/state"; ln -s "$PWD" "$ROTA_CHECKPOINT_DIR/link"')
    assert house.wait(run_id).state is RunState.SUCCEEDED
    return house.data / "checkpoints" / run_id


def test_checkpoints_go_with_their_run_and_nothing_they_point_at(house):
    kept, gone = house.submit('touch "$ROTA_CHECKPOINT_DIR/a"; sleep 1000'), saved(house)
    house.in_state(kept, RunState.RUNNING)
    files = CheckpointFiles(house.data / "checkpoints")
    (house.where / "precious").touch()
    (house.data / "checkpoints" / "notes").mkdir()
    (house.data / "checkpoints" / ("0" * 12)).symlink_to(house.where)
    Tidying(house.loop, Retention(runs_days=-1.0), None, files).round()
    until(lambda: not gone.exists(), "what it saved is gone")
    assert (house.where / "precious").exists(), "a link is removed as a link"
    assert (house.data / "checkpoints" / kept).exists(), "its run lives"
    assert (house.data / "checkpoints" / "notes").exists(), "not ours"


def test_a_run_that_is_kept_keeps_what_it_saved_however_old(house):
    old = saved(house)
    os.utime(old, (1.0, 1.0))
    assert CheckpointFiles(old.parent).purge(1e12, lambda run_id: house.store.run(run_id) is None) == 0
    assert CheckpointFiles(old.parent).purge(0.0, lambda run_id: True) == 0, "nor does what is young go"
    assert (old / "state").read_text() == "kept\n"
    assert CheckpointFiles(house.where / "nowhere").purge(1e12, lambda run_id: True) == 0


def test_a_round_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("rota.adapters.checkpoints.MOST", 2)
    for number in range(3):
        (tmp_path / f"{number:012x}" / "deep").mkdir(parents=True)
    files = CheckpointFiles(tmp_path)
    assert [files.purge(1e12, lambda run_id: True) for _ in range(3)] == [2, 1, 0]


def test_no_second_removal_is_begun_while_one_does_not_end(house):
    """One that waits for a directory would else be joined by another one each time."""
    begun, go = [], threading.Event()

    class Held:
        def purge(self, before, gone):
            begun.append(before)
            go.wait(PATIENCE_S)
            return 0

    tidying = Tidying(house.loop, Retention(), None, Held())
    try:
        tidying.round()
        until(lambda: begun, "the first one has begun")
        first = tidying._purge
        assert first is not None
        for _ in range(3):
            tidying.round()
        assert tidying._purge is first and len(begun) == 1
    finally:
        go.set()
    first.join(PATIENCE_S)
    tidying.round()
    until(lambda: len(begun) == 2, "the next one begins")
