"""A backend on a virtual clock: no processes, the same contract. For simulation, and for tests of thousands of lives.

The `World` is what outlasts a server: claimed attempts, their ends, their logs. A `SimulatedBackend` is a server's view
of it. A command is `("sim", seconds, code, text)`; with a fifth word "deaf" it ignores every signal but KILL, with
"saves" it has a handler for messages (signals that are no polite end) and leaves with its code at once when one comes.
Time passes only when somebody moves the clock and calls `World.pump`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import count

from rota.adapters.backends import heard
from rota.app.ports import (
    Absent,
    Clock,
    Ended,
    LaunchOrder,
    Live,
    LogChunk,
    Observation,
    Report,
    Started,
    StopOrder,
)
from rota.core.ids import is_attempt_id
from rota.core.run import Cause, Exit

FOR_EVER = 1e12
SIGKILL = 9


@dataclass(slots=True)
class _Life:
    pid: int
    started_tick: float
    ends_at: float
    code: int
    deaf: bool
    log: bytes
    saves: bool = False
    warn_at: float = FOR_EVER  # a warning that it hears
    limit_at: float = FOR_EVER
    alone_until: float = FOR_EVER  # when it ends if nobody ends it
    asked: bool = False  # to end, by a stop
    cause: Cause = Cause.EXITED
    signal: int | None = None
    unheeded: str = ""  # the words for an end that had to be forced
    end: Exit | None = None
    starts: int = 0  # how often the command really began: must never pass 1


@dataclass(slots=True)
class World:
    """The machine: it goes on while servers come and go."""

    clock: Clock
    launch_s: Callable[[], float] = lambda: 0.001  # from the order to the claim
    lives: dict[str, _Life] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)
    deliver: Callable[[Report], None] | None = None  # to the server that is up, if any
    _due: list[tuple[float, int, str]] = field(default_factory=list)
    _orders: dict[str, LaunchOrder] = field(default_factory=dict)
    _numbers: count[int] = field(default_factory=lambda: count(1000))

    def order(self, order: LaunchOrder) -> None:
        self._orders.setdefault(order.attempt_id, order)
        self._at(self.clock.tick() + self.launch_s(), order.attempt_id)

    def pump(self) -> None:
        """Let everything happen that is due by now."""
        while self._due and self._due[0][0] <= self.clock.tick():
            _, _, name = heapq.heappop(self._due)
            life = self.lives.get(name)
            if life is None:
                self._claim(name)
            elif life.end is None and life.ends_at <= self.clock.tick():
                self._finish(name, life)

    def next_due(self) -> float | None:
        return self._due[0][0] if self._due else None

    def veto(self, name: str) -> bool:
        if name in self.lives:
            return False
        end = Exit(Cause.NEVER_STARTED, message="stopped before it was started", ended_tick=self.clock.tick())
        self.lives[name] = _Life(0, 0.0, 0.0, 0, False, b"", end=end)
        self.live.add(name)
        return True

    def stop(self, name: str, order: StopOrder) -> None:
        life = self.lives[name]
        if life.end is not None:
            return
        now = self.clock.tick()
        if now < life.limit_at and not life.asked:
            life.cause, life.signal, life.unheeded = Cause(order.cause), None, ""  # not what the limit would have done
            life.ends_at, life.asked = life.alone_until, True
        elif Cause(order.cause) is Cause.CANCELLED:
            life.cause = Cause.CANCELLED
        heeds = order.signal != SIGKILL and not life.deaf
        ends_at = now if heeds else now + order.grace_s
        if ends_at < life.ends_at:  # else it is over before
            life.ends_at = ends_at
            if not heeds:
                self._force(life, order.signal, order.grace_s)
            else:
                life.signal = None if life.saves and order.signal not in heard.POLITE else order.signal
                if order.saves and not life.saves and Cause(order.cause) is Cause.PREEMPTED:
                    life.unheeded = heard.unsaved(order.signal)
        self._at(life.ends_at, name)

    def _force(self, life: _Life, signal: int, grace_s: float) -> None:
        life.signal = SIGKILL
        if signal != SIGKILL and grace_s > 0:
            life.unheeded = f"it ignored {heard.name(signal)} and was killed after its grace of {grace_s:.3g} s"

    def lose(self, name: str) -> None:
        """Its supervisor is killed: the attempt is dead without a record of its own."""
        life = self.lives.get(name)
        if life is not None and life.end is None:
            life.end = Exit(Cause.LOST, message="its supervisor died", started_tick=life.started_tick)
            self._tell(Ended(name, life.end))

    def reboot(self) -> None:
        """The machine goes down and comes up: whatever lived is dead, orders on their way are gone."""
        self._orders.clear()
        self._due.clear()
        for life in self.lives.values():
            if life.end is None:
                life.end = Exit(Cause.LOST, message="the machine restarted", started_tick=life.started_tick)

    def _claim(self, name: str) -> None:
        order = self._orders.pop(name, None)
        if order is None:
            return
        now = self.clock.tick()
        program, seconds, code, text, *rest = (*order.argv, "", "", "")[:5]
        self.live.add(name)
        if program != "sim":
            message = f"command not found: {program}"
            end = Exit(Cause.LAUNCH_FAILED, code=127, message=message, ended_tick=now)
            self.lives[name] = _Life(0, now, now, 127, False, b"", end=end)
            self._tell(Ended(name, end))
            return
        life = _Life(next(self._numbers), now, now + float(seconds), int(code or 0), "deaf" in rest, text.encode())
        life.saves = "saves" in rest
        life.starts += 1
        self._limit(life, order)
        self.lives[name] = life
        self._tell(Started(name, life.pid))
        self._at(life.ends_at, name)

    def _limit(self, life: _Life, order: LaunchOrder) -> None:
        """How its time limit will end it, unless something else comes before."""
        life.alone_until = life.ends_at
        if order.time_limit_s is None:
            return
        life.limit_at = life.started_tick + order.time_limit_s
        if order.warn_signal and life.saves:
            life.warn_at = max(life.started_tick, life.limit_at - order.warn_s)
            life.ends_at = min(life.ends_at, life.warn_at)
        life.alone_until = life.ends_at
        if life.limit_at < life.ends_at:
            life.cause, life.signal, life.ends_at = Cause.TIME_LIMIT, 15, life.limit_at
            if life.deaf:
                life.ends_at += order.grace_s
                self._force(life, 15, order.grace_s)

    def _finish(self, name: str, life: _Life) -> None:
        now = self.clock.tick()
        life.end = Exit(
            life.cause,
            code=life.code if life.signal is None else None,
            signal=life.signal,
            message=life.unheeded,
            started_tick=life.started_tick,
            ended_tick=now,
            warned=now >= life.warn_at,
            killed=bool(life.unheeded),
        )
        self._tell(Ended(name, life.end))

    def _tell(self, report: Report) -> None:
        if self.deliver is not None:
            self.deliver(report)

    def _at(self, when: float, name: str) -> None:
        if when < FOR_EVER:
            heapq.heappush(self._due, (when, next(self._numbers), name))


class SimulatedBackend:
    def __init__(self, world: World) -> None:
        self._world = world

    def open(self, report: Callable[[Report], None]) -> None:
        self._world.deliver = report

    def launch(self, *orders: LaunchOrder) -> None:
        for order in orders:
            life = self._world.lives.get(_checked(order.attempt_id))
            if life is None:
                self._world.order(order)
            else:
                self._repeat(order.attempt_id, life)

    def stop(self, attempt_id: str, order: StopOrder) -> None:
        if not self._world.veto(_checked(attempt_id)):
            self._world.stop(attempt_id, order)
        self._repeat(attempt_id, self._world.lives[attempt_id])

    def _repeat(self, attempt_id: str, life: _Life) -> None:
        if life.end is not None and self._world.deliver is not None:
            self._world.deliver(Ended(attempt_id, life.end))

    def observe(self, attempt_id: str) -> Observation:
        life = self._world.lives.get(_checked(attempt_id))
        if life is None:
            return Absent()
        return Live(life.pid) if life.end is None else life.end

    def strays(self) -> Collection[str]:
        return sorted(self._world.live)

    def stalled_by(self, attempt_id: str) -> str:
        _checked(attempt_id)
        return ""

    def sweep(self, attempt_id: str, account: str | None) -> None:
        """Nothing lives here without a record."""

    def forget(self, attempt_id: str) -> None:
        self._world.live.discard(_checked(attempt_id))

    def read_log(self, attempt_id: str, offset: int, limit: int) -> LogChunk:
        life = self._world.lives.get(_checked(attempt_id))
        log = b"" if life is None else life.log
        start = max(0, len(log) + offset) if offset < 0 else min(offset, len(log))
        return LogChunk(log[start : start + limit], start, len(log))

    def enforced(self) -> Collection[str] | None:
        return ()

    def purge(self, before: float) -> int:
        """Ended and forgotten ones; the world has no wall clock, so "before" is judged by its own."""
        if before < self._world.clock.now():
            return 0
        old = [
            name for name, life in self._world.lives.items() if life.end is not None and name not in self._world.live
        ]
        for name in old:
            self._world.lives[name].log = b""
        return len(old)

    def close(self) -> None:
        self._world.deliver = None


def _checked(attempt_id: str) -> str:
    if not is_attempt_id(attempt_id):
        raise ValueError(f"not an attempt id: {attempt_id!r}")
    return attempt_id
