"""The lock that servers of the previous release held: one abstract socket for all GPUs of the machine.

It is held and asked for during one release, so that a server of the previous release and one of this do not give out
the same GPUs. Servers of this release listen on it, those of the previous one did not: that tells them apart. Any
account can take the name, so only root's and our own keep a server from starting.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

NAME = "rota.gpus"
TABLE = "/proc/net/unix"
LOOKS = 3
DUMP_S = 5.0  # of one look: 100,000 sockets take less than one
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST, _DUMP, _DONE = 4, 20, 0x1, 0x300, 3
_ALL, _ANY_COOKIE = 0xFFFFFFFF, b"\xff" * 8
_SHOW_NAME, _NAME = 0x01, 0  # UDIAG_SHOW_NAME and UNIX_DIAG_NAME
_SHOW_UID, _UID = 0x40, 7  # UDIAG_SHOW_UID and UNIX_DIAG_UID; Linux 5.3 and later
_LISTEN = 10  # TCP_LISTEN, which sockets of this family have too

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    uid: int | None  # None = the kernel does not tell
    listens: bool


def hold(name: str = NAME) -> socket.socket | None:
    """Take the name; None when another process has it."""
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0{name}")
        held.listen(0)
    except OSError as error:
        held.close()
        if error.errno != errno.EADDRINUSE:
            raise
        return None
    return held


def holder(name: str = NAME) -> Holder | None:
    """Return who has the name; None = nobody.

    The kernel is asked for all sockets at once: to ask for one by its number takes it as long, and any account can make
    very many that look like the one. A dump goes on from where the last part ended, by count, so that it can pass over
    a socket when others are closed meanwhile. Hence it is repeated before nobody is said to have the name."""
    try:
        for _ in range(LOOKS):
            with closing(_named(b"\0" + name.encode())) as found:
                for each in found:
                    return each
    except OSError:  # the kernel does not speak this protocol, or there was no end to it
        with open(TABLE, "rb") as table:
            # The table is text, and an abstract name may contain anything, also lines that look like another socket's.
            return Holder(None, listens=False) if any(name.encode() in line for line in table) else None
    return None


def old_server(name: str = NAME) -> int | None:
    """Return the account of a server of the previous release that gives out this machine's GPUs; None = there is none.
    Root's and our own count; another account's is only mentioned."""
    found = holder(name)
    if found is None or found.listens:
        return None
    if found.uid in (0, os.geteuid()):
        return found.uid
    whose = "an unknown account" if found.uid is None else f"user id {found.uid}"
    log.warning("%s holds the lock of older Rota servers (@%s); if it is one, it may give out our GPUs", whose, name)
    return None


def _named(name: bytes) -> Generator[Holder, None, None]:
    """Yield the sockets that are bound to this name. A socket of another kind may have it as well, and one that waits
    to be accepted has that of the listener, but no number."""
    wanted = struct.pack("=BBHIII", socket.AF_UNIX, 0, 0, _ALL, 0, _SHOW_NAME | _SHOW_UID) + _ANY_COOKIE
    head = struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _REQUEST | _DUMP, 1, 0)
    give_up = time.monotonic() + DUMP_S
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
        link.settimeout(DUMP_S)
        link.send(head + wanted)
        while time.monotonic() < give_up:
            answer, at = link.recv(1 << 16), 0
            while at + 16 <= len(answer):
                length, kind = struct.unpack_from("=IH", answer, at)
                if kind == _DONE:
                    return
                if kind != _BY_FAMILY or length < 32:
                    raise OSError(errno.EPROTONOSUPPORT, os.strerror(errno.EPROTONOSUPPORT))
                _, socket_kind, state, inode = struct.unpack_from("=BBBxI", answer, at + 16)
                if socket_kind == socket.SOCK_STREAM and inode:
                    attributes = _attributes(answer[at + 32 : at + length])
                    if attributes.get(_NAME) == name:
                        uid = attributes.get(_UID)
                        yield Holder(None if uid is None else int(struct.unpack("=I", uid)[0]), state == _LISTEN)
                at += (length + 3) & ~3
    raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def _attributes(raw: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(raw):
        size, attribute = struct.unpack_from("=HH", raw, at)
        found[attribute] = raw[at + 4 : at + size]
        at += max(4, (size + 3) & ~3)
    return found
