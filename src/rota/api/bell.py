"""Tells those who watch one run that something happened to it, so that they need not keep asking."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rota.app.authz import Principal, Role
from rota.app.errors import Full, Unavailable
from rota.app.service import Service
from rota.core import events as e

MAX_WATCHERS = 2000
MAX_OF_ONE = 100  # by one person who is no admin, with the own agents: each looks at its log a few times a second


class Bell:
    def __init__(self, service: Service) -> None:
        self._watching: dict[str, set[asyncio.Event]] = {}
        self._count = 0
        self._of_caller: Counter[str] = Counter()
        self.closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        service.subscribe(self._hear)

    @contextmanager
    def watch(self, run_id: str, who: Principal) -> Iterator[asyncio.Event]:
        """An event that is set when something happened; whoever waits for it clears it."""
        self.must_have_room(who)
        self._loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        self._watching.setdefault(run_id, set()).add(bell)
        self._count += 1
        self._of_caller[who.owner] += 1
        try:
            yield bell
        finally:
            self._count -= 1
            self._of_caller[who.owner] -= 1
            if not self._of_caller[who.owner]:
                del self._of_caller[who.owner]
            others = self._watching[run_id]
            others.discard(bell)
            if not others:
                del self._watching[run_id]

    def must_have_room(self, who: Principal) -> None:
        """Refuse one more follower of logs where there are too many, of this caller or of all."""
        if self._count >= MAX_WATCHERS:
            raise Unavailable(f"{MAX_WATCHERS} logs are being followed already; try again later")
        if who.role is not Role.ADMIN and self._of_caller[who.owner] >= MAX_OF_ONE:
            raise Full(f"{who.owner} follows {MAX_OF_ONE} logs already; close some before opening more")

    def close(self) -> None:
        """The server stops: who follows a log is sent away, and comes back to the next server where it was."""
        self.closed = True
        self._ring(set(self._watching))

    def _hear(self, first: int, events: Sequence[e.Event]) -> None:
        """On the writer's thread: hand over and return at once."""
        if not self._watching:
            return
        touched = {event.run_id for event in events if isinstance(event, e.RunEvent) and event.run_id in self._watching}
        if touched and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring, touched)

    def _ring(self, run_ids: set[str]) -> None:
        for run_id in run_ids:
            for bell in self._watching.get(run_id, ()):
                bell.set()
