"""All that is known of one run, for those who look at it alone."""

from __future__ import annotations

from typing import Any

from rota.api.house import House
from rota.api.render.links import TAIL_BYTES, links, wandb_dir
from rota.api.render.run import Renderer
from rota.api.render.series import charts
from rota.app.authz import Principal
from rota.core import events as e
from rota.core.explain import Explanation
from rota.core.run import WAITING, Run

MOST_EVENTS = 1000


def whole(house: House, who: Principal, run: Run) -> dict[str, Any]:
    service = house.service
    answer = Renderer(house).run(run, service.attempts(run.id))
    answer["env_names"] = sorted(run.spec.env)
    if house.may_see_secrets(who, run):
        answer["env"] = dict(run.spec.env)
    if "queued_at" in answer:
        answer["queued_at"] = _queued_at(house, run)
    if run.state in WAITING:
        answer |= waiting(service.explain(run.id), service.eta(run.id))
    answer |= charts(house.samples.series(run.id))
    tail = service.log(run.id, -TAIL_BYTES, TAIL_BYTES).content.decode("utf-8", "replace")
    answer["links"] = links(tail)
    answer["wandb_dir"] = answer["wandb_dir"] or wandb_dir(tail, run.spec.workdir)
    return answer


def waiting(explanation: Explanation, eta: float | None) -> dict[str, Any]:
    return {
        "reasons": [
            {"code": reason.code, "text": reason.text, "runs": list(reason.runs), "until": reason.until}
            for reason in explanation.reasons
        ],
        "position": explanation.position,
        "hint": explanation.hint,
        "eta": eta,
    }


def _queued_at(house: House, run: Run) -> float:
    """A run that was made ready first got into line when it was let go."""
    queued = run.submitted_at
    for stored in house.service.events(0, MOST_EVENTS, run.id):
        if isinstance(stored.event, e.RunReleased):
            queued = stored.event.at
    return queued
