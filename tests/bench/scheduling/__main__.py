"""`make bench-scheduling`: simulate, print the tables and the goals, and write the document when asked to.

    python -m tests.bench.scheduling --traces DIR [--shakes 20 | --quick] [--out FILE [--resume]] [--record]
    python -m tests.bench.scheduling --from FILE [--record]

--quick: three shakes and not the large trace; --out FILE keeps the results as they come, --resume goes on from there
after it was cut short; --from FILE simulates nothing and takes results that were kept, as many shakes as are whole;
--record writes docs/SCHEDULING.md and its pictures from them.
"""

from __future__ import annotations

import argparse
import platform
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from rota.sim.engine import Stuck
from tests.bench.scheduling import document, goals, play, results, tables, workload
from tests.bench.scheduling.results import Results

OUT = Path("build/scheduling.json")
EVERY_S = 30.0  # so often what is known is written down


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-scheduling")
    parser.add_argument("--traces", type=Path, help="the folder with team16_week.csv and the others")
    parser.add_argument("--shakes", type=int, default=20)
    parser.add_argument("--unseen", type=int, default=10, help="made-up traces of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=play.cpus())
    parser.add_argument("--quick", action="store_true", help="3 shakes, 2 made-up traces, not the large trace")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--resume", action="store_true", help="go on with what --out holds, if the code is the same")
    parser.add_argument("--from", dest="source", type=Path, help="results of an earlier run")
    parser.add_argument("--record", action="store_true", help="write docs/SCHEDULING.md and its pictures")
    options = parser.parse_args()
    found = results.read(options.source) if options.source else _simulate(options)
    results.whole_rounds(found, play.expected())
    print(report(found))
    if options.record:
        for path in document.record(found):
            print(f"wrote {path}")


def _simulate(options: argparse.Namespace) -> Results:
    if options.traces is None or not options.traces.is_dir():
        raise SystemExit(f"{options.traces or 'TRACES'}: there are no traces\n{workload.HOW}")
    shakes, unseen = (3, 2) if options.quick else (options.shakes, options.unseen)
    some = workload.places(options.traces, large=not options.quick)
    found = results.read(options.out) if options.resume else Results()
    open_ = [
        task
        for task in play.tasks(some, shakes, unseen, options.seed)
        if str(task.number) not in found.runs.get(task.place.name, {}).get(task.variant.name, {})
    ]
    begun = written = time.monotonic()
    for place in some:
        jobs = workload.jobs(place, "class", 1 if place.made_up else 0, options.seed)
        found.facts[place.name] = workload.facts(jobs, place)

    def kept(task: play.Task, outcome: play.Outcome) -> None:
        nonlocal written
        found.keep(task.place.name, task.variant.name, task.number, outcome)
        now = time.monotonic()
        found.made = made(options, shakes, unseen, now - begun)
        if now - written > EVERY_S:
            written = now
            found.write(options.out)

    try:
        play.play_all(open_, options.processes, kept)
    except (Stuck, BrokenProcessPool) as error:
        raise SystemExit(f"the simulation cannot go on: {error}") from error
    found.write(options.out)
    return found


def made(options: argparse.Namespace, shakes: int, unseen: int, took_s: float) -> dict[str, object]:
    return {
        "date": time.strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "processes": options.processes,
        "seed": options.seed,
        "shakes": shakes,
        "unseen": unseen,
        "took_min": round(took_s / 60, 1),
    }


def report(found: Results) -> str:
    parts = []
    for name in tables.names(found):
        parts += [document.caption(found, name), tables.table(tables.WAITS, tables.waits(found, name))]
        parts += [tables.table(tables.OTHERS, tables.others(found, name))]
    curve = tables.patience(found)
    if curve:
        parts += ["What patience trades", tables.table(tables.PATIENCE, curve)]
    for name in tables.names(found):
        if len(tables.shares(found, name)) > 1:
            parts += [f"Mixed teams: {name}", tables.table(tables.MIX, tables.mixed(found, name))]
    unseen = tables.unseen(found)
    if unseen:
        parts += ["Unseen traces", tables.table(tables.UNSEEN, unseen)]
        parts += [tables.table(goals.HEAD, goals.rows(goals.on_unseen(found)))]
    parts += ["Goals", tables.table(goals.HEAD, goals.rows(goals.goals(found)))]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
