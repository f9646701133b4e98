"""Hiding others' runs in a text: nothing is worked out where there is nothing to hide."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from rota.api.house import House
from rota.api.render.whole import hiding
from rota.app.authz import Principal, Role


@pytest.mark.parametrize(("private", "text"), [(True, ""), (False, ""), (False, "behind run 0123456789ab")])
def test_a_run_is_not_explained_for_a_text_that_hides_nothing(private: bool, text: str) -> None:
    explained: list[str] = []

    def explain(run_id: str) -> SimpleNamespace:
        explained.append(run_id)
        return SimpleNamespace(reasons=())

    house = SimpleNamespace(
        settings=SimpleNamespace(private=private),
        service=SimpleNamespace(explain=explain),
        only_own=lambda who: False,
    )
    assert hiding(cast(House, house), Principal("ann", Role.USER), "0123456789ab", text) == text
    assert explained == []
