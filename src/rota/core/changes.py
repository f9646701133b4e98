"""What could be asked for instead, so that a run starts sooner: smallest change first. Nothing is promised here; who
tells people about one has tried it out (explain: now; alternatives: sooner)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rota.core.express import SHORT_S
from rota.core.grace import PROMPT_S, own_s
from rota.core.place import place
from rota.core.plan import Plan
from rota.core.progress import bound_s
from rota.core.resources import Request
from rota.core.run import Run
from rota.core.snapshot import Snapshot
from rota.core.times import told

FEWER = 8  # numbers of GPUs that are looked at
HIGH = 3
_WORDS = {1: "low", 2: "normal", HIGH: "high", 4: "critical"}


@dataclass(frozen=True, slots=True)
class Change:
    words: str  # "with 4 GPUs"
    so: str  # what comes of it if the run starts at once
    run: Run  # as it would be


def gentle(snap: Snapshot, run: Run, plan: Plan) -> Iterator[Change]:
    """Those that leave the size as it is and push nobody aside."""
    request = run.spec.request
    if place(snap.board, request) is not None:
        yield from _shorter(snap, run, plan)
    if request.gpus > 1 and not request.nodes and not request.span:
        spread = replace(request, span=True)
        yield _asking(run, spread, "split over nodes")
    if request.nodes > 1:
        yield _asking(run, replace(request, nodes=0), "without a number of nodes")
    if request.gpu_type:
        yield _asking(run, replace(request, gpu_type=""), "with any type of GPU")
    if request.gpu_memory_gb:
        yield _asking(run, replace(request, gpu_memory_gb=0.0), "with any size of GPU memory")
    if request.cpus or request.memory_gb:
        yield _asking(run, replace(request, cpus=0, memory_gb=0.0), "without asking for CPUs and memory")
    if not run.spec.preemptible and run.spec.holder is None:
        spec = replace(run.spec, preemptible=True)
        yield Change("as preemptible", "it would start now", replace(run, spec=spec))
        saving = replace(spec, saves=True)
        yield Change("as preemptible with a checkpoint signal", "it would start now", replace(run, spec=saving))


def fewer(snap: Snapshot, run: Run) -> Iterator[Change]:
    """With fewer GPUs, where there is room for so many now."""
    request = run.spec.request
    gpus = request.gpus
    for _ in range(FEWER):  # halving: each try is a whole decision
        gpus = gpus - 1 if gpus <= FEWER else gpus // 2
        if gpus < 1:
            return
        less = replace(request, gpus=gpus)
        if request.nodes <= 1 and place(snap.board, less) is not None:
            yield _asking(run, less, _gpus(gpus))


def half(run: Run) -> Iterator[Change]:
    """With half and a quarter of the GPUs, whether there is room now or later."""
    request = run.spec.request
    for gpus in (request.gpus // 2, request.gpus // 4):
        if gpus >= 1 and request.nodes <= 1:
            yield _asking(run, replace(request, gpus=gpus), _gpus(gpus))


def raised(run: Run) -> Iterator[Change]:
    if run.priority < HIGH:
        text = f"with priority {_WORDS[HIGH]}"
        yield Change(text, "it would start now", replace(run, priority=HIGH, spec=replace(run.spec, priority=HIGH)))


def _shorter(snap: Snapshot, run: Run, plan: Plan) -> Iterator[Change]:
    """Done before the GPUs that are free now are promised to others."""
    lefts = []
    if plan.reserve is not None and plan.reserve.run_id != run.id:
        beyond_s = max(0.0, own_s(snap.policy, run.spec) - PROMPT_S)
        lefts.append(int(plan.reserve.at - snap.now - beyond_s))
    # what people reserved begins with an empty GPU: a little sooner, and in minutes
    grace_s = own_s(snap.policy, run.spec)
    starts = [one.start for one in snap.reservations if one.start > snap.now]
    lefts += [int(start - snap.now - grace_s - 1) // 60 * 60 for start in starts[:1]]
    limit = run.spec.time_limit_s
    for left in lefts:
        if left >= 1 and (limit is None or left < limit):
            yield limited(run, float(left), "it would fit before the reservation and start now")
    if bound_s(run) > SHORT_S:
        yield limited(run, SHORT_S)


def limited(run: Run, limit_s: float, so: str = "it would start now") -> Change:
    spec = replace(run.spec, time_limit_s=limit_s)
    words = f"with a time limit of {told(limit_s)}"
    return Change(words, so, replace(run, spec=spec, expected_s=min(run.expected_s, limit_s)))


def _asking(run: Run, request: Request, words: str) -> Change:
    return Change(words, "there would be room now", replace(run, spec=replace(run.spec, request=request)))


def _gpus(count: int) -> str:
    return f"with {count} GPU{'s' * (count > 1)}"
