"""Skills as they lie on the disk: a folder each, and in it SKILL.md, with a few lines of facts before the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FRONT = re.compile(r"---\n(.*?)\n---\n(.*)", re.DOTALL)
VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Skill:
    id: str  # the folder's name
    name: str
    description: str
    template: str
    variables: tuple[str, ...] = ()
    category: str = "skill"
    internal: bool = False

    def public(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "template": self.template,
            "variables": list(self.variables),
            "category": self.category,
            "built_in": True,
            "internal": self.internal,
        }


@cache
def read_skills(directory: Path) -> Mapping[str, Skill]:
    """They come with the package and do not change while the server runs."""
    found = (read_skill(path.parent.name, path.read_text("utf-8")) for path in sorted(directory.glob("*/SKILL.md")))
    return {skill.id: skill for skill in found}


def read_skill(name: str, text: str) -> Skill:
    match = FRONT.fullmatch(text)
    facts, template = _facts(match[1]) if match else {}, match[2].lstrip("\n") if match else text
    listed = facts.get("variables", "[]").strip("[]")
    return Skill(
        id=name,
        name=facts.get("name", name),
        description=facts.get("description", ""),
        template=template,
        variables=tuple(word.strip() for word in listed.split(",") if word.strip()),
        category=facts.get("category", "skill"),
        internal=facts.get("internal", "false") == "true",
    )


def _facts(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def render(skill: Skill, values: Mapping[str, str]) -> str:
    """In one go: a value that looks like a variable is not looked into again."""
    known = set(skill.variables)
    return VARIABLE.sub(lambda match: values.get(match[1], match[0]) if match[1] in known else match[0], skill.template)


def search(skills: Iterable[Skill], words: str) -> list[Skill]:
    """Those that hold every word; a word in the name counts for more than one in the text."""
    wanted = words.lower().split()
    ranked = []
    for skill in skills:
        places = ((10, f"{skill.id} {skill.name}".lower()), (5, skill.description.lower()), (1, skill.template.lower()))
        scores = [max((worth for worth, text in places if word in text), default=0) for word in wanted]
        if all(scores):
            ranked.append((-sum(scores), skill.id, skill))
    return [skill for _, _, skill in sorted(ranked, key=lambda one: one[:2])]
