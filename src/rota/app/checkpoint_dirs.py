"""Where each run keeps what it saves from one attempt to the next.

On a server that is root those of an account lie in a directory `of-ACCOUNT`, which no other account can search. To make
or remove a directory waits for the lock of the one above, and whoever can search that one can hold its lock for long: a
rename takes it before any right is checked, and then waits for a directory that is being listed slowly. So an account
can make nobody wait but itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rota.app.ports import ACCOUNT_CHECKPOINTS


class CheckpointDir(NamedTuple):
    path: str
    parent: str | None  # of all directories of its account; None = it lies beside those of all others


@dataclass(frozen=True, slots=True)
class CheckpointDirs:
    root: str
    own: str = ""  # of a server that is root: what its account is called; "" = all runs have the server's own account
    earlier: frozenset[str] = frozenset()  # runs whose directory an earlier version made, and which stays where it is

    def of(self, run_id: str, account: str | None) -> CheckpointDir:
        """Return the directory of a run that has this account (None = the server's own)."""
        if not self.own or run_id in self.earlier:
            return CheckpointDir(f"{self.root}/{run_id}", None)
        name = (account or self.own).replace("/", "%2F")
        parent = f"{self.root}/{ACCOUNT_CHECKPOINTS}{name}"
        return CheckpointDir(f"{parent}/{run_id}", parent)
