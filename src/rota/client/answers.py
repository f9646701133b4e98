"""What the answers of the server mean. Each loads its model only when an answer is there: a command starts sooner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.client.model.access import Token, Whoami
    from rota.client.model.calibration import Calibration
    from rota.client.model.cluster import Capacity, Job, Node, Queue, Usage
    from rota.client.model.reservation import Reservation
    from rota.client.model.run import Eta, Explanation, LogChunk, Run
    from rota.client.model.sweep import Sweep

Json = Mapping[str, Any]


def run(data: Any) -> Run:
    from rota.client.model import run

    return run.run(data)


def runs(data: Any) -> list[Run]:
    from rota.client.model import run

    return run.runs(data)


def explanation(data: Any) -> Explanation:
    from rota.client.model import run

    return run.explanation(data)


def eta(data: Any) -> Eta:
    from rota.client.model import run

    return run.eta(data)


def calibration(data: Any) -> Calibration:
    from rota.client.model import calibration

    return calibration.calibration(data)


def log_chunk(data: Any) -> LogChunk:
    from rota.client.model import run

    return run.log_chunk(data)


def queue(data: Any) -> Queue:
    from rota.client.model import cluster

    return cluster.queue(data)


def job(data: Any) -> Job:
    from rota.client.model import cluster

    return cluster.job(data)


def nodes(data: Any) -> list[Node]:
    from rota.client.model import cluster

    return cluster.nodes(data)


def capacity(data: Any) -> Capacity:
    from rota.client.model import cluster

    return cluster.capacity(data)


def usage(data: Any) -> list[Usage]:
    from rota.client.model import cluster

    return cluster.usage(data)


def reservation(data: Any) -> Reservation:
    from rota.client.model import reservation

    return reservation.reservation(data)


def reservations(data: Any) -> list[Reservation]:
    from rota.client.model import reservation

    return reservation.reservations(data)


def sweep(data: Any) -> Sweep:
    from rota.client.model import sweep

    return sweep.sweep(data)


def sweeps(data: Any) -> list[Sweep]:
    from rota.client.model import sweep

    return sweep.sweeps(data)


def token(data: Any) -> Token:
    from rota.client.model import access

    return access.token(data)


def tokens(data: Any) -> list[Token]:
    from rota.client.model import access

    return access.tokens(data)


def whoami(data: Any) -> Whoami:
    from rota.client.model import access

    return access.whoami(data)


def plain(data: Any) -> Json:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object, not {type(data).__name__}")
    return data
