"""play: the jobs of a trace as real processes on a real server, each submitted at its time by a clock that runs fast.

A job sleeps for its work. Asked to make way it writes how much it has done into its checkpoint directory and leaves;
started again it sleeps for what a restart costs, then for what is left. That is what the simulator says a job does, so
the two schedules can differ only by what the server really takes: to hear, to decide, to store, to start and to stop.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Condition

from rota.app.authz import Principal, Role
from rota.app.commands import Cancel, Pause, SetPolicy, Submit
from rota.app.service import Service
from rota.core import events as e
from rota.core.policy import Policy
from rota.core.run import ENDED, Run, RunState, Spec
from rota.sim.engine import spec_of
from rota.sim.model import Job, in_order
from tests.replay.fast import FastClock, fast_house

ADMIN = Principal("replay", Role.ADMIN)
BEFORE_S = 0.5  # of real time, from the policy to the first submit

# Milliseconds, from the kernel's uptime: a shell and a sleep take about two to start, Python would take fifty.
SLEEPER = """\
work=$1 cost=0 done=0 saved=$ROTA_CHECKPOINT_DIR/done
now() { read -r up rest </proc/uptime; now=${up%.*}${up#*.}0; }
save() {
    now
    gained=$((now - begun - cost))
    [ $gained -gt 0 ] || gained=0
    echo $((done + gained)) >"$saved"
    kill $nap
    exit 0
}
now; begun=$now
trap save USR1
if [ "$ROTA_ATTEMPT" -gt 1 ]; then
    cost=$2
    [ ! -f "$saved" ] || read -r done <"$saved"
fi
left=$((work - done + cost))
[ $left -gt 0 ] || left=0
sleep $((left / 1000)).$(printf %03d $((left % 1000))) &
nap=$!
wait $nap
"""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt: from the plan to the news of its end, in the trace's seconds; None = it ran on when we looked."""

    attempt: int
    start_s: float
    end_s: float | None


@dataclass(slots=True)
class Lived:
    job: Job
    end_s: float | None = None  # when the server knew that it was done; None = not by then
    spans: list[Span] = field(default_factory=list)
    stops: int = 0


def play(
    jobs: Sequence[Job],
    policy: Policy,
    where: Path,
    *,
    speed: float,
    preempt_cost_s: int = 60,
    until_s: float | None = None,
    nodes: int = 2,
    gpus: int = 8,
) -> list[Lived]:
    """Until all are done, or until this moment of the trace. In the order of the submits."""
    jobs = in_order(jobs)
    script = where / "sleeper.sh"
    script.write_text(SLEEPER)
    with fast_house(where / "data", speed, nodes, gpus) as (service, clock):
        service.do(ADMIN, SetPolicy(replace(policy, restart_cost_s=float(preempt_cost_s))))
        zero = clock.tick() + BEFORE_S * speed
        diary = Diary(zero)
        service.subscribe(diary.hear)
        for number, job in enumerate(jobs):
            if until_s is not None and job.submit_s >= until_s:
                break
            clock.sleep_until(zero + job.submit_s)
            diary.expect(number, job)
            spec = _spec(number, job, script, speed, preempt_cost_s)
            service.send(ADMIN, Submit(spec, job.user or "replay")).add_done_callback(diary.submitted)
        diary.wait(clock, until_s)
        _end_all(service, diary)
    return [diary.lives[name(number)] for number in range(len(jobs)) if name(number) in diary.lives]


def name(number: int) -> str:
    """In letters alone: commands that differ only by numbers are alike, and the jobs of a trace are not."""
    return "".join(chr(ord("a") + int(digit)) for digit in f"{number:06d}")


def _spec(number: int, job: Job, script: Path, speed: float, preempt_cost_s: int) -> Spec:
    """As the simulator has it, with something to run."""
    work, cost = (str(round(seconds * 1000 / speed)) for seconds in (job.duration_s, preempt_cost_s))
    return replace(
        spec_of(job),
        name=name(number),
        argv=("/bin/sh", str(script), work, cost, name(number)),
        checkpoint_signal=int(signal.SIGUSR1),
        grace_s=20.0,
        max_retries=0,
    )


def _end_all(service: Service, diary: Diary) -> None:
    """Whatever waits or runs when we have seen enough."""
    service.do(ADMIN, Pause())
    left = [run_id for run_id, number in diary.runs.items() if diary.lives[number].end_s is None]
    for run_id in left:
        service.do(ADMIN, Cancel(run_id, grace_s=0))
    for run_id in left:
        service.wait(run_id, timeout_s=60.0)


class Diary:
    """Who started and ended when, as the server's own events have it; heard on the loop's thread."""

    def __init__(self, zero: float) -> None:
        self.zero = zero
        self.lives: dict[str, Lived] = {}
        self.runs: dict[str, str] = {}  # run id -> name
        self.undone = 0
        self.failed = ""
        self._news = Condition()

    def expect(self, number: int, job: Job) -> None:
        with self._news:
            self.lives[name(number)] = Lived(job)
            self.undone += 1

    def submitted(self, answer: Future[Run]) -> None:
        refusal = answer.exception()
        if refusal is not None:
            with self._news:
                self.failed = f"not submitted: {refusal}"
                self._news.notify()

    def wait(self, clock: FastClock, until_s: float | None) -> None:
        with self._news:
            while self.undone and not self.failed:
                left = None if until_s is None else (self.zero + until_s - clock.tick()) / clock.speed
                if left is not None and left <= 0:
                    break
                self._news.wait(left)
            assert not self.failed, self.failed

    def hear(self, first: int, events: Sequence[e.Event]) -> None:
        with self._news:
            for event in events:
                if isinstance(event, e.RunSubmitted):
                    self.runs[event.run_id] = event.spec.name
                elif isinstance(event, e.AttemptPlanned | e.AttemptEnded):
                    self._note(self.lives[self.runs[event.run_id]], event)
            self._news.notify()

    def _note(self, life: Lived, event: e.AttemptPlanned | e.AttemptEnded) -> None:
        at = event.at - self.zero
        if isinstance(event, e.AttemptPlanned):
            life.spans.append(Span(len(life.spans) + 1, at, None))
            return
        life.spans[-1] = replace(life.spans[-1], end_s=at)
        if event.next is RunState.SUCCEEDED:
            life.end_s = at
            self.undone -= 1
        elif event.next is RunState.QUEUED:
            life.stops += 1
        elif event.next in ENDED and event.next is not RunState.CANCELLED:
            self.failed = f"{life.job.id} ended as {event.next}: {event.exit}"
