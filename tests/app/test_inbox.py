"""The order in which the writer takes what waits for it."""

from __future__ import annotations

from functools import partial

from rota.app.commands import StartGroup, Submit, SubmitMany
from rota.app.inbox import Inbox
from tests.app.house import ANN, BOB, PATIENCE_S, House


def test_everything_else_has_a_turn_between_two_large_ones() -> None:
    inbox: Inbox[str] = Inbox()
    for name in ("A", "B", "C"):
        inbox.append(name, large=True)
    for name in "abcde":
        inbox.append(name)
    assert (len(inbox), list(inbox)) == (8, [*"abcde", "A", "B", "C"])
    assert [inbox.take(2) for _ in range(6)] == [["a", "b"], ["A"], ["c", "d"], ["B"], ["e"], ["C"]]
    assert (inbox.take(2), len(inbox)) == ([], 0)
    inbox.append("A", large=True)
    assert inbox.take(2) == ["A"], "it waits for nobody"
    inbox.append("B", large=True)
    inbox.append("a")
    assert (inbox.clear(), len(inbox)) == (["a", "B"], 0)


def _noted(order: list[str], name: str, _: object) -> None:
    order.append(name)


def test_a_submit_passes_the_sweeps_of_others(house: House) -> None:
    many = SubmitMany(tuple(Submit(house.spec("true"), held=True) for _ in range(300)))
    order: list[str] = []
    with house.occupied():
        sent = [(f"sweep {n}", house.rota.send(ANN, many)) for n in range(3)]
        sent.append(("submit", house.rota.send(BOB, Submit(house.spec("true"), held=True))))
        for name, future in sent:
            future.add_done_callback(partial(_noted, order, name))
    for _, future in sent:
        future.result(PATIENCE_S)
    assert order == ["submit", "sweep 0", "sweep 1", "sweep 2"]


def test_a_submit_passes_the_starts_of_others_sweeps(house: House) -> None:
    order: list[str] = []
    for group in "ab":
        held = tuple(Submit(house.spec("true", group=group), held=True) for _ in range(3))
        house.do(SubmitMany(held), ANN)
    with house.occupied():
        sent = [(f"start {group}", house.rota.send(ANN, StartGroup(group, 1, "ann"))) for group in "ab"]
        sent.append(("submit", house.rota.send(BOB, Submit(house.spec("true"), held=True))))
        for name, future in sent:
            future.add_done_callback(partial(_noted, order, name))
    for _, future in sent:
        future.result(PATIENCE_S)
    assert order == ["submit", "start a", "start b"]
