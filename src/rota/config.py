"""Settings: a flag wins over an environment variable, that over a default.

Every variable that older servers of this field documented for a server is an alias of one of ours; where both are set,
ours wins.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rota.core.clusters import LABELS, canonical
from rota.core.policynames import NAMES


class BadSetting(Exception):
    """A flag or variable that makes no sense; the text names it and says what would be right."""


def default_data_dir(env: Mapping[str, str] | None = None) -> Path:
    env = os.environ if env is None else env
    if env.get("ROTA_DATA_DIR"):
        return Path(env["ROTA_DATA_DIR"])
    base = env.get("XDG_DATA_HOME") or Path(env.get("HOME") or "/var/lib") / ".local" / "share"
    return Path(base) / "rota"


@dataclass(frozen=True, slots=True)
class Settings:
    data_dir: Path
    database_url: str = ""  # "" = SQLite in the data directory
    simulated: tuple[int, int] | None = None  # nodes x GPUs; None = real GPUs, or 2 x 8 simulated where there are none
    probe_every_s: float = 10.0
    tidy_every_s: float = 6 * 3600.0
    host: str = "127.0.0.1"
    port: int = 10000
    lease_port: int = 9123  # 0 = no port of its own for the lease door
    unix_socket: bool = True  # rota.sock in the data directory: who is on the other end is known from the kernel
    workdir: str = ""  # of runs that name none; "" = where the server was started
    shared_token: str = ""  # acts as an admin named `shared`
    scheduling: bool = True  # False = start paused
    ordering: str = ""  # an ordering, or a whole policy by its name; "" = as it was, at first auto
    queue_capacity: int = 100  # of POST /queue/submit; when it is full, who has less than an equal part still submits
    cluster_type: str = ""  # said instead of detected
    tmux_session: str = ""  # in which `rota attach --tmux` opens its windows; "" = the one it is called from
    ray_address: str = ""
    server_url: str = ""  # how others reach this server, for links; "" = from host and port
    allowed_hosts: tuple[str, ...] = ()  # further names under which browsers may call us
    private: bool = False  # hide other people's runs
    run_as: str = ""  # on a server that runs as root: the account of people who have none on this machine
    login_tries: int = 10  # failed logins a minute and source
    agent_calls: int = 600  # calls a minute of one agent
    disk_floor_mb: int | None = None  # MiB free below which only ends are written; 0 = none; unset = 1 % of the disk
    person_live_mb: int = 64  # MiB of commands and environments of one person's runs that have not ended; 0 = no bound
    person_metrics_mb: int = 4096  # MiB of metrics of one person's runs; 0 = no bound
    person_checkpoints_mb: int = 0  # MiB of one person's checkpoints, over which they submit nothing; 0 = no bound
    person_ledger_mb: int = 256  # MiB that one person may add to the ledger in a day; 0 = no bound
    request_seconds: int = 30  # for the body of a request; half of it for its head, a sixth for the first byte
    max_processes: int | None = None  # processes and threads of an attempt, where cgroups bound them; unset = by cores


def _number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text.strip()) or not least <= int(text) <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return int(text)

    return read


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("is neither true nor false")


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"is not one of {', '.join(words)}")
        return word

    return read


def _cluster(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,2})", text)
    if match is None or not 1 <= int(match[1]) <= 5000 or not 0 <= int(match[2]) <= 64:
        raise ValueError("is not nodes x GPUs, such as 2x8 (up to 5000x64)")
    return int(match[1]), int(match[2])


def _kind(text: str) -> str:
    kind = canonical(text)
    if kind is None:
        raise ValueError(f"is no kind of cluster; use one of {', '.join(LABELS)}")
    return kind


def _session(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_ +-]{0,63}", text):  # tmux reads . and : as parts of a target
        raise ValueError("is no name of a tmux session; use up to 64 letters, digits, blanks, _ + and -")
    return text


def _private(text: str) -> bool:
    return _one_of("private", "open")(text) == "private"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


def _secret(text: str) -> str:
    """As a header would carry it, which loses blanks around it. Blanks alone must not turn out to be no token."""
    word = text.strip()
    if not word or any(ord(char) < 32 or ord(char) == 127 for char in word):
        raise ValueError("is blank or holds control characters, so nobody could send it")
    return word


@dataclass(frozen=True, slots=True)
class Source:
    """Where a setting may come from besides its flag."""

    field: str
    variables: tuple[str, ...]  # the first that is set wins
    read: Callable[[str], Any]


SOURCES = (
    Source("data_dir", ("ROTA_DATA_DIR",), Path),
    Source("database_url", ("ROTA_DATABASE_URL",), str),
    Source("simulated", ("ROTA_SIMULATE",), _cluster),
    Source("host", ("ROTA_HOST",), str),
    Source("port", ("ROTA_PORT",), _number(0, 65535)),
    Source("lease_port", ("ROTA_LEASE_PORT", "GPUSCHED_PORT"), _number(0, 65535)),
    Source("unix_socket", ("ROTA_UNIX_SOCKET",), _switch),
    Source("workdir", ("ROTA_WORKDIR",), str),
    Source("shared_token", ("ROTA_SHARED_TOKEN", "RESEARCH_AGENT_USER_AUTH_TOKEN"), _secret),
    Source("scheduling", ("ROTA_SCHEDULING", "RESEARCH_AGENT_GPU_ORCHESTRATION_ENABLED"), _switch),
    Source(
        "ordering",
        ("ROTA_SCHEDULING_POLICY", "RESEARCH_AGENT_SCHEDULING_POLICY"),
        _one_of(*dict.fromkeys(("priority", "fcfs", "sjf", "fair_share", *NAMES))),
    ),
    Source("queue_capacity", ("ROTA_QUEUE_CAPACITY", "RESEARCH_AGENT_MAX_QUEUE_SIZE"), _number(1, 200_000)),
    Source("cluster_type", ("ROTA_CLUSTER_TYPE", "RESEARCH_AGENT_CLUSTER_TYPE"), _kind),
    Source("tmux_session", ("ROTA_TMUX_SESSION", "RESEARCH_AGENT_TMUX_SESSION"), _session),
    Source("ray_address", ("RAY_ADDRESS",), str),
    Source("server_url", ("ROTA_SERVER_URL", "RESEARCH_AGENT_SERVER_URL"), str),
    Source("allowed_hosts", ("ROTA_ALLOWED_HOSTS",), _names),
    Source("private", ("ROTA_PRIVACY",), _private),
    Source("run_as", ("ROTA_RUN_AS",), str),
    Source("login_tries", ("ROTA_LOGIN_TRIES",), _number(1, 100_000)),
    Source("agent_calls", ("ROTA_AGENT_CALLS",), _number(1, 10_000_000)),
    Source("disk_floor_mb", ("ROTA_DISK_FLOOR_MB",), _number(0, 100_000_000)),
    Source("person_live_mb", ("ROTA_PERSON_LIVE_MB",), _number(0, 1_000_000)),
    Source("person_metrics_mb", ("ROTA_PERSON_METRICS_MB",), _number(0, 1_000_000_000)),
    Source("person_checkpoints_mb", ("ROTA_PERSON_CHECKPOINTS_MB",), _number(0, 1_000_000_000)),
    Source("person_ledger_mb", ("ROTA_PERSON_LEDGER_MB",), _number(0, 1_000_000)),
    Source("request_seconds", ("ROTA_REQUEST_SECONDS",), _number(1, 3600)),
    Source("max_processes", ("ROTA_MAX_PROCESSES",), _number(32, 4_194_304)),
)
# A client's alone: where the lease door is (see rota.cli.lease). No setting of a server.
NOTICED = ("GPUSCHED_URL",)


def read_settings(flags: Mapping[str, Any], env: Mapping[str, str] | None = None) -> tuple[Settings, dict[str, str]]:
    """The settings, and for each where it came from: a flag, the name of a variable, or "default"."""
    env = os.environ if env is None else env
    values: dict[str, Any] = {"data_dir": default_data_dir(env)}
    origins = {field.name: "default" for field in fields(Settings)}
    for source in SOURCES:
        for name in source.variables:
            if env.get(name, "") != "":
                try:
                    values[source.field] = source.read(env[name])
                except ValueError as error:
                    shown = "" if "TOKEN" in name else f" {env[name][:100]!r}"
                    raise BadSetting(f"{name}:{shown} {error}") from error
                origins[source.field] = name
                break
    for field, value in flags.items():
        if value is not None:
            values[field] = value
            origins[field] = "flag"
    if values.get("workdir"):
        values["workdir"] = _directory(values["workdir"], origins["workdir"])
    return Settings(**values), origins


def _directory(path: str, origin: str) -> str:
    """Wherever it was named: a server whose every run would fail to start should not start itself."""
    whole = os.path.abspath(path)
    if not os.path.isdir(whole):
        raise BadSetting(f"{'--workdir' if origin == 'flag' else origin}: {whole[:200]!r} is not a directory")
    return whole
