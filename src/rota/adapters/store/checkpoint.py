"""The live state as one blob, and the state from a blob and the events after it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from rota.adapters.store import rows
from rota.adapters.store.rows import Damaged
from rota.app.ports import StoredEvent
from rota.core import codec
from rota.core import events as e
from rota.core.node import Node
from rota.core.policy import Policy
from rota.core.reduce import StaleEvent, reduce
from rota.core.reservation import Reservation
from rota.core.run import ENDED, IllegalTransition, Run, RunState
from rota.core.state import State
from rota.core.usage import Usage


def pack(state: State) -> bytes:
    envs = _Envs()
    body = {
        "version": state.version,
        "at": state.at,
        "next_seq": state.next_seq,
        **rows.settings_of(state),
        "nodes": [codec.encode(node) for node in state.nodes.values()],
        "usage": {user: codec.encode(usage) for user, usage in state.usage.items()},
        "reservations": [codec.encode(one) for one in state.reservations.values()],
        "past_reservations": [codec.encode(one) for one in state.past_reservations.values()],
        "runs": [envs.encode(run) for run in state.runs.values() if run.state not in ENDED],
        "envs": envs.texts,
    }
    return zlib.compress(rows.dumps(body).encode("ascii"), 1)


class _Envs:
    """Environments that several runs share are written once; a run has the number of its own."""

    def __init__(self) -> None:
        self.texts: list[dict[str, str]] = []
        self._numbers: dict[int, int] = {}  # by the id of the environment, which a run of the state holds

    def encode(self, run: Run) -> Any:
        body = codec.encode(run)
        env = run.spec.env
        if env:
            if id(env) not in self._numbers:
                self._numbers[id(env)] = len(self.texts)
                self.texts.append(dict(env))
            body["spec"]["env"] = self._numbers[id(env)]
        return body


def unpack(seq: int, blob: bytes, sum_: int) -> State:
    """Facts only: the caller builds the indices."""
    if zlib.crc32(blob) != sum_:
        raise Damaged("checkpoints", seq, "is not what was written")
    try:
        return _state(rows.loads(zlib.decompress(blob).decode("ascii")))
    except (KeyError, IndexError, TypeError, ValueError, zlib.error) as error:
        raise Damaged("checkpoints", seq, f"cannot be read: {error!r}") from error


def _state(body: dict[str, Any]) -> State:
    state = State()
    state.version, state.at, state.next_seq = body["version"], body["at"], body["next_seq"]
    state.policy = codec.decode(Policy, body["policy"])
    state.paused, state.pause_why = body["paused"]["paused"], body["paused"]["why"]
    state.epoch, state.boot_id = body["server"]["epoch"], body["server"]["boot_id"]
    state.caps = body.get("caps", {})  # a checkpoint of an older Rota has none
    for item in body["nodes"]:
        node = codec.decode(Node, item)
        state.nodes[node.id] = node
    state.usage = {user: codec.decode(Usage, item) for user, item in body["usage"].items()}
    for item in body.get("reservations", ()):  # as above
        one = codec.decode(Reservation, item)
        state.reservations[one.id] = one
    for item in body.get("past_reservations", ()):  # as above
        one = codec.decode(Reservation, item)
        state.past_reservations[one.id] = one
    for item in body["runs"]:
        env = item["spec"].get("env")
        if isinstance(env, int):  # an older checkpoint has the environment itself
            item["spec"]["env"] = body["envs"][env]
        if item["state"] != RunState.HELD:  # as rows of an older Rota are read
            item.setdefault("queued_at", item["submitted_at"])
        run = codec.decode(Run, item)
        state.runs[run.id] = run
    return state


def replay_onto(state: State, stored: Iterable[StoredEvent]) -> None:
    """Reduce the events; ended runs leave the state, as they leave the live one."""
    for item in stored:
        if item.seq != state.version + 1:
            raise Damaged("events", state.version + 1, f"is missing: {item.seq} follows {state.version}")
        try:
            reduce(state, item.event)
        except (KeyError, ValueError, StaleEvent, IllegalTransition) as error:
            raise Damaged("events", item.seq, f"does not follow from what was before: {error!r}") from error
        if isinstance(item.event, e.RunEvent):
            run = state.runs.get(item.event.run_id)  # one that ended long ago may have been edited
            if run is not None and run.state in ENDED:
                state.retire(run.id)
        state.committed()
