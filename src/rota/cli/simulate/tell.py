"""All that a simulation has to say, for a terminal, for programs and for files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rota.cli.render import plain
from rota.cli.simulate import show
from rota.cli.simulate.history import left_out, missing
from rota.cli.simulate.options import Options
from rota.cli.simulate.outputs import Outputs, beside

if TYPE_CHECKING:
    from rota.cli.simulate.ask import Asked
    from rota.sim.compare import Comparison, Fidelity
    from rota.sim.many import Answer
    from rota.sim.model import Result
    from rota.sim.table import Figures

HAPPENED = "what happened"
UNKNOWN = (  # of the server's past
    "Nodes that came or went, a policy that was changed meanwhile, reservations, wishes for a kind of GPU or memory, "
    "caps of sweeps.",
    "What the server had learned before this time, and that people behave otherwise when they wait less.",
)


class Told:
    def __init__(self, asked: Asked, options: Options, answers: Sequence[Answer], replay: Result | None) -> None:
        """`replay`: what the server's own policy makes of its past, where that is compared."""
        from rota.sim.compare import compare, fidelity
        from rota.sim.table import figures_of

        self.asked, self.answers, self.options = asked, answers, options
        self.figures = [figures_of(one) for one in answers]
        self.live: Figures | None = None
        self.comparisons: list[Comparison] = []
        self.fidelity: Fidelity | None = None
        if replay is not None and asked.history is not None and asked.own is not None:
            happened, own = asked.history.live, asked.own[0]
            self.live = self._measured(happened)
            self.fidelity = fidelity(own, happened, replay)
            self.comparisons = [
                compare(name, happened, one.result, asked.is_as_it_was(policy))
                for (name, policy), one in zip(asked.policies, answers, strict=True)
                if name != own
            ]

    def _measured(self, happened: Result) -> Figures:
        from rota.sim.fairturn import fair_turns
        from rota.sim.measure import measure
        from rota.sim.table import figures

        gpus = sum(node.usable.bit_count() for node in self.asked.nodes)
        return figures(HAPPENED, [measure(happened, turns=fair_turns(happened.jobs, gpus, self.asked.nodes))])

    # -- in words ---------------------------------------------------------------------------------------------------
    def text(self) -> str:
        parts = ["\n".join(map(show.paragraph, self.facts())), show.drawn(self.figures, self.live)]
        if self.comparisons or self.fidelity:
            parts.append(show.compared(self.comparisons, self.fidelity))
        return "\n\n".join(parts)

    def facts(self) -> list[str]:
        """What was simulated, on what."""
        from rota.sim.human import digits, many

        asked = self.asked
        gpus = sum(node.usable.bit_count() for node in asked.nodes)
        hours = sum(job.gpus * job.duration_s for job in asked.jobs) / 3600
        people = len({job.user for job in asked.jobs})
        shakes = self.options.shakes
        often = f", {many(shakes, 'time')} shaken: mean (standard deviation)" if shakes else ""
        said = [
            f"{many(len(asked.jobs), 'job')} of {many(people, 'person', 'people')}, {digits(hours)} GPU-hours, on "
            f"{many(len(asked.nodes), 'node')} with {many(gpus, 'GPU')}{often}; from {plain(asked.source)}."
        ]
        if asked.assumed:
            said.append(asked.assumed)
        if asked.history is not None:
            left, held = left_out(asked.history), missing(asked.history)
            said += [f"Not in it, of the server's runs{left}."] if left else []
            said += [held] if held else []
        return said

    # -- for programs -----------------------------------------------------------------------------------------------
    def json(self, written: Sequence[Path]) -> dict[str, Any]:
        from rota.sim.table import verdict

        asked, history = self.asked, self.asked.history
        found: dict[str, Any] = {
            "source": asked.source,
            "jobs": len(asked.jobs),
            "cluster": {
                "nodes": len(asked.nodes),
                "gpus": sum(node.usable.bit_count() for node in asked.nodes),
            },
            "declared": asked.declared,
            "preempt_cost_s": self.options.preempt_cost,
            "shakes": self.options.shakes,
            "seed": self.options.seed,
            "policies": [show.figures_json(one) for one in self.figures],
            "says": verdict(self.figures),
            "written": [str(path) for path in written],
        }
        if history is not None:
            found["history"] = {"since": history.since, "left_out": dict(history.left_out), "cut": history.cut}
            found["history"]["not_ended"] = {
                "runs": history.unended.runs,
                "gpu_seconds": history.unended.gpu_s,
                "of_gpu_seconds": history.unended.all_gpu_s,
            }
        if self.live is not None:
            found["live"] = show.figures_json(self.live)
            found["compare"] = [show.comparison_json(one) for one in self.comparisons]
            found["fidelity"] = show.fidelity_json(self.fidelity) if self.fidelity else None
        return found

    # -- files ------------------------------------------------------------------------------------------------------
    def write(self) -> list[Path]:
        outputs = Outputs()
        if self.options.plots is not None:
            self._draw(self.options.plots, outputs)
        if self.options.schedule is not None:
            self._schedules(self.options.schedule, outputs)
        return outputs.write()

    def _schedules(self, path: Path, outputs: Outputs) -> None:
        """The first policy's under the name that was asked for, the others' beside it."""
        from functools import partial

        from rota.sim.schedule import write_schedule

        for number, one in enumerate(self.answers):
            outputs.add(beside(path, one.name) if number else path, partial(write_schedule, one.result))

    def _draw(self, path: Path, outputs: Outputs) -> None:
        from rota.sim.human import many
        from rota.sim.picture.album import album, stacked
        from rota.sim.picture.png import png
        from rota.sim.picture.svg import svg

        results = [(one.name, one.result) for one in self.answers]
        if self.live is not None and self.asked.history is not None:
            results.append((HAPPENED, self.asked.history.live))
        title = f"{', '.join(one.name for one in self.figures)} on {many(len(self.asked.jobs), 'job')}"
        made = album([*self.figures, *([self.live] if self.live else [])], results)
        kind = "" if path.is_dir() else path.suffix.lower()
        if kind == ".html":
            outputs.text(path, self._page(title, made))
        elif kind == ".svg":
            outputs.text(path, svg(stacked([one for _, one in made], title)))
        elif kind == ".png":
            outputs.data(path, png(stacked([one for _, one in made], title)))
        else:
            for name, one in made:
                outputs.data(path / f"{name}.png", png(one))

    def _page(self, title: str, pictures: Any) -> str:
        from rota.sim.report import Page, html

        return html(
            Page(
                title=f"Simulated: {title}",
                facts=self.facts(),
                figures=self.figures,
                pictures=pictures,
                live=self.live,
                comparisons=self.comparisons,
                fidelity=self.fidelity,
                unknown=self._unknown(),
            )
        )

    def _unknown(self) -> list[str]:
        history = self.asked.history
        if history is None:
            return []
        return [text for text in (missing(history), *UNKNOWN) if text]
