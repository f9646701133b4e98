"""Run it again? A value, decided in one place: a command's own failure is not retried, a vanished machine is, and so
is a run that the kernel killed because others had used up the memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile

from rota.core.policy import Policy
from rota.core.predict import hash_text
from rota.core.run import Cause, Exit, Run


@dataclass(frozen=True, slots=True)
class RetryDecision:
    again: bool
    why: str
    delay_s: float = 0.0
    counts: bool = False  # against the run's max_retries


def retry(exit: Exit, run: Run, policy: Policy) -> RetryDecision:
    if exit.cause is Cause.RELEASED:
        return RetryDecision(False, exit.message)
    if exit.ok:
        return RetryDecision(False, "")
    if run.spec.holder is not None:  # somebody else's process: whatever ended it, there is nothing to run again
        return RetryDecision(False, exit.message or str(exit.cause))
    match exit.cause:
        case Cause.CANCELLED | Cause.NEVER_STARTED:
            return RetryDecision(False, "cancelled")
        case Cause.PREEMPTED:
            return RetryDecision(True, "preempted")
        case Cause.TIME_LIMIT:
            limit = "" if run.spec.time_limit_s is None else f" of {run.spec.time_limit_s:g} s"
            warned = "; it had been warned" if exit.warned else ""
            return RetryDecision(
                False, f"time limit{limit} reached{warned}" + (f"; {exit.message}" if exit.killed else "")
            )
        case Cause.LOST if exit.shortage:
            return RetryDecision(True, exit.message, backoff_s(run, policy, shortages(run)))
        case Cause.LOST:
            return _limited(run, policy, exit.message or "its machine or supervisor was lost")
        case Cause.LAUNCH_FAILED:
            return RetryDecision(False, exit.message or "the command could not be started")
        case Cause.EXITED:
            why = describe(exit, run.spec.request.memory_gb) + (
                "; it had been warned of its time limit" if exit.warned else ""
            )
            if run.spec.retry_failures or exit.machine_oom:
                return _limited(run, policy, why)
            return RetryDecision(False, why)


def describe(exit: Exit, memory_gb: float) -> str:
    """Say how the command ended. `memory_gb`: what its run asked for on each node; 0 = no amount."""
    if exit.oom and memory_gb:
        return "out of memory: the kernel killed it; ask for more memory (memory_gb, --mem) or use less"
    if exit.oom:
        return "out of memory: it used all that jobs may take on this machine, and the kernel killed it; use less"
    if exit.machine_oom:
        what = "all jobs together, or the machine, ran out of memory, and the kernel killed a process of it"
        what += f" ({exit.message})" if exit.message else ""
        if memory_gb:
            return f"{what}, though it used less than it asked for"
        return f"{what}; runs that ask for memory (memory_gb, --mem) are killed after those that do not"
    if exit.signal == 9 or exit.code == 137:
        return "killed by SIGKILL from outside Rota: often the machine ran out of memory"
    if exit.signal is not None:
        return f"ended by signal {exit.signal}"
    return f"exit code {exit.code}"


def _limited(run: Run, policy: Policy, why: str) -> RetryDecision:
    if not policy.auto_retry:
        return RetryDecision(False, f"{why}; retries are switched off")
    if run.retries >= run.spec.max_retries:
        return RetryDecision(False, f"{why}; {run.retries} of {run.spec.max_retries} retries used")
    return RetryDecision(True, why, backoff_s(run, policy), counts=True)


def shortages(run: Run) -> int:
    """Return how many of its last attempts in a row could not be begun for want of something on the machine."""
    ends = (past.exit for past in reversed(run.past))
    return sum(1 for _ in takewhile(lambda exit: exit.shortage, ends))


def backoff_s(run: Run, policy: Policy, before: int | None = None) -> float:
    """Doubling with what went `before` (None = its retries), capped, and spread by a quarter so that a lost node's
    runs do not all come back in one instant."""
    before = run.retries if before is None else before
    delay = min(policy.retry_cap_s, math.ldexp(policy.retry_base_s, min(before, 30)))
    spread = hash_text(f"{run.id}{before}") % 1000 / 1000
    return delay * (1 + spread / 4)
