"""Bad input: refused with the field named, nothing stored, the queue as it was."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from rota.app.commands import Submit
from rota.app.errors import Invalid, NotFound, Refused
from rota.core import events as e
from rota.core.resources import Request
from rota.core.run import Dependency, Holder, Replaced, RunState, Spec
from tests.app.house import ANN, ROOT

NAN, INF, HUGE = float("nan"), float("inf"), "x" * 2_000_000
HALF = "\ud800"  # half of a surrogate pair: cannot be written as UTF-8

SPECS: list[tuple[str, str, list[Any]]] = [  # (field of Spec, field named in the refusal, wrong values)
    ("name", "name", ["", "a\0b", HUGE, HALF]),
    ("argv", "command", [(), ("",), ("", "x"), ("sh", "a\0b"), (HUGE,), ("sh", *["y" * 100] * 2000), ("sh", HALF)]),
    ("workdir", "workdir", ["", "relative", "./x", "~/x", "/a\0b", "/" + HUGE, "/" + HALF]),
    ("env", "env", [{"": "x"}, {"1A": "x"}, {"A=B": "x"}, {"A B": "x"}, {"A\0": "x"}, {"A": "\0"}, {"A": HUGE}]),
    ("env", "env", [{f"V{i}": "x" * 1000 for i in range(400)}, {"A": HALF}, {HUGE: "x"}, {"BASH_FUNC_a=b%%": "x"}]),
    ("labels", "labels", [{"a": "\0"}, {"\0": "a"}, {"a": HUGE}, {str(i): "" for i in range(65)}, {"a": HALF}]),
    ("umask", "umask", [-1, 0o1000, 2**63, NAN]),
    ("account", "account", ["", "a\0b", HUGE, HALF]),
    ("priority", "priority", [0, -1, 5, 2**63, NAN, INF]),
    ("estimate_s", "estimate_s", [0, -1, NAN, INF, -INF, 2**63, 10**400]),
    ("time_limit_s", "time_limit_s", [0, -0.0, -1, NAN, INF, 2**63, 10**400]),
    ("grace_s", "grace_s", [-1, NAN, INF, 86401, 2**63, 10**400]),
    ("max_retries", "max_retries", [-1, 101, 2**63, NAN]),
    ("checkpoint_signal", "checkpoint_signal", [0, -1, 32, 64, 2**63, NAN]),
    ("warn_signal", "warn_signal", [-1, 9, 10, 32, 2**63, NAN]),
    ("warn_s", "warn_s", [-1, 5.0, NAN, INF, 2**63, 10**400]),
    ("filler", "filler", [True, 1]),
    ("log_cap_bytes", "log_cap_bytes", [0, -1, 4095, 2**63, NAN]),
    ("group", "group", [HUGE, "a\0b", HALF]),
    ("reservation", "reservation", ["nope", HUGE, "a\0b", HALF]),
    ("holder", "holder", [Holder(0, 1, "b"), Holder(-1, 1, "b"), Holder(2**31, 1, "b"), Holder(1, -1, "b")]),
    ("holder", "holder", [Holder(1, 2**63, "b"), Holder(1, 1, HUGE), Holder(1, 1, "\0")]),
    ("replaced", "replaced", [Replaced("true", "/")]),
    ("depends_on", "depends_on", [tuple(Dependency(f"{i:012x}") for i in range(101))]),
]
REQUESTS: list[tuple[str, str, list[Any]]] = [
    ("gpus", "gpus", [-1, 9, 17, 100, 2**63, NAN, INF, 10**400]),
    ("nodes", "nodes", [-1, 2**63, NAN, 10**400]),
    ("gpu_memory_gb", "gpu_memory_gb", [-1, NAN, INF, 2.0**63, 10**400]),
    ("memory_gb", "memory_gb", [-1, NAN, INF, 2.0**63, 10**400]),
    ("cpus", "cpus", [-1, 2**63, NAN, INF, 10**400]),
    ("gpu_type", "gpu_type", [HUGE, "a\0b", HALF]),
]
NEVER: list[tuple[Request, str, str]] = [  # right in themselves, but more than this cluster has: by which field, which
    (Request(gpus=5, nodes=2), "gpus", "cannot be shared evenly by 2 nodes"),
    (Request(gpus=3, nodes=3), "nodes", "3 are more than there are: 2"),
    (Request(gpus=1, nodes=2), "gpus", "evenly"),
    (Request(gpus=1, gpu_type="A100"), "gpu_type", "no GPU here is called 'A100'; there are: Simulated H100"),
    (Request(gpus=1, gpu_memory_gb=81.0), "gpu_memory_gb", "the largest 80"),
    (Request(gpus=1, cpus=100_000), "cpus", "the largest has"),
    (Request(gpus=0, memory_gb=1e6), "memory_gb", "the largest has"),
    (Request(gpus=0, memory_gb=1e-9), "memory_gb", "1e-09 GB are too few for any process to start; use 0.004 or more"),
    (Request(gpus=0, memory_gb=0.0039), "memory_gb", "too few for any process to start"),
    (Request(gpus=9), "gpus", "at most 4 on one node"),
    (Request(gpus=9, span=True), "gpus", "8 GPUs"),
]


def refused(house: Any, spec: Spec, caplog: pytest.LogCaptureFixture) -> Refused:
    caplog.clear()
    with pytest.raises(Refused) as refusal:
        house.do(Submit(spec), ANN)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == [], "no traceback in the log"
    assert len(refusal.value.message) < 1000
    return refusal.value


@pytest.fixture
def keeper(house, caplog):
    """A house with something in every state, which must all be the same afterwards."""
    house.running(4)
    house.submit("true", held=True)
    house.running(4)
    house.submit("true", 2)
    before = house.store.load()
    yield house
    after = house.store.load()
    assert after.version == before.version, "nothing was stored"
    assert after.runs == before.runs
    (last,) = [run for run in after.runs.values() if run.state is RunState.QUEUED]
    assert house.rota.explain(last.id).position == 1
    assert len(house.events(e.RunSubmitted)) == 4


def test_every_field_of_a_spec(keeper, caplog):
    good = keeper.spec("true")
    wrong = []
    for field, named, values in SPECS:
        for value in values:
            refusal = refused(keeper, replace(good, **{field: value}), caplog)
            if not (isinstance(refusal, Invalid) and refusal.field == named and named in refusal.message):
                wrong.append((field, str(value)[:50], refusal.field, refusal.message[:200]))
    assert wrong == []


def test_every_field_of_a_request(keeper, caplog):
    good = keeper.spec("true")
    wrong = []
    for field, named, values in REQUESTS:
        for value in values:
            refusal = refused(keeper, replace(good, request=replace(Request(), **{field: value})), caplog)
            if not (isinstance(refusal, Invalid) and refusal.field == named and named in refusal.message):
                wrong.append((field, str(value)[:50], refusal.field, refusal.message[:200]))
    assert wrong == []


def test_what_the_cluster_can_never_give(keeper, caplog):
    for request, field, words in NEVER:
        refusal = refused(keeper, keeper.spec("true", request=request), caplog)
        assert isinstance(refusal, Invalid), request
        assert refusal.field == field, request
        assert words in refusal.message


def test_every_spec_and_request_field_is_covered_above():
    plain = {
        "request",
        "preemptible",
        "saves",
        "retry_failures",
        "terminal",
        "long_grace",
        "agent_estimate",
    }  # booleans, and the request itself
    assert {row[0] for row in SPECS} | plain == set(Spec.__dataclass_fields__)
    assert {row[0] for row in REQUESTS} | {"span"} == set(Request.__dataclass_fields__)


@pytest.mark.parametrize("run_id", ["", "0" * 12, "\0", HALF, "../../etc", HUGE, "'; DROP TABLE runs; --"])
def test_odd_run_ids_are_not_found(house, run_id):
    from rota.app.commands import Cancel, Hold, Release, Reprioritise, Rerun

    for command in (Cancel(run_id), Hold(run_id), Release(run_id), Reprioritise(run_id, 2), Rerun(run_id)):
        with pytest.raises(NotFound) as refusal:
            house.do(command, ANN)
        assert len(refusal.value.message) < 1000
    with pytest.raises(Invalid) as unknown:
        house.submit("true", depends_on=(Dependency(run_id),))
    assert unknown.value.field == "depends_on"
    for look in (house.rota.run, house.rota.log, house.rota.explain, lambda x: house.rota.wait(x, 30)):
        with pytest.raises(NotFound):
            look(run_id)


def test_an_odd_user_is_refused_even_from_an_admin(house):
    for user in ("a\0b", HUGE, HALF):
        with pytest.raises(Invalid) as refusal:
            house.do(Submit(house.spec("true"), user=user), ROOT)
        assert refusal.value.field == "user"


def test_odd_but_allowed_text_goes_through_and_back(house):
    argv = ("/usr/bin/printf", "%s", "ü\udcff 'quoted' $HOME \x1a \n end")
    env = {"_": "1", "BASH_FUNC_module%%": "() { :; }", "EMPTY": "", "LINE": "a\nb\udc80"}
    run_id = house.submit(argv, name="назва 名 \udcff", env=env, labels={"k\n": "v 名"})
    run = house.wait(run_id)
    assert run.state is RunState.SUCCEEDED, house.output(run_id)
    assert house.rota.log(run_id).content == argv[2].encode("utf-8", "surrogateescape")
    house.reopen()
    spec = house.run(run_id).spec
    assert (spec.argv, dict(spec.env), dict(spec.labels)) == (argv, env, {"k\n": "v 名"})


def test_a_defect_in_one_command_is_its_callers_alone(house, monkeypatch):
    from rota.app import service
    from rota.app.commands import Hold

    def broken(*args: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setitem(service.HANDLERS, Hold, broken)
    run_id = house.submit("true", held=True)
    sent = [house.rota.send(ANN, Submit(house.spec("true"))), house.rota.send(ANN, Hold(run_id))]
    with pytest.raises(ZeroDivisionError):
        sent[1].result(60)
    assert house.wait(sent[0].result(60).id).state is RunState.SUCCEEDED


def test_whys_are_bounded(house):
    """A reason is one line for people; it is stored with the run, the event and the node."""
    from rota.app.commands import Cancel, Drain, Hold, Pause

    run_id = house.submit("true", held=True)
    waiting = house.submit("true", depends_on=(Dependency(run_id),))
    commands = [Hold(waiting, HUGE), Cancel(run_id, HUGE), Pause(HUGE), Drain("node1", HUGE)]
    for command in commands:
        with pytest.raises(Invalid) as refusal:
            house.do(command)
        assert refusal.value.field == "why"
