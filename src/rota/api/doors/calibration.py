"""How far predictions can be trusted: what was foretold, held against what happened."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import BaseModel, Field

from rota.api.answers import Json
from rota.api.depends import Caller, HouseDep
from rota.api.faults import faults
from rota.api.router import Router

router = Router("runs")


class Starts(BaseModel):
    horizon: str = Field(description="How far ahead the start was foretold; the first row is all together.")
    count: int
    by_p50: float | None = Field(description="Share that had started by their p50; 0.5 is right.")
    by_p90: float | None = Field(description="Share that had started by their p90; 0.9 is right.")
    error_s: float | None = Field(description="Half of them started nearer to their p50 than this.")


class Lengths(BaseModel):
    source: str = Field(description="Where the expected time came from; the first row is all together.")
    count: int
    within: float | None = Field(description="Share that took no longer; 0.75 is right where the past was asked.")
    ratio: float | None = Field(description="Time taken over time expected, the middle one.")


class Figures(BaseModel):
    pending: int = Field(description="Predictions whose run still waits.")
    starts: list[Starts]
    runtimes: list[Lengths]


@router.get("/calibration", summary="How predictions of starts did", responses={200: {"model": Figures}, **faults()})
def calibration(house: HouseDep, who: Caller) -> Json:
    """Of the newest 2,000 predictions, those that were asked for and a sample of the others; and of the newest 1,000
    runs that ended well, how long they took against what was expected."""
    figures = house.service.calibration()
    return Json(
        {
            "pending": figures.pending,
            "starts": [asdict(row) for row in figures.starts],
            "runtimes": [asdict(row) for row in figures.runtimes],
        }
    )
