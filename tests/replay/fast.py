"""A whole server whose clock runs fast: real loop, real store, real processes, and a day that is over in minutes.

Everything the scheduler knows is in the fast clock's seconds: declared times, `min_run_s`, the constants of every
policy, what it learns from runs that ended. So nothing of it has to be scaled, and what it decides can be held against
a simulation second by second. Only at the edges there is real time: the loop's sleep, the jobs' own sleep, and the
ticks at which a supervisor saw its job begin and end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from rota.adapters.backends.local import LocalBackend
from rota.adapters.datadir import open_data_dir
from rota.adapters.store.open import open_store
from rota.app.checkpoint_dirs import CheckpointDirs
from rota.app.dispatch import Site
from rota.app.errors import Unavailable
from rota.app.loop import Loop
from rota.app.newids import NewIds
from rota.app.ports import Ended, LaunchOrder, Observation, Report
from rota.app.service import Service
from rota.core.node import simulated_cluster
from rota.core.run import Exit


class FastClock:
    """Counts from 0. Goes on by CLOCK_BOOTTIME, as the supervisors' ticks do."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._born = time.clock_gettime(time.CLOCK_BOOTTIME)

    def tick(self) -> float:
        return self.of(time.clock_gettime(time.CLOCK_BOOTTIME))

    def of(self, real_tick: float) -> float:
        return (real_tick - self._born) * self.speed

    now = awake = tick

    def boot_id(self) -> str:
        return "fast"

    def sleep_until(self, tick: float) -> None:
        while (left := tick - self.tick()) > 0:
            time.sleep(left / self.speed)


class FastLoop(Loop):
    clock: FastClock

    def _until_next_timer(self) -> float:
        return super()._until_next_timer() / self.clock.speed


class FastBackend(LocalBackend):
    """What its supervisors measured is told in the fast clock's seconds. Time limits are not enforced: the simulation
    does not either, and says why."""

    def __init__(self, data_dir: Path, clock: FastClock) -> None:
        super().__init__(data_dir)
        self._clock = clock

    def open(self, report: Callable[[Report], None]) -> None:
        def retold(news: Report) -> None:
            report(replace(news, exit=self._retimed(news.exit)) if isinstance(news, Ended) else news)

        super().open(retold)

    def launch(self, *orders: LaunchOrder) -> None:
        super().launch(*(replace(order, time_limit_s=None, warn_signal=0) for order in orders))

    def observe(self, attempt_id: str) -> Observation:
        seen = super().observe(attempt_id)
        return self._retimed(seen) if isinstance(seen, Exit) else seen

    def _retimed(self, exit: Exit) -> Exit:
        return replace(exit, started_tick=self._of(exit.started_tick), ended_tick=self._of(exit.ended_tick))

    def _of(self, tick: float | None) -> float | None:
        return None if tick is None else self._clock.of(tick)


@contextmanager
def fast_house(where: Path, speed: float, nodes: int = 2, gpus: int = 8) -> Iterator[tuple[Service, FastClock]]:
    """`where` is a directory of its own. What still runs when it is left is ended."""
    with ExitStack() as stack:
        data_dir = open_data_dir(where)
        stack.callback(data_dir.close)
        store = open_store(where / "rota.db")
        stack.callback(store.close)
        clock = FastClock(speed)
        service: Service
        loop = FastLoop(
            store,
            FastBackend(data_dir.path, clock),
            clock=clock,
            new_id=NewIds(),
            site=Site(CheckpointDirs(str(data_dir.path / "checkpoints"))),
            on_fatal=lambda error: service.abandon(error),  # noqa: PLW0108 - the service is made after the loop
        )
        service = Service(loop)
        stack.callback(service.abandon, Unavailable("it was closed"))
        stack.callback(loop.close)
        loop.open(simulated_cluster(nodes, gpus))
        yield service, clock
