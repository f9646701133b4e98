"""Run ids at the press of a key: asked of the server, within the time a key press allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.connect import connect
from rota.cli.render import plain
from rota.client.errors import RotaError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

LOOKED_AT, SHOWN = 200, 50


def _could_be(run_id: str, typed: str) -> bool:
    """Ids of one time look alike from the left, so their end counts, too."""
    return run_id.startswith(typed) or run_id.endswith(typed)


def run_ids(incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    try:
        with connect(connect_s=0.3, answer_s=1.0, tries=1) as client:
            found = [run for run in client.runs_page(limit=LOOKED_AT) if _could_be(run.id, incomplete)]
    except RotaError:  # nobody to ask: nothing to offer, and no noise on the line that is being typed
        return []
    return [CompletionItem(run.id, help=plain(f"{run.status} {run.name}")[:60]) for run in found[:SHOWN]]
