"""What a start does not wait for: libraries and routes that the first answer has no use for."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

from rota.api.answers import Json
from rota.api.deferred import deferred_models
from rota.api.doors import pages
from rota.api.faults import faults
from rota.api.router import Application, Declared, Router
from tests.app.house import PATIENCE_S, SOURCES

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

    app = Application(description="words", openapi_url=None, docs_url=None, redoc_url=None)
    app.add(router.routes)
    declared = [route for route in router.routes if isinstance(route, Declared)]
    return app, declared


def asked(app: Application, method: str, path: str) -> tuple[int, bytes]:
    """The status and the body of one request, without any server."""
    return asyncio.run(aasked(app, method, path))


async def aasked(app: Application, method: str, path: str) -> tuple[int, bytes]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "root_path": ""}
    await app({**scope, "query_string": b"", "headers": []}, receive, send)
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


def test_the_document_leaves_the_routes_as_they_are() -> None:
    """It is made in another thread than the one that serves them."""
    app, (one, every) = small()
    asked(app, "GET", "/words/hello")
    before = vars(one)["made"]
    app.openapi()
    assert vars(one)["made"] is before and not before._models.keys() & before.response_fields.keys()
    assert "made" not in vars(every)
    assert app.openapi() is app.openapi()


def test_others_are_answered_while_the_document_is_made_and_it_is_made_once() -> None:
    app, _ = small()
    app.add(pages.router.routes)
    going_on, making = threading.Event(), 0
    openapi = app.openapi

    def slow() -> dict[str, Any]:
        nonlocal making
        making += 1
        assert going_on.wait(PATIENCE_S), "nobody else was answered"
        return openapi()

    async def ask() -> None:
        both = [asyncio.ensure_future(aasked(app, "GET", path)) for path in ("/openapi.json", "/docs") * 3]
        while not making:
            await asyncio.sleep(0.01)
        assert await aasked(app, "GET", "/words/hello") == (200, b'{"word":"hello"}')
        going_on.set()
        for answer in [*await asyncio.gather(*both), await aasked(app, "GET", "/docs")]:
            assert answer[0] == 200 and b"/words/all" in answer[1]
        assert making == 1

    with patch.object(app, "openapi", slow):
        asyncio.run(ask())


def test_a_deferred_model_is_whole_when_it_is_used() -> None:
    with deferred_models():

        class Late(BaseModel):
            number: int

    class Soon(BaseModel):
        number: int

    assert (Late.__pydantic_complete__, Soon.__pydantic_complete__) == (False, True)
    assert Late.model_validate_json(b'{"number": 1}').number == 1
    assert BaseModel.model_config == {}
