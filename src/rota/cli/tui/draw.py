"""The rows and lines of the screen, as plain values: no terminal, no network. Names are data and are never markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rota.cli.render import plain, state
from rota.cli.tui.look import Look
from rota.client.model.cluster import Gpu, Job, Node
from rota.client.model.run import Explanation, Run

MARKS = {"available": "·", "offline": "-", "error": "!"}
CELL = 8
Row = tuple[str, ...]
QUEUE_HEAD: Row = ("ID", "NAME", "USER", "GPUS", "WAITED", "STARTS", "REASON")
MINE_HEAD: Row = ("ID", "NAME", "STATE", "GPUS", "TIME", "WHERE")


def gpu_lines(nodes: Iterable[Node], width: int) -> list[str]:
    """A line or more for each node: who holds each GPU."""
    nodes = list(nodes)
    stem = min(16, max((len(node.node_id) for node in nodes), default=4))
    per_line = max(1, (width - stem - 2) // CELL)
    lines = []
    for node in nodes:
        cells = [_cell(gpu) for gpu in node.gpus] or ["no GPUs"]
        note = f"  drained: {plain(node.drain_why)}" if node.drained else "" if node.alive else "  does not answer"
        for start in range(0, len(cells), per_line):
            name = _cut(node.node_id, stem) if start == 0 else ""
            lines.append(f"{name:{stem}}  {''.join(cells[start : start + per_line])}".rstrip() + note)
            note = ""
    return lines


def _cell(gpu: Gpu) -> str:
    text = MARKS.get(gpu.status) or _cut(gpu.user or gpu.allocated_to or "?", CELL - 3)
    return f"{gpu.gpu_id}:{text}".ljust(CELL)


def heading(seen: Look) -> str:
    gpus = [gpu for node in seen.nodes for gpu in node.gpus]
    free = sum(gpu.status == "available" for gpu in gpus)
    kind = "simulated GPUs" if any(node.simulated for node in seen.nodes) else "GPUs"
    return f"{kind}: {free} of {len(gpus)} free   waiting: {len(seen.queued)}   you: {plain(seen.me)}"


def queue_rows(seen: Look, wanted: str = "") -> dict[str, Row]:
    return {
        job.id: _queue_row(job, seen.at, seen.why) for job in seen.queued if _fits(wanted, job.id, job.name, job.user)
    }


def _queue_row(job: Job, now: float, why: Mapping[str, Explanation]) -> Row:
    explained = why.get(job.id)
    eta = explained.raw.get("eta") if explained is not None else job.raw.get("eta")
    reason = explained.reasons[0].text if explained is not None and explained.reasons else ""
    return (
        job.id,
        _cut(job.name, 16),
        _cut(job.user, 10),
        str(job.gpu_count),
        span(now - job.submitted_at) if job.submitted_at is not None else "",
        f"in {span(eta - now)}" if isinstance(eta, (int, float)) else "?",
        _cut(reason, 200),
    )


def mine_rows(seen: Look, wanted: str = "") -> dict[str, Row]:
    return {run.id: _mine_row(run, seen.at) for run in seen.mine if _fits(wanted, run.id, run.name, run.status)}


def _mine_row(run: Run, now: float) -> Row:
    end = run.ended_at if run.ended_at is not None else now
    taken = span(end - run.started_at) if run.started_at is not None else ""
    where = " ".join(run.gpus) or (run.error or "")
    return run.id, _cut(run.name, 20), state(run.status), str(run.gpu_count), taken, _cut(where, 200)


def details(run: Run, why: Explanation | None) -> list[str]:
    """What stands above the log of one run."""
    lines = [
        f"{run.id}  {plain(run.name)}  of {plain(run.user)}",
        f"{state(run.status)}, {run.gpu_count} GPUs {' '.join(map(plain, run.gpus))}".rstrip(),
        f"$ {plain(run.command)}",
    ]
    if run.exit_code is not None or run.error:
        lines.append(f"exit code {run.exit_code}  {plain(run.error or '')}".rstrip())
    for reason in why.reasons if why is not None else ():
        lines.append(f"waits: {plain(reason.text)}")
    if why is not None and why.hint:
        lines.append(f"hint: {plain(why.hint)}")
    return lines


def log_lines(text: str, most: int = 1000) -> list[str]:
    return [plain(line.expandtabs()) for line in text.splitlines()[-most:]]


def span(seconds: float) -> str:
    """12s, 5m, 3h20, 2d."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}"
    return f"{whole // 86400}d"


def _fits(wanted: str, *texts: str) -> bool:
    return any(wanted.lower() in text.lower() for text in texts)


def _cut(text: str, width: int) -> str:
    text = plain(text)
    return text if len(text) <= width else text[: width - 1] + "…"
