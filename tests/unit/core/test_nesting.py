"""Levels of lists and objects, counted without parsing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.core.nesting import is_deeper

leaves = st.none() | st.integers() | st.text(alphabet='ab"\\[]{},:é', max_size=6)
values: st.SearchStrategy[Any] = st.recursive(
    leaves,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text('a"\\[]{}', max_size=3), below, max_size=3),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(values, st.integers(0, 8), st.booleans())
def test_it_says_what_a_parser_would_find(value: Any, levels: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert is_deeper(text, levels) == (depth(value) > levels)


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"]" * 100, b'"' * 10_000 + b"[" * 50, b'["\\', b"[}" * 100, b"\\" * 99]
)
def test_of_what_is_no_json_it_says_anything(text: bytes) -> None:
    assert is_deeper(text, 32) in (True, False)
