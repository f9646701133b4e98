"""Writes docs/reference/http.md from the application's own API document: `python -m tools.api_doc [--check]`.

Nothing is opened: the routes are read off an application that has no house behind it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

from rota import __version__
from rota.api.faults import ALWAYS
from rota.api.house import House
from rota.api.render.schema import METHODS, Doc, body_schema, curl, resolve, type_of
from rota.api.server import make_app
from tools.page import finish, table

HEAD = """\
# HTTP reference

Written from the server's API document by `make docs`. The running server shows the same at `/docs`, and as OpenAPI at
`/openapi.json`.

```sh
export ROTA_URL=http://127.0.0.1:10000
export ROTA_TOKEN=$(cat ~/.local/share/rota/admin.token)     # of a server started with `rota up`
curl -H "X-Auth-Token: $ROTA_TOKEN" "$ROTA_URL/whoami"
```

- **Token**: `X-Auth-Token: ...` or `Authorization: Bearer ...`. A server without any token takes all calls from
  loopback. On the unix socket (`curl --unix-socket ~/.local/share/rota/rota.sock http://localhost/whoami`) the kernel
  says who calls.
- **Success is 200**, creates too. Times are epoch seconds. Ids of runs and sweeps are 12 hex characters.
- **Unknown fields** of a body do no harm. Where a run, a sweep or a reservation is made, or the cluster is described
  or reshaped, the answer names them in `ignored` with the field that was probably meant
  (`"gpus: did you mean gpu_count?"`), and with **`strict=true`** the call is refused instead (422, nothing is done).
  Fields of objects within the body are not looked at. `POST /tokens`, `PUT /orchestrator/policy` and
  `POST /nodes/{node_id}/drain` refuse unknown fields always.
- **`dry_run=true`** on calls that change something: the answer it would give, with `"dry_run": true`, and nothing is
  done.
- **`Idempotency-Key`** on calls that make something: the same key from the same caller makes one thing, however often
  it is sent. Both are among the parameters of the calls that take them.
- **Lists** are bare arrays; the header `X-Next-Cursor`, where there is more, goes back in as `cursor=`.
- **Refusals**: `{"detail": "text"}`; a wrong field is 422 with
  `{"detail": [{"type", "loc", "msg", "input"}]}`. The lease door (`/status /jobs /acquire /release`) says
  `{"error": "text"}`. Any call may answer 401, 403, 413, 421, 422, 429 or 503; below stand only those a call has
  besides.
- The lease door also listens on a port of its own, 9123, where a caller on the same machine needs no token: the owner
  of the process it names is the owner of the lease.
- `/ws` is a WebSocket with the messages of `GET /events`; `?after=SEQ` resumes.
"""


def document() -> Doc:
    return make_app(cast(House, SimpleNamespace(version=__version__))).openapi()


def rendered() -> str:
    doc = document()
    groups: dict[str, list[tuple[str, str, Doc]]] = {}
    for path, operations in doc["paths"].items():
        for method in (name for name in METHODS if name in operations):
            tag = (operations[method].get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append((path, method, operations[method]))
    lines = [HEAD]
    for tag, members in groups.items():
        named = ", ".join(f"`{method.upper()} {path}`" for path, method, _ in members)
        lines.append(f"- [{tag}](#{tag}): {named}")
    lines.append("")
    for tag, members in groups.items():
        lines += [f"## {tag}", ""]
        for path, method, operation in members:
            lines += _operation(doc, path, method, operation)
    return "\n".join(lines).rstrip() + "\n"


def _operation(doc: Doc, path: str, method: str, operation: Doc) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "", f"{operation.get('summary', '')}.", "")
    if operation.get("description"):
        yield from (operation["description"].strip(), "")
    given = operation.get("parameters", [])
    parameters = [(f"`{p['name']}`", p["in"], type_of(p.get("schema", {})), p.get("description", "")) for p in given]
    yield from table(("parameter", "in", "type", ""), parameters)
    schema = body_schema(operation)
    if schema is not None:
        yield from table(("field of the body", "type", "default", ""), _fields(doc, schema))
    yield from ("```sh", curl(doc, path, method, operation, schema), "```", "")
    answers = list(_answers(doc, operation))
    yield from (f"Answers: {'; '.join(answers)}.", "")


def _fields(doc: Doc, schema: Doc) -> list[tuple[str, ...]]:
    shape = resolve(doc, schema)
    required = shape.get("required", ())
    return [
        (
            f"`{name}`{' (required)' if name in required else ''}",
            type_of(field),
            f"`{json.dumps(field['default'])}`" if field.get("default") is not None else "",
            field.get("description", ""),
        )
        for name, field in shape.get("properties", {}).items()
    ]


def _answers(doc: Doc, operation: Doc) -> Iterator[str]:
    for status, answer in operation.get("responses", {}).items():
        if int(status) < 400:
            yield f"{status} {_success(doc, answer)}"
        elif int(status) not in ALWAYS:
            yield f"{status} {answer.get('description', '').rstrip('.')}"


def _success(doc: Doc, answer: Doc) -> str:
    """The names of what comes back: enough to know what to read."""
    content = answer.get("content", {})
    others = [kind for kind in content if kind != "application/json"]
    schema = content.get("application/json", {}).get("schema", {})
    many = schema.get("type") == "array"
    shape: Any = resolve(doc, schema.get("items", {}) if many else schema)
    names = ", ".join(f"`{name}`" for name in shape.get("properties", {}))
    said = f"{'a list of ' if many else ''}{names or answer.get('description', '').rstrip('.') or 'done'}"
    return (
        said
        + "".join(f", or `{kind}`" for kind in others if names)
        + (f" as `{others[0]}`" if others and not names else "")
    )


if __name__ == "__main__":
    sys.exit(finish("http.md", rendered()))
