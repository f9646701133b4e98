"""Sockets that another process opened and passed on: systemd's protocol for that, sd_listen_fds(3).

They are there before the server and stay when it goes: a client that connects while it restarts waits instead of being
refused, and nobody else can have the port meanwhile.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from rota.app.errors import CannotStart

FIRST = 3
MOST = 16
NAMES = ("main", "lease", "unix")  # LISTEN_FDNAMES; any other name says nothing
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


def passed(env: MutableMapping[str, str], port: int, lease_port: int) -> dict[str, socket.socket]:
    """The sockets that were passed, by what they are for: main, lease, unix. A socket is known by its name, else by its
    kind and port. The variables are taken out of `env`, whether they were meant for this process or not, and the
    sockets are closed in programs that it starts: no job listens there."""
    pid, count, names = (env.pop(name, "") for name in VARIABLES)
    if pid != str(os.getpid()):
        return {}
    if not count.isdigit() or int(count) > MOST:
        raise CannotStart(f"LISTEN_FDS: {count[:20]!r} is not a number of sockets from 0 to {MOST}")
    called = names.split(":") if names else []
    found: dict[str, socket.socket] = {}
    try:
        for index in range(int(count)):
            one = _opened(FIRST + index)
            name = called[index] if index < len(called) else ""
            use = name if name in NAMES else _use(one, port, lease_port)
            if use in found:
                one.close()
                raise CannotStart(f"two sockets were passed for the same use ({use}); one is enough")
            found[use] = one
    except BaseException:
        for one in found.values():
            one.close()
        raise
    return found


def is_roots(unix: socket.socket) -> bool:
    """Return whether root made this unix socket, as it does for a service of the machine: the manager of a person's own
    services makes it as that person."""
    try:
        return os.stat(unix.getsockname()).st_uid == 0
    except (OSError, ValueError):  # of no file (an abstract name has a NUL in it), or one that is gone
        return False


def _opened(number: int) -> socket.socket:
    try:
        os.set_inheritable(number, False)
        one = socket.socket(fileno=number)
    except OSError as error:
        raise CannotStart(f"descriptor {number} was passed (LISTEN_FDS) but is no socket: {error.strerror}") from error
    if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        one.close()
        raise CannotStart(f"descriptor {number} was passed (LISTEN_FDS) but does not listen; use ListenStream=")
    return one


def _use(one: socket.socket, port: int, lease_port: int) -> str:
    if one.family == socket.AF_UNIX:
        return "unix"
    host, number = one.getsockname()[:2]
    if number == port:
        return "main"
    if number == lease_port:
        return "lease"
    one.close()
    raise CannotStart(
        f"a socket on {host} port {number} was passed (LISTEN_FDS), which is neither --port ({port}) nor --lease-port "
        f"({lease_port}); make the ports in rota.socket and in the server's settings the same: rota service install"
    )
