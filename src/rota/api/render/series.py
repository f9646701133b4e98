"""Metrics of a run as charts read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

Series = Mapping[str, Sequence[tuple[float, float]]]

LOSS = ("loss", "train_loss", "train/loss", "trainLoss", "training_loss")
VAL_LOSS = ("val_loss", "val/loss", "valLoss", "eval_loss", "eval/loss", "validation_loss")
ACCURACY = ("accuracy", "acc", "val_accuracy", "val/accuracy", "eval_accuracy", "train_accuracy")
EPOCH = ("epoch", "train/epoch")


class Point(BaseModel):
    step: float
    value: float


class Loss(BaseModel):
    step: float
    trainLoss: float
    valLoss: float | None = None


class Latest(BaseModel):
    loss: float | None = None
    accuracy: float | None = None
    epoch: float | None = None


class Charts(BaseModel):
    """All of it, or nothing where there is no metric."""

    metricSeries: dict[str, list[Point]] | None = None
    metricKeys: list[str] | None = None
    lossHistory: list[Loss] | None = None
    metrics: Latest | None = None


def charts(series: Series) -> dict[str, Any]:
    """{} without any. A step that is a whole number is shown as one."""
    clean = {
        key: [(_whole(step), value) for step, value in points if math.isfinite(step) and math.isfinite(value)]
        for key, points in series.items()
    }
    clean = {key: points for key, points in clean.items() if points}
    if not clean:
        return {}
    losses = _losses(clean)
    answer: dict[str, Any] = {
        "metricSeries": {
            key: [{"step": step, "value": value} for step, value in points] for key, points in clean.items()
        },
        "metricKeys": list(clean),
        "metrics": {
            "loss": _last(clean, LOSS),
            "accuracy": _percent(_last(clean, ACCURACY)),
            "epoch": _last(clean, EPOCH) if _first(clean, EPOCH) else losses[-1]["step"] if losses else None,
        },
    }
    if losses:
        answer["lossHistory"] = losses
    return answer


def _losses(series: Series) -> list[dict[str, float]]:
    train, check = _first(series, LOSS), _first(series, VAL_LOSS)
    if train is None:
        return []
    found = dict(series[check]) if check is not None else {}
    rows = []
    for step, value in series[train]:
        row = {"step": step, "trainLoss": value}
        if step in found:
            row["valLoss"] = found[step]
        rows.append(row)
    return rows


def _first(series: Series, names: Sequence[str]) -> str | None:
    return next((name for name in names if name in series), None)


def _last(series: Series, names: Sequence[str]) -> float | None:
    name = _first(series, names)
    return None if name is None else series[name][-1][1]


def _percent(share: float | None) -> float | None:
    """The charts of this field show per cent; whoever logs a share of 1 means that."""
    return share * 100 if share is not None and share <= 1.5 else share


def _whole(step: float) -> float:
    return int(step) if step == int(step) else step
