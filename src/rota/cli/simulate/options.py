"""What was said on the command line, judged as far as it can be without reading anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rota.cli.simulate.outputs import must_take_a_file, must_take_pictures


@dataclass(frozen=True, slots=True)
class Options:
    trace: Path | None
    since_s: float | None
    nodes: str
    policies: tuple[str, ...]
    preemptible: str | None  # "all", "none"; None = as each job says
    declared: str | None
    no_preempt: bool
    preempt_cost: int
    shakes: int
    seed: int
    compare: str | None
    plots: Path | None
    schedule: Path | None
    processes: int | None
    server: str

    @property
    def all_preemptible(self) -> bool | None:
        return None if self.preemptible is None else self.preemptible == "all"

    def must_fit(self) -> None:
        if self.trace is None and self.since_s is None:
            raise click.UsageError("name a TRACE.csv, or say --since 30d for what ran on the server")
        if self.trace is not None and self.since_s is not None:
            raise click.UsageError("a TRACE.csv or --since, not both")
        if self.trace is not None and self.compare:
            raise click.UsageError(
                "--compare live needs the server's own runs, by --since 30d: a trace does not say how long its jobs "
                "waited"
            )
        if self.compare and self.nodes:
            raise click.UsageError("--compare live is about the server's own machines: leave --nodes out")
        if self.plots is not None:
            must_take_pictures(self.plots)
        if self.schedule is not None:
            must_take_a_file(self.schedule, "--schedule")
        self._must_spare_what_is_read()

    def _must_spare_what_is_read(self) -> None:
        read = {Path(name).resolve() for name in (self.trace, self.nodes, *self.policies) if name}
        for option, path in (("--plots", self.plots), ("--schedule", self.schedule)):
            if path is not None and path.resolve() in read:
                raise click.BadParameter(f"{path} is what is read; name another file", param_hint=option)
        if self.plots is not None and self.schedule is not None and self.plots.resolve() == self.schedule.resolve():
            raise click.BadParameter(f"{self.schedule} is for the pictures already", param_hint="--schedule")
