"""How one process shares out its file descriptors: connections may not have those that the work itself needs.

The kernel gives the lowest number that is free, so the number of a new descriptor tells how many are in use at least.
A bound on that number therefore keeps the rest free, whatever else is open. Watched processes are counted as well:
their number is up to the accounts, and without a bound they would take the descriptors of connections.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

HIGHEST = 65_536  # what a server asks for where it may have more
LEAST_RESERVE, MOST_RESERVE = 256, 2048
SHORTAGE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # errors that say nothing of what was asked for


@dataclass(frozen=True, slots=True)
class Shares:
    limit: int  # what the process may have open
    connections: int  # a connection's number is below this
    per_peer: int  # connections of one account or address
    processes: int  # a watched process's number is below this; what is above is for files and launches
    holders: int  # watched processes that hold or wait for a lease
    families: int  # watched descendants of those
    idle: int = 0  # processes that are kept open for a while after a look
    pins: int = 0  # checkpoint directories of accounts that are kept open

    def of_one(self, share: int) -> int:
        """Return the part of a share that one account may have."""
        return share * 2 // 3


def shares(limit: int) -> Shares:
    reserve = min(MOST_RESERVE, max(limit // 8, min(LEAST_RESERVE, limit // 2)))
    connections = limit - reserve
    # A quarter: one account that has two thirds of the connections and all watches leaves descriptors to the others.
    watches = connections // 4
    families = watches // 4
    return Shares(
        limit,
        connections=connections,
        per_peer=connections * 2 // 3,
        processes=limit - reserve // 2,
        holders=watches - families,
        families=families,
        idle=families,
        pins=reserve // 4,
    )
