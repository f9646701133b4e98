"""The simulations themselves, with a bar that says how far they are."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rota.cli.simulate.bar import Bar
from rota.cli.simulate.options import Options

if TYPE_CHECKING:
    from rota.cli.simulate.ask import Asked
    from rota.sim.many import Answer
    from rota.sim.model import Result


class CannotGoOn(Exception):
    """In words for the person."""


def play(asked: Asked, options: Options, bar: Bar) -> tuple[list[Answer], Result | None]:
    """An answer a policy; and where that is compared, what the server's own policy makes of its own past."""
    from concurrent.futures.process import BrokenProcessPool

    from rota.sim.engine import Stuck
    from rota.sim.many import Question, answer

    question = Question(
        jobs=asked.jobs,
        nodes=asked.nodes,
        policies=asked.policies,
        declared=asked.declared,
        preempt_cost_s=options.preempt_cost,
        shakes=options.shakes,
        seed=options.seed,
    )
    try:
        answers = answer(question, options.processes or _cpus(), bar.share)
        return answers, _replay(asked, options, answers) if options.compare else None
    except Stuck as error:
        raise CannotGoOn(str(error)) from error
    except BrokenProcessPool as error:
        why = "a process of the simulation was killed, perhaps for its memory: try --processes 1, or fewer jobs"
        raise CannotGoOn(why) from error


def _replay(asked: Asked, options: Options, answers: list[Answer]) -> Result:
    """With the jobs and the policy as they were, whatever else is being tried."""
    from rota.sim.engine import simulate

    assert asked.own is not None
    assert asked.history is not None
    for (_, policy), one in zip(asked.policies, answers, strict=True):
        if asked.is_as_it_was(policy):
            return one.result
    return simulate(asked.history.live.jobs, asked.nodes, asked.own[1], preempt_cost_s=options.preempt_cost)


def _cpus() -> int:
    """Those that we may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
