"""A run as it is asked for through the runs door and, within a sweep, through the sweeps door."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from rota.api.asked import (
    NUMBER,
    Body,
    Count,
    Extras,
    Priority,
    Text,
    Word,
    compact,
    gpus_by_default,
    keyed_as_sent,
    spec_of,
    submit_of,
)
from rota.api.house import House
from rota.app.authz import Principal
from rota.app.commands import Submit

Note = Annotated[str, Field(max_length=2000)]


class GpuWrap(Body):
    enabled: bool | None = None
    retries: Annotated[int, Field(ge=-1, le=1_000_000), NUMBER] | None = None
    retry_delay_seconds: Annotated[float, Field(gt=0, le=600), NUMBER] | None = None


class NewRun(Extras):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"name": "lr 0.1", "command": "python train.py --lr=0.1", "auto_start": True, "gpu_count": 1}]
        }
    )

    name: Annotated[str, Field(min_length=1, max_length=500)]
    command: Text | None = Field(None, description="A line for the shell; `argv` may be given instead.")
    workdir: Annotated[str, Field(max_length=4096)] | None = Field(None, description="Default: the server's own.")
    sweep_id: Word | None = None
    parent_run_id: Word | None = None
    origin_alert_id: Word | None = None
    chat_session_id: Note | None = Field(None, description="Kept as it is; it need not exist here.")
    auto_start: bool = Field(False, description="False: `ready`, until somebody starts it. True: queued at once.")
    gpuwrap_config: GpuWrap | None = None
    gpu_count: Count | None = Field(None, description="Default: 1 where there are GPUs, else 0.")
    priority: Priority = 2
    user: Word | None = Field(None, description="Ignored where the token already says who.")


def submit_run(
    house: House, who: Principal, by: str, asked: NewRun, *, group: str, chat: str | None, key: str | None
) -> Submit:
    wrap = asked.gpuwrap_config
    labels = compact(
        {
            "parent_run_id": asked.parent_run_id,
            "origin_alert_id": asked.origin_alert_id,
            "chat_session_id": asked.chat_session_id if asked.chat_session_id is not None else chat,
            "gpuwrap_config": None if wrap is None else wrap.model_dump(exclude_none=True),
        }
    )
    spec = spec_of(
        house,
        asked,
        name=asked.name,
        command=asked.command,
        gpus=gpus_by_default(house) if asked.gpu_count is None else asked.gpu_count,
        priority=asked.priority,
        workdir=asked.workdir,
        labels=labels,
        group=group,
    )
    private, held = house.settings.private, not asked.auto_start
    submit = submit_of(spec, who, by, asked, user=asked.user, held=held, key=key, private=private)
    filled_labels = ("chat_session_id",) if asked.chat_session_id is None else ()
    return keyed_as_sent(submit, asked.workdir, gpus=asked.gpu_count, filled_labels=filled_labels)
