"""Whose connection is it? The kernel's table of TCP sockets of this machine says, for those that come from here."""

from __future__ import annotations

import ipaddress
import struct

TABLES = {4: "/proc/net/tcp", 6: "/proc/net/tcp6"}
MAPPED = "::ffff:"


def uid_at(near: tuple[str, int], far: tuple[str, int]) -> int | None:
    """The account behind the socket that is connected from `near` to `far`. None also for one that its process has
    closed: the table shows such a socket as root's, whosever it was."""
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
