"""How predictions did, as a table with a small picture: where on the line from none to all the shares lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.render import plain, span
from rota.cli.table import table

if TYPE_CHECKING:
    from rota.client.model.calibration import Calibration

WIDE = 20
ENOUGH = 20  # of a share in per cent: with fewer one start moves it by more than five
HOW_TO_READ = "how to read it: the nearer o is to |, the better; o left of | means later than told, right of it sooner"
NOTHING_YET = (
    "nothing to judge yet: a prediction is made when a run has to wait, and scored when that run starts; "
    "look again then"
)


def drawn(found: Calibration) -> str:
    scored = found.starts[0].count if found.starts else 0
    have = "has" if scored == 1 else "have"
    to_come = f"{found.pending} {'is' if found.pending == 1 else 'are'} still to come"
    lines = [f"{scored} predicted start{'s'[: scored != 1]} {have} come, {to_come}"]
    if scored:
        rows = [
            (row.horizon, row.count, _percent(row.by_p50), line(row.by_p50, 0.5), _percent(row.by_p90),
             line(row.by_p90, 0.9), span(row.error_s))
            for row in found.starts
            if row.count
        ]  # fmt: skip
        heads = ("AHEAD", "COUNT", "BY P50", "50 % IS RIGHT (|)", "BY P90", "90 % IS RIGHT (|)", "MOSTLY OFF BY")
        lines += [HOW_TO_READ, table(heads, rows, right=("COUNT", "BY P50", "BY P90", "MOSTLY OFF BY"))]
        if scored < ENOUGH:
            lines.append(f"{scored} {'is' if scored == 1 else 'are'} few: wait for {ENOUGH} before you judge by them")
    else:
        lines.append(NOTHING_YET)
    runs = [row for row in found.runtimes if row.count]
    if runs:
        lines += ["", "run times: WITHIN = took no longer than expected; 75 % is right where the past was asked"]
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
