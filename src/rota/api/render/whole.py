"""All that is known of one run, for those who look at it alone."""

from __future__ import annotations

from typing import Any

from rota.api.house import House
from rota.api.render.links import TAIL_BYTES, links, wandb_dir
from rota.api.render.reservation import note_of
from rota.api.render.run import Renderer
from rota.api.render.series import charts
from rota.app.authz import Principal
from rota.app.errors import NotFound, Unavailable
from rota.app.ports import FileBusy
from rota.core.explain import Explanation
from rota.core.run import WAITING, Run

NOTHING: dict[str, Any] = {"links": [], "wandb_dir": None}


def whole(house: House, who: Principal, run: Run) -> dict[str, Any]:
    service = house.service
    answer = Renderer(house).run(run, service.attempts(run.id))
    answer["env_names"] = sorted(run.spec.env)
    if house.may_see_secrets(who, run):
        answer["env"] = dict(run.spec.env)
    if run.state in WAITING:
        answer |= waiting(house, who, service.explain(run.id), service.eta(run.id))
        if run.spec.reservation and (note := note_of(house, run)):
            answer["note"] = note
    return answer | charts(house.samples.series(run.id))


async def from_log(house: House, run: Run) -> dict[str, Any]:
    """What of a run is only found at the end of its log; nothing where that cannot be read just now."""

    def search() -> dict[str, Any]:
        text = tail(house, run.id)
        return {"links": links(text), "wandb_dir": wandb_dir(text, run.spec.workdir)}

    try:
        return await house.files.read(run.id, search) if run.attempts_made else NOTHING
    except Unavailable:
        return NOTHING


def tail(house: House, run_id: str) -> str:
    """The end of the newest log; "" where it cannot be opened just now."""
    try:
        return house.service.log(run_id, -TAIL_BYTES, TAIL_BYTES).content.decode("utf-8", "replace")
    except FileBusy:
        return ""


def waiting(house: House, who: Principal, explanation: Explanation, eta: float | None) -> dict[str, Any]:
    hidden = _hidden(house, who, explanation)

    def told(text: str) -> str:
        return _without(text, hidden)

    return {
        "reasons": [
            {
                "code": reason.code,
                "text": told(reason.text),
                "runs": [run_id for run_id in reason.runs if run_id not in hidden],
                "until": reason.until,
            }
            for reason in explanation.reasons
        ],
        "position": explanation.position,
        "hint": told(explanation.hint),
        "eta": eta,
    }


def hiding(house: House, who: Principal, run_id: str, text: str) -> str:
    """A text about a run, without naming runs that are not this caller's to see."""
    return _without(text, _hidden(house, who, house.service.explain(run_id))) if text else ""


def _without(text: str, hidden: set[str]) -> str:
    for run_id in hidden:
        text = text.replace(run_id, "another run")
    return text


def _hidden(house: House, who: Principal, explanation: Explanation) -> set[str]:
    """The runs that stand in the way and are not this caller's to see."""
    if not house.settings.private:
        return set()
    named = {run_id for reason in explanation.reasons for run_id in reason.runs}
    return {run_id for run_id in named if not _may_see(house, who, run_id)}


def _may_see(house: House, who: Principal, run_id: str) -> bool:
    try:
        return house.may_see(who, house.service.run(run_id))
    except NotFound:  # gone since
        return False
