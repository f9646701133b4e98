"""The API document's schemas in words and examples, for the page at /docs and for the reference in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Doc = Mapping[str, Any]
METHODS = ("get", "post", "put", "patch", "delete")
DEPTH = 4  # of an example made from a schema


def body_schema(operation: Doc) -> Doc | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    return None if content is None else content.get("schema", {})


def type_of(schema: Doc) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(type_of(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    bounds = [f"{word} {schema[key]}" for key, word in _BOUNDS.items() if key in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


_BOUNDS = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}


def resolve(doc: Doc, schema: Doc) -> Doc:
    for option in schema.get("anyOf", ()):
        if "$ref" in option:
            schema = option
            break
    if "$ref" not in schema:
        return schema
    found: Doc = doc["components"]["schemas"][str(schema["$ref"]).rpartition("/")[2]]
    return found


def curl(doc: Doc, path: str, method: str, operation: Doc, schema: Doc | None) -> str:
    words = ["curl"]
    if method != "get":
        words.append(f"-X {method.upper()}")
    words += ['-H "X-Auth-Token: $ROTA_TOKEN"', f'"$ROTA_URL{path}"']
    if schema is not None:
        content = operation["requestBody"]["content"]["application/json"]
        example = content.get("example", example_of(doc, schema, DEPTH))
        quoted = json.dumps(example).replace("'", "'\\''")
        words.append(f"\\\n  -H 'Content-Type: application/json' -d '{quoted}'")
    return " ".join(words)


def example_of(doc: Doc, schema: Doc, depth: int) -> Any:
    shape = resolve(doc, schema)
    for key in ("example", "default", "const"):
        if key in shape:
            return shape[key]
    if shape.get("examples"):
        return shape["examples"][0]
    if "enum" in shape:
        return shape["enum"][0]
    if "anyOf" in shape:
        return example_of(doc, shape["anyOf"][0], depth)
    match shape.get("type"):
        case "object" if depth and "properties" in shape:
            wanted = shape.get("required") or list(shape["properties"])[:3]
            return {name: example_of(doc, shape["properties"][name], depth - 1) for name in wanted}
        case "object":
            return {}
        case "array":
            return [example_of(doc, shape.get("items", {}), depth - 1)] if depth else []
        case "integer" | "number":
            return shape.get("minimum", 1)
        case "boolean":
            return False
    return "..."
