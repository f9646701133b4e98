"""What of the caller's variables goes along with a run. Decided here, for the command line and for Python alike.

A token of Rota's never travels: what a run is given lies in the database, for its owner and admins to read. Neither
does what names another job: a run that is submitted from inside one has an id, GPUs and a rank of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\0]+%%")  # the latter: `module` on every HPC cluster
SECRETS = frozenset({"ROTA_TOKEN", "ROTA_SHARED_TOKEN", "RESEARCH_AGENT_USER_AUTH_TOKEN", "ROTA_DATABASE_URL"})
# Of the shell alone, or of the job around us; an option may still set them by name.
OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUSCHED_URL"})
OWN_BEGINNINGS = ("SLURM_", "SBATCH_", "ROTA_")
ALWAYS = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TERM")


def exported(text: str, env: Mapping[str, str], pairs: Sequence[str] = ()) -> dict[str, str]:
    """`text`: ALL (the default), NONE, NAME, NAME=VALUE, and ALL with additions; a `,` separates, '...' keeps one.
    `pairs`: NAME=VALUE or NAME, one each. ValueError says what is no name, or may not go along."""
    chosen: dict[str, str] = {}
    for item in (*(_items(text) or ["ALL"]), *pairs):
        name, equals, value = item.partition("=")
        if item.upper() == "ALL":
            chosen |= {key: held for key, held in env.items() if ENV_NAME.fullmatch(key) and not _stays(key, held)}
        elif item.upper() in ("NONE", "NIL"):
            chosen |= {key: env[key] for key in ALWAYS if key in env and _is_text(env[key])}
        else:
            must_be_sendable(name)
            if not equals and not _is_text(env.get(name, "")):
                raise ValueError(f"{name} holds bytes that are no text in UTF-8, which cannot go along")
            chosen |= {name: value} if equals else {name: env[name]} if name in env else {}
    if "PATH" in env:
        chosen.setdefault("PATH", ":".join(filter(_is_text, env["PATH"].split(":"))))
    return chosen


def must_be_sendable(name: str) -> None:
    if not ENV_NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not a name a variable can have; write NAME=VALUE")
    if name in SECRETS:
        raise ValueError(f"{name} never goes along with a run: what a run is given is kept in plain text")


def _stays(name: str, held: str) -> bool:
    return name in OWN or name in SECRETS or name.startswith(OWN_BEGINNINGS) or not _is_text(held)


def _is_text(held: str) -> bool:
    """Python reads odd bytes of the environment as halves of surrogate pairs, which JSON in UTF-8 has no way to say."""
    try:
        held.encode()
    except UnicodeEncodeError:
        return False
    return True


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
