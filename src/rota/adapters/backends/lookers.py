"""Processes that look at other accounts' processes for the server.

A process can keep whoever looks at it below /proc waiting: for the lock of its memory, for that of a directory such as
/proc/PID/task, or, when it ends while it is looked at, for reads of its own that are under way (`exit_aio`). Some of
these waits last for as long as an account likes, in a state in which not even SIGKILL ends who waits. So no thread of
the server looks by itself. It asks a looker, a small process that has nothing of the server's open, waits for a bounded
time, and leaves the looker alone where that is over.

What needs no look goes by pidfd, which nobody can delay.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from rota.adapters.backends import looker, procs
from rota.app.ports import Unseen

T = TypeVar("T")
Party = int | str  # an account by its user id, or something else in words
Place = int | str  # a process, or an attempt

WITHIN_S = 2.0
MOST, OF_ONE = 16, 2  # looks at a time, of all and of one party
MOST_LEFT, LEFT_OF_ONE = 64, 4  # lookers that are left alone; with so many no further look begins
SPARE = OF_ONE + 1  # lookers that are kept for the next looks: one party that has its own leaves one to the others
START_S = 60.0  # one that is not ready by then is given up
SOON_S = 0.05
KILLED_S = 1.0  # a stop waits for lookers that were killed; one that waits in the kernel may never end
log = logging.getLogger(__name__)


class _Looker:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                argv = [sys.executable, "-I", "-S", "-X", "utf8", looker.__file__, str(theirs.fileno())]
                mark = os.environ.get(procs.MARKER)  # by which the server's own attempt, if it has one, is known
                self.process = subprocess.Popen(
                    argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,  # who reads the server's would wait for one that cannot be killed
                    cwd="/",
                    env={} if mark is None else {procs.MARKER: mark},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a Ctrl-C at the server's terminal is not meant for it
                )
            except BaseException:
                ours.close()
                raise
        self.link = ours
        self.is_ready, self._made_at = False, time.monotonic()

    def may_be_ready_later(self) -> bool:
        return not self.is_ready and time.monotonic() < self._made_at + START_S

    def ask(self, function: Callable[..., Any], args: tuple[Any, ...], give_up: float) -> None:
        """Raises TimeoutError, or EOFError or another OSError where the looker is gone: it has not begun then."""
        if not self.is_ready:
            if trouble := self._receive(give_up):
                raise EOFError(trouble)
            self.is_ready = True
        self._until(give_up)
        looker.send(self.link, (function, args))

    def answer(self, give_up: float) -> tuple[bool, Any]:
        """Raises TimeoutError, or EOFError or another OSError where the looker is gone."""
        answer: tuple[bool, Any] = self._receive(give_up)
        return answer

    def _receive(self, give_up: float) -> Any:
        def read(size: int) -> bytes:
            self._until(give_up)
            return self.link.recv(size)

        return looker.receive(read)

    def _until(self, give_up: float) -> None:
        self.link.settimeout(max(0.001, give_up - time.monotonic()))

    def end(self) -> None:
        """Kill it, without waiting for its end."""
        self.link.close()
        self.process.kill()


class _Left(NamedTuple):
    party: Party
    place: Place
    looker: _Looker


class Lookers:
    """For any thread. A party is what looks are kept apart by, so that those that do not end cost no other party its
    own: who asks for a look, else the account whose processes are looked at, or the attempt."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Looker] = []
        self._busy: Counter[tuple[Party, str]] = Counter()  # looks under way, by party and kind
        self._left: list[_Left] = []
        self._told: set[Party] = set()  # of which it was said in the log
        self._closed = False

    def prepare(self) -> None:
        """Begin to make a looker, so that the first look finds it ready."""
        try:
            one = _Looker()
        except OSError as error:  # the first look tries again
            log.warning("no process to look at processes can be made: %s", error)
            return
        if not self._keep(one):
            one.end()
            one.process.wait()

    def call(
        self,
        party: Party,
        function: Callable[..., T],
        *args: Any,
        within_s: float = WITHIN_S,
        place: Place = "",
        kind: str = "",
        in_turn: bool = True,
    ) -> T:
        """Return what a function of a module returns that is called with these arguments in a looker. `place`: the
        process, or the attempt, that is looked at, if any; while a look at it does not end no other one begins there.
        Looks of a party of one `kind` take no turns from those of another. Raises Unseen where there is no answer in
        time, or, unless it may wait its turn, where there is no room at once."""
        give_up, turn = time.monotonic() + within_s, (party, kind)
        self._enter(turn, place, give_up if in_turn else 0.0)
        try:
            done, result = self._ask(party, place, function, args, give_up)
        finally:
            self._leave(turn)
        if not done:
            raise result
        found: T = result
        return found

    def close(self) -> None:
        """No call is under way, or its result is of no use to anybody any more."""
        with self._changed:
            self._closed = True
            ended = [*self._idle, *(each.looker for each in self._left)]
            self._idle.clear()
            self._left.clear()
            self._changed.notify_all()
        for each in ended:
            each.end()
        give_up = time.monotonic() + KILLED_S
        for each in ended:
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(max(0.0, give_up - time.monotonic()))

    def _enter(self, turn: tuple[Party, str], place: Place, give_up: float) -> None:
        party = turn[0]
        with self._changed:
            while self._busy[turn] >= OF_ONE or self._busy.total() >= MOST:
                if not self._changed.wait(give_up - time.monotonic()):
                    raise Unseen(f"too many looks at processes are under way for {_named(party)}")
            if self._closed:
                raise Unseen("the server is stopping")
            self._left = [each for each in self._left if each.looker.process.poll() is None]
            of_it = sum(each.party == party for each in self._left)
            if not of_it:
                self._told.discard(party)
            if place and any(each.place == place for each in self._left):
                raise Unseen(f"a look at {_described(place)} does not end")
            if of_it >= LEFT_OF_ONE or len(self._left) >= MOST_LEFT:
                raise Unseen(f"{of_it} of {len(self._left)} looks that do not end are for {_named(party)}")
            self._busy[turn] += 1

    def _leave(self, turn: tuple[Party, str]) -> None:
        with self._changed:
            self._busy[turn] -= 1
            if not self._busy[turn]:
                del self._busy[turn]
            self._changed.notify_all()

    def _ask(
        self, party: Party, place: Place, function: Callable[..., T], args: tuple[Any, ...], give_up: float
    ) -> tuple[bool, Any]:
        while True:
            with self._changed:
                one, is_new = (self._idle.pop(), False) if self._idle else (None, True)
            try:
                one = one or _Looker()
            except OSError as error:
                raise Unseen(f"no process to look at processes can be made: {error.strerror}") from error
            has_begun = False
            try:
                one.ask(function, args, give_up)
                has_begun = True
                answer = one.answer(give_up)
            except TimeoutError:
                # A machine may be so slow. One that was killed for it would be followed by as slow a one.
                if one.may_be_ready_later() and self._keep(one):
                    raise Unseen("a process to look at processes has not started in time") from None
                self._give_up(party, place, one)
                raise Unseen(f"a look for {_named(party)} has not ended in time", has_begun=has_begun) from None
            except (EOFError, OSError) as error:  # somebody killed it
                self._give_up(party, place, one)
                has_begun = has_begun and not isinstance(error, ConnectionResetError)  # that says: it was not read
                if has_begun or is_new:
                    text = f"a process that was to look at processes has ended: {error}"
                    raise Unseen(text, has_begun=has_begun) from error
            except BaseException:
                self._give_up(party, place, one)
                raise
            else:
                self._give_back(one)
                return answer

    def _keep(self, one: _Looker) -> bool:
        """Keep a looker for the next look, those that are ready before the others. False: there are enough."""
        with self._changed:
            if kept := not self._closed and len(self._idle) < SPARE:
                self._idle.insert(len(self._idle) if one.is_ready else 0, one)
        return kept

    def _give_back(self, one: _Looker) -> None:
        if not self._keep(one):
            one.end()
            one.process.wait()

    def _give_up(self, party: Party, place: Place, one: _Looker) -> None:
        one.end()
        with suppress(subprocess.TimeoutExpired):  # most end at once: they were only slow
            one.process.wait(SOON_S)
        with self._changed:
            if one.process.returncode is not None:
                return
            self._left.append(_Left(party, place, one))
            is_first = party not in self._told
            self._told.add(party)
        if is_first:
            log.warning(
                "a look at processes for %s has not ended and is left alone: a process may hold a lock of the kernel "
                "(docs/operations.md, a lock that an account holds)",
                _named(party),
            )


def _named(party: Party) -> str:
    return f"account {party}" if isinstance(party, int) else party


def _described(place: Place) -> str:
    return f"process {place}" if isinstance(place, int) else f"attempt {place}"
