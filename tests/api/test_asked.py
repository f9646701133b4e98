"""From a request to a Submit: one way for all doors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from rota.api.asked import Extras, compact, gpus_by_default, spec_of, submit_of
from rota.api.doors.identity import NewToken
from rota.api.doors.nodes import Why
from rota.api.doors.queue import Submission
from rota.api.doors.reservations import NewReservation
from rota.api.house import House
from rota.api.newrun import NewRun, submit_run
from rota.api.newsweep import NewSweep, WildSweep
from rota.api.unknown_fields import OTHER_WORDS, nearest
from rota.app.authz import Principal, Role
from rota.app.errors import Invalid
from rota.app.submit import digest_of
from rota.core.run import When

ADMIN = Principal("root", Role.ADMIN)


def spec(house: House, extras: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {"name": "a", "command": "true", "gpus": 1, **more}
    return spec_of(house, Extras(**(extras or {})), **given)


def test_a_line_goes_to_a_shell_and_words_do_not(house: House) -> None:
    assert spec(house, command="echo $HOME").argv == ("/bin/sh", "-c", "echo $HOME")
    assert spec(house, {"argv": ["echo", "$HOME"]}, command=None).argv == ("echo", "$HOME")


def test_of_a_field_nobody_knows_only_the_name_is_kept() -> None:
    asked = Extras.model_validate_json(b'{"b": [' + b"{}," * 9999 + b'{}], "a": null, "cpus": 2}')
    assert (asked.model_extra, asked.cpus) == ({"a": None, "b": None}, 2)
    assert [text.partition(":")[0] for text in asked.ignored()] == ["a", "b"]
    assert not {"a", "b"} & asked.known().keys()
    assert Extras.model_validate({"b": object()}).model_extra == {"b": None}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("gpus", "gpu_count"), ("num_gpus", "gpu_count"), ("gpuCount", "gpu_count"), ("gpu-count", "gpu_count"),
        ("gpu_cuont", "gpu_count"), ("GPUS", "gpu_count"), ("time_limit", "time_limit_seconds"),
        ("timeout", "time_limit_seconds"), ("mem", "memory_gb"), ("retries", "max_retries"), ("cmd", "command"),
        ("cwd", "workdir"), ("environment", "env"), ("prioirty", "priority"), ("depend_on", "depends_on"),
        ("colour", None), ("", None), ("_", None), ("\ud800", None), ("gpu_count" * 40, None),
    ],
)  # fmt: skip
def test_the_nearest_field_of_a_slip_of_the_pen(written: str, meant: str | None) -> None:
    assert nearest(written, NewRun.model_fields) == meant


def test_a_word_is_never_taken_for_a_field_that_a_request_does_not_have() -> None:
    assert nearest("gpus", WildSweep.model_fields) is None
    models = (NewRun, NewSweep, NewReservation, NewToken, Why)
    requests = [model.model_fields for model in models]
    for word, meant in OTHER_WORDS.items():
        assert not any(word in known and meant in known for known in requests), "both are fields of one request"
        assert any(meant in known for known in requests)


def test_it_is_one_or_the_other(house: House) -> None:
    for extras, command in (({}, None), ({"argv": ["a"]}, "b"), ({}, " \n"), ({}, "")):
        with pytest.raises(Invalid) as caught:
            spec(house, extras, command=command)
        assert caught.value.field == "command"


def test_where_it_works(house: House) -> None:
    assert spec(house).workdir == house.workdir
    assert spec(house, workdir="/tmp").workdir == "/tmp"
    assert spec(house, workdir="below").workdir == f"{house.workdir}/below"
    with pytest.raises(Invalid):
        spec(house, workdir="  ")


def test_everything_asked_for_arrives(house: House) -> None:
    extras = {
        "gpu_memory_gb": 1.5, "gpu_type": "H100", "nodes": 2, "span": True, "cpus": 3, "memory_gb": 4.0,
        "env": {"A": "b"},
        "estimated_duration_seconds": 60, "time_limit_seconds": 120, "max_retries": 5, "retry_failures": True,
        "depends_on": ["x", {"run_id": "y", "when": "ended"}], "tags": ["t"], "preemptible": True,
        "checkpoint_signal": 10,
        "grace_seconds": 1.0, "terminal": True, "umask": 0o077,
    }  # fmt: skip
    made = spec(house, extras, gpus=2, priority=3, labels={"run_id": "l"}, group="g")
    assert (made.request.gpus, made.request.nodes, made.request.span, made.request.cpus) == (2, 2, True, 3)
    assert (made.request.gpu_type, made.request.gpu_memory_gb, made.request.memory_gb) == ("H100", 1.5, 4.0)
    assert (made.estimate_s, made.time_limit_s, made.max_retries, made.retry_failures) == (60, 120, 5, True)
    assert [(d.run_id, d.when) for d in made.depends_on] == [("x", When.SUCCEEDED), ("y", When.ENDED)]
    assert (made.preemptible, made.checkpoint_signal, made.grace_s, made.terminal, made.umask) == (
        True,
        10,
        1.0,
        True,
        0o077,
    )
    assert made.labels == {"tags": '["t"]', "run_id": "l"}
    assert (made.priority, made.group, made.env) == (3, "g", {"A": "b"})


@pytest.mark.parametrize(
    "bad",
    [
        {"nodes": -1}, {"cpus": 2**63}, {"memory_gb": float("nan")}, {"gpu_memory_gb": float("inf")},
        {"max_retries": 101},
        {"umask": 0o1000}, {"checkpoint_signal": 0}, {"time_limit_seconds": 0}, {"env": {"A": 1}}, {"argv": []},
        {"tags": "x"},
        {"depends_on": [{"when": "ended"}]}, {"depends_on": [{"run_id": "x", "when": "never"}]},
        {"argv": ["a"] * 10_001},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_by_its_field(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        Extras(**bad)
    assert {error["loc"][0] for error in caught.value.errors()} == set(bad)


@pytest.mark.parametrize(
    ("by", "role", "counts"),
    [
        ("open", Role.ADMIN, True), ("shared", Role.ADMIN, True), ("token", Role.ADMIN, False), ("token", Role.USER,
        False),
        ("cookie", Role.ADMIN, False), ("socket", Role.ADMIN, False), ("pid", Role.USER, False), ("", Role.ADMIN,
        False),
    ],
)  # fmt: skip
def test_a_user_in_the_body_counts_only_where_nobody_is_known(house: House, by: str, role: Role, counts: bool) -> None:
    who = Principal("ann", role)
    made = submit_of(spec(house), who, by, Extras.model_validate({}), user="ben", held=False, key=None)
    assert made.user == ("ben" if counts else "")


def test_a_key_in_the_header_wins_over_one_in_the_body(house: House) -> None:
    extras = Extras.model_validate({"idempotency_key": "body"})
    for header, key in (("header", "header"), (None, "body"), ("", "body")):
        assert submit_of(spec(house), ADMIN, "token", extras, user=None, held=True, key=header).key == key


def test_a_key_stands_for_the_request_without_what_the_server_filled_in(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(chat: str | None, **given: Any) -> str:
        asked = NewRun.model_validate({"name": "a", "command": "true", **given})
        return digest_of(submit_run(house, ADMIN, "token", asked, group="g", chat=chat, key="k"))

    requests: list[dict[str, Any]] = [
        {}, {"workdir": "below"}, {"workdir": "/tmp"}, {"workdir": house.workdir}, {"gpu_count": 0}, {"gpu_count": 1},
        {"chat_session_id": "one"}, {"tags": ["a"]}, {"gpu_count": 1, "workdir": "/tmp", "chat_session_id": "one"},
    ]  # fmt: skip
    first = [digest("one", **request) for request in requests]
    assert len(set(first)) == len(requests), "each is another request"
    monkeypatch.setattr(house, "workdir", "/elsewhere")
    monkeypatch.setattr("rota.api.newrun.gpus_by_default", lambda house: 0)
    for chat in ("two", None):
        assert [digest(chat, **request) for request in requests] == first


def test_a_workspace_goes_with_it_as_a_record(house: House) -> None:
    extras = Extras.model_validate({"workspace": {"commit": "abc", "dirty": True}})
    (draft,) = submit_of(spec(house), ADMIN, "token", extras, user=None, held=False, key=None).records
    assert (draft.kind, draft.id) == ("workspace", "")
    assert json.loads(draft.body)["commit"] == "abc"


def test_a_gpu_is_asked_for_where_there_are_any(house: House) -> None:
    assert gpus_by_default(house) == 1


def test_labels_of_what_is_there() -> None:
    assert compact({"a": "x", "b": None, "c": {"d": 1}, "e": ""}) == {"a": "x", "c": '{"d": 1}', "e": ""}


def test_an_account_goes_on_as_it_was_asked_for(house: House) -> None:
    """Who may have which is decided behind the doors."""
    for asked, passed in ((None, None), ("", None), ("root", "root")):
        assert spec(house, {"account": asked}).account == passed


@pytest.mark.parametrize(
    "field",
    ["time_limit_seconds", "estimated_duration_seconds", "grace_seconds", "warn_seconds", "checkpoint_signal",
     "warn_signal", "nodes", "cpus", "memory_gb", "gpu_memory_gb", "max_retries", "umask"],
)  # fmt: skip
def test_true_is_no_number(field: str) -> None:
    for value in (True, False):
        with pytest.raises(ValidationError, match="which is no number"):
            Extras.model_validate({field: value})
        with pytest.raises(ValidationError, match="which is no number"):
            Extras.model_validate_json(json.dumps({field: value}))
    assert getattr(Extras.model_validate({field: 1}), field) == 1
    assert getattr(Extras.model_validate({field: 1.0}), field) == 1


def test_of_the_doors_own_numbers_neither() -> None:
    made: dict[type[Extras], dict[str, Any]] = {
        NewRun: {"name": "a", "command": "true"},
        NewSweep: {"name": "a", "base_command": "true", "parameters": {}},
        Submission: {"run_id": "a", "user": "ann", "command": "true", "gpu_count": 1},
    }
    for kind, body in made.items():
        for field in {"gpu_count", "priority", "max_runs"} & kind.model_fields.keys():
            kind.model_validate({**body, field: 1})
            with pytest.raises(ValidationError, match="which is no number"):
                kind.model_validate({**body, field: True})


def test_a_reservation_without_a_name_is_none() -> None:
    assert Extras.model_validate({}).reservation == ""
    for text in ("", "  "):
        with pytest.raises(ValidationError, match="is empty; give the id of a reservation, or leave it out"):
            Extras.model_validate({"reservation": text})
