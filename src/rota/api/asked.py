"""What a client may ask of a run, through whichever door: parsed here once, and turned into a Spec."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import core_schema

from rota.api import unknown_fields
from rota.api.dry import is_dry_run
from rota.api.house import House
from rota.app import signals
from rota.app.authz import Principal, Role
from rota.app.commands import Draft, Submit
from rota.app.errors import Invalid
from rota.app.problems import visible
from rota.core.argv import argv_of
from rota.core.resources import Request
from rota.core.run import Dependency, Spec, When
from rota.core.times import LONGEST_S, seconds
from rota.core.warning import DEADLY, SIGKILL, SIGTERM, saves

MAX_GPUS = 100_000
NOT_SENT = -1  # GPUs, in what a key stands for
MAX_TEXT = 131_072
MOST_MEMBERS = 25_000  # of what clients keep in their own shape: in memory each is 30 times its text


def _number(value: Any) -> Any:
    """To Python true is 1; who sends it means something else."""
    if isinstance(value, bool):
        raise ValueError(f"is {str(value).lower()}, which is no number; give a number")
    return value


NUMBER = BeforeValidator(_number)  # behind a field's bounds: what stands before them keeps them out of the schema
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Word = Annotated[str, Field(max_length=500)]
Amount = Annotated[float, Field(ge=0, le=1e9), NUMBER]
Tag = Annotated[str, Field(max_length=100), AfterValidator(visible)]
Count = Annotated[int, Field(ge=0, le=MAX_GPUS), NUMBER]
Nodes = Annotated[int, Field(ge=0, le=10_000), NUMBER]


def _time(value: Any) -> Any:
    """Seconds; or in words, such as 4h."""
    if not isinstance(value, str):
        return _number(value)
    try:
        return float(value)
    except ValueError:
        return seconds(value, least=0.0)


def _signal(value: Any) -> Any:
    return signals.number(value) if isinstance(value, str) else _number(value)


def _named(value: str) -> str:
    """Who writes nothing here may believe they use one."""
    if not value.strip():
        raise ValueError("is empty; give the id of a reservation, or leave it out")
    return value


Seconds = Annotated[float, BeforeValidator(_time), Field(gt=0, le=LONGEST_S)]
SecondsOrNone = Annotated[float, BeforeValidator(_time), Field(ge=0, le=LONGEST_S)]  # 0 = none at all
Signal = Annotated[int, BeforeValidator(_signal), Field(ge=1, le=signals.HIGHEST)]


def _writable(value: Any) -> Any:
    """What a client keeps here in its own shape must be JSON when it is shown again; Python reads more than that."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, RecursionError):
        raise ValueError("holds what JSON cannot: NaN, infinity, half a surrogate pair, or too many levels") from None
    if sum(map(text.count, ",[{")) > MOST_MEMBERS:
        raise ValueError(f"has more than {MOST_MEMBERS:,} members (commas and brackets); keep less here")
    return value


Free = Annotated[dict[str, Any], AfterValidator(_writable)]
Priority = Annotated[int, Field(ge=1, le=4, description="1 low, 2 normal, 3 high, 4 critical"), NUMBER]


class Body(BaseModel):
    """Of every request: numbers are finite, and an unknown field is let pass, as clients of this field expect."""

    model_config = ConfigDict(allow_inf_nan=False, extra="ignore")


class After(Body):
    run_id: Word
    when: Literal["succeeded", "ended", "failed"] = "succeeded"


class Workspace(Body):
    """What the code looked like when the run was submitted."""

    root: Word = ""
    commit: Word = ""
    branch: Word = ""
    remote: Word = ""
    dirty: bool = False
    diff: Annotated[str, Field(max_length=512 * 1024)] = ""
    diff_truncated: bool = False
    left_out: Annotated[list[Word], Field(max_length=200)] = Field(default_factory=list)
    argv: Annotated[list[Text], Field(max_length=10_000)] = Field(default_factory=list)
    env: Annotated[dict[Word, Text], Field(max_length=200)] = Field(default_factory=dict)


class _Dropped:
    """The value of a field that means nothing here: it is not even made, however large it is."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.with_default_schema(core_schema.none_schema(), default=None, on_error="default")

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {}


class Exact(Body):
    """Of requests where what a misspelt field meant would be missed: a token that never expires, a policy without its
    limit. A field that is not known is refused, with the one that was probably meant."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _only_known(cls, sent: Any) -> Any:
        if isinstance(sent, Mapping):
            known = _names(cls)
            unknown = [name for name in sent if name not in known]
            _must_be_in_earnest(unknown)
            unknown_fields.refuse(unknown, known)
        return sent


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _must_be_in_earnest(unknown: Iterable[str]) -> None:
    if any(is_dry_run(name) for name in unknown):
        raise ValueError("to try it out write ?dry_run=true after the path, not in the body; nothing was done")


class Making(Body):
    """Of requests that make or set something: fields nobody knows are kept by name, to say so in the answer."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Dropped] = Field(init=False)

    @model_validator(mode="after")
    def _in_earnest(self) -> Self:
        _must_be_in_earnest(self.model_extra or ())
        return self

    def ignored(self, strict: bool = False) -> list[str]:
        """Return the fields that mean nothing here, each with what was probably meant; `strict` refuses them."""
        if not self.model_extra:
            return []
        known = _names(type(self))
        if strict:
            unknown_fields.refuse(self.model_extra, known)
        return unknown_fields.described(self.model_extra, known)

    def meant_as(self, field: str) -> str:
        """Return what to add to the refusal of a field that is missing; see `unknown_fields.meant_as`."""
        return unknown_fields.meant_as(field, self.model_extra or ())

    def known(self) -> dict[str, Any]:
        return self.model_dump(include=set(type(self).model_fields))


class Extras(Making):
    """The fields every door takes besides its own."""

    argv: Annotated[list[Text], Field(min_length=1, max_length=10_000)] | None = Field(
        None, description="Instead of `command`: the words of the command, run without a shell."
    )
    gpu_memory_gb: Amount = 0
    gpu_type: Word = Field("", description="A part of the GPU's name, such as H100.")
    nodes: Nodes = Field(0, description="Spread evenly over exactly so many nodes.")
    span: bool = Field(False, description="May be split over nodes when no single node has room.")
    cpus: Annotated[int, Field(ge=0, le=1_000_000), NUMBER] = 0
    memory_gb: Amount = 0
    env: Annotated[dict[Word, Text], Field(max_length=10_000)] = Field(default_factory=dict)
    estimated_duration_seconds: Seconds | None = Field(None, description="As a number, or in words: 90s 30m 4h 1d 1w.")
    time_limit_seconds: Seconds | None = Field(None, description="As a number, or in words: 90s 30m 4h 1d 1w.")
    max_retries: Annotated[int, Field(ge=0, le=100), NUMBER] = Field(
        3, description="For lost nodes and the like; a command that fails by itself is not run again."
    )
    retry_failures: bool = Field(False, description="Run it again also when the command itself failed.")
    depends_on: Annotated[list[Word | After], Field(max_length=100)] = Field(default_factory=list)
    tags: Annotated[list[Tag], Field(max_length=50)] = Field(default_factory=list)
    preemptible: bool = Field(False, description="May be stopped for others, and is run again.")
    checkpoint_signal: Signal | None = Field(
        None,
        description="Asks it to save and leave; a number, or a name such as USR2, and not KILL or STOP. Who names one "
        "says that it saves and loses little by being stopped. Default: TERM, of a program that does not.",
    )
    grace_seconds: Annotated[float, BeforeValidator(_time), Field(ge=0, le=86400)] = Field(
        10.0, description="From being asked to end to being killed."
    )
    warn_signal: Signal | None = Field(
        None,
        description="Sent before the time limit. Default: the checkpoint signal where that is not TERM, else none.",
    )
    warn_seconds: SecondsOrNone | None = Field(
        None, description="How long before; 0 = never. Default: a twentieth of the limit, 60 at most."
    )
    filler: bool = Field(
        False, description="Runs only where nobody else who waits could, and is killed at once for anybody."
    )
    terminal: bool = Field(False, description="Give it a terminal that `rota attach` joins.")
    umask: Annotated[int, Field(ge=0, le=0o777), NUMBER] = 0o022
    account: Word | None = Field(None, description="The unix account to run as; for admins of a server that is root.")
    reservation: Annotated[Word, AfterValidator(_named)] = Field(
        "", description="Use the GPUs that this reservation keeps, in its time."
    )
    workspace: Workspace | None = None
    idempotency_key: Word = ""


def gpus_by_default(house: House) -> int:
    return 1 if any(node.gpus for node in house.service.nodes().values()) else 0


def spec_of(
    house: House,
    extras: Extras,
    *,
    name: str,
    command: str | None,
    gpus: int,
    priority: int = 2,
    workdir: str | None = None,
    labels: Mapping[str, str] | None = None,
    group: str = "",
) -> Spec:
    if (command is None) == (extras.argv is None):
        meant = extras.meant_as("command") if command is None else ""
        raise Invalid(
            f"command: give either `command`, a line for the shell, or `argv`, a list of words{meant}", "command"
        )
    if command is not None and not command.strip():
        raise Invalid("command: is empty; give what to run", "command")
    if workdir is not None and not workdir.strip():
        raise Invalid("workdir: is blank; leave it out for the server's own", "workdir")
    if extras.filler:
        _must_bear_killing(extras)
    elif extras.checkpoint_signal in DEADLY:
        raise Invalid(f"checkpoint_signal: {signals.unheard(extras.checkpoint_signal)}", "checkpoint_signal")
    request = Request(
        gpus=gpus,
        nodes=extras.nodes,
        gpu_memory_gb=extras.gpu_memory_gb,
        gpu_type=extras.gpu_type,
        cpus=extras.cpus,
        memory_gb=extras.memory_gb,
        span=extras.span,
    )
    return Spec(
        name=name,
        argv=argv_of(command) if command is not None else tuple(extras.argv or ()),
        workdir=os.path.join(house.workdir, workdir) if workdir else house.workdir,
        request=request,
        env=extras.env,
        umask=extras.umask,
        account=extras.account or None,
        priority=priority,
        estimate_s=extras.estimated_duration_seconds,
        time_limit_s=extras.time_limit_seconds,
        depends_on=tuple(_dependency(item) for item in extras.depends_on),
        max_retries=extras.max_retries,
        retry_failures=extras.retry_failures,
        preemptible=extras.preemptible,
        checkpoint_signal=SIGTERM if extras.checkpoint_signal is None else extras.checkpoint_signal,
        saves=saves(extras.preemptible, extras.checkpoint_signal),
        grace_s=extras.grace_seconds,
        warn_signal=extras.warn_signal or 0,
        warn_s=extras.warn_seconds,
        filler=extras.filler,
        terminal=extras.terminal,
        labels={**({"tags": json.dumps(extras.tags)} if extras.tags else {}), **(labels or {})},
        group=group,
        reservation=extras.reservation,
    )


def for_whom(user: str | None, who: Principal, by: str) -> str:
    """`by` is how the caller is known: a `user` in the request counts only where nobody is authenticated, and is
    a label to the shared token. "" = the caller."""
    return user if user and by in ("open", "shared") and who.role is Role.ADMIN else ""


def _must_bear_killing(extras: Extras) -> None:
    """What else was said about stopping it would be overruled in silence."""
    plain: dict[str, tuple[Any, ...]] = {
        "checkpoint_signal": (None, SIGKILL),
        "grace_seconds": (10.0, 0.0),
        "warn_signal": (None,),
        "warn_seconds": (None, 0.0),
    }
    for name, fitting in plain.items():
        if getattr(extras, name) not in fitting:
            raise Invalid(f"{name}: a filler is killed at once; leave this out, or filler", name)


def submit_of(
    spec: Spec,
    who: Principal,
    by: str,
    extras: Extras,
    *,
    user: str | None,
    held: bool,
    key: str | None,
    max_waiting: int = 0,
    private: bool = False,
) -> Submit:
    records: tuple[Draft, ...] = ()
    if extras.workspace is not None:
        records = (Draft("workspace", "", extras.workspace.model_dump_json()),)
    key = key or extras.idempotency_key
    return Submit(
        spec,
        for_whom(user, who, by),
        held,
        key,
        max_waiting,
        records=records,
        blind=private and who.role is not Role.ADMIN,
        checked=True,
    )


def keyed_as_sent(
    submit: Submit, workdir: str | None, *, gpus: int | None, filled_labels: Collection[str] = ()
) -> Submit:
    """Have the key stand for the request as it was sent. What the server filled in by itself (`workdir` and `gpus` that
    are None, a relative `workdir`, these labels) may be something else when the same request is sent again."""
    if not submit.key:
        return submit
    spec = submit.spec
    sent = replace(
        spec,
        workdir=workdir or "",
        request=replace(spec.request, gpus=NOT_SENT) if gpus is None else spec.request,
        labels={name: value for name, value in spec.labels.items() if name not in filled_labels},
    )
    return replace(submit, sent=sent)


def _dependency(item: str | After) -> Dependency:
    return Dependency(item) if isinstance(item, str) else Dependency(item.run_id, When(item.when))


def compact(labels: Mapping[str, Any]) -> dict[str, str]:
    """Labels from optional fields: what is None is left out."""
    given = {name: value for name, value in labels.items() if value is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
