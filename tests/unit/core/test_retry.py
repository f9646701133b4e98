"""Run it again? A vanished machine yes, a command's own failure no, unless its submitter asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from rota.core.policy import Policy
from rota.core.resources import Placement
from rota.core.retry import backoff_s, describe, retry
from rota.core.run import KEPT_ATTEMPTS, Cause, Exit, Holder, PastAttempt, Run, RunState
from tests.unit.core.kit import spec

POLICY = Policy(retry_base_s=5, retry_cap_s=600)


def a_run(retries: int = 0, run_id: str = "0123456789ab", **more) -> Run:
    return Run(run_id, 1, "ann", spec(**more), RunState.RUNNING, 2, 0.0, 60.0, "default", retries=retries)


FAILED = Exit(Cause.EXITED, code=1)
LOST = Exit(Cause.LOST)


@pytest.mark.parametrize(
    ("exit", "asked", "again", "counts", "word"),
    [
        (Exit(Cause.EXITED, code=0), False, False, False, ""),
        (FAILED, False, False, False, "exit code 1"),
        (FAILED, True, True, True, "exit code 1"),
        (Exit(Cause.EXITED, signal=11), False, False, False, "signal 11"),
        (Exit(Cause.EXITED, signal=9), False, False, False, "SIGKILL"),
        (Exit(Cause.EXITED, code=137), False, False, False, "SIGKILL"),
        (Exit(Cause.EXITED, signal=9, oom=True), False, False, False, "out of memory"),
        (Exit(Cause.EXITED, signal=9, machine_oom=True), False, True, True, "all jobs together"),
        (Exit(Cause.EXITED, code=1, machine_oom=True), False, True, True, "all jobs together"),
        (Exit(Cause.EXITED, code=0, machine_oom=True), False, False, False, ""),
        (LOST, False, True, True, "lost"),
        (Exit(Cause.LOST, message="node7 is gone"), False, True, True, "node7 is gone"),
        (Exit(Cause.PREEMPTED), False, True, False, "preempted"),
        (Exit(Cause.PREEMPTED, code=0), False, True, False, "preempted"),  # it obeyed the signal: it is not done
        (Exit(Cause.CANCELLED), True, False, False, "cancelled"),
        (Exit(Cause.NEVER_STARTED), True, False, False, "cancelled"),
        (Exit(Cause.TIME_LIMIT), True, False, False, "time limit of 90 s"),
        (Exit(Cause.LAUNCH_FAILED, message="no such file"), True, False, False, "no such file"),
        (Exit(Cause.LAUNCH_FAILED), True, False, False, "could not be started"),
    ],
)
def test_the_table_of_ends(exit, asked, again, counts, word):
    decision = retry(exit, a_run(retry_failures=asked, time_limit_s=90.0), POLICY)
    assert (decision.again, decision.counts) == (again, counts)
    assert word in decision.why
    assert bool(decision.delay_s) == counts, "only what counts backs off"


def test_a_lease_is_never_tried_again():
    """Whatever its end is called: the process was somebody else's."""
    for cause in Cause:
        decision = retry(Exit(cause), a_run(retry_failures=True, max_retries=9, holder=Holder(1, 2, "boot")), POLICY)
        assert not decision.again, cause
    assert retry(Exit(Cause.RELEASED, message="the machine restarted"), a_run(), POLICY).why == "the machine restarted"


def test_every_cause_has_an_answer_even_for_a_run_without_limits():
    """A foreign queue may end a run at its own time limit."""
    for cause in Cause:
        assert retry(Exit(cause), a_run(), POLICY).again in (True, False)


def test_retries_are_used_up():
    assert retry(LOST, a_run(retries=2, max_retries=3), POLICY).again
    spent = retry(LOST, a_run(retries=3, max_retries=3), POLICY)
    assert not spent.again
    assert "3 of 3" in spent.why
    assert not retry(LOST, a_run(max_retries=0), POLICY).again
    assert retry(Exit(Cause.PREEMPTED), a_run(retries=3, max_retries=3), POLICY).again, "preemption is never the last"


def test_retries_can_be_switched_off_but_not_the_return_from_preemption():
    off = replace(POLICY, auto_retry=False)
    assert not retry(LOST, a_run(), off).again
    assert "switched off" in retry(LOST, a_run(), off).why
    assert not retry(FAILED, a_run(retry_failures=True), off).again
    assert retry(Exit(Cause.PREEMPTED), a_run(), off).again


@pytest.mark.parametrize("retries", range(60))
def test_backoff_doubles_up_to_the_cap_and_is_spread_by_a_quarter(retries):
    plain = min(600.0, 5.0 * 2**retries)
    delays = {backoff_s(a_run(retries, f"{n:012x}"), POLICY) for n in range(50)}
    assert all(plain <= delay <= plain * 1.25 for delay in delays)
    assert max(delays) - min(delays) > plain * 0.15, "a lost node's runs do not all come back at once"
    assert delays == {backoff_s(a_run(retries, f"{n:012x}"), POLICY) for n in range(50)}, "without chance"


def test_a_shortage_uses_up_no_retry_and_backs_off_longer_each_time_in_a_row():
    """A start that fails over and over must not fill the ledger."""
    short, run = Exit(Cause.LOST, message="no process left", shortage=True), a_run(max_retries=0)
    delays = []
    for number in range(1, 61):
        decision = retry(short, run, POLICY)
        assert (decision.again, decision.counts) == (True, False)
        delays.append(decision.delay_s)
        past = PastAttempt(f"{run.id}-{number}", number, Placement(()), 0.0, None, 0.0, short, 0.0)
        run = replace(run, past=(*run.past, past)[-KEPT_ATTEMPTS:])
    assert all(later > 1.5 * sooner for sooner, later in pairwise(delays[:7]))
    assert all(600 <= delay <= 750 for delay in delays[7:])
    ran = replace(run.past[-1], exit=Exit(Cause.PREEMPTED))
    assert retry(short, replace(run, past=(*run.past, ran)), POLICY).delay_s < 7, "it had begun in between"


def test_no_backoff_when_the_base_is_zero():
    assert backoff_s(a_run(5), replace(POLICY, retry_base_s=0)) == 0


def test_an_end_in_words():
    assert describe(Exit(Cause.EXITED, code=2), 0.0) == "exit code 2"
    assert "memory_gb" in describe(Exit(Cause.EXITED, code=137, oom=True), 4.0), "says what to do"
    alone = describe(Exit(Cause.EXITED, code=137, oom=True), 0.0)
    assert "all that jobs may take" in alone and "memory_gb" not in alone, "there is no more to ask for"
    assert "less than it asked for" in describe(Exit(Cause.EXITED, signal=9, machine_oom=True), 4.0)
    assert "memory_gb" in describe(Exit(Cause.EXITED, signal=9, machine_oom=True), 0.0), "says what protects it"
    named = Exit(Cause.EXITED, signal=9, message="200 MiB were left by ended runs", machine_oom=True)
    assert "(200 MiB were left by ended runs)" in describe(named, 0.0)
