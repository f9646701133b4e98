"""Replay the busiest hours of a trace live, at many times its speed, and hold the waits against a simulation's.

python -m tests.bench.replay --trace FILE [--hours 24] [--speed 60] [--policy auto] [--drain]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from rota.core.presets import NAMES, named
from rota.sim.cluster import read_cluster
from rota.sim.declare import Declared, declare
from rota.sim.model import Job
from rota.sim.trace import check_fits, read_trace
from tests.replay.measure import HOUR_S, Waits, busiest, of_lives, of_simulation
from tests.replay.play import play

CLUSTER, NODES, GPUS, COST_S = "2x8", 2, 8, 60


def busiest_of(path: str, hours: float) -> list[Job]:
    """With declared times as classes, and every job preemptible unless the trace says otherwise."""
    jobs = read_trace(path)
    window_s = round(hours * HOUR_S)
    begins = busiest(jobs, window_s)
    chosen = [job for job in jobs if begins <= job.submit_s < begins + window_s]
    return declare([replace(job, submit_s=job.submit_s - begins) for job in chosen], Declared.CLASS, 1)


def replay(jobs: list[Job], policy: str, speed: float, until_s: float | None) -> tuple[Waits, Waits]:
    """Live, and simulated."""
    chosen = named(policy)
    with tempfile.TemporaryDirectory(prefix="rota-replay-", dir="/var/tmp") as where:
        lives = play(
            jobs,
            chosen,
            Path(where),
            speed=speed,
            preempt_cost_s=COST_S,
            until_s=until_s,
            nodes=NODES,
            gpus=GPUS,
        )
    return of_lives(lives, COST_S, until_s), of_simulation(jobs, CLUSTER, chosen, COST_S, until_s)


def told(live: Waits, simulated: Waits) -> str:
    lines = [f"{'':10} {'mean':>9} {'p50':>8} {'p95':>9} {'stops':>6} {'done':>5}"]
    for word, one in (("live", live), ("simulated", simulated)):
        lines.append(f"{word:10} {one.mean:9.1f} {one.p50:8.1f} {one.p95:9.1f} {one.stops:6} {one.done:5}")
    return "\n".join([*lines, f"live mean / simulated mean = {live.mean / simulated.mean:.4f}"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", required=True, help="a CSV file as `rota simulate` reads it")
    parser.add_argument("--hours", type=float, default=24.0, help="of the trace, its busiest (default 24)")
    parser.add_argument("--speed", type=float, default=60.0, help="seconds of the trace in one (default 60)")
    parser.add_argument("--policy", choices=NAMES, default="auto")
    parser.add_argument("--drain", action="store_true", help="go on until every job is done; else stop with the hours")
    chosen = parser.parse_args()
    jobs = busiest_of(chosen.trace, chosen.hours)
    check_fits(jobs, read_cluster(CLUSTER), chosen.trace)
    until_s = None if chosen.drain else chosen.hours * HOUR_S
    print(
        f"{len(jobs)} jobs of {chosen.hours:g} h at {chosen.speed:g}x on {CLUSTER}, policy {chosen.policy}", flush=True
    )
    print(told(*replay(jobs, chosen.policy, chosen.speed, until_s)))


if __name__ == "__main__":
    main()
