"""How predictions did, as a table with a small picture: where on the line from none to all the shares lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.render import plain, span
from rota.cli.table import table

if TYPE_CHECKING:
    from rota.client.model.calibration import Calibration

WIDE = 20


def drawn(found: Calibration) -> str:
    scored = found.starts[0].count if found.starts else 0
    lines = [f"{scored} predicted starts have come, {found.pending} are still to come"]
    if scored:
        rows = [
            (row.horizon, row.count, _percent(row.by_p50), line(row.by_p50, 0.5), _percent(row.by_p90),
             line(row.by_p90, 0.9), span(row.error_s))
            for row in found.starts
            if row.count
        ]  # fmt: skip
        heads = ("AHEAD", "COUNT", "BY P50", "50 % IS RIGHT (|)", "BY P90", "90 % IS RIGHT (|)", "MOSTLY OFF BY")
        lines.append(table(heads, rows, right=("COUNT", "BY P50", "BY P90", "MOSTLY OFF BY")))
    else:
        lines.append("nothing to judge yet: predictions are scored when their runs start")
    runs = [row for row in found.runtimes if row.count]
    if runs:
        lines += ["", "run times, against what was expected:"]
        shown = [(row.source, row.count, _percent(row.within), _times(row.ratio)) for row in runs]
        right = ("COUNT", "WITHIN", "TAKEN / EXPECTED")
        lines.append(table(("EXPECTED FROM", *right), shown, right=right))
    return "\n".join(lines)


def line(share: float | None, right: float) -> str:
    """[·········|··●·····]: the mark is where it is, the stroke where it should be."""
    if share is None:
        return ""
    cells = ["."] * WIDE
    cells[min(WIDE - 1, int(right * WIDE))] = "|"
    cells[min(WIDE - 1, max(0, int(share * WIDE)))] = "o"
    return "".join(cells)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else plain(f"{ratio:.2f}")
