"""Whatever the API document allows or forbids is sent to a real server: no answer is a 5xx, none unlike the document.

Generated text must never be run: the server starts with scheduling paused, and the route that would wake it is left
out; at the end no attempt may ever have been made. A failure prints the call as a curl line; the same seed makes the
same calls again (ROTA_FUZZ_SEED, ROTA_FUZZ_CASES per shard).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import run_state_machine_as_test
from schemathesis.checks import CheckFunction, load_all_checks
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.app.house import attempts_in
from tests.security.kit import SHARED, Lab

SEED = int(os.environ.get("ROTA_FUZZ_SEED", "20260601"))
SHARDS = 10
CASES = int(os.environ.get("ROTA_FUZZ_CASES", "500"))  # of each shard, at least
SOAK = 20  # times as many
ROUNDS = 10  # of chains, at most

LEFT_OUT = {
    "/orchestrator/start": "would wake the scheduler, which would run generated commands",
    "/events": "never ends",
    "/runs/{run_id}/logs/stream": "ends only with the run",
    "/runs/{run_id}/sidecar-logs/stream": "ends only with the run",
    "/acquire": "waits for GPUs; tried by hand in test_bad_input",
}
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
QUIET = settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)


class Target:
    """The server, its document, and a few things that are really there."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.known = _furnish(lab)
        # the first call makes the document, which takes seconds of CPU time
        whole: Any = schemathesis.openapi.from_url(f"{lab.url}/openapi.json", timeout=60)
        self.schema: Any = whole.exclude(path=list(LEFT_OUT))
        self.session = requests.Session()
        self.cases = 0

    def operations(self) -> list[Any]:
        return [result.ok() for result in self.schema.get_all_operations()]

    def send(self, case: Any) -> None:
        self.cases += 1
        case.headers["X-Auth-Token"] = SHARED
        if case.path == "/gpu/initialize":  # a cluster of thousands would only make every other answer slow
            case.query = {**(case.query if isinstance(case.query, dict) else {}), "dry_run": "true"}
        response = case.call(session=self.session, timeout=60)
        case.validate_response(response, checks=CHECKS)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    load_all_checks()
    env = {"RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED": "false", "RESEARCH_AGENT_MAX_QUEUE_SIZE": "100000"}
    with Lab(tmp_path_factory.mktemp("fuzz"), env=env) as lab:
        assert isinstance(lab, Lab)
        made = Target(lab)
        yield made
        assert lab.ask("GET", "/orchestrator/status").ok()["running"] is False, "scheduling must stay paused"
        assert not attempts_in(lab.data / "attempts"), "no generated text was ever run"


def _furnish(lab: Lab) -> dict[str, list[str]]:
    """Ids that stand for something, by the name of the parameter that takes them."""
    run = {"name": "a", "command": "true"}
    held = [lab.ask("POST", "/runs", run).ok()["id"] for _ in range(3)]
    queued = [lab.ask("POST", "/runs", {**run, "auto_start": True}).ok()["id"] for _ in range(3)]
    ended = lab.ask("POST", "/runs", run).ok()["id"]
    lab.ask("POST", f"/runs/{ended}/stop").ok()
    sweep = lab.ask("POST", "/sweeps/wild", {}).ok()["id"]
    alert = lab.ask("POST", f"/runs/{held[0]}/alerts", {"message": "m", "choices": ["a", "b"]}).ok()["alert_id"]
    session = lab.ask("POST", "/sessions", {}).ok()["id"]
    token = lab.ask("POST", "/tokens", {"user": "spare"}).ok()["id"]
    kept = [lab.ask("POST", "/reservations", {"gpus": 1, "for_seconds": 600}).ok()["id"] for _ in range(3)]
    nodes = [node["node_id"] for node in lab.ask("GET", "/gpu/status").ok()["cluster_status"]["nodes"]]
    skills = [skill["id"] for skill in lab.ask("GET", "/prompt-skills").ok()]
    runs = [*held, *queued, ended]
    return {
        "run_id": runs, "job_id": runs, "sweep_id": [sweep], "alert_id": [alert], "session_id": [session],
        "token_id": [token], "node_id": nodes, "skill_id": skills, "reservation_id": kept,
    }  # fmt: skip


def _cases(target: Target, operation: Any) -> Any:
    """What the document allows, what it forbids, and either with ids that stand for something."""
    modes = list(schemathesis.GenerationMode)
    generated = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in modes))

    @st.composite
    def known(draw: Any) -> Any:
        case = draw(generated)
        for name, values in target.known.items():
            if name in (case.path_parameters or {}) and draw(st.integers(0, 3)):
                case.path_parameters[name] = draw(st.sampled_from(values))
        return case

    return known()


def fuzz(target: Target, operation: Any, cases: int, number: int) -> None:
    @seed(SEED + number)
    @settings(QUIET, max_examples=cases)
    @given(_cases(target, operation))
    def each(case: Any) -> None:
        target.send(case)

    each()


def fuzz_shard(target: Target, shard: int, cases: int) -> int:
    mine = target.operations()[shard::SHARDS]
    before, rounds = target.cases, 0
    while target.cases - before < cases:  # a route without parameters has only a few cases in it
        missing = cases - (target.cases - before)
        for operation in mine:
            fuzz(target, operation, max(10, missing // len(mine) + 1), shard + SHARDS * rounds)
        rounds += 1
    return target.cases - before


@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_no_call_is_answered_with_5xx_or_unlike_the_document(target: Target, shard: int) -> None:
    made = fuzz_shard(target, shard, CASES)
    print(f"fuzz: shard {shard}, seed {SEED}, {made} cases")
    assert made >= CASES


@pytest.mark.timeout(600)
def test_nor_are_chains_of_calls(target: Target) -> None:
    """What one answer holds goes into the next call: ids that were just made, taken up elsewhere."""
    before, wrong = target.cases, list[Exception]()
    steps = target.schema.as_state_machine()

    class Chains(steps):  # type: ignore[misc,valid-type]
        def call(self, case: Any, **more: Any) -> Any:
            target.cases += 1
            if case.path == "/gpu/initialize":
                case.query = {**(case.query if isinstance(case.query, dict) else {}), "dry_run": "true"}
            return case.call(session=target.session, headers={"X-Auth-Token": SHARED}, timeout=60)

        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            try:
                case.validate_response(response, checks=CHECKS)
            except Exception as error:  # whatever is wrong with an answer: kept, for what is raised next may hide it
                wrong.append(error)
                raise

    def go(number: int) -> None:
        chosen = settings(QUIET, max_examples=CASES // 10, stateful_step_count=10)
        run_state_machine_as_test(seed(SEED + number)(Chains), settings=chosen)

    rounds = 0
    while not wrong and rounds < ROUNDS and target.cases - before < CASES:
        # the server remembers what earlier chains did, so the same choices may lead elsewhere: then it is begun anew
        with contextlib.suppress(FlakyStrategyDefinition):
            go(rounds)
        rounds += 1
    print(f"fuzz: chains, seed {SEED}, {target.cases - before} calls in {rounds} rounds")
    assert not wrong, wrong[0]
    assert target.cases - before >= CASES // 10


def test_what_is_left_out_is_there(target: Target) -> None:
    paths = target.lab.ask("GET", "/openapi.json").ok()["paths"]
    assert set(LEFT_OUT) <= set(paths)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_for_long(target: Target, shard: int) -> None:
    made = fuzz_shard(target, shard, SOAK * CASES)
    print(f"fuzz: shard {shard}, seed {SEED}, {made} cases")
