"""Ask for GPUs and wait for them, through restarts of the server."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from rota.cli.exits import NOT_AUTHORISED, REFUSED, UNREACHABLE
from rota.cli.lease.door import Door, Exchange
from rota.client.errors import RotaError, Unreachable

SHOWN = 2000  # characters of the command that others get to see
LOOK_S = 1.0  # between two looks at the progress
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
FIRST_TIME_NAMESPACE, FIRST_PID_NAMESPACE = "time:[4026531834]", "pid:[4026531836]"  # of the machine itself
JOB_ID = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"  # ours, and those of other lease servers
GPU = r"(?:[0-9]{1,5}|(?:GPU|MIG)-[0-9A-Fa-f/-]{1,100})"
FULL = (429, 507)  # the queue, the caller's share of it, or the disk: the server refuses for now, and is there
LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Grant:
    """What was given."""

    __slots__ = ("gpus", "job_id")

    def __init__(self, job_id: str, gpus: str) -> None:
        self.job_id = job_id
        self.gpus = gpus  # "0,1"; "" for none


class Failed(Exception):
    """No grant; the exit code and what to say."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Left(BaseException):
    """A signal asked this waiter to go. Not an Exception: nothing on the way may swallow it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Screen(Protocol):
    """Who tells the person at the terminal."""

    def waiting(self, door: Door) -> None:
        """Called about once a second while nothing has been given yet."""

    def lost(self, why: str) -> None: ...
    def back(self) -> None: ...


class _Trouble:
    """Why the server does not take the request, as far as it was said."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._is_said = False
        self._is_outage = False  # a server that refuses for now was there all the time
        self._pause_s = FIRST_PAUSE_S

    def end(self) -> None:
        """Call it when the server has taken the request, and does not refuse it at once."""
        if self._is_outage:
            self._screen.back()
        self._is_said = self._is_outage = False

    def meet(self, why: str, *, is_outage: bool) -> float:
        """Return the seconds until the next try."""
        if not self._is_said or (is_outage and not self._is_outage):
            self._screen.lost(why)
        self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2) if self._is_said else FIRST_PAUSE_S
        self._is_said, self._is_outage = True, self._is_outage or is_outage
        return self._pause_s


def acquire(
    door: Door, gpus: int, screen: Screen, *, timeout_s: float | None = None, name: str = "", argv: Sequence[str] = ()
) -> Grant:
    """Raises Failed, or Left when a signal came while waiting. The key makes each new try the same request. `name` and
    `argv` are for those who look at the queue; a server that does not know them ignores them."""
    body: dict[str, Any] = {"pid": os.getpid(), "num_gpus": gpus}
    body |= {} if (started := _start_ticks()) is None else {"start_ticks": started}
    body |= {"name": name} if name else {}
    body |= {"argv": _shown(argv)} if argv else {}
    headers = {"Idempotency-Key": f"lease-{os.getpid()}-{os.urandom(8).hex()}"}
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    joined = False  # whether the server has ever taken the request
    trouble = _Trouble(screen)
    with _leaving_on_signals():
        while True:
            is_outage = True
            try:
                exchange = Exchange(door, "POST", "/acquire", body, headers)
            except RotaError as error:
                why = str(error)
                if not (joined and isinstance(error, Unreachable)):
                    raise Failed(UNREACHABLE, _with_next_step(error)) from error
            else:
                joined = True
                try:
                    while not exchange.ready(_slice(deadline)):
                        # First: a look that the deadline cut short does not tell whether the request was taken.
                        _out_of_time(deadline)
                        trouble.end()
                        screen.waiting(door)
                    status, value = exchange.answer()
                    if status == 401 and door.show_token():
                        continue
                    if status < 500 and status != 429:
                        return _grant(status, value)
                    why, is_outage = f"the server answered {status}{_said(value)}", status not in FULL
                except Unreachable as error:
                    why = str(error)
                except RotaError as error:
                    raise Failed(UNREACHABLE, f"{door.address}: {error}") from error
                finally:
                    exchange.close()
            pause_s = trouble.meet(why, is_outage=is_outage)
            _out_of_time(deadline)
            time.sleep(pause_s)


def _with_next_step(error: RotaError) -> str:
    return f"{error}; {error.next_step}" if isinstance(error, Unreachable) else str(error)


def _start_ticks() -> int | None:
    """Return when this process started, by which the server knows it from one that has the same number outside a
    container; None = that cannot be told, or would mean another moment there."""
    try:
        with suppress(FileNotFoundError):  # Linux before 5.6
            if os.readlink("/proc/self/ns/time") != FIRST_TIME_NAMESPACE:
                return None  # its clock may be set apart from the machine's
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _is_in_container() -> bool:
    """Return whether process numbers here are not the machine's."""
    try:
        return os.readlink("/proc/self/ns/pid") != FIRST_PID_NAMESPACE
    except OSError:
        return False


def _shown(argv: Sequence[str]) -> list[str]:
    """The beginning of the command: enough to know it by, however long it is."""
    words: list[str] = []
    room = SHOWN
    for word in argv:
        if room <= 0:
            return [*words, "..."]
        words.append(word[:room])
        room -= len(word) + 1
    return words


def _slice(deadline: float | None) -> float:
    return LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())


def _out_of_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() >= deadline:
        raise Failed(REFUSED, "no GPUs within the time; left the queue")


def _grant(status: int, value: Any) -> Grant:
    if status == 200 and isinstance(value, dict) and _looks_like_grant(value):
        return Grant(str(value["job_id"]), value["gpus"])
    said = _said(value)
    if status in (401, 403):
        raise Failed(NOT_AUTHORISED, f"not authorised{said}; set ROTA_TOKEN, or: rota login")
    if said == ": pid not alive" and _is_in_container():
        raise Failed(
            REFUSED,
            "the server cannot see this process: process numbers here are a container's own; start the container with "
            "--pid=host, or use: rota submit",
        )
    if said == ": pid not alive":
        raise Failed(REFUSED, "the server cannot see this process: it runs on another machine; use: rota submit")
    if status >= 400 or said:
        raise Failed(REFUSED, f"refused{said or f' with status {status}'}")
    raise Failed(UNREACHABLE, "the server's answer is no grant of GPUs; is the address that of a lease door?")


def _looks_like_grant(value: dict[str, Any]) -> bool:
    """Both go into variables of the command, and the id into names of files as well."""
    gpus, job_id = value.get("gpus"), value.get("job_id")
    if not isinstance(gpus, str) or isinstance(job_id, bool) or not isinstance(job_id, str | int):
        return False
    return re.fullmatch(JOB_ID, str(job_id)) is not None and re.fullmatch(f"(?:{GPU}(?:,{GPU})*)?", gpus) is not None


def _said(value: Any) -> str:
    """What an error's body says, as one line that cannot steer the terminal."""
    text = value.get("error", value.get("detail", "")) if isinstance(value, dict) else ""
    if isinstance(text, list):
        text = "; ".join(str(item.get("msg", "")) for item in text if isinstance(item, dict))
    line = " ".join(str(text).split())[:500]
    return ": " + "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line) if line else ""


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """A signal that somebody chose to ignore for us (nohup, a background job) stays ignored."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise Left(number)

    before = {}
    for number in LEAVING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(TypeError):  # None: it was not set from Python
                signal.signal(number, handler)
