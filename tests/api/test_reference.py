"""The reference page: made from the document, for people without a network, with nothing in it that could run."""

from __future__ import annotations

from typing import Any

from rota.api.render.reference import page
from tests.security.kit import document

EVIL = '"><script>alert(1)</script>'


def odd_document() -> dict[str, Any]:
    """One whose every text tries to be markup."""
    operation = {
        "summary": EVIL, "description": EVIL, "operationId": EVIL, "tags": [EVIL],
        "parameters": [{"name": EVIL, "in": EVIL, "schema": {"type": EVIL}, "description": EVIL}],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/X"}}}},
        "responses": {"200": {"description": EVIL}, EVIL: {"description": EVIL}},
    }  # fmt: skip
    fields = {EVIL: {"type": "string", "description": EVIL, "default": EVIL}, "b": {"enum": [EVIL]}}
    return {
        "info": {"version": EVIL, "description": EVIL},
        "paths": {f"/{EVIL}": {"post": operation}},
        "components": {"schemas": {"X": {"type": "object", "required": [EVIL], "properties": fields}}},
    }


def test_no_text_of_the_document_becomes_markup() -> None:
    assert "<script" not in page(odd_document())


def test_every_operation_is_there_with_a_call_to_try() -> None:
    found = document()
    text = page(found)
    operations = [one for path in found["paths"].values() for one in path.values()]
    assert text.count("<details") == len(operations)
    assert text.count("curl") >= len(operations)
    for operation in operations:
        assert f'id="{operation["operationId"]}"' in text
        assert operation["summary"], operation["operationId"]


def test_names_of_operations_are_unique_and_plain() -> None:
    names = [one["operationId"] for path in document()["paths"].values() for one in path.values()]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
