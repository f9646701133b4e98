"""What the person who runs the cluster does: policy, pause, drain; and what probes see of the nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from rota.app.authz import Act, Principal, authorise
from rota.app.commands import Drain, Pause, Reshape, Resume, SetPolicy, Undrain
from rota.app.desk import Desk, reason
from rota.app.errors import Conflict, Invalid, NotFound
from rota.app.ports import Record
from rota.app.problems import must_fit
from rota.core import events as e
from rota.core.node import Node, simulated_cluster
from rota.core.policy import Policy, problems
from rota.core.resources import MAX_GPUS_PER_NODE

MAX_NODES = 5000
SHAPE = ("shape", "simulated")  # kind and id of the record


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


def reshape(desk: Desk, who: Principal, command: Reshape) -> tuple[Node, ...]:
    """Remembered as a record, so that neither the next look of the probe nor a restart undoes it."""
    must_fit(command, Reshape)
    authorise(who, Act.RESHAPE)
    if not 1 <= command.nodes <= MAX_NODES:
        raise Invalid(f"nodes: {command.nodes} is not a number of nodes from 1 to {MAX_NODES}", "nodes")
    if not 0 <= command.gpus <= MAX_GPUS_PER_NODE:
        raise Invalid(f"gpus: {command.gpus} is not a number of GPUs from 0 to {MAX_GPUS_PER_NODE}", "gpus")
    nodes = tuple(desk.state.nodes.values())
    if not all(node.simulated for node in nodes):
        raise Conflict("these are real GPUs; only a simulated cluster can be made another size")
    if desk.state.active:
        raise Conflict(f"{desk.state.active} runs are active; cancel them or wait, then change the cluster")
    before = desk.record(*SHAPE)
    seen = _size(nodes) if before is None else before.body["seen"]
    body = json.dumps({"nodes": command.nodes, "gpus": command.gpus, "seen": seen})
    _keep_shape(desk, who.name, body)
    _take(desk, simulated_cluster(command.nodes, command.gpus))
    return tuple(desk.state.nodes.values())


def _node(desk: Desk, node_id: str) -> Node:
    node = desk.state.nodes.get(node_id)
    if node is None:
        known = ", ".join(list(desk.state.nodes)[:20]) or "none"
        raise NotFound(f"no node {node_id[:50]!r}; the nodes are: {known}", "node_id")
    return node


def see_nodes(desk: Desk, seen: Sequence[Node]) -> None:
    """A probe's look."""
    for node in seen:
        if len(node.gpus) > MAX_GPUS_PER_NODE:
            raise ValueError(f"{node.id} has {len(node.gpus)} GPUs, Rota counts at most {MAX_GPUS_PER_NODE} on a node")
    _take(desk, _reshaped(desk, seen))


def _reshaped(desk: Desk, seen: Sequence[Node]) -> Sequence[Node]:
    """A simulated cluster stays in the shape it was given, unless the server was since started with another one."""
    if not seen or not all(node.simulated for node in seen):
        return seen
    shape = desk.record(*SHAPE)
    if shape is None:
        return seen
    if shape.body["seen"] == _size(seen):
        return simulated_cluster(shape.body["nodes"], shape.body["gpus"])
    _keep_shape(desk, "rota", "")
    return seen


def _size(nodes: Sequence[Node]) -> list[int]:
    return [len(nodes), max((len(node.gpus) for node in nodes), default=0)]


def _keep_shape(desk: Desk, by: str, body: str) -> None:
    kind, name = SHAPE
    desk.write(e.RecordPut(at=desk.now, by=by, kind=kind, id=name, parent="", body=body))
    kept = Record(kind, name, "", desk.state.version, desk.now, by, json.loads(body)) if body else None
    desk.records[SHAPE] = kept


def _take(desk: Desk, seen: Sequence[Node]) -> None:
    """What vanished is kept while something still runs there, and gets nothing new."""
    for node in seen:
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
