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
from dataclasses import dataclass

NAME = "rota.gpus"
TABLE = "/proc/net/unix"
MAX_INODE = 0xFFFFFFFF
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
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

    The table is text, and an abstract name may contain anything, also lines that look like another socket's. So the
    table only says which sockets to ask for; each is asked by netlink for the name it really has.
    """
    wanted = name.encode()
    with open(TABLE, "rb") as table:
        lines = [line.split() for line in table if wanted in line]
    for inode in {
        words[6] for words in lines if len(words) >= 8
    }:  # number, references, protocol, flags, type, state, inode
        if inode.isdigit() and int(inode) <= MAX_INODE:
            found = _ask(int(inode), b"\0" + wanted)
            if found is not None:
                return found
    return Holder(None, listens=False) if lines else None


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


def _ask(inode: int, name: bytes) -> Holder | None:
    """Look at one socket; None when it does not have this name."""
    wanted = struct.pack("=BBHIII", socket.AF_UNIX, 0, 0, _ALL, inode, _SHOW_NAME | _SHOW_UID) + _ANY_COOKIE
    head = struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
            link.send(head + wanted)
            answer = link.recv(8192, socket.MSG_DONTWAIT)
    except OSError:
        return None
    length, kind = struct.unpack_from("=IH", answer)
    if kind != _BY_FAMILY:
        return None
    state = answer[16 + 2]  # after the family and the type
    attributes: dict[int, bytes] = {}
    at = 32  # after both heads
    while at + 4 <= min(length, len(answer)):
        size, attribute = struct.unpack_from("=HH", answer, at)
        attributes[attribute] = answer[at + 4 : at + size]
        at += max(4, (size + 3) & ~3)
    if attributes.get(_NAME) != name:
        return None
    uid = attributes.get(_UID)
    return Holder(None if uid is None else int(struct.unpack("=I", uid)[0]), state == _LISTEN)
