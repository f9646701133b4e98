"""How full a cluster gets before nothing fits any more: the openb pods come one by one and never leave.

    python -m tests.bench.packing --traces DIR [--seeds 10] [--jobs 2]

DIR holds openb_pods.csv and openb_nodes.csv. The experiment is the one of Weng et al. (USENIX ATC 2023): the trace in
random order, then pods drawn from it, until as many GPUs were asked for as there are. A pod that fits nowhere is passed
over. Allocation = GPUs given out by then / GPUs.

Two readings. *Shares*: a pod may ask for a part of a GPU, as in the paper; this is a model of its own, for Rota's board
knows whole GPUs only. *Whole*: parts are rounded up to a GPU and CPUs to whole ones, on Rota's own board. Both once
more with every pod asking for more CPUs, so that CPUs run out before GPUs do.
"""

from __future__ import annotations

import argparse
import csv
import math
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rota.core.board import Board, Layout
from rota.core.fragment import WHOLE, Mix, Packer, Shape
from rota.core.node import Gpu, Node
from rota.core.place import place
from rota.core.resources import Request, Slice, lowest
from rota.core.shapes import TYPICAL

Pod = tuple[int, int, int, int]  # GPUs, thousandths of each, thousandths of CPUs, MiB
Machine = tuple[tuple[int, ...], int, int]  # thousandths free of each GPU, most first; thousandths of CPUs; MiB
Score = tuple[float, ...]  # less is better
Judge = Callable[[Machine, Machine], Score]  # of a machine before and after
Placer = Callable[[Pod], bool]  # False: it fits nowhere

LARGEST_CPUS, LARGEST_GPUS = 128_000, 8_000  # of one machine: what the paper measures best fit in
HEADS = 0.95  # the most common shapes that make up so many of the pods are what the paper calls typical


@dataclass(frozen=True)
class Filled:
    allocation: float  # percent
    gangs_failed: float  # percent of the GPUs asked for by pods of more than one
    mean_ms: float  # of processor time to place a pod or to find that it fits nowhere


def read(traces: Path) -> tuple[list[Pod], list[Machine]]:
    pods = [
        (int(row["gpus"]), int(row["gpu_milli"]), int(row["cpu_milli"]), int(row["memory_mib"]))
        for row in _rows(traces / "openb_pods.csv", ("gpus", "gpu_milli", "cpu_milli", "memory_mib", "gpu_spec"))
    ]
    machines = [
        ((WHOLE,) * int(row["gpu"]), int(row["cpu_milli"]), int(row["memory_mib"]))
        for row in _rows(traces / "openb_nodes.csv", ("gpu", "cpu_milli", "memory_mib"))
    ]
    return pods, machines


def _rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    if not path.exists():
        raise SystemExit(f"{path}: no such file")
    with path.open(newline="") as lines:
        reader = csv.DictReader(lines)
        missing = [column for column in columns if column not in (reader.fieldnames or ())]
        if missing:
            raise SystemExit(f"{path}: no column {', '.join(missing)}")
        for row in reader:
            if row.get("gpu_spec"):
                raise SystemExit(f"{path}, line {reader.line_num}: gpu_spec: pods that want a model are not modelled")
            yield row


def arrivals(pods: Sequence[Pod], capacity: int, seed: int) -> Iterator[Pod]:
    chance = random.Random(seed)
    ordered = list(pods)
    chance.shuffle(ordered)
    asked = 0
    while True:
        pod = ordered.pop() if ordered else chance.choice(pods)
        asked += pod[0] * pod[1]
        if asked > capacity:
            return
        yield pod


def fill(pods: Sequence[Pod], capacity: int, seed: int, placer: Placer) -> Filled:
    given = gangs = failed = count = 0
    begun = time.process_time()
    for pod in arrivals(pods, capacity, seed):
        size = pod[0] * pod[1]
        placed = placer(pod)
        count += 1
        given += size * placed
        if pod[0] > 1:
            gangs += size
            failed += size * (not placed)
    spent_ms = (time.process_time() - begun) * 1e3
    return Filled(100 * given / capacity, 100 * failed / gangs if gangs else 0.0, spent_ms / count)


# -- shares of GPUs, as in the paper -----------------------------------------------------------------------------------
class Park:
    """Machines in one state are one entry, and a judge is asked about each state once: alike is alike."""

    def __init__(self, machines: Sequence[Machine], judge: Judge) -> None:
        self.states = Counter(machines)
        self.judge = judge
        self.known: dict[Pod, dict[Machine, tuple[Score, Machine] | None]] = {}

    def place(self, pod: Pod) -> bool:
        known = self.known.setdefault(pod, {})
        best: tuple[Score, Machine] | None = None
        chosen: Machine | None = None
        for state in self.states:
            if state not in known:
                ways = [((*self.judge(state, after), tight), after) for after, tight in outcomes(state, pod)]
                known[state] = min(ways, default=None)
            way = known[state]
            if way is not None and (best is None or way[0] < best[0]):
                best, chosen = way, state
        if best is None or chosen is None:
            return False
        self.states[chosen] -= 1
        if not self.states[chosen]:
            del self.states[chosen]
        self.states[best[1]] += 1
        return True


def outcomes(machine: Machine, pod: Pod) -> Iterator[tuple[Machine, int]]:
    """What the machine would be with the pod on it, for each GPU that differs, and how much of that GPU was free."""
    free, cpus, memory = machine
    gpus, milli, need_cpus, need_memory = pod
    if need_cpus > cpus or need_memory > memory:
        return
    if not gpus or milli == WHOLE:
        if gpus <= len(free) and all(share == WHOLE for share in free[:gpus]):
            yield (free[gpus:], cpus - need_cpus, memory - need_memory), WHOLE
        return
    for share in set(free):
        if share >= milli:
            rest = list(free)
            rest.remove(share)
            if share > milli:
                rest.append(share - milli)
            yield (tuple(sorted(rest, reverse=True)), cpus - need_cpus, memory - need_memory), share


def _left(machine: Machine) -> float:
    return machine[1] / LARGEST_CPUS + sum(machine[0]) / LARGEST_GPUS


def best_fit(_: Sequence[Pod]) -> Judge:
    """The paper's: least CPUs and GPUs left over."""
    return lambda before, after: (_left(after),)


def fgd(pods: Sequence[Pod]) -> Judge:
    """The paper's: least growth of the GPUs that the next pod could not use, in its hundred steps; then best fit."""
    typical: list[tuple[Pod, int]] = []
    for shape, times in Counter(pods).most_common():
        if sum(many for _, many in typical) < HEADS * len(pods):
            typical.append((shape, times))
    wanting = [(*shape, times) for shape, times in typical if shape[0]]
    heads = sum(times for *_, times in wanting)

    @cache
    def fragments(machine: Machine) -> float:
        free, cpus, memory = machine
        lost, whole = 0, sum(free)
        for gpus, milli, need_cpus, need_memory, times in wanting:
            fitting = [share for share in free if share >= milli]
            served = len(fitting) >= gpus and need_cpus <= cpus and need_memory <= memory
            lost += times * (whole - sum(fitting) if served else whole)
        return lost / heads

    def judge(before: Machine, after: Machine) -> Score:
        grown = fragments(after) - fragments(before)
        return -math.floor(100 / (1 + math.exp(grown / WHOLE))), _left(after)

    return judge


def least_room(pods: Sequence[Pod]) -> Judge:
    """Rota's: core/fragment.py."""
    shapes = [
        Shape(gpus, cpus, memory, milli, times=times) for (gpus, milli, cpus, memory), times in Counter(pods).items()
    ]
    mix = Mix(sorted(shapes, key=lambda shape: -shape.weight)[:TYPICAL])

    @cache
    def room(machine: Machine) -> float:
        return mix.room(*machine)

    return lambda before, after: (round(room(before) - room(after), 6), sum(after[0]))


# -- whole GPUs, on Rota's board ---------------------------------------------------------------------------------------
class Cluster:
    def __init__(self, machines: Sequence[Machine], pods: Sequence[Pod], *, packed: bool) -> None:
        self.layout = Layout(_node(n, machine) for n, machine in enumerate(machines))
        self.board = Board(self.layout)
        typical = sorted(((_request(pod), float(times)) for pod, times in Counter(pods).items()), key=_weight)
        self.packer = Packer(self.layout, tuple(typical[:TYPICAL])) if packed else None

    def place(self, pod: Pod) -> bool:
        request = _request(pod)
        if self.packer is None:
            spot = place(self.board, request)
        else:
            node = self.packer.choose(self.board, request)
            spot = None
            if node is not None:
                gpus = lowest(self.board.free[node], request.gpus)
                spot = (Slice(self.layout.nodes[node].id, gpus, request.cpus, request.memory_gb),)
        if spot is not None:
            self.board.take(spot)
        return spot is not None


def _node(number: int, machine: Machine) -> Node:
    free, cpus, memory = machine
    gpus = tuple(Gpu(index, f"{number}-{index}", "GPU", 16.0) for index in range(len(free)))
    return Node(f"n{number}", f"n{number}", gpus, cpus // 1000, memory / 1024)


@cache
def _request(pod: Pod) -> Request:
    return Request(pod[0], cpus=math.ceil(pod[2] / 1000), memory_gb=pod[3] / 1024)


def _weight(shape: tuple[Request, float]) -> float:
    return -shape[1] * math.sqrt(shape[0].gpus)


def rounded_up(pods: Sequence[Pod]) -> list[Pod]:
    return [(gpus, WHOLE if gpus else 0, cpus, memory) for gpus, _, cpus, memory in pods]


def hungrier(pods: Sequence[Pod], factor: float) -> list[Pod]:
    return [(gpus, milli, round(cpus * factor), memory) for gpus, milli, cpus, memory in pods]


# -- the table ---------------------------------------------------------------------------------------------------------
JUDGES = {"best fit": best_fit, "FGD": fgd, "least room lost": least_room}
READINGS = {  # name -> (whole GPUs, CPUs asked for times this)
    "shares of GPUs": (False, 1.0),
    "shares of GPUs, CPUs x 1.3": (False, 1.3),
    "whole GPUs": (True, 1.0),
    "whole GPUs, CPUs x 1.5": (True, 1.5),
}


def one(traces: Path, reading: str, policy: str, seed: int) -> Filled:
    pods, machines = read(traces)
    whole, factor = READINGS[reading]
    pods = hungrier(pods, factor)
    capacity = sum(sum(free) for free, _, _ in machines)
    if whole:
        pods = rounded_up(pods)
        placer = Cluster(machines, pods, packed=policy == "least room lost").place
    else:
        placer = Park(machines, JUDGES[policy](pods)).place
    return fill(pods, capacity, seed, placer)


def _cell(runs: Sequence[Filled]) -> str:
    shares = [run.allocation for run in runs]
    spread = statistics.stdev(shares) if len(shares) > 1 else 0.0
    gangs = statistics.fmean(run.gangs_failed for run in runs)
    return f"{statistics.fmean(shares):.2f} ({spread:.2f}), gangs failed {gangs:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.packing")
    parser.add_argument("--traces", type=Path, required=True, help="a folder with openb_pods.csv and openb_nodes.csv")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    read(options.traces)  # what is wrong with the files is said once, here
    print("Allocation at full demand in %, mean (sd); gangs failed: in % of the GPUs that gangs asked for\n")
    print("| | " + " | ".join(JUDGES) + " | ms a pod, the last |", "|---" * (len(JUDGES) + 2) + "|", sep="\n")
    with ProcessPoolExecutor(options.jobs) as pool:
        for reading, (whole, _) in READINGS.items():
            cells, last = [], 0.0
            for policy in JUDGES:
                if whole and policy == "FGD":
                    cells.append("-")
                    continue
                asked = [pool.submit(one, options.traces, reading, policy, seed) for seed in range(options.seeds)]
                runs = [task.result() for task in asked]
                cells.append(_cell(runs))
                last = statistics.fmean(run.mean_ms for run in runs)
                print(f"{reading}, {policy}: {cells[-1]}", file=sys.stderr)
            print(f"| {reading} | " + " | ".join(cells) + f" | {last:.2f} |", flush=True)


if __name__ == "__main__":
    main()
