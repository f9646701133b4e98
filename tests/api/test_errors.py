"""Refusals and answers: their shape, and that they can always be written."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import threading
import weakref
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from hypothesis import given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException

from rota.api import errors
from rota.api.answers import Json, dumps
from rota.api.errors import shown
from rota.api.faults import ALWAYS, faults
from rota.app.errors import Conflict, Forbidden, Full, Invalid, NotFound, Refused, Unavailable
from rota.app.ports import StoreError

NOBODY: Any = None


def answer(handler: Any, error: Exception) -> tuple[int, Any, Any]:
    response = asyncio.run(handler(NOBODY, error))
    return response.status_code, json.loads(response.body), response.headers


@pytest.mark.parametrize(
    ("kind", "status"),
    [(NotFound, 404), (Forbidden, 403), (Conflict, 409), (Full, 429), (Unavailable, 503), (Refused, 400)],
)
def test_each_refusal_has_its_status(kind: type[Refused], status: int) -> None:
    got, body, headers = answer(errors.refused, kind("no", "field"))
    assert (got, body) == (status, {"detail": "no"})
    assert ("retry-after" in headers) is (status in (429, 503))


def test_a_wrong_field_is_named_as_clients_know_it() -> None:
    assert answer(errors.refused, Invalid("gpus: 99 are too many", "gpus"))[1] == {
        "detail": [
            {"type": "value_error", "loc": ["body", "gpu_count"], "msg": "gpu_count: 99 are too many", "input": None}
        ]
    }
    _, body, _ = answer(errors.refused, Invalid("makes no sense"))
    assert body["detail"][0]["loc"] == ["body"]


def test_what_the_store_says_stays_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    status, body, headers = answer(errors.unreadable, StoreError("/srv/data/rota.db: disk I/O error"))
    assert status == 503
    assert "/srv" not in json.dumps(body)
    assert headers["retry-after"] == "1"
    assert "disk I/O" in caplog.text


def test_for_want_of_a_descriptor_one_may_come_again_and_every_other_error_is_ours() -> None:
    status, body, headers = answer(errors.short, OSError(errno.EMFILE, "Too many open files"))
    assert (status, headers["retry-after"]) == (503, "1")
    assert "ask again" in body["detail"]
    with pytest.raises(PermissionError):
        answer(errors.short, PermissionError(errno.EACCES, "no"))


def test_for_want_of_a_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    app = FastAPI()
    errors.install(app)

    @app.get("/{odd}")
    async def threaded(odd: bool) -> None:
        if odd:
            raise RuntimeError("odd")
        await asyncio.to_thread(int)

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def ask(path: str) -> int:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": [], "root_path": ""}
        await app(scope, NOBODY, send)
        status: int = sent[0]["status"]
        return status

    async def both() -> None:
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", fail)
            assert await ask("/0") == 503
        assert await ask("/0") == 200
        with pytest.raises(RuntimeError, match="odd"):
            await ask("/1")

    asyncio.run(both())


def test_a_body_that_cannot_be_read_is_422() -> None:
    assert answer(errors.plain, HTTPException(400, errors.UNREADABLE_BODY))[0] == 422
    assert answer(errors.plain, HTTPException(400, "other"))[:2] == (400, {"detail": "other"})
    assert answer(errors.plain, HTTPException(413, "x", {"Connection": "close"}))[2]["connection"] == "close"


def test_a_thousand_faults_are_not_all_told() -> None:
    many = [{"type": "t", "loc": ("body", "x" * 1000, i), "msg": "m", "input": "y" * 10_000} for i in range(1000)]
    status, body, _ = answer(errors.misshapen, RequestValidationError(many))
    assert status == 422
    assert len(body["detail"]) == 20
    assert len(json.dumps(body)) < 20_000


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.just(2**5000)
    | st.just(object()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(anything)
def test_whatever_was_sent_can_be_sent_back(value: Any) -> None:
    text = dumps({"input": shown(value)})
    assert json.loads(text) is not None
    assert len(text) < 3000


@given(st.text(st.characters(exclude_categories=()), max_size=50))
def test_whatever_text_came_in_can_be_written(text: str) -> None:
    written = bytes(Json({"name": text}).body)
    assert written.isascii()
    assert json.loads(written) == {"name": text}


def test_no_number_is_written_that_json_does_not_have() -> None:
    for odd in (float("nan"), float("inf"), float("-inf")):
        assert dumps({"x": [odd]}) == b'{"x":[null]}'


def test_nor_beside_half_a_surrogate_pair() -> None:
    odd = {"x": [float("nan"), {"y": ("\udcff", float("inf"), 1.5)}]}
    assert dumps(odd) == rb'{"x":[null,{"y":["\udcff",null,1.5]}]}'


def test_half_a_surrogate_pair_is_escaped() -> None:
    assert dumps({"name": "a\udcff"}) == rb'{"name":"a\udcff"}'


@pytest.mark.parametrize("levels", [260, 480, 900, 100_000])
def test_what_is_nested_too_deep_is_left_out_and_the_rest_is_written(levels: int) -> None:
    deep: list[Any] = []
    for _ in range(levels):
        deep = [deep]
    written = dumps({"deep": deep, "fine": [1, {"a": "b"}]})
    assert written.startswith(b'{"deep":[[')
    assert written.endswith(b']],"fine":[1,{"a":"b"}]}')


def test_every_route_says_what_it_may_answer() -> None:
    assert set(faults()) == set(ALWAYS)
    assert set(faults(404, 409)) == {*ALWAYS, 404, 409}
    with pytest.raises(KeyError):
        faults(418)


class Mark:
    """Something in the scope of a request that can be referred to weakly."""


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"type": "http.disconnect"}, id="client gone"),
        pytest.param({"type": "http.request", "body": b"{"}, id="no JSON"),
        pytest.param({"type": "http.request", "body": b"\xff"}, id="no UTF-8"),
    ],
)
def test_a_request_with_a_bad_body_is_freed_without_the_collector(message: dict[str, Any]) -> None:
    app = FastAPI()
    errors.install(app)

    async def take(body: dict[str, Any]) -> None:
        raise AssertionError("the body cannot be read")

    app.add_api_route("/", take, methods=["POST"])
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return message

    async def send(sent: Any) -> None:
        if sent["type"] == "http.response.start":
            statuses.append(sent["status"])

    def ask() -> weakref.ref[Mark]:
        mark = Mark()
        head = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": head, "mark": mark}
        asyncio.run(app(scope, receive, send))
        return weakref.ref(mark)

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        left = ask()
        assert left() is None
    finally:
        if was_enabled:
            gc.enable()
    assert statuses == [422]
