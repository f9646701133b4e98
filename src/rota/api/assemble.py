"""From the parts of a running Rota to a house with doors; and what is said when they open."""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rota import __version__
from rota.api import tokens
from rota.api.gate import Gate
from rota.api.house import House
from rota.api.hub import Hub
from rota.api.serve import Sockets, is_loopback
from rota.app.authz import Principal, Role
from rota.app.commands import Pause, PutRecord, Resume, SetPolicy
from rota.app.errors import CannotStart
from rota.app.leases import Leases
from rota.app.ports import Detector, Processes, Samples
from rota.app.service import Service
from rota.config import Settings, default_data_dir
from rota.core.policy import Ordering, Policy
from rota.core.presets import named
from rota.user_ids import FIRST_PERSON

log = logging.getLogger(__name__)

HOUSE = Principal("rota", Role.ADMIN)
PLAIN_NAMES = ("priority", "fcfs", "sjf", "fair_share")
STARTED_PAUSED = "the server was started with scheduling off"
ADMIN_TOKEN = "admin.token"  # noqa: S105 - the name of a file
SECRET_BYTES = 32


def open_house(
    *,
    service: Service,
    leases: Leases,
    processes: Processes,
    samples: Samples,
    detector: Detector,
    settings: Settings,
    for_machine: bool = False,
) -> House:
    """`for_machine` = root has set this server up for all accounts, whichever account it runs as."""
    gate = Gate(
        service,
        shared=settings.shared_token,
        secret=_own_secret(settings.data_dir / "session.key"),
        server_uid=os.geteuid(),
        account=processes.account,
        login_tries=settings.login_tries,
        for_machine=for_machine,
    )
    if not is_loopback(settings.host) and not gate.closed:
        raise CannotStart(
            f"refusing to listen on {settings.host} without any token: whoever reaches it could run commands here. "
            "Make one first: rota token create --user NAME --role admin (or set RESEARCH_AGENT_USER_AUTH_TOKEN)"
        )
    _apply(service, settings)
    return House(
        service=service,
        leases=leases,
        processes=processes,
        samples=samples,
        detector=detector,
        settings=settings,
        gate=gate,
        hub=Hub(service),
        started_at=time.time(),
        skills=Path(__file__).with_name("skills"),
        version=__version__,
    )


def _apply(service: Service, settings: Settings) -> None:
    """What the start says about scheduling. Without a word it stays as it was left."""
    view = service.view()
    if not settings.scheduling:
        service.do(HOUSE, Pause(STARTED_PAUSED))
    elif view.paused and view.pause_why == STARTED_PAUSED:
        service.do(HOUSE, Resume())
    wanted = _named(settings.ordering, view.policy)
    if wanted != view.policy:
        service.do(HOUSE, SetPolicy(wanted))


def _named(name: str, policy: Policy) -> Policy:
    """The four names that servers of this field know say who is next, and leave the rest as it was set."""
    if not name:
        return policy
    return replace(policy, ordering=Ordering(name)) if name in PLAIN_NAMES else named(name, policy)


def _own_secret(path: Path) -> bytes:
    """Return what signs browser sessions, so that they outlive a restart. One that was cut short could be guessed."""
    if path.exists():
        # anything but a file is replaced: to read a FIFO would wait for ever
        secret = path.read_bytes() if path.is_file() else b""
        if len(secret) >= SECRET_BYTES:
            return secret
        log.error("%s is damaged: a new one is made, and people have to log in again", path)
    secret = secrets.token_bytes(SECRET_BYTES)
    _write(path, secret)
    return secret


def _write(path: Path, content: bytes) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def admin_token(house: House) -> tokens.Token:
    """The one whose secret lies in the data directory; made the first time, and again when it is no longer good."""
    path = house.settings.data_dir / ADMIN_TOKEN
    try:
        digest = tokens.hash_of(path.read_text("utf-8", errors="replace").strip())
    except FileNotFoundError:
        digest = ""
    now = time.time()
    for token in house.gate.all_tokens():
        if token.hash == digest and token.role is Role.ADMIN and token.valid(now):
            return token
    secret, token = tokens.make(_me(), Role.ADMIN, now, note="made by rota up")
    house.service.do(HOUSE, PutRecord(token.draft(), fresh=True))
    house.gate.learn(token)
    _write(path, secret.encode() + b"\n")
    return token


def _me() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return "admin"


# -- what is said ---------------------------------------------------------------------------------------------------
def url_of(house: House, sockets: Sockets) -> str:
    if house.settings.server_url:
        return house.settings.server_url.rstrip("/")
    host = house.settings.host
    shown = "127.0.0.1" if host in ("0.0.0.0", "::", "localhost") else host  # noqa: S104 - read, not bound
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{sockets.main.getsockname()[1]}"


def announce(house: House, sockets: Sockets, say: Callable[[str], None], *, friendly: bool) -> None:
    for line in _lines(house, sockets, friendly):
        say(line)


def _lines(house: House, sockets: Sockets, friendly: bool) -> Iterator[str]:
    url = url_of(house, sockets)
    view = house.service.view()
    kind = "SIMULATED GPU" if any(node.simulated for node in view.nodes.values()) else "GPU"
    gpus, nodes = view.total_gpus(), len(view.nodes)
    yield f"Rota {house.version} at {url}: {nodes} node{'s' * (nodes != 1)}, {gpus} {kind}{'s' * (gpus != 1)}"
    if sockets.lease is not None:
        yield f"  lease door  {house.settings.host}:{sockets.lease.getsockname()[1]} (srun, rota run)"
    yield f"  data        {house.settings.data_dir}"
    if view.paused:
        resume = (
            "make room, it goes on by itself"
            if view.resumes_itself
            else f"resume: curl -X POST {url}/orchestrator/start"
        )
        yield f"  PAUSED      {view.pause_why}; {resume}"
    if friendly:
        token = admin_token(house)
        yield f"  log in      {url}/login?code={house.gate.new_code(token.id)}   (once, within an hour)"
        yield f"  admin token {house.settings.data_dir / ADMIN_TOKEN}   (for X-Auth-Token)"
        yield f"  reference   {url}/docs"
        yield "Try, in another terminal:"
        hello = "sh -c 'echo my GPUs are $CUDA_VISIBLE_DEVICES'"
        yield f"  {_command(house, sockets)} submit --follow -G {min(gpus, 2)} -- {hello}"
        yield "Ctrl-C stops the server; running jobs run on."
    elif not house.gate.closed:
        yield "  OPEN        no token is set: whoever can connect to this port may run commands as this account."
        if _others():
            yield (
                "              Other people have accounts on this machine and could do so; "
                "make a token: rota token create --user NAME --role admin"
            )


def _command(house: House, sockets: Sockets) -> str:
    """`rota`, as it reaches this server from another terminal."""
    rota = sys.argv[0] if sys.argv[0].endswith("rota") else "rota"
    shown = os.path.relpath(rota) if os.path.isabs(rota) and os.path.relpath(rota)[:2] != ".." else rota
    where = house.settings.data_dir.absolute()
    if sockets.unix is None:
        token = f'"$(cat {shlex.quote(str(where / ADMIN_TOKEN))})"'
        return f"ROTA_URL={shlex.quote(url_of(house, sockets))} ROTA_TOKEN={token} {shlex.quote(shown)}"
    usual = default_data_dir({name: value for name, value in os.environ.items() if name != "ROTA_DATA_DIR"})
    if where == usual.absolute():  # which a terminal without the variables of this one finds by itself
        return shlex.quote(shown)
    return f"ROTA_URL={shlex.quote(f'unix://{where}/rota.sock')} {shlex.quote(shown)}"


def _others() -> bool:
    me = os.geteuid()
    return any(FIRST_PERSON <= one.pw_uid < 60_000 and one.pw_uid != me for one in pwd.getpwall())
