"""A job array: one run for each index, held together by a sweep whose standing cap is the array's %-limit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rota.cli.slurm.values import Array
from rota.client.calls import start_sweep
from rota.client.errors import RotaError
from rota.client.exchange import Call, new_key
from rota.client.model.run import Run

if TYPE_CHECKING:
    from rota.client.sync import Client

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    array: Array
    sweep_id: str
    index: int

    def variables(self) -> dict[str, str]:
        indices = self.array.indices
        return {
            "SLURM_ARRAY_JOB_ID": self.sweep_id,
            "SLURM_ARRAY_TASK_ID": str(self.index),
            "SLURM_ARRAY_TASK_COUNT": str(len(indices)),
            "SLURM_ARRAY_TASK_MIN": str(indices[0]),
            "SLURM_ARRAY_TASK_MAX": str(indices[-1]),
            "SLURM_ARRAY_TASK_STEP": str(self.array.step),
        }


def submit(
    client: Client, array: Array, name: str, body_of: Callable[[str, int], Body], *, held: bool
) -> tuple[str, list[Run]]:
    """The array's id and its runs. None may start before all are there and the cap stands; one that is refused takes
    back those before it."""
    sweep_id = client.do(_group(name))
    made: list[Run] = []
    try:
        if held and array.cap:  # it stays for when they are released
            client.do(start_sweep(sweep_id, parallel=array.cap))
        for index in array.indices:
            made.append(client.submit(held=True, **body_of(sweep_id, index), sweep_id=sweep_id))
        if not held:
            client.do(start_sweep(sweep_id, parallel=array.cap or 0))
    except (RotaError, KeyboardInterrupt):
        for run in made:
            with suppress(RotaError):  # the first trouble is the one to tell of
                client.cancel(run.id)
        raise
    return sweep_id, made


def _group(name: str) -> Call[str]:
    return Call("POST", "/sweeps/wild", lambda data: str(data["id"]), body={"name": name}, key=new_key())
