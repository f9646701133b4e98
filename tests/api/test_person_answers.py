"""Two answers to the same question at the same time: the second does not overwrite the first unseen."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from rota.api.answers import Json
from rota.api.doors import alerts, journey
from rota.api.house import House
from rota.api.lookups import look_up
from rota.app.authz import Principal, Role
from rota.app.commands import Draft, PutRecord
from rota.app.errors import Conflict

ANN, BOSS = Principal("ann", Role.USER), Principal("boss", Role.ADMIN)
ALERT = {"choices": ["rejected", "accepted"], "status": "pending", "response": None, "responded_at": None}
ADVICE = {"title": "t", "status": "pending", "responded_at": None, "user_note": None, "modified_action": None}
DOORS: dict[str, Any] = {"alert": alerts, "recommendation": journey}


@pytest.mark.parametrize("second", [ANN, BOSS])
@pytest.mark.parametrize("kind", ["alert", "recommendation"])
def test_of_two_answers_at_once_the_first_stays_and_is_told(
    house: House, monkeypatch: pytest.MonkeyPatch, kind: str, second: Principal
) -> None:
    """The second caller has looked at the record before the first one's answer is written."""
    body = {**(ALERT if kind == "alert" else ADVICE), "user": "ann"}
    house.service.do(ANN, PutRecord(Draft(kind, "q1", json.dumps(body))))
    looks: list[Principal] = []

    async def answer(who: Principal, word: str) -> Json:
        if kind == "alert":
            return await alerts.respond(house, who, "q1", alerts.Response.model_validate({"choice": word}))
        return await journey.respond(house, who, "q1", journey.AdviceResponse.model_validate({"status": word}))

    async def look(house: House, who: Principal, work: Any, *args: Any, **named: Any) -> Any:
        found = await look_up(house, who, work, *args, **named)
        looks.append(who)
        if len(looks) == 1:
            await answer(ANN, "accepted")
        return found

    monkeypatch.setattr(DOORS[kind], "look_up", look)
    with pytest.raises(Conflict, match="ann has answered this with 'accepted'"):
        asyncio.run(answer(second, "rejected"))
    kept = house.service.record(kind, "q1")
    assert kept is not None
    assert kept.body["response" if kind == "alert" else "status"] == "accepted"
    monkeypatch.undo()
    asyncio.run(answer(second, "accepted"))
