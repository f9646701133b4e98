"""The skill for coding agents. SKILL.md beside this file is the one source; skills/rota/SKILL.md is its copy."""

from __future__ import annotations

from importlib.resources import files


def text() -> str:
    return files(__package__).joinpath("SKILL.md").read_text("utf-8")
