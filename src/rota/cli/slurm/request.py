"""From sbatch's options to the fields of a submit. Pure: what it needs of the world is given to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.cli.environment import exported
from rota.cli.slurm import values
from rota.cli.slurm.options import Parsed, UsageError

LEAST_GRACE_S = 10


def shape(parsed: Parsed) -> dict[str, Any]:
    """GPUs, nodes, CPUs, memory. In Slurm --gpus counts the whole job, --gres each node; no word of GPUs means none."""
    nodes = _nodes(parsed.last("nodes") or "1")
    tasks = _tasks(parsed, nodes)
    gpus = _gpus(parsed, nodes, tasks)
    fields: dict[str, Any] = {"gpu_count": gpus.count}
    if gpus.type:
        fields["gpu_type"] = gpus.type
    if gpus.count % nodes:
        raise UsageError(f"--gpus: {gpus.count} cannot be shared evenly by {nodes} nodes")
    if parsed.has("nodes"):
        fields["nodes"] = nodes
    per_task = values.number("cpus-per-task", parsed.last("cpus-per-task") or "1", 1)
    per_node = -(-tasks // nodes) * per_task
    if parsed.has("cpus-per-task") or parsed.has("ntasks") or parsed.has("ntasks-per-node"):
        fields["cpus"] = per_node
    memory_gb = _memory_gb(parsed, per_node, gpus.count // nodes)
    if memory_gb:
        fields["memory_gb"] = memory_gb
    limit_s = values.time_limit_s(parsed.last("time") or "UNLIMITED")
    if limit_s is not None:
        fields["time_limit_seconds"] = limit_s
    if parsed.has("reservation"):
        fields["reservation"] = parsed.last("reservation") or ""
    return fields | stopping(parsed, limit_s)


def stopping(parsed: Parsed, limit_s: float | None) -> dict[str, Any]:
    """--requeue and --signal. A job that may be requeued may be stopped for others; it then needs as long to save as
    before its limit."""
    sent = values.signal(parsed.last("signal") or "") if parsed.has("signal") else None
    fields: dict[str, Any] = {}
    said = [given.name for given in parsed.given if given.name in ("requeue", "no-requeue")]
    if said[-1:] == ["no-requeue"]:
        fields["max_retries"] = 0
    elif said:
        fields["preemptible"] = True
        if sent is not None:
            fields |= {"checkpoint_signal": sent.number, "grace_seconds": max(sent.before_s, LEAST_GRACE_S)}
    if sent is not None and limit_s is not None and sent.before_s < limit_s:
        fields |= {"warn_signal": sent.number, "warn_seconds": sent.before_s}
    return fields


def cap_grace(fields: dict[str, Any], policy: Mapping[str, Any]) -> str:
    """Shorten the grace to what the server's policy allows such a job; what to tell of it, "" = nothing. In Slurm the
    time of --signal is before the limit, where it stays as it is; only a preemption is held to the cap."""
    wanted_s, most_s = fields.get("grace_seconds", 0), policy.get("max_checkpoint_grace_seconds")
    if most_s is None or wanted_s <= (most_s := max(most_s, policy.get("max_grace_seconds", 0))):
        return ""
    fields["grace_seconds"] = most_s
    return f"--signal: a preempted job is killed {most_s:g} s after it, not {wanted_s:g}: the policy allows no more"


def unsent(parsed: Parsed) -> str:
    """Why --signal is not sent before the time limit; "" = it is, or nobody asked."""
    if not parsed.has("signal"):
        return ""
    limit_s = values.time_limit_s(parsed.last("time") or "UNLIMITED")
    if limit_s is None:
        return "--signal is sent before no time limit: there is none (-t)"
    before_s = values.signal(parsed.last("signal") or "").before_s
    if before_s < limit_s:
        return ""
    return f"--signal is sent before no time limit: {before_s} s before it is before the start"


def tags(parsed: Parsed) -> list[str]:
    """What Rota has no place for but squeue and sacct show."""
    kept = ((name, parsed.last(name) or "") for name in ("partition", "account"))
    return [f"{name}={value[:100]}" for name, value in kept if value]


def environment(parsed: Parsed, env: Mapping[str, str], submit_dir: str, fields: Mapping[str, Any]) -> dict[str, str]:
    tasks = _tasks(parsed, int(fields.get("nodes", 1)))
    made = variables(parsed, env)
    made |= {"SLURM_SUBMIT_DIR": submit_dir, "SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    made |= {
        f"SLURM_JOB_{name.upper()}": parsed.last(name) or "" for name in ("partition", "account") if parsed.has(name)
    }
    if parsed.has("cpus-per-task"):
        made["SLURM_CPUS_PER_TASK"] = parsed.last("cpus-per-task") or ""
    if "gpu_count" in fields:
        made["SLURM_GPUS"] = str(fields["gpu_count"])
    return made


def variables(parsed: Parsed, env: Mapping[str, str]) -> dict[str, str]:
    """What --export chooses."""
    try:
        return exported(parsed.last("export") or "", env)
    except ValueError as error:
        raise UsageError(f"--export: {error}") from None


def _nodes(text: str) -> int:
    """`2`, or `2-4`, of which the least is taken: a run asks for exactly so many."""
    least, dash, most = text.partition("-")
    nodes = values.number("nodes", least, 1)
    if dash and values.number("nodes", most, 1) < nodes:
        raise UsageError(f"--nodes: {text!r} does not run upwards")
    return nodes


def _tasks(parsed: Parsed, nodes: int) -> int:
    if parsed.has("ntasks"):
        return values.number("ntasks", parsed.last("ntasks") or "", 1)
    return nodes * values.number("ntasks-per-node", parsed.last("ntasks-per-node") or "1", 1)


def _gpus(parsed: Parsed, nodes: int, tasks: int) -> values.Gpus:
    found: list[tuple[str, values.Gpus]] = []
    for name, times in (("gpus", 1), ("gpus-per-node", nodes), ("gpus-per-task", tasks)):
        if parsed.has(name):
            asked = values.gpus(name, parsed.last(name) or "")
            found.append((name, values.Gpus(asked.count * times, asked.type)))
    per_node = values.gres(parsed.last("gres") or "")
    if per_node is not None:
        found.append(("gres", values.Gpus(per_node.count * nodes, per_node.type)))
    if len({gpus.count for _, gpus in found}) > 1:
        said = ", ".join(f"--{name}: {gpus.count}" for name, gpus in found)
        raise UsageError(f"the options do not agree how many GPUs the job has ({said})")
    types = {gpus.type for _, gpus in found if gpus.type}
    if len(types) > 1:
        raise UsageError(f"a run has GPUs of one type, not of {' and '.join(sorted(types))}")
    return values.Gpus(found[0][1].count, "".join(types)) if found else values.Gpus(0)


def _memory_gb(parsed: Parsed, cpus: int, gpus: int) -> float:
    given = [name for name in ("mem", "mem-per-cpu", "mem-per-gpu") if parsed.has(name)]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} are mutually exclusive")
    if not given:
        return 0.0
    amount = values.memory_gb(given[0], parsed.last(given[0]) or "")
    return amount * {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": max(1, gpus)}[given[0]]
