"""What `help()`, editors and notebooks show of a client: each method as if it were written out there."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
import subprocess
import sys
from functools import partial
from typing import Any
from unittest.mock import create_autospec

import pytest

from rota.client import AsyncClient, Client, calls
from rota.client.method import Described
from tests.client.stub import ok, stub

NOWHERE = "http://127.0.0.1:1"
CALLS = sorted(name for name, value in vars(Client).items() if isinstance(value, Described))


def shown(what: object) -> str:
    return pydoc.render_doc(what, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("name", CALLS)
def test_each_call_shows_its_name_its_arguments_and_what_it_is_for(kind: type[Any], name: str) -> None:
    described = inspect.signature(getattr(calls, name))
    method = getattr(kind(NOWHERE), name)
    assert (method.__name__, method.__qualname__) == (name, f"{kind.__name__}.{name}")
    assert inspect.getdoc(method), f"{name} says nothing"
    assert method.__doc__ == getattr(calls, name).__doc__
    assert list(inspect.signature(method).parameters.values()) == list(described.parameters.values())
    assert list(inspect.signature(getattr(kind, name)).parameters) == list(described.parameters)


def test_what_comes_back_is_the_value_and_not_the_request() -> None:
    assert inspect.signature(Client.submit).return_annotation == "Run"
    assert inspect.signature(Client.sweeps).return_annotation == "list[Sweep]"
    assert inspect.signature(AsyncClient.sweeps).return_annotation == "Awaitable[list[Sweep]]"


def test_help_reads_like_a_method() -> None:
    for text in (shown(Client.submit), shown(Client(NOWHERE).submit), shown(Client)):
        assert "submit(" in text and "gpus: 'int | None' = None" in text and "-> 'Run'" in text
        assert "A command to be run: a shell line, or a list of words" in text
    assert "P.args" not in shown(Client) + shown(AsyncClient)


def test_a_method_can_be_taken_from_the_class_as_any_other() -> None:
    async def asked(url: str) -> Any:
        async with AsyncClient(url) as client:
            return await AsyncClient.run(client, "6af9a5ed5e05")

    with stub(lambda asked: ok({"id": "6af9a5ed5e05"})) as server, Client(server.url) as client:
        assert Client.run(client, "6af9a5ed5e05").id == asyncio.run(asked(server.url)).id == "6af9a5ed5e05"


def test_who_does_not_look_does_not_pay_for_it() -> None:
    code = "import sys; from rota.client.sync import Client; Client('http://h').submit; print('inspect' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_stand_in_made_from_it_takes_the_same_arguments(kind: type) -> None:
    """As `unittest.mock` makes them for the tests of those who use it."""
    double = create_autospec(kind, instance=True)
    for call in (double.queue, partial(double.run, "0123456789ab"), partial(double.submit, "true", gpus=1)):
        made = call()
        if hasattr(made, "close"):
            made.close()
    with pytest.raises(TypeError):
        double.run()
