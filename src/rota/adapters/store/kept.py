"""The bodies of stored documents. Those that older versions took in may be nested deeper than anything can show."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from rota.core.nesting import MAX_KEPT, is_deeper

log = logging.getLogger(__name__)

MOST_TOLD = 1000  # documents that are remembered to have been named in the log
_told: set[str] = set()
_BRACKET_OR_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]')
_decode = json.JSONDecoder().decode


def decode(text: str, name: str) -> dict[str, Any]:
    """Return what a body says. Lists and objects below MAX_KEPT levels are left out, which is told once in the log."""
    if text.count("[") + text.count("{") > MAX_KEPT and is_deeper(text.encode(), MAX_KEPT):
        if name not in _told and len(_told) < MOST_TOLD:
            _told.add(name)
            log.warning("%s is nested deeper than %d levels; what is below them is shown as null", name, MAX_KEPT)
        text = _cut(text)
    found: dict[str, Any] = _decode(text)
    return found


def _cut(text: str) -> str:
    """Return the text with null in place of what is below MAX_KEPT levels."""
    parts: list[str] = []
    levels = at = 0
    for found in _BRACKET_OR_STRING.finditer(text):
        match found[0]:
            case "[" | "{":
                levels += 1
                if levels == MAX_KEPT + 1:
                    parts += text[at : found.start()], "null"
            case "]" | "}":
                levels -= 1
                if levels == MAX_KEPT:
                    at = found.end()
    return "".join((*parts, text[at:]))
