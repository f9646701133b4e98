"""Whose connection is it? The kernel says, for those that come from this machine.

It is asked for the one socket by netlink (sock_diag), which costs the same however many sockets there are. Where that
does not answer, the table of all of them in /proc is read through.
"""

from __future__ import annotations

import ipaddress
import socket
import struct

TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
MAPPED = "::ffff:"

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
HEADER, REQUEST, ENDS, REST = struct.Struct("=IHHII"), struct.Struct("=BBBBI"), struct.Struct("!HH16s16s"), "=III"
ANY = 0xFFFFFFFF  # of states; as a cookie: none
ANSWER = struct.Struct("=BBBB48s5I")  # inet_diag_msg: family, state, timer, retransmits, ends, ..., uid, inode


def uid_at(near: tuple[str, int], far: tuple[str, int], *, quick: bool = False) -> int | None:
    """The account behind the socket that is connected from `near` to `far`. None also for one that its process has
    closed: the kernel shows such a socket as root's, whosever it was. `quick` does not read the table, whose length
    others decide."""
    found = _ask(near, far)
    return found if found is not None or quick else _search(near, far)


def _ask(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    addresses = [_address(address) for address, _ in (near, far)]
    if None in addresses or len({len(one or b"") for one in addresses}) > 1:
        return None
    family = socket.AF_INET if len(addresses[0] or b"") == 4 else socket.AF_INET6
    ends = ENDS.pack(near[1], far[1], addresses[0], addresses[1])
    request = REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, ANY) + ends + struct.pack(REST, 0, ANY, ANY)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.send(HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0) + request)
            answer = kernel.recv(8192, socket.MSG_DONTWAIT)  # it is there when `send` returns
    except OSError:  # this kernel does not answer such questions, or not just now
        return None
    if len(answer) < HEADER.size + ANSWER.size or HEADER.unpack_from(answer)[1] != SOCK_DIAG_BY_FAMILY:
        return None
    _, _, _, _, found, _, _, _, uid, inode = ANSWER.unpack_from(answer, HEADER.size)
    # where there is no such connection, the kernel may name one who listens at `near`
    return uid if inode and found[:4] == ends[:4] else None


def _address(text: str) -> bytes | None:
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return found.packed


def _search(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    for version, table in TABLES.items():
        ends = [_end(address, port, version) for address, port in (near, far)]
        if all(ends):
            found = _look(table, [end.encode() for end in ends])
            if found is not None:
                return found
    return None


def _look(table: str, ends: list[bytes]) -> int | None:
    try:
        with open(table, "rb") as file:
            for line in file:
                words = line.split()  # sl local remote state queues timer retransmits uid timeout inode
                if words[1:3] == ends and words[9] != b"0":
                    return int(words[7])
    except OSError:
        pass
    return None


def _end(address: str, port: int, version: int) -> str:
    """As the table writes it: words of the address in this machine's order. "" = it has no place in this table."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(found, ipaddress.IPv6Address) and version == 4:
            found = found.ipv4_mapped or found
        elif isinstance(found, ipaddress.IPv4Address) and version == 6:
            found = ipaddress.ip_address(MAPPED + str(found))
    except ValueError:
        return ""
    if found.version != version:
        return ""
    words = struct.unpack(f"={len(found.packed) // 4}I", found.packed)
    return "".join(f"{word:08X}" for word in words) + f":{port:04X}"
