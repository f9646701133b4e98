"""Who runs as whom. A run has a unix account, and with it all that account may do, so nobody but an admin chooses one.

Only a server that is root has a choice at all; elsewhere every run has the server's own account.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rota.app.authz import Principal, Role
from rota.app.errors import Forbidden
from rota.core.run import Run

SOMEBODY_ELSE = (
    "use a token of a person who has another account on this machine, or of their agent (`--for PERSON`), "
    "or let the server be started with --run-as ACCOUNT"
)


def _nobodys(account: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a server knows of the accounts of its machine."""

    root: bool = False  # it is root
    own: str = ""  # what its own account is called
    run_as: str = ""  # of a server that is root: for people who have no account here
    is_persons: Callable[[str], bool] = _nobodys  # there is such an account, and it is not root's. Quick: it is cached

    def is_personal(self, account: str) -> bool:
        """Tell whether one person's runs alone have it: not `run_as`, nor the server's own, which admins use."""
        return self.root and account not in (self.own, self.run_as)

    def choose(self, who: Principal, asked: str | None) -> str | None:
        """The account a run of this caller gets; None = the server's own."""
        if not self.root:
            if asked and asked != self.own:
                raise Forbidden("account: this server does not run as root, so every run has its account", "account")
            return None
        if who.role is Role.ADMIN:
            return asked or None
        may = self._of(who)
        if asked and asked not in may:
            raise Forbidden(f"account: {who.name} may run as {may[0]}, not as {asked[:50]!r}; ask an admin", "account")
        return asked or may[0]

    def warning(self, owner: str) -> str:
        """For whoever lets somebody in; "" where there is nothing to say."""
        if not self.root or self._found(owner):
            return ""
        if owner == self.own:
            return f"only an admin runs anything as {owner}; {SOMEBODY_ELSE}"
        return f"{owner} cannot run anything here without an account on this machine, or a server with --run-as ACCOUNT"

    def must_be_own(self, who: Principal, run: Run) -> None:
        """Before the command of a run is changed or repeated: one that an admin made for somebody may have the server's
        own account, and a new command must not get it."""
        if self.root and who.role is not Role.ADMIN and run.spec.account not in self._of(who):
            raise Forbidden(f"run {run.id} does not run as {who.owner}; ask an admin to change or repeat it", "account")

    def _of(self, who: Principal) -> list[str]:
        """Those a person may run as, the first where nothing is said; never none."""
        found = self._found(who.owner)
        if not found and who.owner == self.own:
            raise Forbidden(f"{who.name} ({who.role}) may not run anything as {self.own}; {SOMEBODY_ELSE}")
        if not found:
            raise Forbidden(
                f"{who.owner} has no account on this machine to run as; make one, "
                "or let the server be started with --run-as ACCOUNT"
            )
        return found

    def _found(self, owner: str) -> list[str]:
        """Return the person's own account; `run_as` is only for those who have none: runs of others have it, too."""
        return [name for name in (owner, self.run_as) if name and self.is_persons(name)][:1]


ONE_FOR_ALL = Accounts()  # of a server that is not root
