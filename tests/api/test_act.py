"""Answers on their way from the writer to the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from rota.api.act import Answers
from rota.app.errors import Conflict


def test_each_gets_its_own_from_another_thread() -> None:
    async def inside() -> list[Any]:
        answers = Answers(asyncio.get_running_loop())
        expected = [answers.expect() for _ in range(100)]

        def answer() -> None:
            for number, one in enumerate(expected):
                one.set_result(number)

        thread = threading.Thread(target=answer)
        thread.start()
        found = await asyncio.wait_for(asyncio.gather(*(one.waiting for one in expected)), 60)
        thread.join()
        assert all(one.done() for one in expected)
        return list(found)

    assert asyncio.run(inside()) == list(range(100))


def test_a_refusal_travels() -> None:
    async def inside() -> None:
        expected = Answers(asyncio.get_running_loop()).expect()
        threading.Thread(target=expected.set_exception, args=(Conflict("no"),)).start()
        with pytest.raises(Conflict):
            await asyncio.wait_for(expected.waiting, 60)

    asyncio.run(inside())


def test_who_has_gone_holds_up_nobody() -> None:
    async def inside() -> Any:
        answers = Answers(asyncio.get_running_loop())
        gone, there = answers.expect(), answers.expect()
        gone.waiting.cancel()
        assert gone.set_running_or_notify_cancel(), "what was asked for is done all the same"
        gone.set_result(1)
        there.set_result(2)
        return await asyncio.wait_for(there.waiting, 60)

    assert asyncio.run(inside()) == 2


def test_an_event_loop_that_was_closed_does_not_stop_the_writer() -> None:
    loop = asyncio.new_event_loop()
    answers = Answers(loop)
    expected = [answers.expect(), answers.expect()]
    loop.close()
    expected[0].set_result(1)
    expected[1].set_exception(Conflict("no"))
    assert all(one.done() for one in expected)


def test_any_other_trouble_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.new_event_loop()

    def refuse(callback: Callable[..., object]) -> None:
        raise RuntimeError("something else")

    monkeypatch.setattr(loop, "call_soon_threadsafe", refuse)
    with pytest.raises(RuntimeError, match="something else"):
        Answers(loop).expect().set_result(1)
    loop.close()
