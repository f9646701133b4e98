"""All that is known of one run, for those who look at it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.api.filereads import account_of
from rota.api.house import House
from rota.api.render.links import TAIL_BYTES, in_workdir
from rota.api.render.overdue import hidden_reservations, overdue_of, without, without_ids
from rota.api.render.reservation import note_of
from rota.api.render.run import Renderer
from rota.api.render.series import charts
from rota.app.authz import Principal
from rota.app.errors import NotFound, Unavailable
from rota.app.ports import FileBusy
from rota.core.explain import Explanation
from rota.core.overdue import overdue
from rota.core.run import WAITING, Run

NOTHING: dict[str, Any] = {"links": [], "wandb_dir": None}

# in place of what `waiting` gives
NOT_KNOWN_YET: Mapping[str, Any] = {
    "reasons": [
        {
            "code": "not_known_yet",
            "text": "why it waits is still being worked out, which takes a while behind a long queue; ask again",
            "runs": [],
            "until": None,
        }
    ],
    "position": None,
    "hint": "",
    "eta": None,
}


def whole(house: House, who: Principal, run: Run) -> dict[str, Any]:
    service = house.service
    answer = Renderer(house, who).run(run, service.attempts(run.id))
    answer["env_names"] = sorted(run.spec.env)
    if house.may_see_secrets(who, run):
        answer["env"] = dict(run.spec.env)
    if run.state in WAITING and run.spec.reservation and (note := note_of(house, run)):
        answer["note"] = note
    return answer | charts(house.samples.series(run.id))


async def from_log(house: House, run: Run) -> dict[str, Any]:
    """What of a run is only found at the end of its log; nothing where that cannot be read just now."""

    def search() -> dict[str, Any]:
        found = house.tails.search(tail(house, run.id))
        named = found.wandb_dir and in_workdir(found.wandb_dir, run.spec.workdir)
        return {"links": found.links, "wandb_dir": named}

    try:
        if not run.attempts_made:
            return NOTHING
        return await house.files.read(run.id, search, account=account_of(run))
    except Unavailable:
        return NOTHING


def tail(house: House, run_id: str) -> bytes:
    """The end of the newest log; nothing where it cannot be opened just now."""
    try:
        return house.service.log(run_id, -TAIL_BYTES, TAIL_BYTES).content
    except FileBusy:
        return b""


def why_it_waits(house: House, who: Principal, run: Run) -> dict[str, Any]:
    """Work out why it waits and until when, which takes long behind a long queue."""
    return waiting(house, who, house.service.explain(run.id), house.service.eta(run.id))


def waiting(house: House, who: Principal, explanation: Explanation, eta: float | None) -> dict[str, Any]:
    hidden, kept = _hidden(house, who, explanation), hidden_reservations(house, who)

    def told(text: str) -> str:
        return without_ids(_without(text, hidden), kept)

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
    if not text:
        return ""
    hidden = _hidden(house, who, house.service.explain(run_id)) if house.settings.private else {}
    return without_ids(_without(text, hidden), hidden_reservations(house, who))


def overdue_before(house: House, who: Principal, run: Run) -> list[dict[str, Any]]:
    """Runs in the way of this one that should be gone: those that its reasons name as overdue."""
    view, now = house.service.view(), house.service.now()
    own = next((one for one in view.reservations if one.id == run.spec.reservation), None)
    named = [one for reason in house.service.explain(run.id).reasons if reason.code == "overdue" for one in reason.runs]
    holders = [view.runs[run_id] for run_id in named if run_id in view.runs]
    found = ((holder, overdue(view.policy, holder, now, own)) for holder in holders)
    return overdue_of(house, who, ((holder, late) for holder, late in found if late is not None))


def _without(text: str, hidden: Mapping[str, Run | None]) -> str:
    for run_id, run in hidden.items():
        text = text.replace(run_id, "another run") if run is None else without(text, run)
    return text


def _hidden(house: House, who: Principal, explanation: Explanation) -> dict[str, Run | None]:
    """The runs that stand in the way and are not this caller's to see; None = it is gone since."""
    if not house.settings.private:
        return {}
    named = {run_id for reason in explanation.reasons for run_id in reason.runs}
    found = {run_id: _known(house, run_id) for run_id in named}
    return {run_id: run for run_id, run in found.items() if run is None or not house.may_see(who, run)}


def _known(house: House, run_id: str) -> Run | None:
    try:
        return house.service.run(run_id)
    except NotFound:
        return None
