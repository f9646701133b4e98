"""The API document as one page of HTML: no script, no CDN, readable in an air-gapped lab and by a screen reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from rota.api.render.schema import METHODS, Doc, body_schema, curl, resolve, type_of


def page(doc: Doc) -> str:
    groups: dict[str, list[str]] = {}
    for path, operations in doc["paths"].items():
        for method in METHODS:
            if method in operations:
                operation = operations[method]
                tag = (operation.get("tags") or ["other"])[0]
                groups.setdefault(tag, []).append(_operation(doc, path, method, operation))
    contents = "".join(
        f'<li><a href="#{escape(tag)}">{escape(tag)}</a> ({len(ops)})</li>' for tag, ops in groups.items()
    )
    body = "".join(
        f'<section id="{escape(tag)}"><h2>{escape(tag)}</h2>{"".join(ops)}</section>' for tag, ops in groups.items()
    )
    about = "".join(f"<p>{escape(part)}</p>" for part in doc["info"]["description"].split("\n\n"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Rota: HTTP reference</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="/static/icon.svg">'
        '<link rel="stylesheet" href="/static/reference.css"></head>'
        f"<body><header><h1>Rota {escape(doc['info']['version'])}: HTTP reference</h1>{about}"
        '<p><a href="/">dashboard</a> · <a href="/openapi.json">openapi.json</a></p></header>'
        f"<nav><ul>{contents}</ul></nav><main>{body}</main></body></html>"
    )


def _operation(doc: Doc, path: str, method: str, operation: Doc) -> str:
    parts = [
        f'<summary><code class="{method}">{method.upper()}</code> <code>{escape(path)}</code> '
        f"<span>{escape(operation.get('summary', ''))}</span></summary>"
    ]
    if operation.get("description"):
        parts.append(f"<p>{escape(operation['description'])}</p>")
    parts.append(_parameters(operation.get("parameters", ())))
    schema = body_schema(operation)
    if schema is not None:
        parts.append("<h4>Body</h4>" + _fields(doc, schema))
    parts.append(f"<h4>Try</h4><pre>{escape(curl(doc, path, method, operation, schema))}</pre>")
    parts.append("<h4>Answers</h4><ul>" + "".join(_answers(doc, operation)) + "</ul>")
    return f'<details id="{escape(operation["operationId"])}">{"".join(parts)}</details>'


def _parameters(parameters: Any) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code></td><td>{escape(p['in'])}</td>"
        f"<td>{escape(type_of(p.get('schema', {})))}</td><td>{escape(p.get('description', ''))}</td></tr>"
        for p in parameters
    )
    return f"<table><tr><th>name</th><th>in</th><th>type</th><th></th></tr>{rows}</table>" if rows else ""


def _fields(doc: Doc, schema: Doc) -> str:
    shape = resolve(doc, schema)
    required = shape.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code>{' *' if name in required else ''}</td><td>{escape(type_of(field))}</td>"
        f"<td>{escape(_default(field))}</td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in shape.get("properties", {}).items()
    )
    return f"<table><tr><th>field</th><th>type</th><th>default</th><th></th></tr>{rows}</table>" if rows else ""


def _default(field: Doc) -> str:
    return json.dumps(field["default"]) if "default" in field else ""


def _answers(doc: Doc, operation: Doc) -> Iterator[str]:
    for status, answer in operation.get("responses", {}).items():
        schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
        named = f" <code>{escape(type_of(schema))}</code>" if schema and status.startswith("2") else ""
        yield f"<li><code>{escape(status)}</code>{named} {escape(answer.get('description', ''))}</li>"
