"""`rota explain`: why is mine waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rota.cli.connect import connect, emit, full_id, json_option, run_argument, server_option
from rota.cli.prospect import bound, probably
from rota.cli.render import clock, expected, plain, state
from rota.cli.watch import show, watch_option

if TYPE_CHECKING:
    from rota.client.model.run import Explanation
    from rota.client.sync import Client


@click.command()
@watch_option
@json_option
@server_option
@run_argument
def command(run_id: str, watch: bool, as_json: bool, server: str) -> None:
    """Every reason why RUN_ID waits, who stands in its way, and what would start it sooner."""
    with connect(server) as client:
        run_id = full_id(client, run_id)
        if as_json:
            why = client.explain(run_id)
            emit({**why.raw, **_forecast(client, why)})
            return

        def draw() -> str:
            why = client.explain(run_id)
            if why.status not in ("queued", "ready"):
                told = [f"  {plain(f'{reason.code}: {reason.text}')}" for reason in why.reasons]
                return "\n".join([f"{why.run_id} does not wait: it is {plain(why.status)}", *told])
            lines = [f"{why.run_id} is {state(why.status)}" + (f", position {why.position}" if why.position else "")]
            for reason in why.reasons:
                until = f" (expected to last until {clock(reason.until)})" if reason.until is not None else ""
                behind = f"  <- {plain(' '.join(reason.runs))}" if reason.runs else ""
                # some texts say it themselves: "held: by ann"
                code = "" if reason.text.startswith(reason.code) else f"{reason.code}: "
                lines.append(f"  {plain(code + reason.text)}{until}{behind}")
            lines += _when(client, why)
            if why.hint:
                lines.append(f"hint: {plain(why.hint)}")
            return "\n".join(lines)

        show(draw, watch)


def _when(client: Client, why: Explanation) -> list[str]:
    """As `rota eta` says it: two times for one run are none."""
    found = client.eta(why.run_id) if why.status == "queued" else None
    if found is None or found.p50 is None:
        return [expected(why.eta)]
    return [line for line in (probably(found), bound(found)) if line]


def _forecast(client: Client, why: Explanation) -> dict[str, Any]:
    found = client.eta(why.run_id).raw if why.status == "queued" else {}
    return {name: found.get(name) for name in ("p50", "p90", "latest")}
