"""One TCP socket of this machine as the kernel's tables show it: its state, its account and its inode.

The kernel is asked for one socket by its two ends (netlink, sock_diag), which costs the same however many there are.
Where it does not know that protocol, /proc/net/tcp is read from the top. Only sockets of this network namespace are
seen. The server looks at its callers this way and a client at who listens, so only cheap standard modules are imported.

Any account may bind a socket to a device (SO_BINDTODEVICE). The kernel finds such a socket only if the question names
the device, which is the one that has the socket's address: nothing else reaches it. It also lets another socket have
the same two ends meanwhile. That one cannot be connected, since the far end has one socket for both: it waits for an
answer to its SYN. So a socket in that state says nothing of the account that is connected.
"""

from __future__ import annotations

import errno
import socket
import struct

End = tuple[str, int]  # address and port

# states; include/net/tcp_states.h
ESTABLISHED, SYN_SENT, SYN_RECV, FIN_WAIT1, FIN_WAIT2, CLOSE_WAIT, LISTEN, NEW_SYN_RECV = 1, 2, 3, 4, 5, 8, 10, 12
UNCONNECTED = (SYN_SENT, SYN_RECV, LISTEN, NEW_SYN_RECV)  # the kernel names a listener for want of better
TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
ANYWHERE = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}  # noqa: S104 - looked for, not bound
_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2
_ANY_DEVICE, _LOOPBACK = 0, 1  # the loopback device has the same number in every network namespace
_GET_ROUTE, _NEW_ROUTE, _FIB_MATCH, _TO, _BY_DEVICE, _TYPE_LOCAL = 26, 24, 0x2000, 1, 4, 2  # linux/rtnetlink.h
_ALL, _ANY_COOKIE = 0xFFFFFFFF, b"\xff" * 8
_IPV6_LOOPBACK = b"\0" * 15 + b"\1"
_MAPPED = b"\0" * 10 + b"\xff\xff"  # an IPv4 address as IPv6 writes it


class Socket:
    """What is known of it. `inode` is 0 for one that belongs to no process: not accepted yet, or closed by its own; the
    kernel then shows it as root's, whosever it is."""

    __slots__ = ("inode", "state", "uid")

    def __init__(self, state: int, uid: int, inode: int) -> None:
        self.state, self.uid, self.inode = state, uid, inode


def connected(near: End, far: End, *, quick: bool = False) -> Socket | None:
    """The socket of this machine that is connected from `near` to `far`. `quick` does not read the tables, whose length
    others decide."""
    family, here, there = _ends(near, far)
    if not here or not there:
        return None
    found = _ask(family, _ANY_DEVICE, (here, near[1]), (there, far[1]))
    if found is None or found.state in UNCONNECTED:
        device = _device_of(family, here)
        found = _ask(family, device, (here, near[1]), (there, far[1])) if device else None
    if found is None and not quick:
        found = _read(family, near, far)
    return None if found is None or found.state in UNCONNECTED else found


def listening(at: End) -> Socket | None:
    """The socket of this machine that takes connections to this address."""
    family, here, nowhere = _ends(at, (ANYWHERE[socket.AF_INET6 if ":" in at[0] else socket.AF_INET], 0))
    if not here or not nowhere:
        return None
    found = _ask(family, _ANY_DEVICE, (here, at[1]), (nowhere, 0))
    if found is None and (device := _device_of(family, here)):
        found = _ask(family, device, (here, at[1]), (nowhere, 0))
    if found is None:
        found = _read(family, at, None)
    return None if found is None or found.state != LISTEN else found


def is_spoken() -> bool:
    """Return whether the kernel finds sockets by their ends. Where it does, one that it does not find is not looked for
    in the tables by a server: their length is others' choice."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as known:
            at: End = known.getsockname()
            family, here, nowhere = _ends(at, (ANYWHERE[socket.AF_INET], 0))
            return _ask(family, _ANY_DEVICE, (here, at[1]), (nowhere, 0)) is not None
    except OSError:  # no descriptor, or no loopback: nothing can be said
        return False


def _ends(near: End, far: End) -> tuple[socket.AddressFamily, bytes, bytes]:
    here, there = _packed(near[0]), _packed(far[0])
    if len(here) != len(there) and b"" not in (here, there):
        return socket.AF_INET, b"", b""
    return socket.AF_INET if len(here) == 4 else socket.AF_INET6, here, there


def _packed(address: str) -> bytes:
    """4 or 16 bytes, an IPv4 address always as 4; none for what is no address."""
    try:
        if ":" not in address:
            return socket.inet_pton(socket.AF_INET, address)
        raw = socket.inet_pton(socket.AF_INET6, address.partition("%")[0])
    except (OSError, ValueError):
        return b""
    return raw[12:] if raw.startswith(_MAPPED) else raw


def _ask(family: int, device: int, near: tuple[bytes, int], far: tuple[bytes, int]) -> Socket | None:
    """None also where the kernel does not speak this protocol: it says "no such thing" in either case. A `device` finds
    sockets that are bound to it, and those that are bound to none."""
    wanted = struct.pack("=BBBxI", family, socket.IPPROTO_TCP, 0, _ALL) + struct.pack("!HH", near[1], far[1])
    wanted += near[0].ljust(16, b"\0") + far[0].ljust(16, b"\0") + struct.pack("=I", device) + _ANY_COOKIE
    answer = _answer(_NETLINK_SOCK_DIAG, _BY_FAMILY, wanted)
    _, kind = struct.unpack_from("=IH", answer)
    if kind != _BY_FAMILY or len(answer) < 16 + 72:
        return None
    uid, inode = struct.unpack_from("=II", answer, 16 + 64)
    return Socket(answer[17], uid, inode)


def _device_of(family: int, address: bytes) -> int:
    """The device that has this address; 0 = it is no address of this machine."""
    if (address[0] == 127) if len(address) == 4 else (address == _IPV6_LOOPBACK):
        return _LOOPBACK
    wanted = struct.pack("=8BI", family, 8 * len(address), 0, 0, 0, 0, 0, 0, _FIB_MATCH)
    wanted += struct.pack("=HH", 4 + len(address), _TO) + address
    answer = _answer(socket.NETLINK_ROUTE, _GET_ROUTE, wanted)
    _, kind = struct.unpack_from("=IH", answer)
    if kind != _NEW_ROUTE or len(answer) < 28 or answer[16 + 7] != _TYPE_LOCAL:
        return 0
    at = 28
    while at + 8 <= len(answer):
        length, its_kind = struct.unpack_from("=HH", answer, at)
        if its_kind == _BY_DEVICE:
            return int(struct.unpack_from("=I", answer, at + 4)[0])
        at += max(4, length + 3 & ~3)
    return 0


def _answer(protocol: int, kind: int, wanted: bytes) -> bytes:
    """What netlink says to one question; an error, as netlink writes it, where it says nothing."""
    head = struct.pack("=IHHII", 16 + len(wanted), kind, _REQUEST, 1, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as link:
            link.send(head + wanted)
            return link.recv(8192, socket.MSG_DONTWAIT)  # it is there when `send` returns
    except OSError:
        return struct.pack("=IHHII", 16, _ERROR, 0, 1, 0)


def _read(family: int, near: End, far: End | None) -> Socket | None:
    """The same from the tables; `far` None = one that listens. What an IPv6 socket does with IPv4 is in its table."""
    for its_family in (socket.AF_INET, socket.AF_INET6) if family == socket.AF_INET else (socket.AF_INET6,):
        locals_ = {_written(near, its_family)}
        remote = _written(far, its_family) if far is not None else None
        if far is None:
            locals_.add(_written((ANYWHERE[its_family], near[1]), its_family))
        try:
            with open(TABLES[its_family], "rb") as table:
                for line in table:
                    words = line.split()  # sl local remote state queues timer retransmits uid timeout inode
                    if words[1] not in locals_ or (remote is not None and words[2] != remote):
                        continue
                    state = int(words[3], 16)
                    if state == LISTEN if remote is None else state not in UNCONNECTED:
                        return Socket(state, int(words[7]), int(words[9]))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EACCES):
                raise
    return None


def _written(end: End, family: int) -> bytes:
    """As the tables write it: words of the address in this machine's order."""
    raw = _packed(end[0])
    if family == socket.AF_INET6 and len(raw) == 4:
        raw = _MAPPED + raw
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return ("".join(f"{word:08X}" for word in words) + f":{end[1]:04X}").encode()
