"""What stands behind Slurm's options: times, sizes, GPUs, array indices, dependencies. Text in, values out."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from rota.app import signals
from rota.cli.slurm.options import UsageError
from rota.core.sizes import size_gb

MAX_ARRAY = 1001  # Slurm's own default
MAX_INDEX = 4_000_000

_WHEN = {"afterok": "succeeded", "afterany": "ended", "afternotok": "failed", "after": "started"}
_JOB = re.compile(r"[0-9a-f]{12}(_[0-9]+)?")


def number(option: str, text: str, least: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise UsageError(f"--{option}: {text!r} is not a whole number from {least} up")
    return int(text)


def time_limit_s(text: str) -> float | None:
    """Minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None = no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE") or text == "0":
        return None
    match = re.fullmatch(r"(?:([0-9]{1,6})-)?([0-9]{1,7})(?::([0-9]{1,7}))?(?::([0-9]{1,7}))?", text)
    if match is None:
        raise UsageError(f"--time: {text!r} is not minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S")
    parts = [int(part) for part in match.groups()[1:] if part is not None]
    if match[1] is not None:  # days first: then hours lead
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        total = int(match[1]) * 86400 + hours * 3600 + minutes * 60 + seconds
    elif len(parts) == 3:
        total = parts[0] * 3600 + parts[1] * 60 + parts[2]
    else:
        total = parts[0] * 60 + (parts[1] if len(parts) > 1 else 0)
    if total <= 0:
        raise UsageError(f"--time: {text!r} is no time at all")
    return float(total)


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal, and how long before the time limit."""

    number: int
    before_s: int = 60


def signal(text: str) -> Sent:
    """`[R|B:]USR2[@300]`. Whether the shell gets it (B) depends on whether it has a trap for it."""
    match = re.fullmatch(r"(?:[RB]{1,2}:)?([A-Za-z0-9]{1,10})(?:@([0-9]{1,5}))?", text)
    try:
        if match is None:
            raise ValueError(f"{text[:50]!r} is not a signal such as USR2, USR2@300 or B:USR2@300")
        return Sent(signals.number(match[1]), int(match[2]) if match[2] else 60)
    except ValueError as error:
        raise UsageError(f"--signal: {error}") from None


def memory_gb(option: str, text: str) -> float:
    """K, M, G or T behind the number; without one it counts MB. Slurm's 0 (all of the node) is not counted."""
    found = size_gb(text, "M")
    if found is None:
        raise UsageError(f"--{option}: {text!r} is not a size such as 16G or 4000M")
    return found


@dataclass(frozen=True, slots=True)
class Gpus:
    count: int
    type: str = ""


def gpus(option: str, text: str) -> Gpus:
    """N, type:N or a list of types, of which one is taken."""
    if "," in text:
        raise UsageError(f"--{option}: {text!r} asks for several types; a run has GPUs of one type")
    kind, colon, count = text.rpartition(":")
    if not colon and text[:1].isalpha():
        kind, count = text, "1"
    return Gpus(number(option, count), kind)


def gres(text: str) -> Gpus | None:
    """The GPUs of `gpu:2`, `gpu:a100:2`, `gpu`, or `gres/gpu:2`; None for "none"."""
    if text in ("none", ""):
        return None
    found: Gpus | None = None
    for item in text.split(","):
        name, _, rest = item.removeprefix("gres/").removeprefix("gres:").replace("=", ":").partition(":")
        if name != "gpu":
            raise UsageError(f"--gres: Rota knows no {name!r}, only gpu, such as --gres=gpu:2")
        if found is not None:
            raise UsageError(f"--gres: {text!r} asks for GPUs twice; a run has GPUs of one type")
        found = gpus("gres", rest) if rest else Gpus(1)
    return found


@dataclass(frozen=True, slots=True)
class Array:
    indices: tuple[int, ...]
    cap: int = 0  # how many at a time; 0 = no limit

    @property
    def step(self) -> int:
        return self.indices[1] - self.indices[0] if len(self.indices) > 1 else 1


def array(text: str) -> Array:
    """`0-9%2`, `1,3,5`, `0-20:5`: in rising order, each index once."""
    body, percent, cap = text.partition("%")
    found: set[int] = set()
    for part in body.split(","):
        match = re.fullmatch(r"([0-9]{1,7})(?:-([0-9]{1,7})(?::([0-9]{1,7}))?)?", part)
        if match is None:
            raise UsageError(f"--array: {text!r} is not indices such as 0-9, 1,3,5 or 0-20:5%2")
        first, last = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if last < first or step < 1 or last > MAX_INDEX:
            raise UsageError(f"--array: {part!r} does not run upwards from 0 to at most {MAX_INDEX}")
        span = range(first, last + 1, step)
        if len(found) + len(span) > MAX_ARRAY:
            raise UsageError(f"--array: {text!r} has more than {MAX_ARRAY} tasks; use several arrays")
        found.update(span)
    limit = number("array", cap, 1) if percent else 0
    return Array(tuple(sorted(found)), limit)


@dataclass(frozen=True, slots=True)
class Wanted:
    job: str
    when: str  # succeeded, ended, failed, or started


def dependencies(text: str) -> tuple[Wanted, ...]:
    """`afterok:ID:ID,afterany:ID`: all of them must come true."""
    if "?" in text:
        raise UsageError("--dependency: `?` (any of them) cannot be had; all that are named must come true, use `,`")
    found = []
    for clause in text.split(","):
        kind, *jobs = clause.split(":")
        if kind not in _WHEN or not jobs:
            raise UsageError(f"--dependency: {clause!r} is not {', '.join(_WHEN)} with job ids, as afterok:ID:ID")
        for job in jobs:
            if not _JOB.fullmatch(job):
                raise UsageError(f"--dependency: {job!r} is no job id (12 hex digits, or ID_INDEX of an array)")
            found.append(Wanted(job, _WHEN[kind]))
    return tuple(found)


def moment(option: str, text: str, now: float) -> float:
    """As sacct takes it: 2026-11-05[THH:MM[:SS]], HH:MM[:SS], MM/DD[/YY], MMDD[YY], now[-2days], today, noon."""
    relative = _relative(text.lower(), now)
    if relative is not None:
        return relative
    here = time.localtime(now)
    day = time.strftime("%Y-%m-%dT", here)
    for candidate, form in (
        (text, "%Y-%m-%dT%H:%M:%S"),
        (text, "%Y-%m-%dT%H:%M"),
        (text, "%Y-%m-%d"),
        (day + text, "%Y-%m-%dT%H:%M:%S"),
        (day + text, "%Y-%m-%dT%H:%M"),
        (text, "%m/%d/%y"),
        (text if len(text) == 6 else "", "%m%d%y"),  # strptime would read 1104 as 1.1.04
        (f"{here.tm_year}-{text}", "%Y-%m/%d"),
        (f"{here.tm_year}-{text}", "%Y-%m%d"),
    ):
        try:
            return time.mktime((*time.strptime(candidate, form)[:8], -1))
        except (ValueError, OverflowError):
            continue
    raise UsageError(f"--{option}: {text!r} is not a time such as 2026-11-05, 2026-11-05T14:00, 14:00 or now-2days")


def _relative(text: str, now: float) -> float | None:
    match = re.fullmatch(r"(now|today|midnight|noon)(?:([+-])([0-9]{1,6})(|[smhdw][a-z]*))?", text)
    if match is None:
        return None
    day = _start_of_day(now)
    base = {"now": now, "noon": day + 43200}.get(match[1], day)
    if match[3] is None:
        return base
    unit = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[match[4][:1]]
    return base + (1 if match[2] == "+" else -1) * int(match[3]) * unit


def _start_of_day(now: float) -> float:
    here = time.localtime(now)
    return time.mktime((here.tm_year, here.tm_mon, here.tm_mday, 0, 0, 0, 0, 0, -1))
