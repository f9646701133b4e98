"""What /metrics answers: read off the state at each scrape, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rota.api.house import House
from rota.api.render.words import RUN_WORDS


def scraped(house: House) -> bytes:
    """Return the metrics of this moment in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OfHouse(house))
    return generate_latest(registry)


class _OfHouse(Collector):
    def __init__(self, house: House) -> None:
        self._house = house

    def collect(self) -> Iterator[Metric]:
        view, tally = self._house.service.view(), self._house.service.tally()
        runs = GaugeMetricFamily("rota_runs", "Runs by state, archived ones aside.", labels=["status"])
        counts = dict.fromkeys(RUN_WORDS.values(), 0)
        for state, count in tally.counts.items():
            counts[RUN_WORDS[state]] += count
        for status, count in counts.items():
            runs.add_metric([status], count)
        yield runs
        gpus = GaugeMetricFamily("rota_gpus", "GPUs by node and whether a run holds them.", labels=["node", "state"])
        held: dict[str, int] = {}
        for node_id, _ in view.holders():
            held[node_id] = held.get(node_id, 0) + 1
        for node in view.nodes.values():
            gpus.add_metric([node.id, "allocated"], held.get(node.id, 0))
            gpus.add_metric([node.id, "free"], node.usable.bit_count() - held.get(node.id, 0))
        yield gpus
        total = view.total_gpus()
        allocated = sum(held.values())
        yield GaugeMetricFamily("rota_gpu_allocated_ratio", "Share of GPUs held.", allocated / total if total else 0.0)
        yield GaugeMetricFamily("rota_job_wait_seconds", "Mean wait of started runs.", tally.average_wait_s)
        yield GaugeMetricFamily("rota_scheduling_paused", "1 while nothing is started.", float(view.paused))
        yield GaugeMetricFamily("rota_watchers", "Who watches events.", self._house.hub.watchers)
        open_now = self._house.connections
        yield GaugeMetricFamily("rota_connections", "Connections that are open.", open_now.count)
        yield GaugeMetricFamily(
            "rota_connections_per_peer_max", "Connections one account or address may have.", open_now.bounds.per_peer
        )
        yield CounterMetricFamily("rota_connections_refused", "Since the server's start.", open_now.refused)
        yield GaugeMetricFamily("rota_simulated", "1 where the GPUs are simulated.", _simulated(view.nodes.values()))
        yield GaugeMetricFamily("rota_last_event", "Number of the newest event.", view.version)
        for name, text, value in (
            ("rota_attempts_planned", "Starts since the server's.", tally.scheduled),
            ("rota_runs_succeeded", "Good ends since the server's start.", tally.completed),
            ("rota_runs_failed", "Bad ends since the server's start.", tally.failed),
            ("rota_scheduling_passes", "Passes since the server's start.", tally.passes),
        ):
            yield CounterMetricFamily(name, text, value)


def _simulated(nodes: object) -> float:
    return float(any(getattr(node, "simulated", False) for node in nodes))  # type: ignore[attr-defined]
