"""From schedules to what the charts draw: means over bins of time, and jobs on rows of GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from rota.sim.human import span as words
from rota.sim.model import Result
from rota.sim.picture.gantt import Span
from rota.sim.picture.utilisation import Panel

BINS = 800


def panel(name: str, result: Result, end_s: float, bins: int = BINS) -> Panel:
    """Useful work: segments without their restarts. Wanted: the GPUs of all jobs between submit and completion."""
    useful = [(result.useful_from(segment), segment.end_s, segment.gpus) for segment in result.segments]
    wanted = [(job.submit_s, end, job.gpus) for job, end in zip(result.jobs, result.ends, strict=True)]
    return Panel(name, means(useful, end_s, bins), means(wanted, end_s, bins))


def means(holds: Iterable[tuple[float, float, float]], end_s: float, bins: int) -> list[float]:
    """(from, to, how many) -> how many there were on average in each bin of the time up to `end_s`."""
    if end_s <= 0:
        return [0.0] * bins
    wide = end_s / bins
    partial = [0.0] * (bins + 1)  # what begins or ends within a bin
    change = [0.0] * (bins + 1)  # from this bin on, all of it
    for start, end, count in holds:
        first = min(bins, int(start / wide))
        last = min(bins, int(end / wide))
        if first == last:
            partial[first] += count * (end - start)
            continue
        partial[first] += count * ((first + 1) * wide - start)
        partial[last] += count * max(0.0, end - last * wide)
        change[first + 1] += count
        change[last] -= count
    found, whole = [], 0.0
    for i in range(bins):
        whole += change[i]
        found.append(round(whole + partial[i] / wide, 6))
    return found


def spans(result: Result) -> list[Span]:
    """Each segment on the lowest rows of its nodes that are free then, as few blocks as that makes."""
    first_row, row = {}, 0
    for node, gpus in result.gpus_of:
        first_row[node] = row
        row += gpus
    free = {node: list(range(gpus)) for node, gpus in result.gpus_of}
    for rows in free.values():
        heapify(rows)
    ends: list[tuple[int, int, str, list[int]]] = []
    found: list[Span] = []
    for number, segment in enumerate(sorted(result.segments, key=lambda one: (one.start_s, one.end_s))):
        while ends and ends[0][0] <= segment.start_s:
            _, _, node, rows = heappop(ends)
            for one in rows:
                heappush(free[node], one)
        job = result.jobs[segment.job]
        hint = f"{job.id} of {job.user or 'nobody'}: {job.gpus} GPUs, {words(segment.end_s - segment.start_s)}"
        for node, count in segment.placement:
            rows = [heappop(free[node]) for _ in range(min(count, len(free[node])))]
            heappush(ends, (segment.end_s, number, node, rows))
            for begin, many in blocks(rows):
                found.append(Span(first_row[node] + begin, many, segment.start_s, segment.end_s, job.user, hint))
    return found


def blocks(rows: Iterable[int]) -> list[tuple[int, int]]:
    """2, 3, 4, 7 -> (2, 3), (7, 1): where each block begins and how long it is."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row == found[-1][0] + found[-1][1]:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((row, 1))
    return found
