"""May whoever answers at this address be sent a token, or a run with its environment?

A port of this machine is anybody's while its server is down: another account could listen there, collect tokens and the
secrets in the environments of runs, and acknowledge runs that are nowhere. So before a request goes out over an
unencrypted connection to this machine, or a token to a unix socket, the kernel is asked whose socket is at the other
end. It must be root's, one's own (an ssh tunnel is), the system account `rota`, or that of an account that was named
(ROTA_SERVER_ACCOUNT, or `rota login --server-account`; by an admin for everybody: /etc/rota/server-account). Under
https the certificate answers the question; of another machine's sockets this kernel knows nothing.

In a user namespace (Apptainer, bubblewrap, a rootless container on the host's network) the kernel shows every account
that has no number there as the overflow number, root as well. It then says nothing of the other end, so all is
sent, as it is to other machines: nobody else can put this process into such a namespace.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from rota import sock_diag
from rota.client.address import Address, config_file
from rota.client.errors import Untrusted
from rota.user_ids import FIRST_PERSON, is_unmapped

VARIABLE = "ROTA_SERVER_ACCOUNT"
FILE = "server-account"
SYSTEM_FILE = "/etc/rota/server-account"  # root's word for everybody on this machine
ROOT = 0
USUAL = "rota"
MAX_FILE = 4096


def must_be_trusted(address: Address, link: Any, env: Mapping[str, str] | None = None) -> None:
    """Raise Untrusted where the socket at the other end of `link` belongs to an account that nothing is for."""
    env = os.environ if env is None else env
    if address.tls:
        return
    uid = _unix_peer(link) if address.socket else _stranger(link, env)
    if uid is None or is_trusted(uid, env) or is_unmapped(uid):
        return
    name = _name(uid)
    said = name or str(uid)
    raise Untrusted(
        f"{address} is held by the account {name or f'uid{uid}'}, which is neither root nor yours, so your request was "
        f"not sent there; if that account runs your Rota server, say so once: `rota login --server-account {said}`, or "
        f"{VARIABLE}={said}, or an admin for everybody in {SYSTEM_FILE}; else the "
        f"server is down and somebody else has its port: tell your admin"
    )


def _unix_peer(link: Any) -> int:
    """The account that listens at a unix socket."""
    uid: int = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    return uid


def _stranger(link: Any, env: Mapping[str, str]) -> int | None:
    """The account at the other end of a TCP connection if it is not to be trusted; None also where the kernel says
    nothing: the other end is on another machine, or root has forwarded the port (into a container, say).

    Whoever took the call decides. While nobody has, and where a service of the system did (systemd opens sockets as
    root and hands them on), it is who listens: a call that waits is in the queue of just that listener."""
    try:
        near, far = link.getsockname()[:2], link.getpeername()[:2]
    except OSError:  # it was closed on us: there is nobody to send to
        return None
    if not _is_here(near[0], far[0]):
        return None
    taken = sock_diag.connected(far, near)
    if taken is not None and taken.inode and is_trusted(taken.uid, env):
        return None
    listener = sock_diag.listening(far)
    taken = sock_diag.connected(far, near)
    by = taken.uid if taken is not None and taken.inode else None
    if by is not None and (is_trusted(by, env) or listener is None or by >= FIRST_PERSON):
        return by
    return listener.uid if listener is not None else by


def _is_here(near: str, far: str) -> bool:
    return near == far or far.startswith(("127.", "::ffff:127.")) or far == "::1"


def is_trusted(uid: int, env: Mapping[str, str]) -> bool:
    if uid in (ROOT, os.geteuid()):
        return True
    if any(_number(name) == uid for name in _named(env)):
        return True
    return uid < FIRST_PERSON and _number(USUAL) == uid


def _named(env: Mapping[str, str]) -> list[str]:
    """The accounts that were said to run the server: by oneself, and by an admin for the whole machine."""
    text = (env.get(VARIABLE) or _kept(account_file(env))) + "," + _kept(SYSTEM_FILE)
    return [word.strip() for word in text.replace("\n", ",").split(",") if word.strip()]


def account_file(env: Mapping[str, str]) -> str:
    """Where `rota login --server-account` keeps it; "" for somebody without a home."""
    return config_file(env, FILE)


def _kept(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MAX_FILE)
    except OSError:
        return ""


def _number(account: str) -> int | None:
    if account.isascii() and account.isdigit():
        return int(account)
    entry = _entry(account)
    return entry.pw_uid if entry is not None else None


def _entry(account: str) -> Any:
    import pwd

    try:
        return pwd.getpwnam(account)
    except (KeyError, ValueError):
        return None


def _name(uid: int) -> str:
    """ "" where the account has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""
