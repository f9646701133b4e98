"""What can go wrong between a client and a server, drawn once:

RotaError
├── Unreachable        nobody answered: refused, timed out, cut off
├── Untrusted          somebody listens there who may not see the token or the run; nothing was sent
├── BadAnswer          somebody answered, but not as a Rota server does
└── Refused            the server said no: status, detail, field
    ├── Unauthorised   401: who are you?
    │   └── Forbidden  403: you may not
    ├── NotFound       404
    ├── Conflict       409
    └── Busy           429, 503 and 507: later perhaps
"""

from __future__ import annotations


class RotaError(Exception):
    """Every error that the client raises. Its text is one line for a person."""


class Unreachable(RotaError):
    """No answer came. `sent` tells whether the request may have reached the server all the same, `denied` that a server
    may be there whose socket this account may not open, `busy` that one is there and takes no connection just now."""

    def __init__(self, message: str, *, sent: bool = False, denied: bool = False, busy: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.denied = denied
        self.busy = busy

    @property
    def next_step(self) -> str:
        if self.busy:
            return "try again in a moment"
        return (
            "use its http:// address (ROTA_URL) with a token (rota login)" if self.denied else "start one with: rota up"
        )


class Untrusted(RotaError):
    """The address is held by an account that neither tokens nor runs are for. Nothing was sent."""


class BadAnswer(RotaError):
    """The answer is no answer of a Rota server."""


class TooLong(BadAnswer):
    """The answer has more bytes than a client reads."""


class Refused(RotaError):
    """The server refused. `field` names the part of the request that was wrong, where the server said which."""

    def __init__(self, status: int, detail: str, field: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(f"{field}: {detail}" if field and not detail.startswith(field) else detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s


class Unauthorised(Refused):
    """No token, or none that the server knows."""


class Forbidden(Unauthorised):
    """Known, but not allowed to do this."""


class NotFound(Refused):
    """There is no such thing."""


class Conflict(Refused):
    """Not in the state it is in now."""


class Busy(Refused):
    """Too much at once, or the server cannot just now. Nothing was done; try again."""


_BY_STATUS: dict[int, type[Refused]] = {
    401: Unauthorised,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: Busy,
    503: Busy,
    507: Busy,
}


def refusal(status: int, body: object, retry_after_s: float | None = None) -> Refused:
    """The error for a status of 400 or more, from whatever the server put into the body."""
    detail, field = _detail(body)
    kind = _BY_STATUS.get(status, Refused)
    return kind(status, detail or f"the server answered {status}", field, retry_after_s)


def _detail(body: object) -> tuple[str, str]:
    if not isinstance(body, dict):
        return "", ""
    detail = body.get("detail", body.get("error", ""))
    field = body.get("field")
    if isinstance(detail, list):  # one entry for each field that is wrong; the first is enough to go on
        first = detail[0] if detail and isinstance(detail[0], dict) else {}
        where = first.get("loc")
        names = (
            [str(part) for part in where if part not in ("body", "query", "path")] if isinstance(where, list) else []
        )
        return _line(first.get("msg", "")), ".".join(names)
    return _line(detail), field if isinstance(field, str) else ""


def _line(text: object) -> str:
    """One line without control characters: what a server says must not steer a terminal either."""
    words = " ".join(str(text).split())[:2000]
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in words)
