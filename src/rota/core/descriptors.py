"""How one process shares out its file descriptors: connections may not have those that the work itself needs.

The kernel gives the lowest number that is free, so the number of a new descriptor tells how many are in use at least.
A bound on that number therefore keeps the rest free, whatever else is open.
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


def shares(limit: int) -> Shares:
    reserve = min(MOST_RESERVE, max(limit // 8, min(LEAST_RESERVE, limit // 2)))
    connections = limit - reserve
    return Shares(limit, connections, connections * 2 // 3, limit - reserve // 2)
