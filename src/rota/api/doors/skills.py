"""Prompt skills: what an agent should know before it works here. To read only: whoever can reach the port must not be
able to change what agents are told."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import BaseModel, Field

from rota.api.answers import Json
from rota.api.depends import HouseDep
from rota.api.faults import faults
from rota.api.router import Router
from rota.api.skillbook import Skill, read_skills, render, search
from rota.app.errors import NotFound

router = Router("agents", prefix="/prompt-skills")
SkillId = Annotated[str, Path(max_length=200)]


class SkillShape(BaseModel):
    id: str
    name: str
    description: str
    template: str
    variables: list[str]
    category: str
    built_in: bool
    internal: bool


class Rendered(BaseModel):
    rendered: str


@router.get("", summary="All skills", responses={200: {"model": list[SkillShape]}, **faults()})
def list_skills(house: HouseDep) -> Json:
    return Json([skill.public() for skill in read_skills(house.skills).values()])


@router.get("/search", summary="Find a skill", responses={200: {"model": list[SkillShape]}, **faults()})
def search_skills(
    house: HouseDep,
    q: Annotated[str, Query(max_length=500)] = "",
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Json:
    found = search(read_skills(house.skills).values(), q)
    return Json([skill.public() for skill in found[:limit]])


@router.get("/{skill_id}", summary="One skill", responses={200: {"model": SkillShape}, **faults(404)})
def get_skill(house: HouseDep, skill_id: SkillId) -> Json:
    return Json(_skill(house, skill_id).public())


Values = Annotated[dict[str, Annotated[str, Field(max_length=100_000)]], Field(max_length=100)]


@router.post(
    "/{skill_id}/render",
    summary="A skill with its variables filled in",
    responses={200: {"model": Rendered}, **faults(404)},
)
def render_skill(house: HouseDep, skill_id: SkillId, values: Values | None = None) -> Json:
    """`{{name}}` becomes the value given for `name`; what is not given stays as it is."""
    return Json({"rendered": render(_skill(house, skill_id), values or {})})


def _skill(house: HouseDep, skill_id: str) -> Skill:
    skill = read_skills(house.skills).get(skill_id)
    if skill is None:
        raise NotFound("Prompt skill not found", "skill_id")
    return skill
