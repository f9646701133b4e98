"""A run, told whole: facts, attempts, the code it was submitted from, and what it used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rota.app import signals
from rota.cli.follow import gpu_hours
from rota.cli.prospect import bound, probably
from rota.cli.render import clock, gpus, in_time, plain, priority, span, state
from rota.cli.slurm.told import told
from rota.cli.spent import spent
from rota.cli.table import facts, table

if TYPE_CHECKING:
    from rota.client.model.run import Eta, Run


def story(run: Run, workspace: Mapping[str, Any] | None, *, full: bool = False, eta: Eta | None = None) -> str:
    """`eta`: how sure its start is, of one that waits in line."""
    parts = [facts(_facts(run, full, eta))]
    if run.reasons:
        parts.append("why it waits\n" + "\n".join(f"  {plain(reason.text)}" for reason in run.reasons))
    if run.attempts:
        parts.append(_attempts(run))
    if workspace:
        parts.append("code\n" + _indented(facts(_code(workspace))))
    links = run.raw.get("links")
    if isinstance(links, list) and links:
        parts.append("links\n" + "\n".join(f"  {_link(link)}" for link in links[:20]))
    used = efficiency(run)
    if used:
        parts.append(used)
    return "\n\n".join(parts)


def efficiency(run: Run) -> str:
    """What it cost: waiting, running, GPU-hours."""
    words = spent(run)
    if gpu_hours(run):
        words.append(f"{gpu_hours(run):.3f} GPU-hours in {len(run.attempts)} attempt{'s'[: len(run.attempts) != 1]}")
    if run.preemptions:
        words.append(_suspended(run))
    return ", ".join(words)


def _suspended(run: Run) -> str:
    times = f"{run.preemptions} time{'s'[: run.preemptions != 1]}"
    hours = f"{run.preemption_gpu_seconds / 3600:.3f} GPU-hours of grace"
    return f"stopped {times} for others, {span(run.suspended_seconds)} suspended, {hours}"


def _warning(raw: Mapping[str, Any]) -> str:
    number, before = raw.get("warn_signal"), raw.get("warn_seconds")
    return f"{signals.name(number)} {span(before)} before the limit" if number and before else ""


def _stopping(raw: Mapping[str, Any]) -> str:
    if raw.get("filler"):
        return "at once, for anybody: a filler"
    number, grace = raw.get("checkpoint_signal"), raw.get("grace_seconds")
    if not raw.get("preemptible"):
        return ""
    whom = "others" if raw.get("saves") else "more urgent runs"
    return f"for {whom}, by {signals.name(number or 15)} with {span(grace)} of grace"


def _facts(run: Run, full: bool, eta: Eta | None) -> list[tuple[str, object]]:
    raw = run.raw
    waiting = run.waiting
    needs = raw.get("depends_on")
    return [
        ("run", run.id),
        ("name", run.name),
        ("state", state(run.status) + (f": {run.error or run.why}" if run.error or run.why else "")),
        ("stopping", _ending(raw.get("stopping"))),
        ("exit code", run.exit_code),
        ("user", run.user),
        ("lease of", _lease(raw.get("lease"))),
        ("command", run.command if full else told(run)),
        ("directory", run.workdir),
        ("ran before", _replaced(raw.get("replaced"))),
        ("GPUs", f"{run.gpu_count}" + (f" on {gpus(run.gpus)}" if run.gpus else "") + _simulated(run)),
        ("reservation", run.reservation),
        ("priority", priority(run.priority)),
        ("time limit", span(run.time_limit_seconds)),
        ("warning", _warning(raw)),
        ("may be stopped", _stopping(raw)),
        ("estimate", span(run.estimated_duration_seconds)),
        (
            "after",
            " ".join(f"{one.get('run_id')}:{one.get('when')}" for one in needs) if needs and _objects(needs) else "",
        ),
        ("sweep", run.sweep_id),
        ("rerun of", run.parent_run_id),
        ("tags", " ".join(run.tags)),
        ("submitted", clock(run.created_at)),
        ("started", clock(run.started_at)),
        ("ended", clock(run.ended_at)),
        ("position", run.position if waiting else None),
        ("expected start", (eta and probably(eta)) or in_time(run.eta) if run.status == "queued" else None),
        ("", eta and bound(eta)),
        ("hint", run.hint),
    ]


def _ending(stopping: object) -> str:
    """Say who asked a live run to end, and when it is killed at the latest."""
    if not isinstance(stopping, Mapping):
        return ""
    by = f" by {stopping['by']}" if stopping.get("by") else ""
    return f"{stopping.get('cause')}{by}; killed at {clock(stopping.get('kill_at'))} at the latest"


def _replaced(told: object) -> str:
    """Say what the first attempt ran, where the command or the directory was edited since."""
    if not isinstance(told, Mapping):
        return ""
    cut = f" ... (cut, SHA-256 {told['sha256']})" if told.get("sha256") else ""
    return plain(f"{told.get('command')}{cut} in {told.get('workdir')}")


def _lease(told: object) -> str:
    if not isinstance(told, Mapping):
        return ""
    return f"process {told.get('pid')}" + (f", asked for by {told['asked_by']}" if told.get("asked_by") else "")


def _simulated(run: Run) -> str:
    return " (simulated)" if run.simulated and run.gpu_count else ""


def _attempts(run: Run) -> str:
    rows = [
        (
            number,
            clock(one.started),
            span(one.ended - one.started) if one.ended is not None and one.started is not None else "-",
            "-" if one.exit_code is None else one.exit_code,
            gpus(one.gpus),
            one.reason or "",
        )
        for number, one in enumerate(run.attempts, len(run.attempts) and _first(run))
    ]
    return table(("ATTEMPT", "STARTED", "RAN", "EXIT", "WHERE", "HOW IT ENDED"), rows, right=("ATTEMPT", "RAN", "EXIT"))


def _first(run: Run) -> int:
    """The number of the first attempt that is listed: ids end in it."""
    number = run.attempts[0].id.rpartition("-")[2]
    return int(number) if number.isdigit() else 1


def _code(workspace: Mapping[str, Any]) -> list[tuple[str, object]]:
    diff = str(workspace.get("diff") or "")
    lines = changed_lines(diff)
    cut = ", cut off" if workspace.get("diff_truncated") else ""
    changes = f"{lines} line{'s'[: lines != 1]} not committed{cut}: rota show --diff {workspace.get('run_id', '')}"
    if "diff" not in workspace:
        changes = "not committed; shown to the run's owner and admins"
    names = workspace.get("env_names")
    return [
        ("checkout", workspace.get("root")),
        ("commit", workspace.get("commit")),
        ("branch", workspace.get("branch")),
        ("remote", workspace.get("remote")),
        ("changes", changes if workspace.get("dirty") else "none"),
        ("variables", " ".join(map(str, names)) if isinstance(names, list) else ""),
    ]


def changed_lines(diff: str) -> int:
    """Lines that a patch adds or takes away, without its heads."""
    count, inside = 0, False
    for line in diff.split("\n"):
        if line.startswith("@@"):
            inside = True
        elif line.startswith("diff --git "):
            inside = False
        elif inside and line.startswith(("+", "-")):
            count += 1
    return count


def _link(link: object) -> str:
    return plain(link.get("url", link) if isinstance(link, dict) else link)


def _objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
