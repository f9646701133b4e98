"""Detecting the cluster: one detection for all who ask meanwhile, and none of it on the event loop."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

from rota.api.house import House
from rota.api.survey import LIMIT_S, Survey
from rota.app.ports import Cluster

FOUND = Cluster("local_gpu", "healthy", 1.0, "found")


def test_one_detection_for_all_who_ask_while_the_event_loop_goes_on() -> None:
    begun, held = threading.Event(), threading.Event()
    asked: list[bool] = []

    def detect(*_: Any) -> Cluster:
        begun.set()
        asked.append(held.wait(LIMIT_S))
        return FOUND

    async def look() -> None:
        survey, house = Survey(), cast(House, SimpleNamespace(detector=SimpleNamespace(detect=detect)))
        callers = [asyncio.ensure_future(survey.detect(house, "ann")) for _ in range(8)]
        try:
            while not begun.is_set():  # the detection itself would block here if it were on the event loop
                await asyncio.sleep(0.01)
            assert not any(one.done() for one in callers)
        finally:
            held.set()
        assert await asyncio.gather(*callers) == [FOUND] * 8
        assert asked == [True], "it was one detection, and it ended because it was let go"

    asyncio.run(look())
