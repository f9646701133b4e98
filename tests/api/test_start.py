"""What a start does not wait for: libraries and routes that the first answer has no use for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.deferred import deferred_models
from rota.api.faults import faults
from rota.api.router import Application, Declared, Router
from tests.app.house import SOURCES

SERVER = """
import sys
import rota.main
from rota.api.deferred import deferred_models
with deferred_models():
    import rota.api.assemble, rota.api.serve
print(*sys.modules, sep="\\n")
"""
# each of these takes 10 to 100 ms to load
LATER = ("alembic", "prometheus_client", "psycopg", "pydantic.v1", "sqlalchemy.dialects.postgresql", "sqlalchemy.orm")


class Answer(BaseModel):
    word: str


def test_libraries_that_the_first_answer_does_not_need_are_not_loaded() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVER], env={"PYTHONPATH": SOURCES}, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "rota.api.doors.runs" in loaded
    assert loaded.isdisjoint(LATER), sorted(loaded & set(LATER))


def small() -> tuple[Application, list[Declared]]:
    router = Router("words", prefix="/words")

    @router.get("/{name}", responses={200: {"model": Answer}, **faults(404)})
    def word(name: str) -> Json:
        return Json({"word": name})

    @router.post("/all", responses={200: {"model": list[Answer]}, **faults()})
    def words() -> Json:
        return Json([])

    app = Application()
    app.add(router.routes)
    declared = [route for route in router.routes if isinstance(route, Declared)]
    return app, declared


def asked(app: Application, method: str, path: str) -> tuple[int, bytes]:
    """The status and the body of one request, without any server."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": ""}
    asyncio.run(app({**scope, "query_string": b"", "headers": []}, receive, send))
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


def test_a_route_is_made_by_the_first_request_for_it() -> None:
    app, (one, every) = small()
    assert asked(app, "GET", "/elsewhere")[0] == 404
    assert "made" not in vars(one) and "made" not in vars(every)
    assert asked(app, "GET", "/words/hello") == (200, b'{"word":"hello"}')
    assert "made" in vars(one) and "made" not in vars(every)
    assert asked(app, "POST", "/words/all") == (200, b"[]")
    assert asked(app, "DELETE", "/words/all")[0] == 405
    assert asked(app, "GET", "/words/a/b")[0] == 404


def test_the_document_has_every_route_and_the_models_of_its_answers() -> None:
    app, _ = small()
    asked(app, "GET", "/words/hello")
    document = app.openapi()
    answers = document["paths"]["/words/{name}"]["get"]["responses"]
    assert answers["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Answer"}
    assert {"200", "404", "422"} <= answers.keys()
    assert document["paths"]["/words/all"]["post"]["tags"] == ["words"]
    assert {"Answer", "Fault", "Faults"} <= document["components"]["schemas"].keys()
    assert asked(app, "GET", "/words/hello") == (200, b'{"word":"hello"}'), "and it serves on"


def test_a_deferred_model_is_whole_when_it_is_used() -> None:
    with deferred_models():

        class Late(BaseModel):
            number: int

    class Soon(BaseModel):
        number: int

    assert (Late.__pydantic_complete__, Soon.__pydantic_complete__) == (False, True)
    assert Late.model_validate_json(b'{"number": 1}').number == 1
    assert BaseModel.model_config == {}
