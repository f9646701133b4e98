"""Do long work in threads of its own: one piece at a time for each account (two of urgent work, where that is
allowed), and accounts in turn.

How long a piece takes is up to an account (how many processes it has), so it must delay neither the writer nor the work
of others. After a piece its account rests for as long as the piece took, except before urgent work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

THREADS = 6  # each waits for looks at one account's processes, for some seconds perhaps
RETRY_S = 1.0
CLOSE_S = 5.0
Act = Callable[[], None]
After = Callable[[float, Act], Act]  # (delay_s, act) -> call it off


@dataclass(slots=True)
class _Line:
    """What one account waits for. A piece that waits already is not put in the line again."""

    urgent: OrderedDict[Hashable, Act] = field(default_factory=OrderedDict)
    usual: OrderedDict[Hashable, Act] = field(default_factory=OrderedDict)
    busy: int = 0  # pieces that are being done
    rests_until: float = 0.0

    def wait_s(self, now: float, urgent_beside: bool) -> float | None:
        """How long until its next piece may begin; None: there is none, or one is being done."""
        most = 1 + (urgent_beside and bool(self.urgent))
        if self.busy >= most or not (self.urgent or self.usual):
            return None
        return 0.0 if self.urgent else max(0.0, self.rests_until - now)

    def next(self) -> Act:
        return (self.urgent or self.usual).popitem(last=False)[1]


class Turns:
    """The caller bounds how many keys there are. Where the machine starts no thread, what is put waits until it does:
    `after` calls later."""

    def __init__(self, name: str, after: After, *, urgent_beside: bool = False) -> None:
        self._name, self._after, self._urgent_beside = name, after, urgent_beside
        self._lines: OrderedDict[int, _Line] = OrderedDict()  # the account whose turn was last is last
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._closing = self._short = False  # short: of threads; the next try is due

    def open(self) -> None:
        """Start the threads, before anything is promised. Also called by itself while none could be started."""
        with self._changed:
            self._short = False
            self._start()

    def put(self, account: int, key: Hashable, act: Act, *, urgent: bool = False) -> None:
        with self._changed:
            if self._closing:
                return
            line = self._lines.setdefault(account, _Line())
            (line.urgent if urgent else line.usual).setdefault(key, act)
            if not self._short:
                self._start()
            self._changed.notify()

    def close(self, within_s: float = CLOSE_S) -> None:
        """What waits is not done; what is being done has a while to end."""
        give_up = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            self._lines.clear()
            self._changed.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, give_up - time.monotonic()))

    def _start(self) -> None:
        """Start what is missing of the threads. With the lock held."""
        while len(self._threads) < THREADS and not self._closing:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not self._short:
                    log.warning("a thread could not be started (%s), trying again: %s", self._name, error)
                self._short = True
                self._after(RETRY_S, self.open)
                return
            self._threads.append(thread)

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            account, line, act = taken
            begun = time.monotonic()
            try:
                act()
            except Exception:  # a defect in one piece must not keep the others from their turn
                log.exception("work for account %d could not be done", account)
            with self._changed:
                line.busy, now = line.busy - 1, time.monotonic()
                line.rests_until = max(line.rests_until, now + (now - begun))
                self._changed.notify()

    def _take(self) -> tuple[int, _Line, Act] | None:
        with self._changed:
            while not self._closing:
                now, soonest = time.monotonic(), None
                for account, line in list(self._lines.items()):
                    wait_s = line.wait_s(now, self._urgent_beside)
                    if wait_s == 0.0:
                        line.busy += 1
                        self._lines.move_to_end(account)
                        return account, line, line.next()
                    if wait_s is not None:
                        soonest = wait_s if soonest is None else min(soonest, wait_s)
                    elif not line.busy and line.rests_until <= now:
                        del self._lines[account]
                self._changed.wait(soonest)
            return None
