"""Values that are not what their type says are told apart by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota.core.conform import misfit
from rota.core.resources import Request
from rota.core.run import Dependency, Spec

GOOD: dict[str, Any] = {"name": "x", "argv": ("true",), "workdir": "/tmp"}


@pytest.mark.parametrize(
    "more",
    [{}, {"estimate_s": 3}, {"time_limit_s": None}, {"env": {"A": "b"}}, {"depends_on": (Dependency("a" * 12),)}],
    ids=str,
)
def test_what_fits(more: dict[str, Any]) -> None:
    assert misfit(Spec(**{**GOOD, **more}), Spec) == ""


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("argv", "/bin/true"),
        ("argv", ["true"]),
        ("argv", ("echo", 3)),
        ("workdir", Path("/tmp")),
        ("name", None),
        ("env", {"A": 1}),
        ("env", {1: "a"}),
        ("env", [("A", "b")]),
        ("time_limit_s", "60"),
        ("priority", 2.0),
        ("priority", True),
        ("terminal", 1),
        ("depends_on", ("a" * 12,)),
        ("request", None),
        ("request", {"gpus": 1}),
    ],
    ids=str,
)
def test_what_does_not(field: str, value: Any) -> None:
    assert misfit(Spec(**{**GOOD, field: value}), Spec).startswith(f"{field}: ")


@pytest.mark.parametrize("gpus", [2.0, "1", None, True])
def test_a_number_of_gpus_is_a_whole_number(gpus: Any) -> None:
    assert misfit(Spec(**GOOD, request=Request(gpus=gpus)), Spec).startswith("request: gpus: is not of type int")
