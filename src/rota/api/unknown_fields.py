"""Fields of a request that no route knows: what each was probably meant to be, and the refusal of `?strict=true`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from heapq import nsmallest
from itertools import islice

from fastapi.exceptions import RequestValidationError

MOST_NAMES = 20
LONGEST_NAME = 100
# Longer names are not compared with the known ones: the comparison takes time that grows with their length.
LONGEST_COMPARED = 40
# As alike as `time_limit` and `time_limit_seconds` (0.71), not as `colour` and `user` (0.40).
ALIKE = 0.6
# Words of Slurm, Ray, Kubernetes and of Rota's own clients and reservations for what a field of a run is called here,
# and common words for those of tokens and drains.
OTHER_WORDS = {
    "cmd": "command",
    "cpu": "cpus",
    "cpu_count": "cpus",
    "cwd": "workdir",
    "dependencies": "depends_on",
    "dependency": "depends_on",
    "directory": "workdir",
    "duration": "estimated_duration_seconds",
    "environment": "env",
    "for": "for_seconds",
    "estimate": "estimated_duration_seconds",
    "expiry": "expires_seconds",
    "gpu": "gpu_count",
    "gpu_count": "gpus",
    "gpus": "gpu_count",
    "gres": "gpu_count",
    "grid": "parameters",
    "held": "auto_start",
    "job_name": "name",
    "length": "for_seconds",
    "limit": "time_limit_seconds",
    "mem": "memory_gb",
    "n_gpus": "gpu_count",
    "ngpus": "gpu_count",
    "node_count": "nodes",
    "num_cpus": "cpus",
    "num_gpus": "gpu_count",
    "num_nodes": "nodes",
    "params": "parameters",
    "reason": "why",
    "retry": "max_retries",
    "signal": "checkpoint_signal",
    "time": "time_limit_seconds",
    "timeout": "time_limit_seconds",
    "title": "name",
    "ttl": "expires_seconds",
    "walltime": "time_limit_seconds",
}


def described(names: Iterable[str], known: Collection[str]) -> list[str]:
    """Return each unknown name with the known name that it resembles, in alphabetical order, MOST_NAMES at most."""
    return [f"{name[:LONGEST_NAME]}: {_hint(name, known)}" for name in nsmallest(MOST_NAMES, names)]


def refuse(names: Iterable[str], known: Collection[str]) -> None:
    """Raise the 422 that names every unknown field; return when there is none."""
    faults = [
        {"type": "extra_forbidden", "loc": ("body", name), "msg": f"no such field: {_hint(name, known)}", "input": None}
        for name in nsmallest(MOST_NAMES, names)
    ]
    if faults:
        raise RequestValidationError(faults)


def meant_as(field: str, sent: Iterable[str]) -> str:
    """Return the question whether one of the names that were sent was meant as this missing field; "" for none."""
    for name in islice(sent, MOST_NAMES):
        if name != field and nearest(name, (field,)) == field:
            return f"; did you mean it by {name}?"
    return ""


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known field that `name` was probably meant to be."""
    if len(name) > LONGEST_COMPARED:
        return None
    # gpuCount and gpu-count become gpu_count
    plain = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")
    if OTHER_WORDS.get(plain) in known:
        return OTHER_WORDS[plain]
    close: Sequence[str] = get_close_matches(plain, known, n=1, cutoff=ALIKE)
    return close[0] if close else None


def _hint(name: str, known: Collection[str]) -> str:
    found = nearest(name, known)
    return f"did you mean {found}?" if found else "there is no such field here; /openapi.json lists those there are"
