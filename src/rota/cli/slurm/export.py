"""Slurm's --export: which variables of the submitter's environment a job gets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rota.cli.slurm.options import UsageError

# Of the shell alone, or of the job that called us; and what must never travel with a job.
_OWN = re.compile(
    r"_|SHLVL|PWD|OLDPWD|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|SLURM_.*|SBATCH_.*|ROTA_.*"
    r"|RESEARCH_AGENT_USER_AUTH_TOKEN|GPUSCHED_URL"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\0]+%%")
ALWAYS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM")


def exported(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """ALL (the default), NONE, NAME, NAME=VALUE, and ALL with additions. A `,` separates; '...' keeps one."""
    chosen: dict[str, str] = {}
    for item in _items(text or "ALL"):
        name, equals, value = item.partition("=")
        if item.upper() == "ALL":
            chosen |= {key: held for key, held in env.items() if _NAME.fullmatch(key) and not _OWN.fullmatch(key)}
        elif item.upper() in ("NONE", "NIL"):
            chosen |= {key: env[key] for key in ALWAYS if key in env}
        elif not _NAME.fullmatch(name):
            raise UsageError(f"--export: {name!r} is not a name a variable can have")
        elif equals:
            chosen[name] = value
        elif name in env:
            chosen[name] = env[name]
    if "PATH" in env:
        chosen.setdefault("PATH", env["PATH"])
    return chosen


def _items(text: str) -> list[str]:
    items, quote, word = [], "", ""
    for char in text:
        if quote:
            quote, word = ("", word) if char == quote else (quote, word + char)
        elif char in "'\"":
            quote = char
        elif char == ",":
            items.append(word)
            word = ""
        else:
            word += char
    return [item for item in (*items, word) if item]
