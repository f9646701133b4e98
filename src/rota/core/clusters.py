"""The kinds of cluster there are, and the words people use for them."""

from __future__ import annotations

from collections.abc import Mapping

LABELS: Mapping[str, str] = {
    "unknown": "Unknown",
    "slurm": "Slurm",
    "local_gpu": "Local GPU",
    "kubernetes": "Kubernetes",
    "ray": "Ray",
    "shared_head_node": "Shared GPU Head Node",
    "cpu_only": "CPU Only",
}
# In the first lines of each of Rota's own stand-ins for Slurm's programs (`rota shims install`).
SHIM_MARK = "# This is Rota's; `rota shims remove` takes it away."
_ALIASES: Mapping[str, str] = {
    "localgpu": "local_gpu",
    "local_gpu_cluster": "local_gpu",
    "shared_gpu": "shared_head_node",
    "shared_gpu_head_node": "shared_head_node",
    "head_node": "shared_head_node",
    "k8s": "kubernetes",
}


def canonical(word: str) -> str | None:
    """The kind this word means; None when it means none."""
    plain = word.strip().lower().replace("-", "_")
    kind = _ALIASES.get(plain, plain)
    return kind if kind in LABELS else None
