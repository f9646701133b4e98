"""The life of a run: from the submit to the exit code, the environment it finds and the log it leaves."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from rota.app.commands import Submit
from rota.core import events as e
from rota.core.resources import Request
from rota.core.run import Cause, RunState
from tests.app.house import ANN, House, until

DUMP = "import json, os; print(json.dumps(dict(os.environ)))"


def environment(house: House, **more: object) -> list[dict[str, str]]:
    """What each task of a run saw, by rank."""
    run_id = house.submit((sys.executable, "-ISc", DUMP), **more)  # type: ignore[arg-type]
    assert house.wait(run_id).state is RunState.SUCCEEDED, house.output(run_id)
    found = [json.loads(line) for line in house.output(run_id).splitlines()]
    return sorted(found, key=lambda env: int(env["ROTA_NODE_RANK"]))


def test_a_run_succeeds_and_every_step_of_its_life_is_in_the_log(house):
    run_id, gate = house.gated(2, after="echo done")
    house.in_state(run_id, RunState.RUNNING)
    gate.open()
    run = house.wait(run_id)
    assert run.state is RunState.SUCCEEDED
    assert (run.user, run.attempts_made, run.retries, run.attempt) == ("ann", 1, 0, None)
    past = house.last_attempt(run_id)
    assert past.exit.ok
    assert past.planned_at <= (past.started_at or 0) <= past.ended_at == run.ended_at
    story = [type(s.event) for s in house.store.events(0, 100, run_id)]
    assert story == [e.RunSubmitted, e.AttemptPlanned, e.AttemptStarted, e.AttemptEnded]
    assert house.output(run_id) == "done\n"


@pytest.mark.parametrize("code", [1, 3, 126, 127, 255])
def test_the_exit_code_comes_back(house, code):
    run = house.wait(house.submit(f"exit {code}"))
    assert run.state is RunState.FAILED
    past = run.past[-1].exit
    assert (past.cause, past.code, past.signal) == (Cause.EXITED, code, None)
    assert run.attempts_made == 1, "a command's own failure is not retried"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_told_from_a_code(house, number):
    run = house.wait(house.submit(f"kill -{int(number)} $$"))
    assert run.state is RunState.FAILED
    past = run.past[-1].exit
    assert (past.cause, past.code, past.signal) == (Cause.EXITED, None, int(number))


@pytest.mark.parametrize(
    ("argv", "workdir", "code", "words"),
    [
        (("/bin/true",), "/no/such/place", 126, "workdir does not exist: /no/such/place"),
        (("/bin/true",), "/etc/passwd", 126, "workdir is not a directory"),
        (("no-such-command-at-all",), "/tmp", 127, "command not found: no-such-command-at-all"),
        (("/no/such/file",), "/tmp", 127, "command not found: /no/such/file"),
        (("/etc/passwd",), "/tmp", 126, "cannot run /etc/passwd"),
    ],
)
def test_what_cannot_be_started_says_why_and_gives_its_gpus_back(house, argv, workdir, code, words):
    run = house.wait(house.submit(argv, 4, workdir=workdir))
    assert run.state is RunState.FAILED
    assert (run.past[-1].exit.cause, run.past[-1].exit.code) == (Cause.LAUNCH_FAILED, code)
    assert words in run.why
    assert words in house.output(run.id)
    assert house.free() == 8


def test_the_environment_of_a_job(house):
    blocker = house.running(3)  # takes GPUs 0-2 of a node
    (env,) = environment(house, gpus=1, name="my job", env={"MINE": "yes", "ROTA_GPUS": "lies"})
    assert env["CUDA_VISIBLE_DEVICES"] == env["ROTA_GPUS"] == "3"
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert (env["ROTA_NODE"], env["ROTA_NODES"], env["ROTA_NODELIST"]) == ("node1", "1", "node1")
    assert (env["ROTA_USER"], env["ROTA_ATTEMPT"], env["ROTA_JOB_NAME"]) == ("ann", "1", "my job")
    assert env["ROTA_CHECKPOINT_DIR"] == f"{house.data}/checkpoints/{env['ROTA_JOB_ID']}"
    assert 20000 <= int(env["ROTA_MASTER_PORT"]) < 30000
    assert (env["MINE"], env["LANG"]) == ("yes", "C.UTF-8")
    twins = {"SLURM_JOB_ID": "ROTA_JOB_ID", "SLURM_JOB_NAME": "ROTA_JOB_NAME", "SLURM_NNODES": "ROTA_NODES"}
    assert all(env[slurm] == env[ours] for slurm, ours in twins.items())
    assert (env["SLURM_PROCID"], env["SLURM_GPUS_ON_NODE"], env["SLURM_RESTART_COUNT"]) == ("0", "1", "0")
    assert house.run(blocker).state is RunState.RUNNING


def test_nothing_of_the_server_reaches_a_job(house, monkeypatch):
    monkeypatch.setenv("A_SECRET_OF_THE_SERVER", "x")
    (env,) = environment(house)
    assert "A_SECRET_OF_THE_SERVER" not in env
    assert "PYTHONPATH" not in env


def test_inside_slurm_its_variables_are_left_alone(house):
    (env,) = environment(house, env={"SLURM_JOB_ID": "4711", "SLURM_NODEID": "5"})
    assert env["SLURM_JOB_ID"] == "4711"
    assert env["SLURM_NODEID"] == "5"
    assert not {"SLURM_PROCID", "SLURM_NNODES", "SLURM_JOB_NODELIST", "SLURM_RESTART_COUNT"} & env.keys()


def test_a_gang_has_one_ranked_task_on_each_node(house):
    first, second = environment(house, request=Request(gpus=4, nodes=2))
    assert [env["ROTA_NODE"] for env in (first, second)] == ["node1", "node2"]
    assert [env["ROTA_NODE_RANK"] for env in (first, second)] == ["0", "1"]
    assert [env["SLURM_PROCID"] for env in (first, second)] == ["0", "1"]
    for env in (first, second):
        assert env["CUDA_VISIBLE_DEVICES"] == "0,1"
        assert (env["ROTA_NODES"], env["ROTA_NODELIST"]) == ("2", "node1,node2")
        assert (env["ROTA_MASTER_ADDR"], env["SLURM_NNODES"]) == ("127.0.0.1", "2")
    assert first["ROTA_MASTER_PORT"] == second["ROTA_MASTER_PORT"]


def test_a_gang_falls_together(house):
    line = 'if [ "$ROTA_NODE_RANK" = 1 ]; then exit 7; fi; exec sleep 100000'
    run = house.wait(house.submit(line, request=Request(gpus=8)))
    assert (run.state, run.past[-1].exit.code) == (RunState.FAILED, 7)
    assert house.free() == 8


def test_a_run_without_gpus_needs_none_free(house):
    for _ in range(2):
        house.running(4)
    assert house.free() == 0
    run = house.wait(house.submit('echo "[$CUDA_VISIBLE_DEVICES]"', 0))
    assert run.state is RunState.SUCCEEDED
    assert house.output(run.id) == "[]\n"
    assert run.past[-1].gpu_s == 0.0


def test_the_log_is_read_by_cursor(house):
    run_id, gate = house.gated(after="echo more", env={})
    before = house.submit("printf 'abcdefghij'; exec 1>&2; printf 'KLM'")
    house.wait(before)
    chunk = house.rota.log(before, 0, 4)
    assert (chunk.content, chunk.offset, chunk.size) == (b"abcd", 0, 13)
    chunk = house.rota.log(before, 4, 100)
    assert (chunk.content, chunk.offset) == (b"efghijKLM", 4)
    assert house.rota.log(before, 13).content == b""
    assert house.rota.log(before, 10**9).content == b""
    assert house.rota.log(before, -3).content == b"KLM"
    assert house.rota.log(before, 0, 0).content == b""
    house.in_state(run_id, RunState.RUNNING)
    assert house.rota.log(run_id).content == b""
    gate.open()
    house.wait(run_id)
    assert house.rota.log(run_id).content == b"more\n"


def test_a_log_that_is_not_there_yet_is_empty(house):
    waiting = house.submit("true", held=True)
    assert house.rota.log(waiting).content == b""
    assert house.rota.log(house.running(), attempt=7).content == b""


@pytest.mark.parametrize("attempt", [0, -1, 10**9])
def test_a_log_of_no_possible_attempt_is_not_found(house, attempt):
    from rota.app.errors import NotFound

    run_id = house.submit("true")
    house.wait(run_id)
    with pytest.raises(NotFound, match="attempt"):
        house.rota.log(run_id, attempt=attempt)


def test_wait_before_at_and_after_the_end(house):
    run_id, gate = house.gated()
    with pytest.raises(TimeoutError):
        house.rota.wait(run_id, 0.01)
    assert house.rota._waiters == {}, "one who gave up is forgotten"
    gate.open()
    assert house.wait(run_id).state is RunState.SUCCEEDED
    assert house.wait(run_id).state is RunState.SUCCEEDED
    until(lambda: run_id not in house.loop.state.runs, "it has left memory")
    assert house.wait(run_id).ended_at is not None


def test_wait_for_an_unknown_run(house):
    from rota.app.errors import NotFound

    with pytest.raises(NotFound):
        house.rota.wait("0" * 12, 5)


def test_waiters_are_released_when_the_house_closes(house):
    from concurrent.futures import ThreadPoolExecutor

    from rota.app.errors import Unavailable

    run_id = house.running()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(house.rota.wait, run_id)
        until(lambda: house.rota._waiters, "somebody waits")
        house.close()
        with pytest.raises(Unavailable):
            waiting.result(60)


def test_umask_and_working_directory_are_the_submitters(house):
    (house.where / "in").mkdir()
    run_id = house.submit("umask; pwd; touch made", workdir=str(house.where / "in"), umask=0o027)
    house.wait(run_id)
    assert house.output(run_id).split() == ["0027", str(house.where / "in")]
    assert os.stat(house.where / "in" / "made").st_mode & 0o777 == 0o640


def test_what_a_job_leaves_behind_is_gone_when_it_ends(house):
    pid_file = house.where / "pid"
    line = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 100000' & until [ -s {pid_file} ]; do sleep 0.01; done"
    run = house.wait(house.submit(line))
    assert run.state is RunState.SUCCEEDED
    assert house.leftovers() == []


def test_hundreds_of_short_runs_all_come_back(house):
    sent = [house.rota.send(ANN, Submit(house.spec(("/bin/true",), i % 3))) for i in range(150)]
    runs = house.wait_all([future.result(60).id for future in sent])
    assert {run.state for run in runs} == {RunState.SUCCEEDED}
    assert sum(len(house.store.attempts(run.id)) for run in runs) == 150
    assert house.free() == 8
