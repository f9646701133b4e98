"""What a caller gave: taken where it can mean but one thing, else named before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rota.client import AsyncClient, Client, calls
from rota.client.model.run import run as read_run
from tests.client.stub import ok, stub

RUN_ID = "6af9a5ed5e05"
RUN = read_run({"id": RUN_ID, "name": "train", "status": "queued"})


def test_a_path_is_a_word_of_a_command(tmp_path: Path) -> None:
    sent: dict[str, Any] = calls.submit([tmp_path / "train.sh", "--out", tmp_path], workdir=tmp_path).body
    assert sent["argv"] == [f"{tmp_path}/train.sh", "--out", str(tmp_path)]
    assert (sent["name"], sent["workdir"]) == ("train.sh", str(tmp_path))
    again: dict[str, Any] = calls.rerun(RUN_ID, argv=("ls", tmp_path), workdir=tmp_path).body
    assert (again["argv"], again["workdir"]) == (["ls", str(tmp_path)], str(tmp_path))


def test_a_number_in_the_environment_is_written_out(tmp_path: Path) -> None:
    for inherit in (True, False):
        sent = calls.submit("true", env={"THREADS": 4, "DATA": tmp_path}, inherit=inherit).body["env"]  # type: ignore[dict-item]
        assert (sent["THREADS"], sent["DATA"]) == ("4", str(tmp_path))


def test_the_gpus_of_a_sweep_are_asked_for_like_those_of_a_run() -> None:
    sweep: dict[str, Any] = calls.create_sweep("s", "true", {"x": [1]}, gpus=2).body
    assert sweep["gpu_count"] == calls.submit("true", gpus=2).body["gpu_count"] == 2
    assert calls.create_sweep("s", "true", {}, gpu_count=2).body["gpu_count"] == 2
    assert calls.create_sweep("s", "true", {}, gpus=0).body["gpu_count"] == 0
    assert "gpu_count" not in calls.create_sweep("s", "true", {}).body
    for call in (lambda **n: calls.submit("true", **n), lambda **n: calls.create_sweep("s", "true", {}, **n)):
        with pytest.raises(TypeError, match="gpus and gpu_count mean the same"):
            call(gpus=1, gpu_count=2)


WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (calls.submit, (b"true",), {}, "command must be a str, for the shell, or a list of words, not bytes"),
    (calls.submit, (None,), {}, "command must be .* not None"),
    (calls.submit, (Path("/bin/true"),), {}, "command must be .* a list of words, not PosixPath"),
    (calls.submit, ({"ls": 1},), {}, "command must be .* not dict"),
    (calls.submit, (["train.py", 0.1],), {}, r"command\[1\] must be a str or a path, not float"),
    (calls.submit, (["ls", b"/tmp"],), {}, r"command\[1\] must be a str or a path, not bytes"),
    (calls.submit, ("true",), {"workdir": b"/tmp"}, "workdir must be a str or a path, not bytes"),
    (calls.submit, ("true",), {"env": ["A=1"]}, "env must be a dict, not list"),
    (calls.submit, ("true",), {"env": {"A": None}}, r"env\['A'\] must be a str or a path, not None"),
    (calls.submit, ("true",), {"env": {1: "A"}}, "a name in env must be a str, not int"),
    (calls.rerun, (RUN_ID,), {"argv": "ls -l"}, "argv must be a list of words, not str"),
    (calls.rerun, (RUN_ID,), {"command": ["ls"]}, "command must be a str, not list"),
    (calls.create_sweep, ("s", ["ls"], {}), {}, "base_command must be a str, not list"),
    (calls.create_sweep, ("s", "ls", [1]), {}, "parameters must be a dict, not list"),
    (calls.run, (None,), {}, "run_id must be a str, not None"),
    (calls.cancel, (RUN,), {}, f"run_id must be a str, not Run; give its id: {RUN_ID}"),
    (calls.cancel, (RUN_ID,), {"grace_s": "5"}, "grace_s must be a number of seconds, not str"),
    (calls.usage, (), {"since": datetime.now(UTC)}, r"since must be a number .* not datetime; give its timestamp\(\)"),
    (calls.runs_page, (), {"user": 7}, "user must be a str, not int"),
]


@pytest.mark.parametrize(("call", "args", "named", "said"), WRONG)
def test_a_wrong_kind_of_thing_is_named_with_what_would_be_right(
    call: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any], said: str
) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        call(*args, **named)


WITH_ID = ("run job cancel hold release set_priority rerun explain eta workspace logs start_sweep cancel_sweep sweep "
           "drain undrain revoke_token login_link")  # fmt: skip


@pytest.mark.parametrize("name", WITH_ID.split())
def test_no_id_is_said_to_be_missing_by_every_call_that_needs_one(name: str) -> None:
    more = (3,) if name == "set_priority" else ()
    with pytest.raises(TypeError, match=r"^(run|job|sweep|node|token)_id must be a str, not None"):
        getattr(calls, name)(None, *more)


@pytest.mark.parametrize("method", ["follow", "wait"])
def test_what_goes_on_for_long_looks_first(method: str) -> None:
    with stub(lambda asked: ok({})) as server, Client(server.url) as client:
        with pytest.raises(TypeError, match="_id must be a str, not None"):
            list(getattr(client, method)(None))
        assert not server.asked


def test_what_json_cannot_say_is_named_by_its_field() -> None:
    async def submitted(url: str) -> None:
        async with AsyncClient(url) as client:
            await client.submit("true", depends_on=[RUN])

    with stub(lambda asked: ok({})) as server, Client(server.url) as client:
        with pytest.raises(TypeError, match=r"^depends_on cannot be sent as JSON: .*Run"):
            asyncio.run(submitted(server.url))
        with pytest.raises(TypeError, match=r"^parameters cannot be sent as JSON: .*range"):
            client.create_sweep("s", "true", {"fold": range(3)})
        with pytest.raises(ValueError, match=r"^memory_gb cannot be sent as JSON"):
            client.submit("true", memory_gb=float("nan"))
        assert not server.asked
