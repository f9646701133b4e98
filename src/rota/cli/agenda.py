"""What is reserved, as a picture: a line for each node, a column for each three hours, and the days above."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

from rota.cli.render import plain

if TYPE_CHECKING:
    from rota.client.model.reservation import Reservation

COLUMNS = 8  # a day
HOURS = 24 // COLUMNS
MOST_NODES = 40
NONE, MANY = "·", "+"
LEGEND = f"a column is {HOURS} hours; a digit says how many GPUs are reserved then, {NONE} none, {MANY} ten or more"


def picture(found: Sequence[Reservation], now: float, days: int) -> str:
    """From this morning on, in local time. Only nodes of which something is reserved then."""
    first = datetime.fromtimestamp(now).date()
    dates = [first + timedelta(days=number) for number in range(days)]
    # hours by the clock: a day on which the clocks change has a column that is longer or shorter
    edges = [datetime.combine(day, time(hour)).timestamp() for day in dates for hour in range(0, 24, HOURS)]
    edges.append(datetime.combine(first + timedelta(days=days), time()).timestamp())
    spans = list(pairwise(edges))
    shown = [one for one in found if one.start < edges[-1] and one.end > edges[0]]
    nodes = sorted({node for one in shown for node in one.nodes})
    if not nodes:
        return ""
    size = max(len(plain(node)) for node in nodes[:MOST_NODES])
    lines = [f"{'':{size}}  {'│'.join(f'{day:%a %d}'.ljust(COLUMNS) for day in dates)}".rstrip()]
    for node in nodes[:MOST_NODES]:
        cells = [_cell(shown, node, begin, end) for begin, end in spans]
        parts = ("".join(cells[at : at + COLUMNS]) for at in range(0, len(cells), COLUMNS))
        lines.append(f"{plain(node):{size}}  {'│'.join(parts)}")
    if len(nodes) > MOST_NODES:
        more = len(nodes) - MOST_NODES
        lines.append(f"and {more} more node{'s'[: more != 1]}")
    return "\n".join([*lines, LEGEND])


def _cell(found: Sequence[Reservation], node: str, begin: float, end: float) -> str:
    """The most that is reserved at any moment of it: that can rise only where one begins."""
    here = [one for one in found if one.start < end and one.end > begin and node in one.nodes]
    moments = {max(begin, one.start) for one in here}
    most = max((sum(len(o.nodes[node]) for o in here if o.start <= at < o.end) for at in moments), default=0)
    return NONE if not most else str(most) if most < 10 else MANY
