"""What the person who runs the cluster does: policy, pause, drain; and what probes see of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import Drain, Pause, Resume, SetPolicy, Undrain
from rota.app.desk import Desk, reason
from rota.app.errors import Invalid, NotFound
from rota.core import events as e
from rota.core.node import Node
from rota.core.policy import Policy, problems
from rota.core.resources import MAX_GPUS_PER_NODE


def set_policy(desk: Desk, who: Principal, command: SetPolicy) -> Policy:
    authorise(who, Act.SET_POLICY)
    found = problems(command.policy)
    if found:
        raise Invalid("; ".join(found), found[0].partition(":")[0])
    if command.policy != desk.state.policy:
        desk.write(e.PolicySet(at=desk.now, by=who.name, policy=command.policy))
    return desk.state.policy


def pause(desk: Desk, who: Principal, command: Pause) -> bool:
    authorise(who, Act.PAUSE)
    if not desk.state.paused:
        desk.write(e.SchedulingPaused(at=desk.now, by=who.name, why=reason(command.why, f"by {who.name}")))
    return True


def resume(desk: Desk, who: Principal, command: Resume) -> bool:
    authorise(who, Act.PAUSE)
    if desk.state.paused:
        desk.write(e.SchedulingResumed(at=desk.now, by=who.name))
    return False


def drain(desk: Desk, who: Principal, command: Drain) -> Node:
    authorise(who, Act.DRAIN)
    if not _node(desk, command.node_id).drained:
        desk.write(e.NodeDrained(at=desk.now, by=who.name, node_id=command.node_id, why=reason(command.why)))
    return desk.state.nodes[command.node_id]


def undrain(desk: Desk, who: Principal, command: Undrain) -> Node:
    authorise(who, Act.DRAIN)
    if _node(desk, command.node_id).drained:
        desk.write(e.NodeResumed(at=desk.now, by=who.name, node_id=command.node_id))
    return desk.state.nodes[command.node_id]


def _node(desk: Desk, node_id: str) -> Node:
    node = desk.state.nodes.get(node_id)
    if node is None:
        known = ", ".join(list(desk.state.nodes)[:20]) or "none"
        raise NotFound(f"no node {node_id[:50]!r}; the nodes are: {known}", "node_id")
    return node


def see_nodes(desk: Desk, seen: Sequence[Node]) -> None:
    """A probe's look. What vanished is kept while something still runs there, and gets nothing new."""
    for node in seen:
        if len(node.gpus) > MAX_GPUS_PER_NODE:
            raise ValueError(f"{node.id} has {len(node.gpus)} GPUs, Rota counts at most {MAX_GPUS_PER_NODE} on a node")
        known = desk.state.nodes.get(node.id)
        # draining is a person's decision and outlives a probe's look
        now = node if known is None else replace(node, drained=known.drained, drain_why=known.drain_why)
        if now != known:
            desk.write(e.NodeSeen(at=desk.now, node=now))
    present = {node.id for node in seen}
    holding = {part.node for run in desk.state.runs.values() if run.attempt for part in run.attempt.placement}
    for node in list(desk.state.nodes.values()):
        if node.id in present:
            continue
        if node.id not in holding:
            desk.write(e.NodeRemoved(at=desk.now, node_id=node.id))
        elif node.alive:
            desk.write(e.NodeSeen(at=desk.now, node=replace(node, alive=False)))
