"""What each kind of cluster shows of itself. A sighting says what was seen; what follows from it is `detector`'s."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rota.adapters.detect import ask

GPUS_OF_GRES = re.compile(r"(?:^|,)gpu(?::[^:,(]+)?:(\d+)")
SLURM_VARIABLES = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_NODELIST", "SLURM_JOB_NODELIST")
SET_BY_ROTA = ("SLURM_JOB_ID", "SLURM_JOB_NODELIST")  # of those, in a run of Rota's that is in no job of Slurm's
UNFIT = ("down", "drain", "fail", "maint", "unknown", "not_responding")
RAY_DASHBOARD = 8265
RAY_CLIENT = 10001
RAY_HEAD = 6379
RAY_TOKEN_FILE = ".ray/auth_token"  # noqa: S105 - a path in the home directory
MAX_TOKEN_BYTES = 4096
MAX_SSH_CONFIG_BYTES = 1 << 20
# another version's answer, or no Ray's
OTHERWISE_SHAPED = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError)


@dataclass(frozen=True, slots=True)
class Sighting:
    """`sure`: the environment says so itself. `nodes` is None when nothing answered. `locked`: it answered, and tells
    nothing without a token."""

    signals: tuple[str, ...] = ()
    sure: bool = False
    nodes: int | None = None
    unfit: int = 0
    gpus: int | None = None
    head: str | None = None
    locked: bool = False

    @property
    def there(self) -> bool:
        return self.sure or self.locked or bool(self.nodes)

    @property
    def status(self) -> str:
        """Healthy only where something answered and nothing it named is unfit."""
        if not self.nodes:
            return "unknown"
        return "healthy" if not self.unfit else "offline" if self.unfit >= self.nodes else "degraded"


def kubernetes(env: Mapping[str, str]) -> Sighting:
    pod = bool(env.get("KUBERNETES_SERVICE_HOST"))
    signals = ("in a pod (KUBERNETES_SERVICE_HOST)",) if pod else ()
    lines = ask.command(env, ("kubectl", "get", "nodes", "--no-headers", "--request-timeout=2s"))
    if not lines:
        return Sighting(signals, pod)
    rows = [line.split() for line in lines if line.strip()]
    unfit = sum(1 for row in rows if len(row) > 1 and not row[1].startswith("Ready"))
    column = r"custom-columns=GPUS:.status.allocatable.nvidia\.com/gpu"
    found = ask.command(env, ("kubectl", "get", "nodes", "--no-headers", "--request-timeout=2s", "-o", column))
    counts = [int(line) for line in found or () if line.strip().isdigit()]
    signals = (*signals, f"kubectl shows {len(rows)} nodes")
    return Sighting(signals, pod, len(rows), unfit, sum(counts) if counts else None)


def slurm(env: Mapping[str, str]) -> Sighting:
    ours = SET_BY_ROTA if env.get("ROTA_JOB_ID") and env.get("ROTA_JOB_ID") == env.get("SLURM_JOB_ID") else ()
    named = [name for name in SLURM_VARIABLES if env.get(name) and name not in ours]
    signals = (f"{named[0]} is set",) if named else ()
    lines = ask.command(env, ("sinfo", "-h", "-N"))
    states = {row[0]: row[-1].lower() for row in map(str.split, lines or ()) if row}  # a node is in many partitions
    if not states:
        return Sighting(signals, bool(named))
    pairs = map(str.split, ask.command(env, ("sinfo", "-h", "-N", "-o", "%n %G")) or ())
    gres = {row[0]: row[1] for row in pairs if len(row) == 2}
    counts = [int(count) for text in gres.values() for count in GPUS_OF_GRES.findall(text)]
    unfit = sum(1 for state in states.values() if state.startswith(UNFIT) or state.endswith("*"))
    signals = (*signals, f"sinfo shows {len(states)} nodes")
    return Sighting(signals, bool(named), len(states), unfit, sum(counts) if gres else None)


def ray(env: Mapping[str, str]) -> Sighting:
    """RAY_ADDRESS, or a dashboard on this machine. Either must answer. A token is sent only where RAY_ADDRESS names the
    place: without it anybody could listen there."""
    address = env.get("RAY_ADDRESS", "").strip()
    host, port = _ray_place(address)
    if host is None or not (ask.answers(host, port) or (address and ask.answers(host, RAY_DASHBOARD))):
        return Sighting((f"RAY_ADDRESS is set, but nothing answers at {address[:100]}",) if address else ())
    token, source = _ray_token(env) if address else ("", "")
    board = _Dashboard(
        host,
        port if port not in (RAY_CLIENT, RAY_HEAD) else RAY_DASHBOARD,
        token,
        address.startswith("https:"),
        until=time.monotonic() + ask.ANSWER_S,
    )
    set_by = ("RAY_ADDRESS is set",) if address else ()
    if board.is_locked():
        why = f"refuses the token from {source}" if token else "wants a token: set RAY_ADDRESS and RAY_AUTH_TOKEN"
        return Sighting((f"Ray answers at {host}, and {why}", *set_by), bool(address), head=host, locked=True)
    nodes, gpus = _ray_totals(board)
    if not address and nodes is None:  # some program listens on that port, but it is not Ray
        return Sighting()
    return Sighting((f"Ray answers at {host}", *set_by), bool(address), nodes or 1, 0, gpus, host)


def _ray_place(address: str) -> tuple[str | None, int]:
    if address in ("", "auto", "local"):
        return "127.0.0.1", RAY_DASHBOARD
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        default = {"ray": RAY_CLIENT, "http": RAY_DASHBOARD, "https": RAY_DASHBOARD}.get(parts.scheme, RAY_HEAD)
        return parts.hostname, parts.port or default
    except ValueError:
        return None, 0


def _ray_token(env: Mapping[str, str]) -> tuple[str, str]:
    """Ray's token and where it is from, looked for as Ray does it; ("", "") without one."""
    if env.get("RAY_AUTH_TOKEN"):
        return env["RAY_AUTH_TOKEN"].strip(), "RAY_AUTH_TOKEN"
    for name, path in (
        ("RAY_AUTH_TOKEN_PATH", env.get("RAY_AUTH_TOKEN_PATH", "")),
        (f"~/{RAY_TOKEN_FILE}", f"{env['HOME']}/{RAY_TOKEN_FILE}" if env.get("HOME") else ""),
    ):
        with suppress(OSError, ValueError):
            if path:
                with open(path, encoding="ascii") as file:
                    token = file.read(MAX_TOKEN_BYTES).strip()
                if token:
                    return token, name
    return "", ""


@dataclass(frozen=True, slots=True)
class _Dashboard:
    """Ray's, with the token to show it."""

    host: str
    port: int
    token: str = field(repr=False)
    secure: bool
    until: float  # of time.monotonic: all that it is asked is answered by then, or not at all

    def get(self, path: str) -> tuple[int, Any]:
        return ask.get(self.host, self.port, path, token=self.token, secure=self.secure, until=self.until)

    def is_locked(self) -> bool:
        """Refuses as Ray does, and says of itself that it wants a token, which Ray tells everybody."""
        if self.get("/api/version")[0] not in (401, 403):
            return False
        mode = ask.get(self.host, self.port, "/api/authentication_mode", secure=self.secure, until=self.until)[1]
        return isinstance(mode, dict) and "authentication_mode" in mode


def _ray_totals(board: _Dashboard) -> tuple[int | None, int | None]:
    """Nodes and GPUs by the dashboard; None for what it does not say."""
    status, version = board.get("/api/version")
    if status != 200 or not isinstance(version, dict):
        return None, None
    gpus = nodes = None
    state = board.get("/api/cluster_status")[1]
    summary = board.get("/nodes?view=summary")[1]
    with suppress(*OTHERWISE_SHAPED):
        gpus = int(state["data"]["clusterStatus"]["loadMetricsReport"]["usage"].get("GPU", [0, 0])[1])
    with suppress(*OTHERWISE_SHAPED):
        nodes = sum(node.get("raylet", {}).get("state", "ALIVE") == "ALIVE" for node in summary["data"]["summary"])
    return nodes or 1, gpus


def local_gpus(count: Callable[[], int], hostname: str) -> Sighting:
    found = count()
    if not found:
        return Sighting()
    return Sighting((f"NVML shows {found} GPU{'s' if found > 1 else ''} here",), False, 1, 0, found, hostname)


def ssh_hosts(env: Mapping[str, str]) -> int:
    """Hosts with a name of their own in the ssh config; patterns are no hosts."""
    home = env.get("HOME")
    if not home:
        return 0
    try:
        with open(Path(home) / ".ssh" / "config", encoding="utf-8", errors="replace") as file:
            lines = file.read(MAX_SSH_CONFIG_BYTES).splitlines()
    except OSError:
        return 0
    hosts: set[str] = set()
    for line in lines:
        keyword, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        if keyword.lower() == "host":
            hosts |= {name for name in rest.replace('"', " ").split() if not set(name) & set("*?!")}
    return len(hosts)


def hostname() -> str:
    return os.uname().nodename
