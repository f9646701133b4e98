"""From the server's runs to jobs: what counts as work, what as waiting, and what is left out and said so."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from rota.cli.simulate import history
from rota.cli.simulate.history import History, as_jobs, left_out, missing, take
from rota.cli.simulate.server import called, cluster_of, policy_of, same
from rota.client.model.cluster import node
from rota.client.model.run import Run, run
from rota.core.knobs import FIELDS
from rota.core.node import simulated_cluster
from rota.core.policy import Backfill, Limits, Ordering, Packing, Policy
from rota.core.presets import named

T0 = 1_700_000_000.0
NODES = simulated_cluster(2, 4)
COUNT = iter(range(10_000))


def attempt(start: float | None, end: float | None, reason: str = "exited", gpus=("node1:0",)) -> dict[str, Any]:
    return {
        "id": "a",
        "started": None if start is None else T0 + start,
        "ended": None if end is None else T0 + end,
        "exit_code": 0,
        "reason": reason,
        "gpus": list(gpus),
    }


def made(created: float, *attempts: dict[str, Any], **more: Any) -> Run:
    """A run that got into line when it was made and ended with its last attempt."""
    ended = attempts[-1]["ended"] if attempts else None
    said = {
        "id": f"{next(COUNT):012x}",
        "status": "finished",
        "created_at": T0 + created,
        "queued_at": T0 + created,
        "ended_at": ended,
        "user": "ann",
        "gpu_count": 1,
        "priority": 2,
        "command": "python train.py --lr 0.1",
        "attempts": list(attempts),
    }
    return run({**said, **more})


def jobs_of(*runs: Run, nodes=NODES, preemptible: bool | None = None) -> History:
    return as_jobs(take(reversed(runs), T0 - 100, lambda _: None), nodes, T0 - 100, preemptible)


def test_a_run_becomes_a_job_with_what_it_asked_for_and_what_it_waited():
    found = jobs_of(
        made(
            50.0,
            attempt(80.0, 200.0, gpus=("node1:0", "node1:1", "node2:3")),
            user="ben",
            gpu_count=3,
            priority=3,
            preemptible=True,
            time_limit_seconds=7200.5,
        )
    )
    (job,) = found.jobs
    assert (job.submit_s, job.duration_s, job.gpus, job.user) == (0, 120, 3, "ben")
    assert (job.limit_s, job.priority, job.preemptible) == (7201, 3, True)
    assert job.command == "python train.py --lr 0.1"
    assert found.live.waits == (30,)
    (segment,) = found.live.segments
    assert segment.placement == (("node1", 2), ("node2", 1))
    assert found.live.gpus == 8 and left_out(found) == ""


def test_work_of_a_preempted_attempt_counts_and_work_that_was_lost_does_not():
    preempted = made(0, attempt(10, 110, "preempted: for 0a"), attempt(200, 250))
    lost = made(1, attempt(10, 110, "lost: its machine vanished"), attempt(200, 250))
    killed = made(2, attempt(10, 110, "preempted") | {"killed": True}, attempt(200, 250))
    found = jobs_of(preempted, lost, killed)
    assert [job.duration_s for job in found.jobs] == [150, 50, 50]
    assert found.live.waits == (100, 199, 198), "what was lost is time that somebody waited"
    assert found.live.stops == (1, 0, 1), "a stop is one, whether the work was kept or not"


def test_time_on_hold_is_nobodys_wait():
    assert jobs_of(made(0, attempt(1010, 1100), queued_at=T0 + 1000)).live.waits == (10,)
    between = made(0, attempt(10, 20, "preempted"), attempt(500, 600), queued_at=T0 + 400)
    assert jobs_of(between).jobs[0].duration_s == 110, "held and let go between two attempts"


def test_a_run_that_needs_others_waits_from_their_end_on():
    first = made(0, attempt(0, 300))
    second = made(1, attempt(330, 400), depends_on=[{"run_id": first.id, "when": "succeeded"}])
    third = made(2, attempt(40, 50), depends_on=[{"run_id": "elsewhere", "when": "ended"}])
    found = jobs_of(first, second, third)
    waits = dict(zip((job.id for job in found.jobs), found.live.waits, strict=True))
    assert waits == {first.id: 0, second.id: 30, third.id: 38}


def test_what_cannot_be_replayed_is_left_out_and_counted():
    found = jobs_of(
        made(0, attempt(0, 10)),
        made(1, status="running", ended_at=None),
        made(2, attempt(5, None), status="running", ended_at=None),
        made(3, status="stopped", ended_at=T0 + 4),
        made(4, attempt(None, 5, "launch_failed"), status="failed"),
        made(5, attempt(6, 7), gpu_count=0),
        made(6, attempt(7, 9, gpus=())),
        made(7, attempt(8, 9), gpu_count=9),
    )
    assert len(found.jobs) == 1
    assert found.left_out == {
        "not ended yet": 2,
        "never started": 2,
        "without a GPU": 1,
        "carried elsewhere": 1,
        "too large for this cluster": 1,
    }
    assert left_out(found).startswith(": 2 n") and "1 without a GPU" in left_out(found)


def test_what_runs_that_have_not_ended_held_is_said_and_loudly_where_it_is_much(monkeypatch):
    monkeypatch.setattr("rota.cli.simulate.history.time.time", lambda: T0 + 7200)
    both = ("node1:0", "node1:1")
    ended = made(0, attempt(0, 3600))
    running = made(1, attempt(3600, None, gpus=both), status="running", ended_at=None)
    assert missing(jobs_of(ended, made(2, status="queued", ended_at=None))) == "", "who waits holds nothing"
    assert missing(jobs_of(ended, running)) == (
        "BEWARE: 1 run that has not ended yet held 2 of the 3 GPU-hours held in this time (67 %). That is not "
        "simulated, so the jobs find an emptier cluster than there was: all simulated waits are told too low."
    )
    little = made(1, attempt(7000, None), status="running", ended_at=None)
    assert "BEWARE" not in missing(jobs_of(ended, little)) and "emptier" in missing(jobs_of(ended, little))

    taken = take([ended], T0 - 100, lambda _: None)
    older = made(-5000, attempt(-4000, None), status="running", ended_at=None)
    taken.count_older([older, running], T0 - 100)
    assert (taken.unended.runs, taken.unended.gpu_s) == (1, 7300.0), "only what lies in the time asked for"


def test_only_the_time_that_was_asked_for_and_never_more_than_can_be_held(monkeypatch):
    runs = [made(n, attempt(n, n + 1)) for n in range(10)]
    said: list[str] = []
    assert [one.id for one in take(reversed(runs), T0 + 7, said.append).past] == [one.id for one in runs[:6:-1]]
    assert said and "0 runs" in said[0]
    taken = take(reversed(runs), T0, said.append, most=4)
    assert len(taken.past) == 4 and taken.cut
    assert "all before the newest" in left_out(as_jobs(taken, NODES, T0))
    assert history.MOST_RUNS >= 10_000


def test_a_run_that_was_over_at_once_makes_no_wait():
    found = jobs_of(made(0.2, attempt(0.25, 0.3)), made(0.4, attempt(0.45, 1.9)))
    assert [job.duration_s for job in found.jobs] == [1, 1]
    assert found.live.waits == (0, 1)
    assert all(wait >= 0 for wait in found.live.waits)


def test_the_estimate_is_a_declaration_too_and_all_may_be_made_preemptible():
    said = made(0, attempt(0, 10), estimated_duration_seconds=600.0, time_limit_seconds=3600.0)
    assert jobs_of(said).jobs[0].limit_s == 600
    found = jobs_of(said, preemptible=True)
    assert found.jobs[0].preemptible and not found.live.jobs[0].preemptible, "what happened stays as it was"
    assert len(jobs_of(made(0, attempt(0, 10), command="x" * 9000)).jobs[0].command) == history.MOST_COMMAND


def test_nodes_that_are_gone_are_still_in_the_picture_of_what_happened():
    found = jobs_of(made(0, attempt(0, 10, gpus=("old:0", "old:1")), gpu_count=2))
    assert dict(found.live.gpus_of) == {"node1": 4, "node2": 4, "old": 2}
    assert found.live.gpus == 8


# -- the server's machines and policy ---------------------------------------------------------------------------------
def seen(name: str, *states: str, **more: Any) -> Any:
    gpus = [{"node_id": name, "gpu_id": n, "type": "H100", "status": state} for n, state in enumerate(states)]
    return node({"node_id": name, "hostname": name, "gpu_count": len(gpus), "gpus": gpus, **more})


def test_only_what_is_in_service_is_simulated():
    made_of = cluster_of(
        [
            seen("a", "available", "error", "allocated"),
            seen("b", "available", drained=True),
            seen("c", "allocated", alive=False),
            seen("d"),
        ]
    )
    assert [(one.id, [gpu.index for gpu in one.gpus]) for one in made_of] == [("a", [0, 2])]
    assert made_of[0].usable == 0b101


def test_the_policy_comes_back_as_it_was_set():
    said = {
        "scheduling_algorithm": "fair_share",
        "max_concurrent_jobs": 7,
        "enable_auto_retry": False,
        "enable_preemption": True,
        "backfill": "skip",
        "backfill_depth": 9,
        "aging_seconds": 5.0,
        "half_life_seconds": 99.0,
        "default_duration_seconds": 60.0,
        "max_queue": 10,
        "limits": {"running": 1, "gpus": 2, "queued": 3},
        "user_limits": {"ann": {"running": 0, "gpus": 4, "queued": 0}},
        "of_a_newer_server": {"x": 1},
    }
    name, policy = policy_of(said)
    assert name.startswith("live:fair_share")
    assert (policy.ordering, policy.backfill, policy.preemption) == (Ordering.FAIR_SHARE, Backfill.SKIP, True)
    assert (policy.max_concurrent, policy.aging_s, policy.default_expected_s) == (7, 5.0, 60.0)
    assert policy.limits == Limits(1, 2, 3) and policy.limits_of("ann").gpus == 4
    with pytest.raises(ValueError, match="nonsense"):
        policy_of({"scheduling_algorithm": "nonsense"})


def test_every_part_of_the_policy_that_the_server_tells_is_understood():
    """As the server itself renders it: a part that is added there must find its way back."""
    from rota.api.doors.orchestrator import policy_of as rendered

    odd = Policy(
        ordering=Ordering.SJF, backfill=Backfill.NONE, backfill_depth=3, max_concurrent=5, max_queue=77,
        limits=Limits(1, 2, 3), user_limits={"ben": Limits(gpus=8)}, aging_s=11.0, half_life_s=120.0,
        default_expected_s=13.0, preemption=True, auto_retry=False,
    )  # fmt: skip
    assert policy_of(rendered(odd))[1] == odd
    assert {"policy", *FIELDS} == set(rendered(odd))
    assert set(FIELDS.values()) <= {one.name for one in dataclasses.fields(Policy)}


def test_two_policies_are_the_same_where_they_would_decide_alike():
    own = policy_of({"scheduling_algorithm": "auto", "max_queue": 7, "enable_auto_retry": False})[1]
    assert same(own, Policy()) and same(named("auto"), Policy())
    assert not same(own, replace(own, patience=0.5)) and not same(own, replace(own, limits=Limits(gpus=4)))


def test_a_policy_is_called_by_what_makes_it_different():
    from rota.api.doors.orchestrator import policy_of as rendered

    def shown(policy: Policy) -> str:
        return called(rendered(policy))

    assert shown(Policy()) == "auto"
    assert shown(replace(Policy(), patience=0.5)) == "auto (patience 0.5)"
    assert shown(replace(Policy(), preemption=False)) == "auto (enable_preemption false)"
    assert shown(replace(named("easy"), limits=Limits(gpus=4), max_concurrent=9)) == "easy", "limits are the house's"
    odd = replace(named("easy"), margin=2.0, min_run_s=1.0, aging_s=5.0, patience=0.5, packing=Packing.FRAGMENT)
    assert shown(odd).startswith("easy (") and shown(odd).endswith(", and 2 more)")
    assert policy_of(rendered(replace(Policy(), patience=0.5)))[0] == "live:auto (patience 0.5)"
    assert called({"policy": "lottery", "scheduling_algorithm": "lottery"}) == "lottery", "a newer server's"
