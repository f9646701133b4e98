"""A run in Slurm's words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rota.cli.slurm.options import UsageError
from rota.client.errors import NotFound
from rota.client.model.run import Run

if TYPE_CHECKING:
    from rota.client.sync import Client

PARTITION = "rota"
CODES = {
    "PENDING": "PD",
    "CONFIGURING": "CF",
    "RUNNING": "R",
    "COMPLETED": "CD",
    "FAILED": "F",
    "CANCELLED": "CA",
    "TIMEOUT": "TO",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PREEMPTED": "PR",
}
OTHER_STATES = ("COMPLETING", "SUSPENDED", "BOOT_FAIL", "DEADLINE", "REQUEUED", "RESIZING", "REVOKED", "SPECIAL_EXIT")
_BY_STATUS = {
    "ready": "PENDING",
    "queued": "PENDING",
    "launching": "CONFIGURING",
    "running": "RUNNING",
    "finished": "COMPLETED",
    "failed": "FAILED",
    "stopped": "CANCELLED",
}
_FAILURES = {"time_limit": "TIMEOUT", "lost": "NODE_FAIL", "preempted": "PREEMPTED"}
_REASONS = {
    "held": "JobHeldUser",
    "dependency": "Dependency",
    "backoff": "BeginTime",
    "window": "Reservation",
    "paused": "PartitionDown",
    "max_concurrent": "QOSGrpJobsLimit",
    "user_runs": "QOSMaxJobsPerUserLimit",
    "user_gpus": "QOSMaxGRESPerUser",
    "group": "JobArrayTaskLimit",
    "impossible": "BadConstraints",
    "nodes": "ReqNodeNotAvail",
    "resources": "Resources",
    "reservation": "Resources",
    "order": "Priority",
}
_TASK = "array_task="


@dataclass(frozen=True, slots=True)
class Job:
    run: Run

    @property
    def id(self) -> str:
        """ID, or ARRAY_INDEX of a task of an array."""
        task = task_of(self.run)
        return self.run.id if task is None else f"{self.run.sweep_id}_{task}"

    @property
    def state(self) -> str:
        word = _BY_STATUS.get(self.run.status, self.run.status.upper() or "UNKNOWN")
        if word != "FAILED" or not self.run.attempts:
            return word
        cause, *more = (self.run.attempts[-1].reason or "").split(": ")
        return "OUT_OF_MEMORY" if more[:1] == ["out of memory"] else _FAILURES.get(cause, word)

    @property
    def code(self) -> str:
        return CODES.get(self.state, self.state[:2])

    @property
    def waiting(self) -> bool:
        return self.run.waiting

    @property
    def reason(self) -> str:
        if not self.waiting:
            return "None"
        if self.run.status == "ready":
            return "JobHeldUser"
        if self.run.reasons:
            return _REASONS.get(self.run.reasons[0].code, "Priority")
        return "Dependency" if self.run.raw.get("depends_on") else "Priority"

    @property
    def nodes(self) -> list[str]:
        """Where it runs, or where its last attempt ran."""
        last = self.run.attempts[-1].raw.get("gpus") if self.run.attempts else None
        names = self.run.gpus or tuple(map(str, last or ()))
        found = list(dict.fromkeys(name.rpartition(":")[0] for name in names))
        return found or ([self.run.raw["node"]] if self.run.raw.get("node") else [])

    @property
    def node_count(self) -> int:
        return len(self.nodes) or int(self.run.raw.get("nodes") or 1)

    @property
    def where(self) -> str:
        """NODELIST(REASON)"""
        return f"({self.reason})" if self.waiting else compressed(self.nodes)

    @property
    def started(self) -> float | None:
        """Of a job that was over before its start was told of: when it was launched."""
        return self.run.started_at if self.run.started_at is not None else self.run.launched_at

    def elapsed(self, now: float) -> float:
        if self.started is None:
            return 0.0
        return (self.run.ended_at if self.run.ended_at is not None else now) - self.started

    @property
    def time_limit_s(self) -> float | None:
        value = self.run.raw.get("time_limit_seconds")
        return float(value) if isinstance(value, (int, float)) else None

    @property
    def cpus(self) -> int:
        return int(self.run.raw.get("cpus") or 1) * self.node_count

    @property
    def exit(self) -> str:
        """code:signal"""
        code = self.run.exit_code or 0
        return f"0:{code - 128}" if 128 < code < 192 else f"{code}:0"

    def tag(self, name: str) -> str:
        """What the submit's options said, kept as `name=value`."""
        return next((tag[len(name) + 1 :] for tag in self.run.tags if tag.startswith(f"{name}=")), "")

    @property
    def partition(self) -> str:
        return self.tag("partition") or PARTITION

    @property
    def account(self) -> str:
        return self.tag("account") or self.run.user


def task_of(run: Run) -> int | None:
    for tag in run.tags:
        if run.sweep_id and tag.startswith(_TASK) and tag[len(_TASK) :].isdigit():
            return int(tag[len(_TASK) :])
    return None


def find(client: Client, text: str) -> list[Job]:
    """The job of an id, or all tasks of an array's; ID_3 and ID_[1-3] name tasks. NotFound where there is none."""
    from rota.cli.slurm.values import array

    match = re.fullmatch(r"([0-9a-f]{12})(?:_(?:\[([0-9,:%-]+)\]|([0-9]+)))?", text)
    if match is None:
        raise NotFound(404, f"Invalid job id specified: {text}")
    tasks = match[2] or match[3]
    if not tasks:
        try:
            return [Job(client.run(match[1]))]
        except NotFound:
            pass
    found = [Job(run) for run in client.runs(sweep_id=match[1])]
    if tasks:
        wanted = set(array(tasks).indices)
        found = [job for job in found if task_of(job.run) in wanted]
    if not found:
        raise NotFound(404, f"Invalid job id specified: {text}")
    return sorted(found, key=lambda job: task_of(job.run) or 0)


def states(text: str) -> frozenset[str]:
    """The long words of `PD,RUNNING`; "all" is every one."""
    by_code = {code: word for word, code in CODES.items()}
    found: set[str] = set()
    for word in text.upper().split(","):
        if word == "ALL":
            found |= set(CODES)
        elif word in CODES or word in by_code:
            found.add(by_code.get(word, word))
        elif word not in OTHER_STATES and word not in ("CG", "S", "BF", "DL", "RQ", "RS", "RV", "SE"):
            raise UsageError(f"Invalid job state specified: {word}; valid are {','.join(CODES)}")
    return frozenset(found)


def compressed(names: Sequence[str]) -> str:
    """node[1-3,7] for node1 node2 node3 node7, as Slurm writes lists of hosts."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)([0-9]{1,9})", name)
        if match is None:
            groups[name, -1] = []
        else:
            width = len(match[2]) if match[2].startswith("0") else 0
            groups.setdefault((match[1], width), []).append(int(match[2]))
    return ",".join(_group(stem, width, sorted(set(numbers))) for (stem, width), numbers in groups.items())


def _group(stem: str, width: int, numbers: list[int]) -> str:
    if not numbers:
        return stem
    if len(numbers) == 1:
        return f"{stem}{numbers[0]:0{width}}"
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    texts = [f"{a:0{width}}" if a == b else f"{a:0{width}}-{b:0{width}}" for a, b in spans]
    return f"{stem}[{','.join(texts)}]"
