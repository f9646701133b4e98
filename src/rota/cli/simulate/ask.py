"""What is to be simulated: jobs, machines and policies, from files or from the server. All that can be wrong with it is
found here, before anything begins."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rota.cli.connect import connect
from rota.cli.simulate.history import History, Say, as_jobs, left_out, take
from rota.cli.simulate.options import Options
from rota.cli.simulate.play import CannotGoOn
from rota.cli.simulate.server import cluster_of, policy_of, same
from rota.client.errors import Forbidden

if TYPE_CHECKING:
    from rota.core.node import Node
    from rota.core.policy import Policy
    from rota.sim.model import Job

MOST_POLICIES = 12
MOST_COLUMNS, MOST_NAME = 10, 40  # of those that are not used
ALL_MAY = (
    "The trace has no column `preemptible`: every job is taken to be one that may be stopped and saves. "
    "--preemptible none says the opposite, --no-preempt keeps the policies from stopping any."
)

Named = tuple[str, "Policy"]


@dataclass(frozen=True, slots=True)
class Asked:
    source: str  # the trace, or the server
    jobs: tuple[Job, ...]
    nodes: tuple[Node, ...]
    policies: tuple[Named, ...]
    declared: str
    history: History | None = None
    own: Named | None = None  # the server's policy, as it is there
    assumed: str = ""  # what the trace leaves open and how it was taken, in words

    def is_as_it_was(self, policy: Policy) -> bool:
        """The server's own policy, with the jobs as people submitted them: what comes out should be what happened."""
        if self.own is None or self.history is None or self.declared != "none":
            return False
        return same(policy, self.own[1]) and self.jobs == self.history.live.jobs


def ask(options: Options, say: Say) -> Asked:
    """`say`: how far the reading is."""
    chosen = _policies(options.policies, options)
    machines = _cluster(options.nodes) if options.nodes else ()
    if options.trace is not None:
        return _of_trace(options.trace, options, machines, chosen or _policies(("auto", "easy"), options))
    return _of_server(options, machines, chosen, say)


def _of_trace(trace: Path, options: Options, nodes: tuple[Node, ...], policies: tuple[Named, ...]) -> Asked:
    from rota.sim.trace import BadTrace, check_fits, columns, read_trace

    if not nodes:
        raise click.UsageError("a trace does not say what it ran on: add --nodes, such as --nodes 2x8")
    try:
        jobs = read_trace(trace, preemptible=options.all_preemptible)
        check_fits(jobs, nodes, str(trace))
        used, unused = columns(trace)
    except BadTrace as error:
        raise click.BadParameter(str(error), param_hint="TRACE") from None
    open_question = options.preemptible is None and not options.no_preempt and "preemptible" not in used
    shown = ", ".join(name[:MOST_NAME] or "one without a name" for name in unused[:MOST_COLUMNS])
    said = [ALL_MAY] if open_question else []
    said += [f"Columns of it that are not used: {shown}{', ...' * (len(unused) > MOST_COLUMNS)}."] if unused else []
    assumed = "\n".join(said)
    return Asked(str(trace), tuple(jobs), nodes, policies, options.declared or "class", assumed=assumed)


def _of_server(options: Options, machines: tuple[Node, ...], chosen: tuple[Named, ...], say: Say) -> Asked:
    assert options.since_s is not None
    since = max(0.0, time.time() - options.since_s)
    with connect(options.server) as client:
        if client.whoami().sees_all is False:
            raise Forbidden(403, "only your own runs are shown to you here, and a simulation needs everybody's")
        machines = machines or cluster_of(client.nodes())
        if not machines:
            raise click.UsageError("no GPU of the server is in service: say which cluster to simulate, with --nodes")
        own = _own(client.policy())
        found = take(client.runs(archived=True), since, say)
        found.count_older(client.runs(status="running"), since)
        url = client.url
    history = as_jobs(found, machines, since, options.all_preemptible)
    if not history.jobs:
        out = left_out(history)
        raise CannotGoOn(f"nothing to simulate: no run that was submitted in this time has run and ended{out}")
    policies = chosen or _usual(own, options)
    return Asked(url, history.jobs, machines, policies, options.declared or "none", history, own)


def _usual(own: Named, options: Options) -> tuple[Named, ...]:
    """auto beside what the server does; where that is auto, beside what people know."""
    auto, easy = _policies(("auto", "easy"), options)
    mine = (own[0], replace(own[1], preemption=False)) if options.no_preempt else own
    return (mine, easy) if own[0] == f"live:{auto[0]}" else (auto, mine)


def _own(said: Mapping[str, Any]) -> Named:
    try:
        return policy_of(said)
    except (ValueError, TypeError, AttributeError) as error:
        raise click.UsageError(f"the server's policy is not known to this version of rota: {error}") from None


def _cluster(text: str) -> tuple[Node, ...]:
    from rota.sim.cluster import BadCluster, read_cluster

    try:
        return tuple(read_cluster(text))
    except BadCluster as error:
        raise click.BadParameter(str(error), param_hint="--nodes") from None


def _policies(texts: Sequence[str], options: Options) -> tuple[Named, ...]:
    """Those that are named know what a stop costs here; a file says what it believes."""
    from rota.core.presets import NAMES
    from rota.sim.policyfile import BadPolicy, read_policy

    if len(texts) > MOST_POLICIES:
        raise click.BadParameter(f"{len(texts)} are too many; use up to {MOST_POLICIES}", param_hint="--policy")
    found: dict[str, Policy] = {}
    for text in texts:
        try:
            name, policy = read_policy(text)
        except BadPolicy as error:
            raise click.BadParameter(str(error), param_hint="--policy") from None
        name = text if name in found else name  # easy and easy.toml can stand side by side
        if name in found:
            raise click.BadParameter(f"{text} is named twice", param_hint="--policy")
        if text in NAMES:
            policy = replace(policy, restart_cost_s=float(options.preempt_cost))
        found[name] = replace(policy, preemption=False) if options.no_preempt else policy
    return tuple(found.items())
