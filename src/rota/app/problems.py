"""What is wrong with what was asked for: (field, what is wrong and what would be right)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rota.app import signals
from rota.app.desk import Desk
from rota.app.errors import Invalid
from rota.core import filler, grace
from rota.core.board import Layout
from rota.core.conform import misfit
from rota.core.place import could_ever_fit
from rota.core.policy import Policy
from rota.core.reason import describe
from rota.core.resources import Request
from rota.core.run import Spec
from rota.core.times import told
from rota.core.warning import DEADLY, warning

MAX_ARGV_BYTES = 128 * 1024  # one argument of execve may not be longer on Linux
MAX_ENV_BYTES = 256 * 1024
MAX_LABELS = 64
MAX_TYPES = 10  # of GPUs, named in a refusal
MAX_NAME = 500  # characters; of a name, a person, a key, a GPU type
MAX_PATH = 4096  # bytes, Linux's PATH_MAX
MAX_PID = 1 << 22  # Linux's PID_MAX_LIMIT
# 4 MiB. Measured: a shell starts with 0.25 MiB and Python with 3 MiB; with 0.1 MiB the process is
# killed before it has become the command.
MIN_MEMORY_GB = 0.004
MAX_AMOUNT = 1e9  # of CPUs or GB: more than any machine has, less than what no longer adds up
MAX_SECONDS = 10 * 365 * 86400.0
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")  # controls, new lines, turns of direction
UNSHOWN = "holds control characters or ones that change the direction of text; use visible ones"
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\0]+%%")  # the latter: `module` on every HPC cluster


def must_fit(command: Any, kind: type) -> None:
    """A command is what its type hints say; people's own Python may send anything."""
    wrong = misfit(command, kind)
    if wrong:
        *path, _ = wrong.removeprefix("spec: ").removeprefix("request: ").split(": ", 1)
        raise Invalid(wrong, path[0] if path else None)


def must_be_text(**texts: str) -> None:
    """Short texts that become names of things."""
    for field, text in texts.items():
        for problem in unfit(text, MAX_NAME):
            raise Invalid(f"{field}: {problem}", field)


def must_be_visible(**texts: str) -> None:
    """Names that people read, in tables and terminals: nothing in them may move the cursor or turn the text around."""
    for field, text in texts.items():
        if not is_visible(text):
            raise Invalid(f"{field}: {UNSHOWN}", field)


def is_visible(text: str) -> bool:
    return (text.isascii() and text.isprintable()) or HIDDEN.search(text) is None


def visible(text: str) -> str:
    """For whoever checks a field by itself."""
    if not is_visible(text):
        raise ValueError(UNSHOWN)
    return text


def made_visible(text: str) -> str:
    """For a name nobody chose, such as a process's own."""
    return text if is_visible(text) else HIDDEN.sub("?", text)


def problems(desk: Desk, spec: Spec, highest_priority: int) -> Iterator[tuple[str, str]]:
    """(field, what is wrong and what would be right), the first few that matter."""
    yield from text_problems(spec, sound_env=desk.envs.is_sound(spec.env))
    yield from _number_problems(spec, highest_priority)
    yield from _stopping_problems(spec)
    yield from request_problems(desk, spec.request)
    if spec.replaced is not None:
        yield "replaced", "is written by an edit of a run that was started; leave it out"
    if len(spec.depends_on) > 100:
        yield "depends_on", f"{len(spec.depends_on)} runs are too many, use at most 100"


def text_problems(spec: Spec, *, sound_env: bool = False) -> Iterator[tuple[str, str]]:
    """`sound_env`: its environment was looked through before."""
    if not _is_plain(spec, sound_env):
        yield from _text_problems(spec)
        if not sound_env:
            yield from _env_problems(spec)


def _is_plain(spec: Spec, sound_env: bool) -> bool:
    """A short command in plain letters, as most are: at one glance nothing below can be wrong with it."""
    if not spec.argv or not spec.argv[0] or not spec.name or spec.workdir[:1] != "/" or spec.account == "":
        return False
    if (spec.env and not sound_env) or spec.holder or len(spec.labels) > MAX_LABELS:
        return False
    words = (*spec.argv, spec.workdir, spec.name, spec.account or "", spec.request.gpu_type, spec.group)
    text = "".join((*words, *spec.labels, *spec.labels.values()))
    return len(text) <= MAX_NAME and text.isascii() and text.isprintable()


def _text_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    if not spec.argv or not spec.argv[0]:
        yield "command", "is empty; give what to run"
    if sum(_size(part) for part in spec.argv) > MAX_ARGV_BYTES:
        yield "command", f"is longer than {MAX_ARGV_BYTES} bytes; put it into a script"
    if not spec.workdir.startswith("/"):
        yield "workdir", f"{spec.workdir[:200]!r} is not an absolute path"
    if not spec.name:
        yield "name", f"must have 1 to {MAX_NAME} characters"
    if spec.account == "":
        yield "account", "is empty; leave it out for the server's own"
    texts = [("command", part, MAX_ARGV_BYTES) for part in spec.argv]
    texts += [("workdir", spec.workdir, MAX_PATH), ("name", spec.name, MAX_NAME)]
    texts += [("account", spec.account or "", MAX_NAME), ("gpu_type", spec.request.gpu_type, MAX_NAME)]
    texts += [("group", spec.group, MAX_NAME), ("holder", spec.holder.boot_id if spec.holder else "", MAX_NAME)]
    yield from ((field, problem) for field, text, limit in texts for problem in unfit(text, limit))
    yield from _pairs("labels", spec.labels, MAX_ENV_BYTES)
    for field, text in (("name", spec.name), *spec.labels.items()):
        if not is_visible(text):
            yield field, UNSHOWN
    if len(spec.labels) > MAX_LABELS:
        yield "labels", f"at most {MAX_LABELS}"


def _env_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    yield from _pairs("env", spec.env, MAX_ENV_BYTES)
    for name in spec.env:
        if not ENV_NAME.fullmatch(name):
            yield "env", f"{name[:200]!r} is not a name a variable can have"


def unfit(text: str, limit: int = MAX_ENV_BYTES) -> Sequence[str]:
    """What keeps a text from being an argument, a file name or a row."""
    if text.isascii() and len(text) <= limit and "\0" not in text:  # nearly every text there is
        return ()
    found = []
    if len(text) > limit:
        found.append(f"has {len(text)} characters, use at most {limit}")
    if "\0" in text:
        found.append("holds a NUL character")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        found.append("is not valid Unicode: it holds half of a surrogate pair")
    return found


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _pairs(field: str, pairs: Mapping[str, str], limit: int) -> Iterator[tuple[str, str]]:
    size = 0
    for name, value in pairs.items():
        size += _size(name) + _size(value)
        for problem in (*unfit(name), *unfit(value)):
            yield field, f"{name[:200]!r} {problem}"
    if size > limit:
        yield field, f"is larger than {limit} bytes"


def _number_problems(spec: Spec, highest_priority: int) -> Iterator[tuple[str, str]]:
    if not 1 <= spec.priority <= 4:
        yield "priority", f"{spec.priority} is not one of 1 (low), 2 (normal), 3 (high), 4 (critical)"
    elif spec.priority > highest_priority:
        yield "priority", f"{spec.priority} is above what you may ask for ({highest_priority})"
    for field in ("estimate_s", "time_limit_s"):
        value = getattr(spec, field)
        if value is not None and not 0 < value <= MAX_SECONDS:  # nor NaN
            yield field, f"{value} is not a time in seconds above 0"
    if not 0 <= spec.grace_s <= 86400:
        yield "grace_s", f"{spec.grace_s} is not between 0 and 86400 seconds"
    if not 0 <= spec.max_retries <= 100:
        yield "max_retries", f"{spec.max_retries} is not between 0 and 100"
    if not 0 <= spec.umask <= 0o777:
        yield "umask", f"{spec.umask} is not between 0 and 0o777"
    if not 1 <= spec.checkpoint_signal <= 31:
        yield "checkpoint_signal", f"{spec.checkpoint_signal} is not a signal number from 1 to 31"
    holder = spec.holder
    if holder is not None and not (0 < holder.pid <= MAX_PID and 0 <= holder.start_ticks < 1 << 63):
        yield "holder", f"{holder.pid} is not the number of a process"
    if not 4096 <= spec.log_cap_bytes <= 1 << 50:
        yield "log_cap_bytes", f"{spec.log_cap_bytes} is too small, use 4096 or more"


def too_long(policy: Policy, spec: Spec) -> str:
    """Say of a grace above the cap what would be right, and which setting decides it."""
    most_s, saving_s = grace.cap_s(policy, spec), policy.max_checkpoint_grace_s
    if grace.has_checkpoint_signal(spec):
        return (
            f"is above {told(most_s)}, the most for a run with a checkpoint signal (policy "
            f"max_checkpoint_grace_seconds); use at most {most_s:g}, or ask an admin"
        )
    more = f", up to {told(saving_s)} with a checkpoint signal" if saving_s > most_s else ""
    right = f"use at most {most_s:g}{more}, or ask an admin"
    return f"is above {told(most_s)}, the most here (policy max_grace_seconds); {right}"


def _stopping_problems(spec: Spec) -> Iterator[tuple[str, str]]:
    """How it is warned and stopped."""
    if spec.filler and (problem := filler.problem(spec)):
        yield "filler", problem
    if not (spec.warn_signal or spec.warn_s):
        return
    if not 0 <= spec.warn_signal <= signals.HIGHEST:
        yield "warn_signal", f"{spec.warn_signal} is not a signal number from 1 to {signals.HIGHEST}"
    elif spec.warn_signal in DEADLY:
        yield "warn_signal", f"no program can hear {signals.name(spec.warn_signal)}; use USR2"
    if spec.warn_s is not None and not 0 <= spec.warn_s <= MAX_SECONDS:  # nor NaN
        yield "warn_s", f"{spec.warn_s} is not a time in seconds from 0 up"
    elif spec.time_limit_s is None:
        yield "warn_s" if spec.warn_s else "warn_signal", "there is no time limit to warn of; give one"
    elif spec.warn_s and spec.warn_s >= spec.time_limit_s:
        yield (
            "warn_s",
            f"{told(spec.warn_s)} before the limit is before the start: the limit is {told(spec.time_limit_s)}",
        )
    elif spec.warn_s and warning(spec) is None:
        yield "warn_s", "says when to warn it, but not how; give warn_signal as well, such as USR2"


def request_problems(desk: Desk, request: Request) -> Iterator[tuple[str, str]]:
    if not 0 <= request.gpus <= 100_000:
        yield "gpus", f"{request.gpus} is not a number of GPUs from 0 up"
        return
    if not 0 <= request.nodes <= 10_000:
        yield "nodes", f"{request.nodes} is not a number of nodes from 0 up"
        return
    if request.nodes > 1 and request.gpus % request.nodes:
        yield (
            "gpus",
            f"{request.gpus} cannot be shared evenly by {request.nodes} nodes; use a multiple of {request.nodes}",
        )
    for field in ("gpu_memory_gb", "memory_gb", "cpus"):
        value = getattr(request, field)
        if not 0 <= value <= MAX_AMOUNT:
            yield field, f"{value} is negative, absurdly large or not a number"
            return
    if 0 < request.memory_gb < MIN_MEMORY_GB:
        yield (
            "memory_gb",
            f"{request.memory_gb:g} GB are too few for any process to start; use {MIN_MEMORY_GB:g} or more, or 0 for "
            "no limit of its own",
        )
    layout = desk.state.board.layout
    if not could_ever_fit(layout, request):
        yield from _too_much(layout, request)
        total = sum(len(node.gpus) for node in layout.nodes)
        have = f"{len(layout.nodes)} nodes, {total} GPUs, at most {layout.max_gpus} on one node"
        yield "gpus", f"this cluster can never give {describe(request)}; it has {have}"


def _too_much(layout: Layout, request: Request) -> Iterator[tuple[str, str]]:
    """What no node has, whatever else was asked for, by its own name and with what there is."""
    gpus = [gpu for node in layout.nodes for gpu in node.gpus]
    alike = [gpu for gpu in gpus if request.gpu_type.lower() in gpu.type.lower()]
    if request.gpus and gpus and not alike:
        there = ", ".join(sorted({gpu.type for gpu in gpus})[:MAX_TYPES])
        yield "gpu_type", f"no GPU here is called {request.gpu_type[:100]!r}; there are: {there}"
    largest = max((gpu.memory_gb for gpu in alike), default=0.0)
    if request.gpus and alike and request.gpu_memory_gb > largest:
        yield "gpu_memory_gb", f"{request.gpu_memory_gb:g} GB are more than any GPU here has; the largest {largest:g}"
    for field, unit in (("cpus", " CPUs"), ("memory_gb", " GB")):
        asked, most = getattr(request, field), max((getattr(node, field) for node in layout.nodes), default=0)
        if asked > most:
            yield field, f"{asked:g}{unit} on a node are more than any here has; the largest has {most:g}"
    if request.nodes > len(layout.nodes):
        yield "nodes", f"{request.nodes} are more than there are: {len(layout.nodes)}"
