"""Every way Rota says no. A refusal names the field, what is wrong and what would be right, and has changed nothing."""

from __future__ import annotations


class Refused(Exception):
    """Base of all refusals; `code` is stable for programs, the text is for people."""

    code = "refused"

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class Invalid(Refused):
    code = "invalid"


class NotFound(Refused):
    code = "not_found"


class Forbidden(Refused):
    code = "forbidden"


class Conflict(Refused):
    """Right in itself, but not in the state things are in."""

    code = "conflict"


class Changed(Conflict):
    """What was to be written over is no longer what the caller has read."""


class Full(Refused):
    """A bound was reached: the queue, a person's share of it, the inbox."""

    code = "full"


class Unavailable(Refused):
    """The store or the server cannot take it now; the same call may be sent again."""

    code = "unavailable"


class NoSpace(Refused):
    """The disk is below its floor: only ends are taken in until there is room again."""

    code = "no_space"


class CannotStart(Exception):
    """The server cannot open: its directory is in use, its database is damaged or newer. Nothing was changed."""
